#ifndef K3_DRIVERS_BENCH_SEED_HPP
#define K3_DRIVERS_BENCH_SEED_HPP
// The kernels of the seed, written anew from its documented arithmetic: what k3 is compared with. One row at a time;
// four f64 accumulators by i mod 4, multiply and add apart, (a0 + a1) + (a2 + a3), the tail added to that sum. MXFP4:
// an f64 sum per group of 32, times the group's scale. The delta rule: four passes over the state.
#include <cstddef>

namespace k3::bench::seed {

/// y[r] = w[r] . x for `rows` rows of packed bf16, f32, or MXFP4 (scales beside it; null otherwise).
using MatvecFn = void (*)(const std::byte* w, const std::byte* scales, std::size_t rows, std::size_t cols,
                          const float* x, float* y);

void bf16_scalar(const std::byte* w, const std::byte*, std::size_t rows, std::size_t cols, const float* x, float* y);
void f32_scalar(const std::byte* w, const std::byte*, std::size_t rows, std::size_t cols, const float* x, float* y);
void mxfp4_scalar(const std::byte* w, const std::byte* scales, std::size_t rows, std::size_t cols, const float* x,
                  float* y);
#if defined(__x86_64__)  // the seed has no other vector code
void bf16_avx2(const std::byte* w, const std::byte*, std::size_t rows, std::size_t cols, const float* x, float* y);
void f32_avx2(const std::byte* w, const std::byte*, std::size_t rows, std::size_t cols, const float* x, float* y);
#endif

/// S <- diag(alpha) S; u = S^T k; S <- S + (beta k)(v - u)^T; o = S^T q, each a pass over S. V <= 128.
void delta_rule(float* state, std::size_t keys, std::size_t values, const float* q, const float* k, const float* v,
                const float* alpha, float beta, float* out);

}  // namespace k3::bench::seed
#endif
