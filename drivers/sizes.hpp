#ifndef K3_DRIVERS_SIZES_HPP
#define K3_DRIVERS_SIZES_HPP
// Numbers and sizes as a user writes them, and how they are written back. Whole strings only: "8x" or "1e3" is refused,
// never read as its beginning.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>

#include "k3/core/error.hpp"
#include "k3/text/utf8.hpp"

namespace k3::drivers {

/// What a user wrote, fit for one line of an error: no control characters, valid UTF-8, cut where it gets long.
inline std::string in_quotes(std::string_view text) {
    constexpr std::size_t kLongest = 60;
    std::string shown;
    for (const char c : text.substr(0, kLongest)) {
        const auto byte = static_cast<unsigned char>(c);
        if (byte >= 0x20 && byte != 0x7f) {
            shown += c;
        } else {
            char escape[8];
            std::snprintf(escape, sizeof escape, "\\x%02x", byte);
            shown += escape;
        }
    }
    return "'" + text::replace_invalid_utf8(shown) + (text.size() > kLongest ? "...'" : "'");
}

/// A whole number in [least, most]. Errors: Code::usage naming the option and the range.
inline std::uint64_t parse_count(const char* option, std::string_view text, std::uint64_t least, std::uint64_t most) {
    std::uint64_t value = 0;
    const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (failure != std::errc{} || end != text.data() + text.size() || value < least || value > most) {
        throw Error(Code::usage, std::string(option) + ": " + in_quotes(text) + " is not a number it takes",
                    "give a whole number from " + std::to_string(least) + " to " + std::to_string(most));
    }
    return value;
}

/// Bytes of a size like 8G, 8GB (10^9), 8GiB, 8Gi (2^30), 8000M, 1.5T. A bare number counts in `bare_unit` bytes, or is
/// refused if that is 0: nobody can tell whether "--memory 8" means bytes or gigabytes.
inline std::uint64_t parse_size(const char* option, std::string_view text, std::uint64_t bare_unit) {
    const auto refuse = [&](const std::string& what) {
        throw Error(Code::usage, std::string(option) + ": " + in_quotes(text) + what,
                    "write a size like 8G (10^9 bytes), 8GiB (2^30 bytes) or 8000M");
    };
    const std::size_t digits = std::min(text.find_first_not_of("0123456789."), text.size());
    double number = 0;
    const auto [end, failure] = std::from_chars(text.data(), text.data() + digits, number);
    if (digits == 0 || failure != std::errc{} || end != text.data() + digits) refuse(" is not a size");
    std::string unit(text.substr(digits));
    for (char& c : unit) c = c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
    double scale = static_cast<double>(bare_unit);
    if (!unit.empty()) {
        const std::size_t power = std::string_view("KMGT").find(unit[0]);
        const std::string_view rest = std::string_view(unit).substr(1);
        if (power == std::string_view::npos || (rest != "" && rest != "B" && rest != "I" && rest != "IB")) {
            refuse(" has a unit that is not known");
        }
        scale = std::pow(rest.substr(0, 1) == "I" ? 1024.0 : 1000.0, static_cast<double>(power + 1));
    } else if (bare_unit == 0) {
        refuse(" has no unit");
    }
    if (number * scale > 1e15) refuse(" is more memory than any machine has");
    return static_cast<std::uint64_t>(number * scale);
}

/// 17547264 -> "17.5 MB"
inline std::string show_bytes(std::uint64_t bytes) {
    static constexpr const char* kUnits[] = {"bytes", "kB", "MB", "GB", "TB"};
    double value = static_cast<double>(bytes);
    std::size_t unit = 0;
    for (; value >= 1000 && unit + 1 < std::size(kUnits); ++unit) value /= 1000;
    char text[40];
    std::snprintf(text, sizeof text, unit == 0 ? "%.0f %s" : value < 100 ? "%.2f %s" : "%.0f %s", value, kUnits[unit]);
    return text;
}

/// 75 -> "1 min 15 s"
inline std::string show_seconds(double seconds) {
    char text[48];
    if (!(seconds < 360000)) return "days";
    if (seconds < 60) {
        std::snprintf(text, sizeof text, seconds < 1 ? "%.3f s" : "%.1f s", seconds);
    } else if (seconds < 3600) {
        std::snprintf(text, sizeof text, "%d min %d s", static_cast<int>(seconds) / 60, static_cast<int>(seconds) % 60);
    } else {
        std::snprintf(text, sizeof text, "%d h %d min", static_cast<int>(seconds) / 3600,
                      static_cast<int>(seconds) / 60 % 60);
    }
    return text;
}

}  // namespace k3::drivers
#endif
