#ifndef K3_SIMD_REGS_SSE42_HPP
#define K3_SIMD_REGS_SSE42_HPP
// Two f64 or four f32 a register. Included by regs.hpp, which documents the names.
#include <nmmintrin.h>

#include <xsimd/xsimd.hpp>

#include "k3/simd/regs.hpp"

namespace k3::simd::inline K3_TARGET {

template <>
struct Regs<sse42> {
    using f64 = xsimd::batch<double, xsimd::sse4_2>;
    using f32 = xsimd::batch<float, xsimd::sse4_2>;
    static constexpr std::size_t kF64 = 4, kF32 = 2, kWidth64 = 2;

    K3_INLINE static f64 set1(double v) noexcept { return f64(v); }
    K3_INLINE static f32 set1(float v) noexcept { return f32(v); }
    K3_INLINE static f64 load(const double* p) noexcept { return f64::load_unaligned(p); }
    K3_INLINE static f32 load(const float* p) noexcept { return f32::load_unaligned(p); }
    K3_INLINE static void store(double* p, f64 v) noexcept { v.store_unaligned(p); }
    K3_INLINE static void store(float* p, f32 v) noexcept { v.store_unaligned(p); }
    K3_INLINE static void fence(f64& v) noexcept { asm("" : "+x"(v.data)); }
    K3_INLINE static void fence(f32& v) noexcept { asm("" : "+x"(v.data)); }
    K3_INLINE static f64 madd(f64 x, f64 w, f64 acc) noexcept { return acc + x * w; }
    K3_INLINE static f64 div(f64 a, f64 b) noexcept { return f64(_mm_div_pd(a, b)); }
    K3_INLINE static f32 div(f32 a, f32 b) noexcept { return f32(_mm_div_ps(a, b)); }
    K3_INLINE static f64 sqrt(f64 v) noexcept { return f64(_mm_sqrt_pd(v)); }
    K3_INLINE static f64 select_lt(f64 a, f64 b, f64 x, f64 y) noexcept {
        return f64(_mm_blendv_pd(y, x, _mm_cmplt_pd(a, b)));
    }
    K3_INLINE static f32 select_lt(f32 a, f32 b, f32 x, f32 y) noexcept {
        return f32(_mm_blendv_ps(y, x, _mm_cmplt_ps(a, b)));
    }
    K3_INLINE static f64 exponent(f64 t) noexcept {
        const __m128i biased = _mm_add_epi64(_mm_castpd_si128(t), _mm_set1_epi64x(1023));
        return f64(_mm_castsi128_pd(_mm_slli_epi64(biased, 52)));
    }
    K3_INLINE static double reduce(const f64* v) noexcept {
        const __m128d pair = (v[0] + v[2]) + (v[1] + v[3]);
        return _mm_cvtsd_f64(_mm_add_sd(pair, _mm_unpackhi_pd(pair, pair)));
    }
    K3_INLINE static void widen(const f32* in, f64* out) noexcept {
        for (std::size_t i = 0; i < 2; ++i) widen_four(in[i], out + 2 * i);
    }
    K3_INLINE static void narrow(const f64* in, f32* out) noexcept {
        for (std::size_t i = 0; i < 2; ++i)
            out[i] = f32(_mm_movelh_ps(_mm_cvtpd_ps(in[2 * i]), _mm_cvtpd_ps(in[2 * i + 1])));
    }
    K3_INLINE static void load_bf16(const std::byte* p, f64* out) noexcept {
        widen_words(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)), out);
    }
    K3_INLINE static void mxfp4(const std::byte* p, double scale, f64* out) noexcept {
        __m128i words[4];
        e2m1_words(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)), words);
        for (std::size_t i = 0; i < 4; ++i) {
            widen_words(words[i], out + 4 * i);
            for (std::size_t j = 0; j < 4; ++j) out[4 * i + j] = out[4 * i + j] * f64(scale);  // exact: a power of two
        }
    }

    /// 16 bytes of codes to 32 bf16 words in column order.
    K3_INLINE static void e2m1_words(__m128i codes, __m128i* words) noexcept {
        const __m128i nibble = _mm_set1_epi8(15);
        const __m128i even = _mm_and_si128(codes, nibble);
        const __m128i odd = _mm_and_si128(_mm_srli_epi16(codes, 4), nibble);
        const __m128i high = _mm_load_si128(reinterpret_cast<const __m128i*>(kE2M1High));
        const __m128i low = _mm_load_si128(reinterpret_cast<const __m128i*>(kE2M1Low));
        for (int half = 0; half < 2; ++half) {
            const __m128i index = half == 0 ? _mm_unpacklo_epi8(even, odd) : _mm_unpackhi_epi8(even, odd);
            const __m128i high_bytes = _mm_shuffle_epi8(high, index);
            const __m128i low_bytes = _mm_shuffle_epi8(low, index);
            words[2 * half] = _mm_unpacklo_epi8(low_bytes, high_bytes);
            words[2 * half + 1] = _mm_unpackhi_epi8(low_bytes, high_bytes);
        }
    }

  private:
    K3_INLINE static void widen_four(__m128 v, f64* out) noexcept {
        out[0] = f64(_mm_cvtps_pd(v));
        out[1] = f64(_mm_cvtps_pd(_mm_movehl_ps(v, v)));
    }
    K3_INLINE static void widen_words(__m128i words, f64* out) noexcept {
        const __m128i zero = _mm_setzero_si128();  // a bf16 is the high half of an f32
        widen_four(_mm_castsi128_ps(_mm_unpacklo_epi16(zero, words)), out);
        widen_four(_mm_castsi128_ps(_mm_unpackhi_epi16(zero, words)), out + 2);
    }
};

}  // namespace k3::simd::inline K3_TARGET
#endif
