#ifndef K3_TEXT_LONG_INPUT_HPP
#define K3_TEXT_LONG_INPUT_HPP
// The official cuts of long inputs. They are token boundaries, so they are part of the tokenizer's definition: first
// every 400,000 code points; then, inside each block, before the 25,001st code point of a run of whitespace or of
// non-whitespace (counting starts again after a cut). Whitespace here is Python's str.isspace, not the pattern's \s: it
// has four more characters, U+001C to U+001F.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "k3/text/utf8.hpp"

namespace k3::text {

struct CutLimits {
    std::size_t block = 400'000;  // code points
    std::size_t run = 25'000;     // code points of one kind, whitespace or not
};

/// Python's str.isspace of one character: 29 of them.
constexpr bool is_python_space(std::uint32_t scalar) noexcept {
    return (scalar >= 0x09 && scalar <= 0x0D) || (scalar >= 0x1C && scalar <= 0x20) || scalar == 0x85 ||
           scalar == 0xA0 || scalar == 0x1680 || (scalar >= 0x2000 && scalar <= 0x200A) || scalar == 0x2028 ||
           scalar == 0x2029 || scalar == 0x202F || scalar == 0x205F || scalar == 0x3000;
}

/// Calls use(part) for each part, in order; never for an empty text. Requires valid UTF-8 and limits of at least 1.
template <class Use>
void for_each_cut(std::string_view text, const CutLimits& limits, Use&& use) {
    if (text.empty()) return;
    if (text.size() <= std::min(limits.block, limits.run)) return use(text);  // no more code points than bytes
    std::size_t begin = 0, in_block = 0, in_run = 0;
    bool space = false;
    for (std::size_t at = 0; at < text.size();) {
        const Utf8Step step = step_utf8(text, at);
        const bool is_space = is_python_space(step.scalar);
        const bool block_ends = in_block == limits.block;
        if (block_ends) in_block = in_run = 0;
        if (is_space != space) in_run = 0;
        const bool run_ends = in_run == limits.run;
        if (run_ends) in_run = 0;
        if (block_ends || run_ends) {
            use(text.substr(begin, at - begin));
            begin = at;
        }
        space = is_space;
        ++in_block;
        ++in_run;
        at += step.bytes;
    }
    if (begin < text.size()) use(text.substr(begin));
}

}  // namespace k3::text
#endif
