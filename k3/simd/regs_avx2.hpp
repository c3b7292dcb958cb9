#ifndef K3_SIMD_REGS_AVX2_HPP
#define K3_SIMD_REGS_AVX2_HPP
// Four f64 or eight f32 a register, fused multiply-add where products are exact. Included by regs.hpp.
#include <immintrin.h>

#include <xsimd/xsimd.hpp>

#include "k3/simd/regs.hpp"
#include "k3/simd/regs_sse42.hpp"

namespace k3::simd::inline K3_TARGET {

template <>
struct Regs<avx2> {
    using f64 = xsimd::batch<double, xsimd::avx2>;
    using f32 = xsimd::batch<float, xsimd::avx2>;
    static constexpr std::size_t kF64 = 2, kF32 = 1, kWidth64 = 4;

    K3_INLINE static f64 set1(double v) noexcept { return f64(v); }
    K3_INLINE static f32 set1(float v) noexcept { return f32(v); }
    K3_INLINE static f64 load(const double* p) noexcept { return f64::load_unaligned(p); }
    K3_INLINE static f32 load(const float* p) noexcept { return f32::load_unaligned(p); }
    K3_INLINE static void store(double* p, f64 v) noexcept { v.store_unaligned(p); }
    K3_INLINE static void store(float* p, f32 v) noexcept { v.store_unaligned(p); }
    K3_INLINE static void fence(f64& v) noexcept { asm("" : "+x"(v.data)); }
    K3_INLINE static void fence(f32& v) noexcept { asm("" : "+x"(v.data)); }
    K3_INLINE static f64 madd(f64 x, f64 w, f64 acc) noexcept { return f64(_mm256_fmadd_pd(x, w, acc)); }
    K3_INLINE static f64 div(f64 a, f64 b) noexcept { return f64(_mm256_div_pd(a, b)); }
    K3_INLINE static f32 div(f32 a, f32 b) noexcept { return f32(_mm256_div_ps(a, b)); }
    K3_INLINE static f64 sqrt(f64 v) noexcept { return f64(_mm256_sqrt_pd(v)); }
    K3_INLINE static f64 select_lt(f64 a, f64 b, f64 x, f64 y) noexcept {
        return f64(_mm256_blendv_pd(y, x, _mm256_cmp_pd(a, b, _CMP_LT_OQ)));
    }
    K3_INLINE static f32 select_lt(f32 a, f32 b, f32 x, f32 y) noexcept {
        return f32(_mm256_blendv_ps(y, x, _mm256_cmp_ps(a, b, _CMP_LT_OQ)));
    }
    K3_INLINE static f64 exponent(f64 t) noexcept {
        const __m256i biased = _mm256_add_epi64(_mm256_castpd_si256(t), _mm256_set1_epi64x(1023));
        return f64(_mm256_castsi256_pd(_mm256_slli_epi64(biased, 52)));
    }
    K3_INLINE static double reduce(const f64* v) noexcept {
        const __m256d four = v[0] + v[1];
        const __m128d pair = _mm_add_pd(_mm256_castpd256_pd128(four), _mm256_extractf128_pd(four, 1));
        return _mm_cvtsd_f64(_mm_add_sd(pair, _mm_unpackhi_pd(pair, pair)));
    }
    K3_INLINE static void widen(const f32* in, f64* out) noexcept {
        const __m256 v = in[0];
        out[0] = f64(_mm256_cvtps_pd(_mm256_castps256_ps128(v)));
        out[1] = f64(_mm256_cvtps_pd(_mm256_extractf128_ps(v, 1)));
    }
    K3_INLINE static void narrow(const f64* in, f32* out) noexcept {
        out[0] = f32(_mm256_set_m128(_mm256_cvtpd_ps(in[1]), _mm256_cvtpd_ps(in[0])));
    }
    K3_INLINE static void load_bf16(const std::byte* p, f64* out) noexcept {
        widen_words(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)), out);
    }
    /// Both halves of every register hold the same bytes until the last step, which fills each f64 with its own two:
    /// nothing crosses the halves.
    K3_INLINE static void mxfp4(const std::byte* p, std::byte scale, f64* out) noexcept {
        const auto twice = [](const void* from) noexcept {
            return _mm256_broadcastsi128_si256(_mm_loadu_si128(static_cast<const __m128i*>(from)));
        };
        const auto& bytes = kE2M1HighBytes.of[static_cast<std::size_t>(scale)];
        const __m256i low = twice(bytes[0]), high = twice(bytes[1]), codes = twice(p), nibble = _mm256_set1_epi8(15);
        const __m256i even = _mm256_and_si256(codes, nibble);
        const __m256i odd = _mm256_and_si256(_mm256_srli_epi16(codes, 4), nibble);
        // Words 0 to 3 and 4 to 7 of eight, each to the top of an f64.
        const __m256i first =
            _mm256_setr_epi64x(0x0100808080808080, 0x0302808080808080, 0x0504808080808080, 0x0706808080808080);
        const __m256i second =
            _mm256_setr_epi64x(0x0908808080808080, 0x0b0a808080808080, 0x0d0c808080808080, 0x0f0e808080808080);
        for (std::size_t half = 0; half < 2; ++half) {
            const __m256i index = half == 0 ? _mm256_unpacklo_epi8(even, odd) : _mm256_unpackhi_epi8(even, odd);
            const __m256i l = _mm256_shuffle_epi8(low, index), h = _mm256_shuffle_epi8(high, index);
            const __m256i words[2] = {_mm256_unpacklo_epi8(l, h), _mm256_unpackhi_epi8(l, h)};
            for (std::size_t i = 0; i < 2; ++i) {
                out[4 * half + 2 * i] = f64(_mm256_castsi256_pd(_mm256_shuffle_epi8(words[i], first)));
                out[4 * half + 2 * i + 1] = f64(_mm256_castsi256_pd(_mm256_shuffle_epi8(words[i], second)));
            }
        }
    }

  private:
    K3_INLINE static void widen_words(__m128i words, f64* out) noexcept {
        const __m128i zero = _mm_setzero_si128();  // a bf16 is the high half of an f32
        out[0] = f64(_mm256_cvtps_pd(_mm_castsi128_ps(_mm_unpacklo_epi16(zero, words))));
        out[1] = f64(_mm256_cvtps_pd(_mm_castsi128_ps(_mm_unpackhi_epi16(zero, words))));
    }
};

}  // namespace k3::simd::inline K3_TARGET
#endif
