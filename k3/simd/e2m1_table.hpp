#ifndef K3_SIMD_E2M1_TABLE_HPP
#define K3_SIMD_E2M1_TABLE_HPP
// Every value that an MXFP4 weight can have: E2M1 code times 2^(scale byte - 127), exact in binary64 and, but for the
// sign, the exponent and one bit of the mantissa, all zeros. A weight is then one look-up and no arithmetic, and a
// scale byte of 255 is sixteen +0 without a branch. A row of a checkpoint uses a dozen scale bytes: what is read stays
// in the first-level cache.
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "k3/simd/fence.hpp"

namespace k3::simd::inline K3_TARGET {

/// The E2M1 code table: sign, two exponent bits, one mantissa bit.
inline constexpr double kE2M1[16] = {0.0,  0.5,  1.0,  1.5,  2.0,  3.0,  4.0,  6.0,
                                     -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0};

/// [scale byte][code]
struct E2M1Values {
    alignas(64) double of[256][16];
};
/// The two high bytes of the same values, for byte shuffles: [scale byte][0: bits 48..55, 1: bits 56..63][code]
struct E2M1HighBytes {
    alignas(16) std::uint8_t of[256][2][16];
};

namespace detail {
constexpr E2M1Values e2m1_values() {
    E2M1Values table{};
    for (std::size_t scale = 0; scale < 255; ++scale) {
        const auto power = std::bit_cast<double>((scale + 1023 - 127) << 52);
        for (std::size_t code = 0; code < 16; ++code) table.of[scale][code] = kE2M1[code] * power;
    }
    return table;  // 255 stays +0
}
constexpr E2M1HighBytes e2m1_high_bytes(const E2M1Values& values) {
    E2M1HighBytes table{};
    for (std::size_t scale = 0; scale < 256; ++scale) {
        for (std::size_t code = 0; code < 16; ++code) {
            const auto bits = std::bit_cast<std::uint64_t>(values.of[scale][code]);
            table.of[scale][0][code] = static_cast<std::uint8_t>(bits >> 48);
            table.of[scale][1][code] = static_cast<std::uint8_t>(bits >> 56);
        }
    }
    return table;
}
}  // namespace detail

inline constexpr E2M1Values kE2M1Values = detail::e2m1_values();
inline constexpr E2M1HighBytes kE2M1HighBytes = detail::e2m1_high_bytes(kE2M1Values);

}  // namespace k3::simd::inline K3_TARGET
#endif
