#ifndef K3_DRIVERS_TEXT_INPUT_HPP
#define K3_DRIVERS_TEXT_INPUT_HPP
// Token ids and texts as a user hands them to a driver. Nothing is read as its beginning: a list with junk is refused.
#include <cerrno>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "drivers/sizes.hpp"
#include "k3/core/error.hpp"

namespace k3::drivers {

using Ids = std::vector<std::int32_t>;

/// One comma, or white space, or one comma with white space around it, between two ids; nothing else anywhere.
inline Ids parse_ids(const char* option, std::string_view list, std::size_t vocab) {
    const auto refuse = [&](const std::string& what, const std::string& next = "write ids like 1,2,3") {
        throw Error(Code::usage, option + (": " + what), next);
    };
    const auto blank = [](char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; };
    std::size_t at = 0;
    const auto skip_blanks = [&] {
        while (at < list.size() && blank(list[at])) ++at;
    };
    Ids ids;
    bool comma = false;  // a comma was seen and its right-hand id is owed
    for (skip_blanks(); at < list.size(); skip_blanks()) {
        if (list[at] == ',') {
            if (ids.empty() || comma) {
                refuse("a number is missing before the comma at character " + std::to_string(at + 1));
            }
            comma = true;
            ++at;
            continue;
        }
        std::size_t end = at;
        while (end < list.size() && !blank(list[end]) && list[end] != ',') ++end;
        const std::string_view word = list.substr(at, end - at);
        const std::size_t digits = word.find_first_not_of("0123456789", word[0] == '-' ? 1 : 0);
        if (digits != std::string_view::npos || word == "-") {
            refuse(in_quotes(word) + " is not a token id");
        }
        std::uint64_t id = 0;  // a number too long for it is out of range anyway
        const auto [stop, failure] = std::from_chars(word.data(), word.data() + word.size(), id);
        if (failure != std::errc{} || stop != word.data() + word.size() || id >= vocab) {
            refuse("id " + std::string(word.substr(0, 40)) + " is not in the vocabulary of " + std::to_string(vocab),
                   "ids go from 0 to " + std::to_string(vocab - 1));
        }
        ids.push_back(static_cast<std::int32_t>(id));
        comma = false;
        at = end;
    }
    if (comma) refuse("a number is missing after the last comma");
    return ids;
}

/// A whole file or standard input, also where the path is a pipe.
inline std::string read_text(const char* option, const std::string& path) {
    constexpr std::size_t kLimit = std::size_t{1} << 30;
    const bool standard_input = path == "-";
    const auto fail = [&](const std::string& what, const char* next) {
        throw Error(Code::usage, option + (": " + what), next, {.path = standard_input ? "standard input" : path});
    };
    std::unique_ptr<std::FILE, int (*)(std::FILE*)> owned(nullptr, [](std::FILE* file) { return std::fclose(file); });
    if (!standard_input) {
        owned.reset(std::fopen(path.c_str(), "rb"));
        if (!owned) fail(std::string("cannot be opened: ") + std::strerror(errno), "check the path");
    }
    std::FILE* file = standard_input ? stdin : owned.get();
    std::string text;
    char piece[1 << 16];
    for (std::size_t got; (got = std::fread(piece, 1, sizeof piece, file)) > 0;) {
        text.append(piece, got);
        if (text.size() > kLimit) fail("has more than 2^30 bytes", "give a shorter text");
    }
    if (std::ferror(file) != 0) fail(std::string("cannot be read: ") + std::strerror(errno), "give a text file");
    return text;
}

}  // namespace k3::drivers
#endif
