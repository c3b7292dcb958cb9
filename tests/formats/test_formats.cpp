// Decoding: every code, every scale byte, every tail, exactly; then every arch against the plain decoding.
#include "k3/formats/bf16.hpp"
#include "k3/formats/f32.hpp"
#include "k3/formats/mxfp4.hpp"
#include "support/doctest.hpp"
#include "support/kernel_table.hpp"
#include "support/kernel_table_data.hpp"
#include "support/kernel_table_twin.hpp"

using namespace k3;
using namespace k3::tests;

namespace {
std::vector<double> decode(const KernelTable& table, Format format, const Bytes& w, std::size_t r) {
    std::vector<double> out(w.cols + 1, -7.0);
    table.decode[format](w, r, out.data());
    CHECK(out[w.cols] == -7.0);
    out.resize(w.cols);
    return out;
}
}  // namespace

TEST_CASE("formats/mxfp4: all 16 codes under all 256 scale bytes, whole groups and tails, on every arch") {
    static const double kCode[16] = {0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6};
    for (const KernelTable* table : tables_of_this_cpu())
        for (unsigned scale = 0; scale < 256; ++scale)
            for (const std::size_t cols : {32U, 31U, 64U, 33U, 1U, 2U}) {
                Weights w(kMxfp4, 1, cols, Kind::plain, 1);
                for (std::size_t i = 0; i < (cols + 1) / 2; ++i)
                    w.data()[i] =
                        static_cast<std::byte>(((2 * i + 1) % 16) * 16 + (2 * i) % 16);  // column c has code c
                for (std::size_t g = 0; g < (cols + 31) / 32; ++g) w.scales()[g] = static_cast<std::byte>(scale);
                const std::vector<double> got = decode(*table, kMxfp4, w.bytes(), 0);
                CAPTURE(std::string(table->name));
                CAPTURE(scale);
                for (std::size_t c = 0; c < cols; ++c) {
                    const double value = scale == 255 ? 0.0 : std::ldexp(kCode[c % 16], static_cast<int>(scale) - 127);
                    REQUIRE(same(got[c], value));  // bits: -0 of code 8 stays, +0 for a dead group
                }
            }
}

TEST_CASE("formats/mxfp4: trap 44, the low nibble is the even column: byte 0x10 is 0, 0.5") {
    const std::byte data[16] = {std::byte{0x10}}, scales[1] = {std::byte{127}};
    for (const KernelTable* table : tables_of_this_cpu())
        for (const std::size_t cols : {2U, 32U}) {
            const std::vector<double> got = decode(*table, kMxfp4, {data, scales, 1, cols}, 0);
            CHECK(got[0] == 0.0);
            CHECK(got[1] == 0.5);
        }
}

TEST_CASE("formats/mxfp4: trap 47, codes 8..15 are the negated ones, not two's complement") {
    const std::byte data[4] = {std::byte{0x98}, std::byte{0xba}, std::byte{0xdc}, std::byte{0xfe}},
                    scales[1] = {std::byte{127}};
    const double want[8] = {-0.0, -0.5, -1, -1.5, -2, -3, -4, -6};
    for (const KernelTable* table : tables_of_this_cpu())
        CHECK(difference(decode(*table, kMxfp4, {data, scales, 1, 8}, 0), std::vector<double>(want, want + 8)) == "");
}

