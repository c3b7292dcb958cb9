#ifndef K3_TEXT_UTF8_HPP
#define K3_TEXT_UTF8_HPP
// UTF-8, by the well-formedness table of the Unicode standard (no overlong forms, no surrogates, nothing above
// U+10FFFF).
//
// Text that comes in must be valid: the official tokenizer takes Python strings, so what it would do with other bytes
// is not defined, and a guess would be a silent change of the prompt. Text that goes out may be cut or wrong anywhere,
// because tokens are bytes: each maximal subpart of a bad sequence becomes one U+FFFD, as in Python's errors='replace'.
// NUL is a character like any other.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>

namespace k3::text {

inline constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD

/// What stands at one place of a byte string.
enum class Utf8 : std::uint8_t {
    scalar,  ///< a whole character
    broken,  ///< bytes that no continuation can save: a maximal subpart
    cut,     ///< the start of a character; the string ends too early
};

struct Utf8Step {
    Utf8 kind;
    std::uint8_t bytes;    // how many bytes this is, at least 1
    std::uint32_t scalar;  // the character, if it is one
};

/// The step at `at`. Requires at < text.size().
inline Utf8Step step_utf8(std::string_view text, std::size_t at) noexcept {
    const auto byte = [&](std::size_t i) {
        return static_cast<std::uint32_t>(static_cast<unsigned char>(text[at + i]));
    };
    const std::uint32_t lead = byte(0);
    if (lead < 0x80) return {Utf8::scalar, 1, lead};
    if (lead < 0xC2 || lead > 0xF4) return {Utf8::broken, 1, 0};
    const std::uint8_t length = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
    // Only the second byte has a range that depends on the lead: it excludes overlong forms, surrogates and > U+10FFFF.
    std::uint32_t low = 0x80, high = 0xBF;
    if (lead == 0xE0) low = 0xA0;
    if (lead == 0xED) high = 0x9F;
    if (lead == 0xF0) low = 0x90;
    if (lead == 0xF4) high = 0x8F;
    std::uint32_t scalar = lead & (0x7Fu >> length);
    for (std::uint8_t i = 1; i < length; ++i) {
        if (at + i == text.size()) return {Utf8::cut, i, 0};
        if (byte(i) < low || byte(i) > high) return {Utf8::broken, i, 0};
        scalar = scalar << 6 | (byte(i) & 0x3F);
        low = 0x80;
        high = 0xBF;
    }
    return {Utf8::scalar, length, scalar};
}

/// Appends `scalar`. Requires a Unicode scalar value.
inline void append_utf8(std::string& out, std::uint32_t scalar) {
    const auto tail = [&](int shift) { out.push_back(static_cast<char>(0x80 | (scalar >> shift & 0x3F))); };
    if (scalar < 0x80) {
        out.push_back(static_cast<char>(scalar));
    } else if (scalar < 0x800) {
        out.push_back(static_cast<char>(0xC0 | scalar >> 6));
        tail(0);
    } else if (scalar < 0x10000) {
        out.push_back(static_cast<char>(0xE0 | scalar >> 12));
        tail(6);
        tail(0);
    } else {
        out.push_back(static_cast<char>(0xF0 | scalar >> 18));
        tail(12);
        tail(6);
        tail(0);
    }
}

/// The offset of the first byte that does not belong to a whole character, if any.
inline std::optional<std::size_t> find_invalid_utf8(std::string_view text) noexcept {
    for (std::size_t at = 0; at < text.size();) {
        std::uint64_t block;
        if (text.size() - at >= sizeof block) {  // eight ASCII bytes at once
            std::memcpy(&block, text.data() + at, sizeof block);
            if ((block & 0x8080808080808080u) == 0) {
                at += sizeof block;
                continue;
            }
        }
        const Utf8Step step = step_utf8(text, at);
        if (step.kind != Utf8::scalar) return at;
        at += step.bytes;
    }
    return std::nullopt;
}

/// Always valid UTF-8: every maximal subpart of a bad sequence, also a cut one at the end, becomes one U+FFFD.
inline std::string replace_invalid_utf8(std::string_view bytes) {
    std::string text;
    text.reserve(bytes.size());
    for (std::size_t at = 0; at < bytes.size();) {
        const Utf8Step step = step_utf8(bytes, at);
        text.append(step.kind == Utf8::scalar ? bytes.substr(at, step.bytes) : kReplacement);
        at += step.bytes;
    }
    return text;
}

}  // namespace k3::text
#endif
