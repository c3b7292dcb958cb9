#ifndef K3_TEXT_DETAIL_ASCII_PIECE_HPP
#define K3_TEXT_DETAIL_ASCII_PIECE_HPP
// The released pattern for pieces that can be told from ASCII characters alone, which in most text are most of them. A
// short cut and nothing else: where another character could have a say, the answer is 0 and the pattern itself decides
// (pre_tokenizer.hpp). In terms of the pattern, ASCII has
//   upper A-Z (the first class of a word), lower a-z (the second), digits, line ends CR and LF,
//   other whitespace (space, U+0009, U+000B, U+000C), and signs: all the rest, control characters too.
#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace k3::text::detail {

enum class Ascii : std::uint8_t { upper, lower, digit, line_end, space, sign, other };  // other: a byte from 0x80 on

inline constexpr auto kAsciiKind = [] {
    std::array<Ascii, 256> kind{};
    for (std::size_t c = 0; c < 256; ++c) {
        kind[c] = c >= 0x80                                         ? Ascii::other
                  : c >= 'A' && c <= 'Z'                            ? Ascii::upper
                  : c >= 'a' && c <= 'z'                            ? Ascii::lower
                  : c >= '0' && c <= '9'                            ? Ascii::digit
                  : c == '\r' || c == '\n'                          ? Ascii::line_end
                  : c == ' ' || c == '\t' || c == '\v' || c == '\f' ? Ascii::space
                                                                    : Ascii::sign;
    }
    return kind;
}();

/// A piece's characters from left to right.
class AsciiPiece {
  public:
    /// The end of the piece of `text` that begins at `at`, or 0 if the pattern has to find it. Requires at < size.
    static std::size_t end(std::string_view text, std::size_t at) noexcept { return AsciiPiece(text).piece(at); }

  private:
    static constexpr std::size_t kUnknown = 0;

    explicit AsciiPiece(std::string_view text) noexcept : text_(text) {}

    /// What stands at i; the end of the text ends every run, as a sign or a letter of another kind would.
    Ascii kind(std::size_t i) const noexcept { return kAsciiKind[static_cast<unsigned char>(text_[i])]; }
    bool is(Ascii wanted, std::size_t i) const noexcept { return i < text_.size() && kind(i) == wanted; }
    bool is_letter(std::size_t i) const noexcept { return is(Ascii::upper, i) || is(Ascii::lower, i); }
    std::size_t skip(Ascii wanted, std::size_t i) const noexcept {
        while (is(wanted, i)) ++i;
        return i;
    }

    std::size_t piece(std::size_t at) const noexcept {
        switch (kind(at)) {
            case Ascii::upper:
            case Ascii::lower: return word(at);
            case Ascii::digit: return number(at);
            case Ascii::sign:
                if (is_letter(at + 1)) return word(at + 1);
                return signs(at);
            case Ascii::space:
                if (is_letter(at + 1)) return word(at + 1);
                if (text_[at] == ' ' && is(Ascii::sign, at + 1)) return signs(at + 1);
                return whitespace(at);
            case Ascii::line_end: return whitespace(at);
            case Ascii::other: break;
        }
        return kUnknown;
    }

    /// Upper then lower letters, either may be missing; then a contraction. Backing off finds nothing else here: no
    /// ASCII letter is in both classes.
    std::size_t word(std::size_t letters) const noexcept {
        const std::size_t end = skip(Ascii::lower, skip(Ascii::upper, letters));
        if (is(Ascii::other, end)) return kUnknown;  // perhaps a letter or a mark
        if (end == text_.size() || text_[end] != '\'') return end;
        if (is(Ascii::other, end + 1)) return kUnknown;  // U+017F counts as s
        const char first = lowered(end + 1), second = lowered(end + 2);
        if (first == 's' || first == 't' || first == 'm' || first == 'd') return end + 2;
        const bool two = ((first == 'r' || first == 'v') && second == 'e') || (first == 'l' && second == 'l');
        return two ? end + 3 : end;
    }
    char lowered(std::size_t i) const noexcept {
        return i < text_.size() ? static_cast<char>(text_[i] | (kind(i) == Ascii::upper ? 0x20 : 0)) : '\0';
    }

    std::size_t number(std::size_t at) const noexcept {
        std::size_t end = at + 1;
        while (end < at + 3 && is(Ascii::digit, end)) ++end;
        return end < at + 3 && is(Ascii::other, end) ? kUnknown : end;
    }

    /// Signs, then line ends.
    std::size_t signs(std::size_t at) const noexcept {
        const std::size_t end = skip(Ascii::sign, at);
        return is(Ascii::other, end) ? kUnknown : skip(Ascii::line_end, end);
    }

    /// Through the last line end of the run; else all of it at the end of the text; else all but one, if there are
    /// more.
    std::size_t whitespace(std::size_t at) const noexcept {
        std::size_t end = at, after_line = 0;
        for (; is(Ascii::space, end) || is(Ascii::line_end, end); ++end)
            if (kind(end) == Ascii::line_end) after_line = end + 1;
        if (is(Ascii::other, end)) return kUnknown;  // perhaps more whitespace
        if (after_line != 0) return after_line;
        return end == text_.size() || end == at + 1 ? end : end - 1;
    }

    std::string_view text_;
};

}  // namespace k3::text::detail
#endif
