#ifndef K3_TEXT_UNICODE_PIN_HPP
#define K3_TEXT_UNICODE_PIN_HPP
// Keeps token ids independent of the installed PCRE2. The pattern asks for Unicode categories and those grow with each
// version of Unicode: PCRE2 10.42 has version 14, later ones 15 to 17, the official tokenizer (tiktoken 1.0.22,
// measured over every scalar value) has 16. A character whose class differs between 14, 16 and 17 is matched as a
// stand-in: a character of the same UTF-8 length which has had, since long before 14, the class it has in version 16.
//
// Without this, 9,485 characters would be cut otherwise under PCRE2 10.42 (4,815 of them Han, extensions H and I),
// and others under newer ones. tests/text/test_pre_tokenizer.cpp compares every scalar value with tiktoken.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "k3/text/utf8.hpp"

namespace k3::text::detail {

/// As far as the pattern can tell characters apart. letter: Lm or Lo, not Han.
enum class Class : std::uint8_t { upper, lower, letter, mark, number, han, other };

struct Moved {
    std::uint32_t first, last;
    Class now;  // in Unicode 16
};

// clang-format off
inline constexpr Moved kMoved[] = {
    {0x295, 0x295, Class::lower}, {0x88f, 0x88f, Class::other}, {0x897, 0x897, Class::mark},
    {0xc5c, 0xc5c, Class::other}, {0xcdc, 0xcdc, Class::other}, {0xcf3, 0xcf3, Class::mark},
    {0xece, 0xece, Class::mark}, {0x1acf, 0x1add, Class::other}, {0x1ae0, 0x1aeb, Class::other},
    {0x1c89, 0x1c89, Class::upper}, {0x1c8a, 0x1c8a, Class::lower}, {0xa7cb, 0xa7cc, Class::upper},
    {0xa7cd, 0xa7cd, Class::lower}, {0xa7ce, 0xa7cf, Class::other}, {0xa7d2, 0xa7d2, Class::other},
    {0xa7d4, 0xa7d4, Class::other}, {0xa7da, 0xa7da, Class::upper}, {0xa7db, 0xa7db, Class::lower},
    {0xa7dc, 0xa7dc, Class::upper}, {0xa7f1, 0xa7f1, Class::other}, {0x105c0, 0x105f3, Class::letter},
    {0x10940, 0x10959, Class::other}, {0x10d40, 0x10d49, Class::number}, {0x10d4a, 0x10d4f, Class::letter},
    {0x10d50, 0x10d65, Class::upper}, {0x10d69, 0x10d6d, Class::mark}, {0x10d6f, 0x10d6f, Class::letter},
    {0x10d70, 0x10d85, Class::lower}, {0x10ec2, 0x10ec4, Class::letter}, {0x10ec5, 0x10ec7, Class::other},
    {0x10efa, 0x10efb, Class::other}, {0x10efc, 0x10eff, Class::mark}, {0x1123f, 0x11240, Class::letter},
    {0x11241, 0x11241, Class::mark}, {0x11380, 0x11389, Class::letter}, {0x1138b, 0x1138b, Class::letter},
    {0x1138e, 0x1138e, Class::letter}, {0x11390, 0x113b5, Class::letter}, {0x113b7, 0x113b7, Class::letter},
    {0x113b8, 0x113c0, Class::mark}, {0x113c2, 0x113c2, Class::mark}, {0x113c5, 0x113c5, Class::mark},
    {0x113c7, 0x113ca, Class::mark}, {0x113cc, 0x113d0, Class::mark}, {0x113d1, 0x113d1, Class::letter},
    {0x113d2, 0x113d2, Class::mark}, {0x113d3, 0x113d3, Class::letter}, {0x113e1, 0x113e2, Class::mark},
    {0x116d0, 0x116e3, Class::number}, {0x11b60, 0x11b67, Class::other}, {0x11bc0, 0x11be0, Class::letter},
    {0x11bf0, 0x11bf9, Class::number}, {0x11db0, 0x11ddb, Class::other}, {0x11de0, 0x11de9, Class::other},
    {0x11f00, 0x11f01, Class::mark}, {0x11f02, 0x11f02, Class::letter}, {0x11f03, 0x11f03, Class::mark},
    {0x11f04, 0x11f10, Class::letter}, {0x11f12, 0x11f33, Class::letter}, {0x11f34, 0x11f3a, Class::mark},
    {0x11f3e, 0x11f42, Class::mark}, {0x11f50, 0x11f59, Class::number}, {0x11f5a, 0x11f5a, Class::mark},
    {0x1342f, 0x1342f, Class::letter}, {0x13440, 0x13440, Class::mark}, {0x13441, 0x13446, Class::letter},
    {0x13447, 0x13455, Class::mark}, {0x13460, 0x143fa, Class::letter}, {0x16100, 0x1611d, Class::letter},
    {0x1611e, 0x1612f, Class::mark}, {0x16130, 0x16139, Class::number}, {0x16d40, 0x16d6c, Class::letter},
    {0x16d70, 0x16d79, Class::number}, {0x16ea0, 0x16eb8, Class::other}, {0x16ebb, 0x16ed3, Class::other},
    {0x16ff2, 0x16ff6, Class::other}, {0x187f8, 0x187ff, Class::other}, {0x18cff, 0x18cff, Class::letter},
    {0x18d09, 0x18d1e, Class::other}, {0x18d80, 0x18df2, Class::other}, {0x1b132, 0x1b132, Class::letter},
    {0x1b155, 0x1b155, Class::letter}, {0x1ccf0, 0x1ccf9, Class::number}, {0x1d2c0, 0x1d2d3, Class::number},
    {0x1df25, 0x1df2a, Class::lower}, {0x1e030, 0x1e06d, Class::letter}, {0x1e08f, 0x1e08f, Class::mark},
    {0x1e4d0, 0x1e4eb, Class::letter}, {0x1e4ec, 0x1e4ef, Class::mark}, {0x1e4f0, 0x1e4f9, Class::number},
    {0x1e5d0, 0x1e5ed, Class::letter}, {0x1e5ee, 0x1e5ef, Class::mark}, {0x1e5f0, 0x1e5f0, Class::letter},
    {0x1e5f1, 0x1e5fa, Class::number}, {0x1e6c0, 0x1e6de, Class::other}, {0x1e6e0, 0x1e6f5, Class::other},
    {0x1e6fe, 0x1e6ff, Class::other}, {0x2b739, 0x2b739, Class::han}, {0x2b73a, 0x2b73f, Class::other},
    {0x2cea2, 0x2cead, Class::other}, {0x2ebf0, 0x2ee5d, Class::han}, {0x31350, 0x323af, Class::han},
    {0x323b0, 0x33479, Class::other},
};
// clang-format on

/// A character of class `c` that takes `bytes` bytes (2, 3 or 4), assigned before Unicode 6; U+FFFF and U+10FFFF never
/// will be.
constexpr std::uint32_t stand_in(Class c, std::size_t bytes) noexcept {
    switch (c) {
        case Class::upper: return bytes == 2 ? 0xC0 : bytes == 3 ? 0x1E00 : 0x10400;
        case Class::lower: return bytes == 2 ? 0xDF : bytes == 3 ? 0x1E01 : 0x10428;
        case Class::letter: return bytes == 2 ? 0x5D0 : bytes == 3 ? 0x3042 : 0x10000;
        case Class::mark: return bytes == 2 ? 0x300 : bytes == 3 ? 0x20D0 : 0x1D165;
        case Class::number: return bytes == 2 ? 0x660 : bytes == 3 ? 0x966 : 0x10107;
        case Class::han: return bytes == 3 ? 0x4E00 : 0x20000;  // Han has no two-byte characters
        case Class::other: break;
    }
    return bytes == 2 ? 0xA7 : bytes == 3 ? 0xFFFF : 0x10FFFF;
}

/// The entry that holds `scalar`, or nullptr.
inline const Moved* find_moved(std::uint32_t scalar) noexcept {
    const Moved* at = std::lower_bound(std::begin(kMoved), std::end(kMoved), scalar,
                                       [](const Moved& range, std::uint32_t s) { return range.last < s; });
    return at != std::end(kMoved) && at->first <= scalar ? at : nullptr;
}

/// The first bytes that a moved character can have. Most text has none of them, and is then only looked at once.
inline constexpr auto kMovedLead = [] {
    std::array<bool, 256> lead{};
    const auto lead_of = [](std::uint32_t s) {
        return s < 0x800 ? 0xC0 | s >> 6 : s < 0x10000 ? 0xE0 | s >> 12 : 0xF0 | s >> 18;
    };
    for (const Moved& range : kMoved) {
        for (std::uint32_t byte = lead_of(range.first); byte <= lead_of(range.last); ++byte) lead[byte] = true;
    }
    return lead;
}();

/// `text` with stand-ins: the same length and the same character boundaries. Returns `text` itself if nothing moved,
/// else a view of `copy`. Requires valid UTF-8.
inline std::string_view pin_unicode(std::string_view text, std::string& copy) {
    bool copied = false;
    for (std::size_t at = 0; at < text.size(); ++at) {
        if (!kMovedLead[static_cast<unsigned char>(text[at])]) continue;  // continuation bytes are never marked
        const Utf8Step step = step_utf8(text, at);
        const Moved* moved = find_moved(step.scalar);
        if (!moved) continue;
        if (!copied) copy.assign(text);
        copied = true;
        std::string other;
        append_utf8(other, stand_in(moved->now, step.bytes));
        copy.replace(at, step.bytes, other);
    }
    return copied ? std::string_view(copy) : text;
}

}  // namespace k3::text::detail
#endif
