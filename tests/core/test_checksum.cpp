#include "k3/core/checksum.hpp"

#include <string>

#include "support/doctest.hpp"

using k3::core::Checksum;

namespace {

std::span<const std::byte> bytes_of(const std::string& text) { return std::as_bytes(std::span(text)); }

std::uint64_t checksum(const std::string& text) {
    Checksum sum;
    sum.add(bytes_of(text));
    return sum.value();
}

/// As docs/FORMATS.md says it, byte by byte.
std::uint64_t as_documented(const std::string& text) {
    std::uint64_t hash = 0x9e3779b97f4a7c15U;
    const auto step = [&hash](std::uint64_t word) {
        hash ^= word;
        hash *= 0x9e3779b97f4a7c15U;
        hash ^= hash >> 32;
    };
    for (std::size_t at = 0; at < text.size(); at += 8) {
        std::uint64_t word = 0;
        for (std::size_t i = 0; i < 8 && at + i < text.size(); ++i)
            word |= std::uint64_t{static_cast<unsigned char>(text[at + i])} << (8 * i);
        step(word);
    }
    step(text.size());
    return hash;
}

std::string some_text(std::size_t size) {
    std::string text(size, '\0');
    for (std::size_t i = 0; i < size; ++i) text[i] = static_cast<char>((i * i * 7 + i * 31 + 5) >> 2);
    return text;
}

}  // namespace

TEST_CASE("core/checksum: the documented value, whatever the pieces") {
    for (std::size_t size = 0; size <= 40; ++size) {
        const std::string text = some_text(size);
        const std::uint64_t want = as_documented(text);
        CHECK(checksum(text) == want);
        for (std::size_t first = 0; first <= size; ++first)
            for (std::size_t second = first; second <= size; ++second) {
                Checksum sum;
                sum.add(bytes_of(text.substr(0, first)));
                sum.add(bytes_of(text.substr(first, second - first)));
                sum.add(bytes_of(text.substr(second)));
                CHECK(sum.value() == want);
            }
    }
    CHECK(checksum("") == 0xdf442d22110c749bU);
    CHECK(checksum("k3-state") == 0x7e0439ca9be98cfaU);
    Checksum sum;
    sum.add_value(std::uint64_t{0x6574617473});
    CHECK(sum.value() == checksum(std::string("state\0\0\0", 8)));
}

TEST_CASE("core/checksum: zeros at either end count, and any one byte, any bit, and pairs of signs") {
    CHECK(checksum(std::string(8, '\0')) != checksum(std::string(16, '\0')));
    CHECK(checksum("a") != checksum(std::string("a\0", 2)));
    CHECK(checksum("a") != checksum(std::string("\0a", 2)));
    const std::string text = some_text(67);
    const std::uint64_t want = checksum(text);
    for (std::size_t at = 0; at < text.size(); ++at)
        for (int bits = 1; bits < 256; ++bits) {
            std::string other = text;
            other[at] = static_cast<char>(other[at] ^ bits);
            CHECK(checksum(other) != want);
        }
    // Two flips of the highest bits of words: without the shift they would cancel.
    for (std::size_t a = 7; a < 64; a += 8)
        for (std::size_t b = a + 8; b < 64; b += 8) {
            std::string other = text;
            other[a] = static_cast<char>(other[a] ^ 0x80);
            other[b] = static_cast<char>(other[b] ^ 0x80);
            CHECK(checksum(other) != want);
        }
    std::string swapped = text;
    for (std::size_t i = 0; i < 8; ++i) std::swap(swapped[8 + i], swapped[24 + i]);
    CHECK(checksum(swapped) != want);
}