TEST_CASE("formats/mxfp4: rows take ceil(cols/2) bytes and ceil(cols/32) scales; a last high nibble is not a column") {
    using formats::mxfp4;
    const std::size_t cols[] = {0, 1, 2, 31, 32, 33, 63, 64, 65, 7168},
                      bytes[] = {0, 1, 1, 16, 16, 17, 32, 32, 33, 3584}, scales[] = {0, 1, 1, 1, 1, 2, 2, 2, 3, 224};
    for (std::size_t i = 0; i < std::size(cols); ++i) {
        CHECK(mxfp4::row_bytes(cols[i]) == bytes[i]);
        CHECK(mxfp4::scale_bytes(cols[i]) == scales[i]);
    }
    for (const KernelTable* table : tables_of_this_cpu())
        for (const std::size_t n : {1U, 3U, 31U, 33U, 65U}) {
            Weights a(kMxfp4, 3, n, Kind::plain, 8), b(kMxfp4, 3, n, Kind::plain, 8);
            for (std::size_t r = 0; r < 3; ++r) {
                std::byte& last = b.data()[r * ((n + 1) / 2) + (n - 1) / 2];
                last = static_cast<std::byte>(static_cast<unsigned>(last) ^ 0x70U);
            }
            for (std::size_t r = 0; r < 3; ++r)
                CHECK(difference(decode(*table, kMxfp4, b.bytes(), r), decode(*table, kMxfp4, a.bytes(), r)) == "");
        }
}

TEST_CASE("formats/bf16: all 65536 values widen exactly on every arch, NaN to NaN, subnormals kept") {
    std::vector<std::uint16_t> all(65536);
    for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::uint16_t>(i);
    for (const KernelTable* table : tables_of_this_cpu()) {
        const auto got = decode(*table, kBf16, {reinterpret_cast<const std::byte*>(all.data()), nullptr, 1, 65536}, 0);
        for (std::size_t i = 0; i < all.size(); ++i) {
            const int exponent = static_cast<int>(i >> 7) & 255, mantissa = static_cast<int>(i) & 127;
            double want = exponent == 0 ? std::ldexp(mantissa, -133) : std::ldexp(128 + mantissa, exponent - 134);
            if (exponent == 255) want = mantissa != 0 ? static_cast<double>(kNaN) : static_cast<double>(kInf);
            REQUIRE(same(got[i], i >= 32768 ? -want : want));
        }
    }
}

TEST_CASE("formats: every arch decodes every width, row, kind and misalignment as the plain loops do") {
    for (std::size_t f = 0; f < kFormats; ++f)
        for (const std::size_t cols : lengths())
            for (const Kind kind : kKinds)
                for (const std::size_t shift : {0U, 1U, 3U}) {
                    const Weights w(static_cast<Format>(f), 3, cols, kind, cols + 1, shift);
                    for (std::size_t r = 0; r < 3; ++r) {
                        std::vector<double> want(cols);
                        for (std::size_t c = 0; c < cols; ++c)
                            want[c] = twin::weight(static_cast<Format>(f), w.bytes(), r, c);
                        for (const KernelTable* table : tables_of_this_cpu()) {
                            CAPTURE(std::string(table->name));
                            CAPTURE(std::string(kFormatNames[f]));
                            CAPTURE(cols);
                            REQUIRE(difference(decode(*table, static_cast<Format>(f), w.bytes(), r), want) == "");
                        }
                    }
                }
}

TEST_CASE("formats/weight_format: a range of rows is those rows, with their scales") {
    const Weights w(kMxfp4, 5, 70, Kind::plain, 4);
    const formats::Packed<formats::mxfp4> all{w.bytes().data, w.bytes().scales, 5, 70};
    const auto part = all.row_range(2, 3);
    CHECK(part.rows == 3);
    CHECK(part.cols == 70);
    for (std::size_t r = 0; r < 3; ++r) {
        CHECK(part.row(r).data == all.row(2 + r).data);
        CHECK(part.row(r).scales == all.row(2 + r).scales);
    }
    const formats::Packed<formats::bf16> plain{w.bytes().data, nullptr, 5, 7};
    CHECK(plain.row_range(1, 2).scales == nullptr);
    CHECK(plain.row_range(1, 2).data == plain.data + 14);
    const formats::Packed<formats::f32> wide{w.bytes().data, nullptr, 5, 7};
    CHECK(wide.row_range(1, 2).data == wide.data + 28);
}
