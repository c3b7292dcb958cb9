#ifndef K3_SIMD_REGS_AVX512_HPP
#define K3_SIMD_REGS_AVX512_HPP
// Eight f64 a register; eight f32 in half a register. Included by regs.hpp, which documents the names.
#include <immintrin.h>

#include <xsimd/xsimd.hpp>

#include "k3/simd/regs.hpp"

namespace k3::simd::inline K3_TARGET {

template <>
struct Regs<avx512> {
    using f64 = xsimd::batch<double, xsimd::avx512dq>;
    using f32 = xsimd::batch<float, xsimd::avx2>;
    static constexpr std::size_t kF64 = 1, kF32 = 1, kWidth64 = 8;
    // g++ 12 warns about its own headers where an unmasked form passes an undefined vector; a full mask costs nothing.
    static constexpr __mmask8 kAll = 0xff;
    static constexpr __mmask16 kAll16 = 0xffff;

    K3_INLINE static f64 set1(double v) noexcept { return f64(v); }
    K3_INLINE static f32 set1(float v) noexcept { return f32(v); }
    K3_INLINE static f64 load(const double* p) noexcept { return f64::load_unaligned(p); }
    K3_INLINE static f32 load(const float* p) noexcept { return f32::load_unaligned(p); }
    K3_INLINE static void store(double* p, f64 v) noexcept { v.store_unaligned(p); }
    K3_INLINE static void store(float* p, f32 v) noexcept { v.store_unaligned(p); }
    K3_INLINE static void fence(f64& v) noexcept { asm("" : "+v"(v.data)); }
    K3_INLINE static void fence(f32& v) noexcept { asm("" : "+v"(v.data)); }
    K3_INLINE static f64 madd(f64 x, f64 w, f64 acc) noexcept { return f64(_mm512_fmadd_pd(x, w, acc)); }
    K3_INLINE static f64 div(f64 a, f64 b) noexcept { return f64(_mm512_div_pd(a, b)); }
    K3_INLINE static f32 div(f32 a, f32 b) noexcept { return f32(_mm256_div_ps(a, b)); }
    K3_INLINE static f64 sqrt(f64 v) noexcept { return f64(_mm512_maskz_sqrt_pd(kAll, v)); }
    K3_INLINE static f64 select_lt(f64 a, f64 b, f64 x, f64 y) noexcept {
        return f64(_mm512_mask_blend_pd(_mm512_cmp_pd_mask(a, b, _CMP_LT_OQ), y, x));
    }
    K3_INLINE static f32 select_lt(f32 a, f32 b, f32 x, f32 y) noexcept {
        return f32(_mm256_mask_blend_ps(_mm256_cmp_ps_mask(a, b, _CMP_LT_OQ), y, x));
    }
    K3_INLINE static f64 exponent(f64 t) noexcept {
        const __m512i biased = _mm512_add_epi64(_mm512_castpd_si512(t), _mm512_set1_epi64(1023));
        return f64(_mm512_castsi512_pd(_mm512_maskz_slli_epi64(kAll, biased, 52)));
    }
    K3_INLINE static double reduce(const f64* v) noexcept {
        const __m512d all = v[0];
        const __m256d four =
            _mm256_add_pd(_mm512_maskz_extractf64x4_pd(kAll, all, 0), _mm512_maskz_extractf64x4_pd(kAll, all, 1));
        const __m128d pair = _mm_add_pd(_mm256_castpd256_pd128(four), _mm256_extractf128_pd(four, 1));
        return _mm_cvtsd_f64(_mm_add_sd(pair, _mm_unpackhi_pd(pair, pair)));
    }
    K3_INLINE static void widen(const f32* in, f64* out) noexcept { out[0] = f64(_mm512_maskz_cvtps_pd(kAll, in[0])); }
    K3_INLINE static void narrow(const f64* in, f32* out) noexcept { out[0] = f32(_mm512_maskz_cvtpd_ps(kAll, in[0])); }
    K3_INLINE static void load_bf16(const std::byte* p, f64* out) noexcept {
        const __m256i words = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
        out[0] = f64(_mm512_maskz_cvtps_pd(kAll, _mm256_castsi256_ps(_mm256_slli_epi32(words, 16))));
    }
    /// 32 of them: words go to the high halves of sixteen f32, whose halves are widened on their way back from memory,
    /// where widening costs no shuffle; the shuffles are what there is least of.
    K3_INLINE static void load_bf16x32(const std::byte* p, f64* out) noexcept {
        alignas(64) float widened[32];
        for (std::size_t i = 0; i < 2; ++i) {
            const __m256i words = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 32 * i));
            _mm512_store_ps(widened + 16 * i, _mm512_castsi512_ps(_mm512_maskz_slli_epi32(
                                                  kAll16, _mm512_maskz_cvtepu16_epi32(kAll16, words), 16)));
        }
        asm("" : "+m"(widened));  // the compiler would put the shuffles back
        for (std::size_t k = 0; k < 4; ++k) out[k] = f64(_mm512_maskz_cvtps_pd(kAll, _mm256_load_ps(widened + 8 * k)));
    }
    K3_INLINE static void mxfp4(const std::byte* p, std::byte scale, f64* out) noexcept {
        const double* const values = kE2M1Values.of[static_cast<std::size_t>(scale)];
        const __m512d low = _mm512_load_pd(values), high = _mm512_load_pd(values + 8);
        // Only the low four bits of an index count.
        const __m512i shifts = _mm512_set_epi64(28, 24, 20, 16, 12, 8, 4, 0);
        for (std::size_t i = 0; i < 4; ++i) {
            std::int32_t codes;
            std::memcpy(&codes, p + 4 * i, 4);
            const __m512i index = _mm512_maskz_srlv_epi64(kAll, _mm512_set1_epi32(codes), shifts);
            out[i] = f64(_mm512_permutex2var_pd(low, index, high));
        }
    }
};

}  // namespace k3::simd::inline K3_TARGET
#endif
