#ifndef K3_DRIVERS_BENCH_ARCH_IMPL_HPP
#define K3_DRIVERS_BENCH_ARCH_IMPL_HPP
// Fills an ArchTable. For arch units only, which define K3_BENCH_ARCH first. Such a unit holds kernel code without
// fences, so it must not share a symbol with any other, nor with the same unit of another arch: its inline namespace
// has a name of its own.
#include <bit>
#include <cassert>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

#include <xsimd/xsimd.hpp>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "drivers/bench/arch_table.hpp"
#include "k3/simd/arch.hpp"

#ifndef K3_BENCH_ARCH
#error "define K3_BENCH_ARCH as the arch of this unit first"
#endif
#define K3_BENCH_JOIN_(A, B) A##B
#define K3_BENCH_JOIN(A, B) K3_BENCH_JOIN_(A, B)
#undef K3_TARGET
#define K3_TARGET K3_BENCH_JOIN(unfenced_unit_, K3_BENCH_ARCH)
// The fences are the only uses of asm in what this includes; headers of others that have some were included above.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-parameter"
#if defined(__clang__)
#pragma GCC diagnostic ignored "-Wkeyword-macro"
#endif
#define asm(...) static_cast<void>(0)
#include "k3/kernels/delta_rule.hpp"
#undef asm
#pragma GCC diagnostic pop

