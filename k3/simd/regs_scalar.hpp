#ifndef K3_SIMD_REGS_SCALAR_HPP
#define K3_SIMD_REGS_SCALAR_HPP
// Plain C++: one value a register, eight registers. Included by regs.hpp, which documents the names.
#include <bit>

#include "k3/simd/regs.hpp"

namespace k3::simd::inline K3_TARGET {

template <>
struct Regs<scalar> {
    using f64 = double;
    using f32 = float;
    static constexpr std::size_t kF64 = 8, kF32 = 8, kWidth64 = 1;

    K3_INLINE static f64 set1(double v) noexcept { return v; }
    K3_INLINE static f32 set1(float v) noexcept { return v; }
    K3_INLINE static f64 load(const double* p) noexcept { return *p; }
    K3_INLINE static f32 load(const float* p) noexcept { return *p; }
    K3_INLINE static void store(double* p, f64 v) noexcept { *p = v; }
    K3_INLINE static void store(float* p, f32 v) noexcept { *p = v; }
    K3_INLINE static void fence(f64& v) noexcept { simd::fence(v); }
    K3_INLINE static void fence(f32& v) noexcept { simd::fence(v); }
    K3_INLINE static f64 madd(f64 x, f64 w, f64 acc) noexcept { return madd_exact(x, w, acc); }
    K3_INLINE static f64 div(f64 a, f64 b) noexcept { return a / b; }
    K3_INLINE static f32 div(f32 a, f32 b) noexcept { return a / b; }
    K3_INLINE static f64 sqrt(f64 v) noexcept { return __builtin_sqrt(v); }
    K3_INLINE static f64 select_lt(f64 a, f64 b, f64 x, f64 y) noexcept { return a < b ? x : y; }
    K3_INLINE static f32 select_lt(f32 a, f32 b, f32 x, f32 y) noexcept { return a < b ? x : y; }
    K3_INLINE static f64 exponent(f64 t) noexcept {
        return std::bit_cast<double>((std::bit_cast<std::uint64_t>(t) + 1023) << 52);
    }
    K3_INLINE static double reduce(const f64* v) noexcept {
        const double a = v[0] + v[4], b = v[1] + v[5], c = v[2] + v[6], d = v[3] + v[7];
        return (a + c) + (b + d);
    }
    K3_INLINE static void widen(const f32* in, f64* out) noexcept {
        for (std::size_t i = 0; i < 8; ++i) out[i] = static_cast<double>(in[i]);
    }
    K3_INLINE static void narrow(const f64* in, f32* out) noexcept {
        for (std::size_t i = 0; i < 8; ++i) out[i] = round32(in[i]);
    }
    K3_INLINE static void load_bf16(const std::byte* p, f64* out) noexcept {
        for (std::size_t i = 0; i < 8; ++i) {
            std::uint16_t half;
            std::memcpy(&half, p + 2 * i, 2);
            out[i] = static_cast<double>(std::bit_cast<float>(std::uint32_t{half} << 16));
        }
    }
    K3_INLINE static void mxfp4(const std::byte* p, std::byte scale, f64* out) noexcept {
        const double* const values = kE2M1Values.of[static_cast<std::size_t>(scale)];
        for (std::size_t i = 0; i < 16; ++i) {
            const auto codes = static_cast<unsigned>(p[i]);
            out[2 * i] = values[codes & 15U];
            out[2 * i + 1] = values[codes >> 4];
        }
    }
};

}  // namespace k3::simd::inline K3_TARGET
#endif
