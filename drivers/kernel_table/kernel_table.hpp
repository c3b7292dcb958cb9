#ifndef K3_DRIVERS_KERNEL_TABLE_KERNEL_TABLE_HPP
#define K3_DRIVERS_KERNEL_TABLE_KERNEL_TABLE_HPP
// All kernels of one arch as plain function pointers. One unit per arch (arch_<name>.cpp) fills a table; k3-bench and
// the tests are compiled for the baseline and loop over the tables of this CPU (cpu.hpp), so that every arch runs in
// one process. Names, shapes and scratch are those of k3/kernels; types that carry a unit's inline namespace are passed
// as the plain structs below.
#include <cstddef>
#include <cstdint>

#include "k3/core/exec.hpp"
#include "k3/core/view.hpp"

namespace k3::kernel_table {

enum Format : std::size_t { kBf16, kF32, kMxfp4, kFormats };
inline constexpr const char* kFormatNames[kFormats] = {"bf16", "f32", "mxfp4"};

struct Bytes {  // a packed matrix
    const std::byte* data;
    const std::byte* scales;  // null but for mxfp4
    std::size_t rows, cols;
};
struct Delta {
    const float *q, *k, *v, *alpha;
    float beta;
};
struct Router {
    std::size_t top_k;
    bool renormalize;
    double scale;
};
struct Cache {
    float* const* pages;
    std::size_t page_positions, latent, rope;
};
struct Scratch {
    std::size_t local_bytes, shared_bytes;
};

using In = core::MatView<const float>;
template <class Out>
using MatmulFn = void (*)(const core::Exec&, const Bytes&, In x, core::MatView<Out> y);
template <class Out>
using ThreadMatmulFn = void (*)(core::Arena, const Bytes&, In x, core::MatView<Out> y);
using UnaryFn = void (*)(const float* x, std::size_t n, float* y);

struct KernelTable {
    const char* name;
    bool (*canary)();

    UnaryFn exp, sigmoid, tanh, silu;
    void (*narrow)(const double* x, std::size_t n, float* y);  // simd::narrow, n a multiple of 8
    double (*reduce)(const double* eight);

    /// Row r as doubles: decode() for whole blocks, decode_tail() for the rest.
    void (*decode[kFormats])(const Bytes&, std::size_t r, double* out);
    double (*dot64)(const float* x, const float* y, std::size_t n);
    Scratch (*matmul_scratch)(std::size_t cols);
    MatmulFn<float> matmul[kFormats];
    MatmulFn<double> matmul_sums[kFormats];
    ThreadMatmulFn<float> matmul_on_thread[kFormats];
    ThreadMatmulFn<double> matmul_on_thread_sums[kFormats];
    void (*column_dot[kMxfp4])(const Bytes&, In x, core::MatView<float> y);  // bf16 and f32

    void (*rmsnorm)(const float* x, const float* w, std::size_t n, double eps, float* y);
    void (*l2norm)(const float* x, std::size_t n, float* y);
    void (*l2norm_scaled)(const float* x, std::size_t n, float scale, float* y);
    double (*inverse_sqrt)(double v);

    void (*add)(const float* a, const float* b, std::size_t n, float* y);
    void (*sigmoid_gate)(const float* x, const float* gate, std::size_t n, float* y);
    void (*scaled_add)(float w, const float* x, std::size_t n, float* acc);
    void (*situ_glu)(const float* gate, const float* up, std::size_t n, float b1, float b2, float* y);
    void (*decay)(const float* z, const float* dt_bias, std::size_t n, float a, float lower_bound, float* alpha);

    void (*short_conv)(In u, const float* w, std::size_t taps, const float* history, std::size_t begin, std::size_t end,
                       core::MatView<float> y);
    void (*shift_history)(In u, std::size_t tokens, std::size_t taps, std::size_t begin, std::size_t end,
                          float* history);
    void (*delta_rule)(float* state, std::size_t keys, std::size_t values, const Delta&, float* out);
    void (*attention_residual)(const float* const* sources, std::size_t count, const float* fold, std::size_t n,
                               double eps, float* out, float* scratch);
    bool (*route)(const float* logits, const float* bias, std::size_t experts, const Router&, std::int32_t* ids,
                  float* weights, float* scratch);
    std::int64_t (*argmax)(const float* x, std::size_t n);
    std::size_t (*latent_attention_scratch)(std::size_t positions, std::size_t row_floats);
    void (*latent_attention)(const Cache&, std::size_t positions, std::size_t heads, const float* qa,
                             std::size_t qa_stride, const float* q_rope, std::size_t rope_stride, double scale,
                             float* out, std::size_t out_stride, core::Arena scratch);
};

extern const KernelTable kKernels_scalar;
#if defined(__x86_64__)
extern const KernelTable kKernels_sse42, kKernels_avx2, kKernels_avx512;
#elif defined(__aarch64__)
extern const KernelTable kKernels_neon;
#endif

}  // namespace k3::kernel_table
#endif
