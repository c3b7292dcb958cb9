#ifndef K3_DRIVERS_BENCH_SEED_HPP
#define K3_DRIVERS_BENCH_SEED_HPP
// The kernels of the seed, written anew from its documented arithmetic: what k3 is compared with. One row at a time;
// four f64 accumulators by i mod 4, multiply and add apart, (a0 + a1) + (a2 + a3), the tail added to that sum. MXFP4:
// an f64 sum per group of 32, times the group's scale. The delta rule: four passes over the state.
//
// Its scalar loops are compiled several times from one source: once without the vectoriser, which is what the targets
// call scalar, and once with the flags of each arch and the vectoriser on, since k3's scalar kernels may be vectorised
// by the compiler as well.
#include <cstddef>
#include <string_view>

namespace k3::bench::seed {

/// y[r] = w[r] . x for `rows` rows of packed bf16, f32, or MXFP4 (scales beside it; null otherwise).
using MatvecFn = void (*)(const std::byte* w, const std::byte* scales, std::size_t rows, std::size_t cols,
                          const float* x, float* y);
/// S <- diag(alpha) S; u = S^T k; S <- S + (beta k)(v - u)^T; o = S^T q, each a pass over S. V <= 128.
using DeltaFn = void (*)(float* state, std::size_t keys, std::size_t values, const float* q, const float* k,
                         const float* v, const float* alpha, float beta, float* out);

struct Loops {
    MatvecFn matvec[3];  // by kernel_table::Format
    DeltaFn delta_rule;
};

extern const Loops kScalar;       // for the baseline, without the vectoriser
extern const Loops kAuto_scalar;  // the same flags, with it
#if defined(__x86_64__)
extern const Loops kAuto_sse42, kAuto_avx2, kAuto_avx512;
// The seed's only vector code.
void bf16_avx2(const std::byte* w, const std::byte*, std::size_t rows, std::size_t cols, const float* x, float* y);
void f32_avx2(const std::byte* w, const std::byte*, std::size_t rows, std::size_t cols, const float* x, float* y);
#elif defined(__aarch64__)
extern const Loops kAuto_neon;
#endif

/// The scalar loops as the compiler vectorises them for an arch.
inline const Loops& auto_loops(std::string_view arch) {
#if defined(__x86_64__)
    if (arch == "sse42") return kAuto_sse42;
    if (arch == "avx2") return kAuto_avx2;
    if (arch == "avx512") return kAuto_avx512;
#elif defined(__aarch64__)
    if (arch == "neon") return kAuto_neon;
#endif
    static_cast<void>(arch);
    return kAuto_scalar;
}

}  // namespace k3::bench::seed
#endif
