#ifndef K3_SIMD_REGS_NEON_HPP
#define K3_SIMD_REGS_NEON_HPP
// Two f64 or four f32 a register (aarch64). Included by regs.hpp, which documents the names.
#include <arm_neon.h>

#include <xsimd/xsimd.hpp>

#include "k3/simd/regs.hpp"

namespace k3::simd::inline K3_TARGET {

template <>
struct Regs<neon> {
    using f64 = xsimd::batch<double, xsimd::neon64>;
    using f32 = xsimd::batch<float, xsimd::neon64>;
    static constexpr std::size_t kF64 = 4, kF32 = 2, kWidth64 = 2;

    K3_INLINE static f64 set1(double v) noexcept { return f64(v); }
    K3_INLINE static f32 set1(float v) noexcept { return f32(v); }
    K3_INLINE static f64 load(const double* p) noexcept { return f64::load_unaligned(p); }
    K3_INLINE static f32 load(const float* p) noexcept { return f32::load_unaligned(p); }
    K3_INLINE static void store(double* p, f64 v) noexcept { v.store_unaligned(p); }
    K3_INLINE static void store(float* p, f32 v) noexcept { v.store_unaligned(p); }
    K3_INLINE static void fence(f64& v) noexcept { asm("" : "+w"(v.data)); }
    K3_INLINE static void fence(f32& v) noexcept { asm("" : "+w"(v.data)); }
    K3_INLINE static f64 madd(f64 x, f64 w, f64 acc) noexcept { return f64(vfmaq_f64(acc, x, w)); }
    // Not the batch's operator: for f32 it is a reciprocal estimate with two Newton steps, not an IEEE division.
    K3_INLINE static f64 div(f64 a, f64 b) noexcept { return f64(vdivq_f64(a, b)); }
    K3_INLINE static f32 div(f32 a, f32 b) noexcept { return f32(vdivq_f32(a, b)); }
    K3_INLINE static f64 sqrt(f64 v) noexcept { return f64(vsqrtq_f64(v)); }
    K3_INLINE static f64 select_lt(f64 a, f64 b, f64 x, f64 y) noexcept {
        return f64(vbslq_f64(vcltq_f64(a, b), x, y));
    }
    K3_INLINE static f32 select_lt(f32 a, f32 b, f32 x, f32 y) noexcept {
        return f32(vbslq_f32(vcltq_f32(a, b), x, y));
    }
    K3_INLINE static f64 exponent(f64 t) noexcept {
        const int64x2_t biased = vaddq_s64(vreinterpretq_s64_f64(t), vdupq_n_s64(1023));
        return f64(vreinterpretq_f64_s64(vshlq_n_s64(biased, 52)));
    }
    K3_INLINE static double reduce(const f64* v) noexcept {
        const float64x2_t pair = (v[0] + v[2]) + (v[1] + v[3]);
        return vgetq_lane_f64(pair, 0) + vgetq_lane_f64(pair, 1);
    }
    K3_INLINE static void widen(const f32* in, f64* out) noexcept {
        for (std::size_t i = 0; i < 2; ++i) widen_four(in[i], out + 2 * i);
    }
    K3_INLINE static void narrow(const f64* in, f32* out) noexcept {
        for (std::size_t i = 0; i < 2; ++i) out[i] = f32(vcvt_high_f32_f64(vcvt_f32_f64(in[2 * i]), in[2 * i + 1]));
    }
    K3_INLINE static void load_bf16(const std::byte* p, f64* out) noexcept {
        widen_words(vld1q_u16(reinterpret_cast<const std::uint16_t*>(p)), out);
    }
    K3_INLINE static void mxfp4(const std::byte* p, std::byte scale, f64* out) noexcept {
        const uint8x16_t codes = vld1q_u8(reinterpret_cast<const std::uint8_t*>(p));
        const uint8x16_t even = vandq_u8(codes, vdupq_n_u8(15));
        const uint8x16_t odd = vshrq_n_u8(codes, 4);
        const uint8x16_t index[2] = {vzip1q_u8(even, odd), vzip2q_u8(even, odd)};
        const auto& bytes = kE2M1HighBytes.of[static_cast<std::size_t>(scale)];
        const uint8x16_t low = vld1q_u8(bytes[0]), high = vld1q_u8(bytes[1]);
        for (std::size_t half = 0; half < 2; ++half) {
            const uint8x16_t high_bytes = vqtbl1q_u8(high, index[half]);
            const uint8x16_t low_bytes = vqtbl1q_u8(low, index[half]);
            top_words(vreinterpretq_u16_u8(vzip1q_u8(low_bytes, high_bytes)), out + 8 * half);
            top_words(vreinterpretq_u16_u8(vzip2q_u8(low_bytes, high_bytes)), out + 8 * half + 4);
        }
    }

  private:
    K3_INLINE static void widen_four(float32x4_t v, f64* out) noexcept {
        out[0] = f64(vcvt_f64_f32(vget_low_f32(v)));
        out[1] = f64(vcvt_high_f64_f32(v));
    }
    K3_INLINE static void top_words(uint16x8_t words, f64* out) noexcept {  // each word is the top of an f64
        const uint16x8_t zero = vdupq_n_u16(0);
        const uint32x4_t pairs[2] = {vreinterpretq_u32_u16(vzip1q_u16(zero, words)),
                                     vreinterpretq_u32_u16(vzip2q_u16(zero, words))};
        for (std::size_t j = 0; j < 2; ++j) {
            const uint32x4_t none = vdupq_n_u32(0);
            out[2 * j] = f64(vreinterpretq_f64_u32(vzip1q_u32(none, pairs[j])));
            out[2 * j + 1] = f64(vreinterpretq_f64_u32(vzip2q_u32(none, pairs[j])));
        }
    }
    K3_INLINE static void widen_words(uint16x8_t words, f64* out) noexcept {  // a bf16 is the high half of an f32
        widen_four(vreinterpretq_f32_u32(vshll_n_u16(vget_low_u16(words), 16)), out);
        widen_four(vreinterpretq_f32_u32(vshll_high_n_u16(words, 16)), out + 2);
    }
};

}  // namespace k3::simd::inline K3_TARGET
#endif
