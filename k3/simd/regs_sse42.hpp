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
    K3_INLINE static void mxfp4(const std::byte* p, std::byte scale, f64* out) noexcept {
        const auto load16 = [](const void* from) noexcept {
            return _mm_loadu_si128(static_cast<const __m128i*>(from));
        };
        const auto& bytes = kE2M1HighBytes.of[static_cast<std::size_t>(scale)];
        const __m128i low = load16(bytes[0]), high = load16(bytes[1]), codes = load16(p), nibble = _mm_set1_epi8(15);
        const __m128i even = _mm_and_si128(codes, nibble);
        const __m128i odd = _mm_and_si128(_mm_srli_epi16(codes, 4), nibble);
        for (std::size_t half = 0; half < 2; ++half) {
            const __m128i index = half == 0 ? _mm_unpacklo_epi8(even, odd) : _mm_unpackhi_epi8(even, odd);
            const __m128i l = _mm_shuffle_epi8(low, index), h = _mm_shuffle_epi8(high, index);
            const __m128i words[2] = {_mm_unpacklo_epi8(l, h), _mm_unpackhi_epi8(l, h)};
            for (std::size_t i = 0; i < 2; ++i) {  // each word to the top of an f64
                const __m128i zero = _mm_setzero_si128();
                const __m128i pairs[2] = {_mm_unpacklo_epi16(zero, words[i]), _mm_unpackhi_epi16(zero, words[i])};
                for (std::size_t j = 0; j < 2; ++j) {
                    out[8 * half + 4 * i + 2 * j] = f64(_mm_castsi128_pd(_mm_unpacklo_epi32(zero, pairs[j])));
                    out[8 * half + 4 * i + 2 * j + 1] = f64(_mm_castsi128_pd(_mm_unpackhi_epi32(zero, pairs[j])));
                }
            }
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