namespace k3::bench::inline K3_TARGET {

// Registers of the probe: the widest of this unit, and one multiply-add. Only this probe may fuse inexact products: it
// measures the units and computes nothing. For scalar they are the vectors of the baseline, since the compiler may
// vectorise scalar kernels; one number at a time would be no limit of theirs.
//
// step() is acc x + y, so that nothing of it stays the same; on NEON, whose addend is the register it overwrites, it is
// acc + x y, which needs no copy.
//
// kChains independent chains: as many as multiply-add units times cycles of one operation, or more. Four units of four
// cycles, as some cores have, need 16. With two operands beside them, 24 fit 32 registers and 12 fit 16.
template <simd::Arch A>
struct Probe;

#if K3_HAS_AVX512
template <>
struct Probe<simd::avx512> {
    using f64 = __m512d;
    using f32 = __m512;
    static constexpr std::size_t kWidth64 = 8, kChains = 24;
    K3_INLINE static f64 set(double v) noexcept { return _mm512_set1_pd(v); }
    K3_INLINE static f32 set(float v) noexcept { return _mm512_set1_ps(v); }
    K3_INLINE static f64 step(f64 acc, f64 x, f64 y) noexcept { return _mm512_fmadd_pd(acc, x, y); }
    K3_INLINE static f32 step(f32 acc, f32 x, f32 y) noexcept { return _mm512_fmadd_ps(acc, x, y); }
    template <class V>
    K3_INLINE static auto first(V v) noexcept {
        return v[0];
    }
};
#endif
#if K3_HAS_AVX2
template <>
struct Probe<simd::avx2> {
    using f64 = __m256d;
    using f32 = __m256;
    static constexpr std::size_t kWidth64 = 4, kChains = 12;
    K3_INLINE static f64 set(double v) noexcept { return _mm256_set1_pd(v); }
    K3_INLINE static f32 set(float v) noexcept { return _mm256_set1_ps(v); }
    K3_INLINE static f64 step(f64 acc, f64 x, f64 y) noexcept { return _mm256_fmadd_pd(acc, x, y); }
    K3_INLINE static f32 step(f32 acc, f32 x, f32 y) noexcept { return _mm256_fmadd_ps(acc, x, y); }
    template <class V>
    K3_INLINE static auto first(V v) noexcept {
        return v[0];
    }
};
#endif
#if defined(__x86_64__)
struct Sse2Probe {  // multiply and add apart: a chain has twice the cycles, and the two share units on most cores
    using f64 = __m128d;
    using f32 = __m128;
    static constexpr std::size_t kWidth64 = 2, kChains = 12;
    K3_INLINE static f64 set(double v) noexcept { return _mm_set1_pd(v); }
    K3_INLINE static f32 set(float v) noexcept { return _mm_set1_ps(v); }
    K3_INLINE static f64 step(f64 acc, f64 x, f64 y) noexcept { return _mm_add_pd(_mm_mul_pd(acc, x), y); }
    K3_INLINE static f32 step(f32 acc, f32 x, f32 y) noexcept { return _mm_add_ps(_mm_mul_ps(acc, x), y); }
    template <class V>
    K3_INLINE static auto first(V v) noexcept {
        return v[0];
    }
};
template <>
struct Probe<simd::scalar> : Sse2Probe {};
template <>
struct Probe<simd::sse42> : Sse2Probe {};
#endif
#if K3_HAS_NEON
template <>
struct Probe<simd::neon> {
    using f64 = float64x2_t;
    using f32 = float32x4_t;
    static constexpr std::size_t kWidth64 = 2, kChains = 24;
    K3_INLINE static f64 set(double v) noexcept { return vdupq_n_f64(v); }
    K3_INLINE static f32 set(float v) noexcept { return vdupq_n_f32(v); }
    K3_INLINE static f64 step(f64 acc, f64 x, f64 y) noexcept { return vfmaq_f64(acc, x, y); }
    K3_INLINE static f32 step(f32 acc, f32 x, f32 y) noexcept { return vfmaq_f32(acc, x, y); }
    template <class V>
    K3_INLINE static auto first(V v) noexcept {
        return v[0];
    }
};
template <>
struct Probe<simd::scalar> : Probe<simd::neon> {};
#endif

template <simd::Arch A, class V, class T>
double peak(std::size_t rounds) {
    using P = Probe<A>;
    constexpr std::size_t kChains = P::kChains;
    V acc[kChains];
    simd::unroll<kChains>([&](auto i) __attribute__((always_inline)) {
        acc[i] = P::set(static_cast<T>(1 + static_cast<int>(i)));
    });
    V x = P::set(T{0.5}), y = P::set(T{0.25});
#if defined(__x86_64__)  // unknown values: nothing can be computed beforehand
    asm volatile("" : "+x"(x), "+x"(y));
#else
    asm volatile("" : "+w"(x), "+w"(y));
#endif
    for (std::size_t round = 0; round < rounds; ++round)
        simd::unroll<kChains>([&](auto i) __attribute__((always_inline)) {
            acc[i] = P::step(acc[i], x, y);  // converges or grows by 1/8: neither subnormal nor infinite
#if defined(__x86_64__)
            asm volatile("" : "+x"(acc[i]));  // in a register, in turn: as written
#else
            asm volatile("" : "+w"(acc[i]));
#endif
        });
    double sum = 0;  // by element: an address taken here would keep the accumulators in memory throughout
    simd::unroll<kChains>([&](auto i) __attribute__((always_inline)) { sum += static_cast<double>(P::first(acc[i])); });
    return sum;
}

template <simd::Arch A>
void delta_rule_unfenced(float* state, std::size_t keys, std::size_t values, const kernel_table::Delta& in,
                         float* out) {
    kernels::delta_rule<A>(state, keys, values, {in.q, in.k, in.v, in.alpha, in.beta}, out);
}

template <simd::Arch A>
constexpr ArchTable make_arch_table() noexcept {
    using P = Probe<A>;
    return {A::name,
            peak<A, typename P::f64, double>,
            peak<A, typename P::f32, float>,
            2 * P::kChains * P::kWidth64,
            2 * P::kChains * 2 * P::kWidth64,
            delta_rule_unfenced<A>};
}

}  // namespace k3::bench::inline K3_TARGET

constinit const k3::bench::ArchTable k3::bench::K3_BENCH_JOIN(kArch_, K3_BENCH_ARCH) =
    k3::bench::make_arch_table<k3::simd::K3_BENCH_ARCH>();

#endif
