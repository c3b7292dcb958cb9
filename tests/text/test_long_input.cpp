#include "k3/text/long_input.hpp"

#include <string>
#include <vector>

#include "support/doctest.hpp"
#include "text/data.hpp"

using k3::test::repeat;
using namespace k3::text;

namespace {

std::vector<std::string> cuts(std::string_view text, const CutLimits& limits) {
    std::vector<std::string> parts;
    for_each_cut(text, limits, [&](std::string_view part) { parts.emplace_back(part); });
    return parts;
}

using Parts = std::vector<std::string>;

}  // namespace

TEST_CASE("text/long_input: runs are cut before the character that would exceed the limit, and counting starts again") {
    const CutLimits limits{.block = 1000, .run = 3};
    CHECK(cuts("", limits) == Parts{});
    CHECK(cuts("abc", limits) == Parts{"abc"});
    CHECK(cuts("abcd", limits) == Parts{"abc", "d"});
    CHECK(cuts("abcdefg", limits) == Parts{"abc", "def", "g"});
    CHECK(cuts("ab cd ef", limits) == Parts{"ab cd ef"});
    CHECK(cuts("abcd    e", limits) == Parts{"abc", "d   ", " e"});
    CHECK(cuts("    x", limits) == Parts{"   ", " x"});
    CHECK(cuts("世界世界", limits) == Parts{"世界世", "界"});  // code points, not bytes
}

TEST_CASE("text/long_input: blocks are cut by code points, and a block starts a new run") {
    CHECK(cuts("aabbccdd", {.block = 4, .run = 100}) == Parts{"aabb", "ccdd"});
    CHECK(cuts("a b c d e", {.block = 4, .run = 100}) == Parts{"a b ", "c d ", "e"});
    CHECK(cuts("abcdefgh", {.block = 5, .run = 3}) == Parts{"abc", "de", "fgh"});  // not "de", "f", "gh"
    CHECK(cuts("🙂🙂🙂", {.block = 2, .run = 100}) == Parts{"🙂🙂", "🙂"});
    CHECK(cuts("abcdef", {.block = 3, .run = 3}) == Parts{"abc", "def"});
}

TEST_CASE("text/long_input: whitespace is Python's str.isspace, 29 characters (kills: the pattern's 25, isspace)") {
    std::size_t count = 0;
    for (std::uint32_t scalar = 0; scalar < 0x110000; ++scalar) count += is_python_space(scalar);
    CHECK(count == 29);
    for (const std::uint32_t scalar : {0x1Cu, 0x1Fu, 0x85u, 0xA0u, 0x2028u, 0x3000u}) CHECK(is_python_space(scalar));
    for (const std::uint32_t scalar : {0x00u, 0x1Bu, 0x180Eu, 0x200Bu, 0xFEFFu, 0x2060u})
        CHECK(!is_python_space(scalar));
    CHECK(cuts("a\x1C"
               "b",
               {.block = 100, .run = 2}) == Parts{"a\x1C"
                                                  "b"});  // were it a letter, three in a row
    CHECK(cuts(" \x1C ", {.block = 100, .run = 2}) == Parts{" \x1C", " "});
}

TEST_CASE("text/long_input: the official limits: 400,000 code points and runs of 25,000") {
    const auto lengths = [](const std::string& text) {
        std::vector<std::size_t> all;
        for_each_cut(text, CutLimits{}, [&](std::string_view part) { all.push_back(part.size()); });
        return all;
    };
    using Lengths = std::vector<std::size_t>;
    CHECK(lengths(repeat("a", 25'000)) == Lengths{25'000});
    CHECK(lengths(repeat("a", 25'001)) == Lengths{25'000, 1});
    CHECK(lengths(repeat("a ", 200'000) + "b") == Lengths{400'000, 1});
    CHECK(lengths(repeat("a ", 200'000)) == Lengths{400'000});
}
