#include "k3/text/utf8.hpp"

#include <string>

#include "support/doctest.hpp"
#include "text/data.hpp"

using namespace k3::text;

TEST_CASE("text/utf8: every scalar value is one step, and nothing else is") {
    for (std::uint32_t scalar = 0; scalar < 0x110000; ++scalar) {
        if (scalar >= 0xD800 && scalar < 0xE000) continue;
        std::string bytes;
        append_utf8(bytes, scalar);
        const Utf8Step step = step_utf8(bytes, 0);
        if (step.kind != Utf8::scalar || step.bytes != bytes.size() || step.scalar != scalar) FAIL_CHECK(scalar);
    }
    // Every string of three bytes: valid or not as by decoding and encoding it again.
    std::size_t valid = 0;
    for (std::uint32_t bits = 0; bits < 0x1000000; bits += 1) {
        const char bytes[] = {static_cast<char>(bits >> 16), static_cast<char>(bits >> 8), static_cast<char>(bits)};
        const Utf8Step step = step_utf8({bytes, 3}, 0);
        if (step.kind != Utf8::scalar || step.bytes != 3) continue;
        ++valid;
        if (step.scalar < 0x800 || (step.scalar >= 0xD800 && step.scalar < 0xE000)) FAIL_CHECK(step.scalar);
    }
    CHECK(valid == 0x10000 - 0x800 - 0x800);
}

TEST_CASE("text/utf8: the first bad byte is named: overlong forms, surrogates, cut characters, beyond U+10FFFF") {
    CHECK(!find_invalid_utf8(""));
    CHECK(!find_invalid_utf8(std::string_view("a\0b", 3)));
    CHECK(
        !find_invalid_utf8("\xEF\xBB\xBF"
                           "BOM"));
    CHECK(!find_invalid_utf8("01234567\xF4\x8F\xBF\xBF"));
    const std::string long_ascii(40, 'x');
    for (const char* bad :
         {"\x80", "\xC0\x80", "\xC1\xBF", "\xE0\x9F\xBF", "\xF0\x8F\xBF\xBF", "\xED\xA0\x80", "\xED\xBF\xBF",
          "\xF4\x90\x80\x80", "\xF5\x80\x80\x80", "\xFF", "\xE4\xB8", "\xF0\x9F\x99", "\xC3", "\xC3("}) {
        for (std::size_t before = 0; before < 20; ++before) {
            const std::string text = long_ascii.substr(0, before) + bad;
            CHECK(find_invalid_utf8(text) == before);
        }
    }
}

TEST_CASE("text/utf8: bad bytes become U+FFFD by maximal subparts, as a WHATWG decoder does it (1,084 strings)") {
    const auto& rows = k3::test::golden()["decode"];
    REQUIRE(rows.size() > 1000);
    for (const auto& row : rows) {
        const std::string hex = row[0];
        std::string bytes;
        for (std::size_t i = 0; i < hex.size(); i += 2)
            bytes += static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16));
        if (replace_invalid_utf8(bytes) != row[1].get<std::string>()) FAIL_CHECK(hex);
    }
}
