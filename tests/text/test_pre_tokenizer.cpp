#include "k3/text/pre_tokenizer.hpp"

#include <string>
#include <vector>

#include "k3/text/utf8.hpp"
#include "support/doctest.hpp"
#include "text/data.hpp"

using namespace k3::test;
using namespace k3::text;

namespace {

std::vector<std::string> pieces(std::string_view text) {
    static const PreTokenizer tokenizer;
    PreTokenizer::Scratch scratch(tokenizer);
    std::vector<std::string> all;
    tokenizer.split(text, scratch, [&](std::string_view piece) { all.emplace_back(piece); });
    return all;
}

using Pieces = std::vector<std::string>;

std::string in_template(std::string pattern, std::string_view scalar) {
    for (std::size_t at = 0; (at = pattern.find('\x01', at)) != std::string::npos; at += scalar.size()) {
        pattern.replace(at, 1, scalar);
    }
    return pattern;
}

std::size_t count_scalars(std::string_view text) {
    std::size_t count = 0;
    for (std::size_t at = 0; at < text.size(); at += step_utf8(text, at).bytes) ++count;
    return count;
}

}  // namespace

TEST_CASE("text/pre_tokenizer: Han runs stand alone (trap 66: no Han branch, or Han inside word branches)") {
    CHECK(pieces("abc漢字def") == Pieces{"abc", "漢字", "def"});
    CHECK(pieces("漢123字") == Pieces{"漢", "123", "字"});
    CHECK(pieces("カタカナ漢字ひらがな") == Pieces{"カタカナ", "漢字", "ひらがな"});
    CHECK(pieces("漢 字") == Pieces{"漢", " ", "字"});    // no prefix of a Han run
    CHECK(pieces("〇々⺀") == Pieces{"〇々⺀"});          // the script, not the letters: a number, a sign, a radical
    CHECK(pieces("漢、字") == Pieces{"漢", "、", "字"});  // U+3001 has Han among its script extensions only
    CHECK(pieces("ー世") == Pieces{"ー", "世"});          // U+30FC too: an ordinary letter
    CHECK(pieces("世's") == Pieces{"世", "'s"});
}

TEST_CASE("text/pre_tokenizer: words, prefixes and contractions; long s counts as s (kills: ASCII case folding)") {
    CHECK(pieces("CamelCase HTTPServer") == Pieces{"Camel", "Case", " HTTPServer"});
    CHECK(pieces("aB Ab abC") == Pieces{"a", "B", " Ab", " ab", "C"});
    CHECK(pieces("I'M we're they'LL") == Pieces{"I'M", " we're", " they'LL"});
    CHECK(pieces("it'ſ") == Pieces{"it'ſ"});
    CHECK(pieces("a'x") == Pieces{"a", "'x"});
    CHECK(pieces("a\tb\n!c") == Pieces{"a", "\tb", "\n", "!c"});
    CHECK(pieces("e\xCC\x81"
                 "E\xCC\x81") == Pieces{"e\xCC\x81", "E\xCC\x81"});
    CHECK(pieces("한국어 हिन्दी") == Pieces{"한국어", " हिन्दी"});
    CHECK(pieces("1234567") == Pieces{"123", "456", "7"});
}

TEST_CASE("text/pre_tokenizer: Unicode classes (trap 67: isspace or ASCII classes)") {
    CHECK(pieces("a\xC2\xA0"
                 "b") == Pieces{"a",
                                "\xC2\xA0"
                                "b"});
    CHECK(pieces("x\u3000\u3000y") == Pieces{"x", "\u3000", "\u3000y"});
    CHECK(pieces("\u2028\u2028") == Pieces{"\u2028\u2028"});
    CHECK(pieces("\U00010400\U00010428") == Pieces{"\U00010400\U00010428"});  // Deseret: letters beyond the BMP
    CHECK(pieces("١٢٣٤") == Pieces{"١٢٣", "٤"});
    CHECK(pieces("\xC2\x85\xC2\x85!") == Pieces{"\xC2\x85", "\xC2\x85", "!"});  // U+0085 is White_Space ...
    CHECK(pieces("\x1C\x1C!") == Pieces{"\x1C\x1C!"});                          // ... U+001C is not,
    CHECK(pieces("\u180E\u180E!") == Pieces{"\u180E\u180E!"});                  // nor U+180E, which PCRE2's \s holds
}

TEST_CASE(
    "text/pre_tokenizer: whitespace goes to the last line end, or leaves one before a word, or takes all at the end") {
    CHECK(pieces("a \n \n  b") == Pieces{"a", " \n \n", " ", " b"});
    CHECK(pieces("a   b") == Pieces{"a", "  ", " b"});
    CHECK(pieces("a   ") == Pieces{"a", "   "});
    CHECK(pieces("a  1") == Pieces{"a", " ", " ", "1"});
    CHECK(pieces("!!\r\n\r\nx") == Pieces{"!!\r\n\r\n", "x"});
    CHECK(pieces("") == Pieces{});
    CHECK(pieces(std::string_view("a\0\0b", 4)) == Pieces{"a", std::string("\0\0", 2), "b"});
}

