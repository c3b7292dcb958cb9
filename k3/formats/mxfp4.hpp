#ifndef K3_FORMATS_MXFP4_HPP
#define K3_FORMATS_MXFP4_HPP
// OCP MXFP4 as the release packs it: E2M1 codes, two a byte, the LOW nibble is the even column; one E8M0 scale byte for
// 32 consecutive columns of one row. Value = E2M1 * 2^(scale - 127), exact in binary64 (6 * 2^127 overflows binary32).
//
// Scale byte 255 (NaN by the standard) makes its 32 weights +0, so that one bad byte cannot poison a row; they are
// still multiplied, so a NaN activation stays NaN. Scale byte 0 is 2^-127, a binary32 subnormal. Odd column counts and
// a partial last group are legal: ceil(cols/2) bytes and ceil(cols/32) scales a row, the last high nibble ignored.
#include <cstddef>

#include "k3/formats/weight_format.hpp"

namespace k3::formats::inline K3_TARGET {

struct mxfp4 {
    static constexpr const char* kName = "mxfp4";
    static constexpr std::size_t kBlock = 32;
    struct Row {
        const std::byte* data;
        const std::byte* scales;
    };

    K3_INLINE static constexpr std::size_t row_bytes(std::size_t cols) noexcept { return (cols + 1) / 2; }
    K3_INLINE static constexpr std::size_t scale_bytes(std::size_t cols) noexcept { return (cols + 31) / 32; }
    K3_INLINE static Row row(const std::byte* data, const std::byte* scales, std::size_t cols, std::size_t r) noexcept {
        return {data + r * row_bytes(cols), scales + r * scale_bytes(cols)};
    }
    template <simd::Arch A>
    K3_INLINE static void decode(Row row, std::size_t col, simd::f64x8<A>* out) noexcept {
        typename simd::f64x8<A>::Reg regs[4 * simd::f64x8<A>::kRegs];
        simd::Regs<A>::mxfp4(row.data + col / 2, row.scales[col / 32], regs);
        simd::unroll<4>([&](auto k) __attribute__((always_inline)) {
            simd::unroll<simd::f64x8<A>::kRegs>([&](auto i) __attribute__((always_inline)) {
                out[k].r[i] = regs[k * simd::f64x8<A>::kRegs + i];
            });
        });
    }
    K3_INLINE static void decode_tail(Row row, std::size_t col, std::size_t count, double* out) noexcept {
        const double* const values = simd::kE2M1Values.of[static_cast<std::size_t>(row.scales[col / 32])];
        for (std::size_t i = 0; i < kBlock; ++i) {
            if (i >= count) {
                out[i] = 0.0;
                continue;
            }
            const auto pair = static_cast<unsigned>(row.data[(col + i) / 2]);
            out[i] = values[i % 2 == 0 ? pair & 15U : pair >> 4];
        }
    }
};
static_assert(WeightFormat<mxfp4>);

}  // namespace k3::formats::inline K3_TARGET
#endif
