#ifndef K3_FORMATS_BF16_HPP
#define K3_FORMATS_BF16_HPP
// bfloat16, little-endian: the high half of a binary32, so widening is exact.
#include <bit>
#include <cstdint>
#include <cstring>

#include "k3/formats/weight_format.hpp"

namespace k3::formats::inline K3_TARGET {

struct bf16 {
    static constexpr const char* kName = "bf16";
    static constexpr std::size_t kBlock = 8;
    struct Row {
        const std::byte* data;
    };

    K3_INLINE static constexpr std::size_t row_bytes(std::size_t cols) noexcept { return 2 * cols; }
    K3_INLINE static constexpr std::size_t scale_bytes(std::size_t) noexcept { return 0; }
    K3_INLINE static Row row(const std::byte* data, const std::byte*, std::size_t cols, std::size_t r) noexcept {
        return {data + r * row_bytes(cols)};
    }
    template <simd::Arch A>
    K3_INLINE static void decode(Row row, std::size_t col, simd::f64x8<A>* out) noexcept {
        simd::Regs<A>::load_bf16(row.data + 2 * col, out->r);
    }
    template <simd::Arch A>
    requires requires(const std::byte* p, typename simd::f64x8<A>::Reg* r) { simd::Regs<A>::load_bf16x32(p, r); }
    K3_INLINE static void decode32(Row row, std::size_t col, simd::f64x8<A>* out) noexcept {
        typename simd::f64x8<A>::Reg regs[4];
        simd::Regs<A>::load_bf16x32(row.data + 2 * col, regs);
        simd::unroll<4>([&](auto k) __attribute__((always_inline)) { out[k].r[0] = regs[k]; });
    }
    K3_INLINE static void decode_tail(Row row, std::size_t col, std::size_t count, double* out) noexcept {
        for (std::size_t i = 0; i < kBlock; ++i) {
            out[i] = i < count ? static_cast<double>(widen(row.data + 2 * (col + i))) : 0.0;
        }
    }
    /// One value.
    K3_INLINE static float widen(const std::byte* two_bytes) noexcept {
        std::uint16_t half;
        std::memcpy(&half, two_bytes, 2);
        return std::bit_cast<float>(std::uint32_t{half} << 16);
    }
};
static_assert(WeightFormat<bf16>);

}  // namespace k3::formats::inline K3_TARGET
#endif