TEST_CASE("text/pre_tokenizer: 3,442 strings are cut as tiktoken cuts them") {
    const auto& rows = golden()["strings"];
    REQUIRE(rows.size() > 3000);
    for (const auto& row : rows) {
        std::vector<std::size_t> lengths;
        for (const std::string& piece : pieces(row[0].get<std::string>())) lengths.push_back(piece.size());
        if (lengths != row[2].get<std::vector<std::size_t>>()) FAIL_CHECK(row[0]);
    }
}

TEST_CASE(
    "text/pre_tokenizer: every scalar value is cut as tiktoken cuts it, in ten templates (kills: another Unicode "
    "version)") {
    const PreTokenizer tokenizer;
    PreTokenizer::Scratch scratch(tokenizer);
    const auto templates = golden()["templates"].get<std::vector<std::string>>();
    const auto signatures = golden()["signatures"].get<std::vector<std::string>>();
    const auto runs = golden()["runs"].get<std::vector<std::pair<std::uint32_t, std::size_t>>>();
    std::size_t run = 0, checked = 0, wrong = 0;
    for (std::uint32_t scalar = 0; scalar < 0x110000; ++scalar) {
        const std::uint32_t plane = scalar >> 16;
        if (scalar >= 0xD800 && scalar < 0xE000) continue;
        if (((plane >= 4 && plane <= 13) || plane >= 15) && scalar % 257 != 0) continue;  // unassigned and private
        while (run + 1 < runs.size() && runs[run + 1].first <= scalar) ++run;
        std::string bytes, got;
        append_utf8(bytes, scalar);
        for (const std::string& pattern : templates) {
            const std::string text = in_template(pattern, bytes);
            if (!got.empty()) got += ' ';
            tokenizer.split(text, scratch,
                            [&](std::string_view piece) { got += std::to_string(count_scalars(piece)); });
        }
        ++checked;
        if (got == signatures[runs[run].second]) continue;
        ++wrong;
        if (wrong < 20) FAIL_CHECK("U+", std::hex, scalar, ": ", got, " instead of ", signatures[runs[run].second]);
    }
    CHECK(checked == 328'692);
    CHECK(wrong == 0);
}

TEST_CASE("text/unicode_pin: a stand-in has the same UTF-8 length, and only moved characters have one") {
    std::size_t moved = 0;
    for (std::uint32_t scalar = 0x80; scalar < 0x110000; ++scalar) {
        if (scalar >= 0xD800 && scalar < 0xE000) continue;
        std::string bytes, copy;
        append_utf8(bytes, scalar);
        const std::string text = "x" + bytes + "é" + bytes;
        const std::string_view pinned = detail::pin_unicode(text, copy);
        const bool is_moved = detail::find_moved(scalar) != nullptr;
        moved += is_moved;
        if ((pinned.data() != text.data()) != is_moved || pinned.size() != text.size()) FAIL_CHECK(scalar);
        if (is_moved && (find_invalid_utf8(pinned) || count_scalars(pinned) != 4)) FAIL_CHECK(scalar);
    }
    CHECK(moved > 9000);
    for (const char* text : {"\U00031350\U00031351", "a\U00031350", "\U0002EBF0世"})
        CHECK(pieces(text).back().size() > 3);
}

TEST_CASE(
    "text/pre_tokenizer: segments of 1 MiB are cut whole, in linear time (kills: default match limit, small JIT "
    "stack)") {
    Random random(3);
    std::string letters, mixed, upper, marks;
    constexpr std::size_t kSize = 1u << 20;
    for (std::size_t i = 0; i < kSize; ++i) {
        letters += static_cast<char>('a' + random.below(26));
        mixed += " \n\ta.A1'"[random.below(8)];
        upper += static_cast<char>('A' + random.below(26));
    }
    for (std::size_t i = 0; i < kSize / 2; ++i) marks += "\xCC\x81";
    for (const std::string& text :
         {repeat("a", kSize), repeat("^", kSize), repeat(" ", kSize), repeat("\n", kSize), repeat("世", kSize / 3),
          repeat("🙂", kSize / 4), repeat(" ", kSize) + "x", repeat("1", kSize), repeat("カ", kSize / 3),
          repeat("\n ", kSize / 2) + "x", repeat("\U00031350", kSize / 4), repeat("Aa", kSize / 2), letters, mixed,
          upper, upper + "1", marks, repeat("'", kSize), repeat("!\n", kSize / 2)}) {
        std::string joined;
        for (const std::string& piece : pieces(text)) joined += piece;
        CHECK(joined == text);
    }
    CHECK(pieces(repeat("a", kSize)).size() == 1);
    CHECK(pieces(repeat("世", kSize / 3)).size() == 1);
    CHECK(pieces(repeat("1", kSize)).size() == (kSize + 2) / 3);
    CHECK(pieces(repeat(" ", kSize) + "x").size() == 2);
}
