#ifndef K3_DRIVERS_KERNEL_TABLE_IMPL_HPP
#define K3_DRIVERS_KERNEL_TABLE_IMPL_HPP
// Fills a KernelTable for one arch. For arch units only: everything here is compiled with that arch's flags, so nothing
// but the kernels' own headers is included and every name carries the unit's inline namespace.
#include "drivers/kernel_table/kernel_table.hpp"
#include "k3/kernels.hpp"

namespace k3::kernel_table::inline K3_TARGET {

template <Format F>
struct FormatOf;
template <>
struct FormatOf<kBf16> {
    using type = formats::bf16;
};
template <>
struct FormatOf<kF32> {
    using type = formats::f32;
};
template <>
struct FormatOf<kMxfp4> {
    using type = formats::mxfp4;
};

template <class F>
K3_INLINE formats::Packed<F> packed(const Bytes& w) noexcept {
    return {w.data, w.scales, w.rows, w.cols};
}

template <simd::Arch A>
struct Wrap {
    template <class Fn>
    K3_INLINE static void each(const float* x, std::size_t n, float* y, Fn fn) noexcept {
        for (std::size_t i = 0; i < n; i += 8) simd::store<A>(y + i, fn(simd::load<A>(x + i, n - i)), n - i);
    }
    static bool canary() { return simd::arithmetic_is_exact<A>(); }
    static void exp(const float* x, std::size_t n, float* y) { kernels::exp<A>(x, n, y); }
    static void sigmoid(const float* x, std::size_t n, float* y) { kernels::sigmoid<A>(x, n, y); }
    static void tanh(const float* x, std::size_t n, float* y) {
        each(
            x, n, y, [](const simd::f32x8<A>& v) __attribute__((always_inline)) { return simd::tanh<A>(v); });
    }
    static void silu(const float* x, std::size_t n, float* y) {
        each(
            x, n, y, [](const simd::f32x8<A>& v) __attribute__((always_inline)) { return simd::silu<A>(v); });
    }
    static void narrow(const double* x, std::size_t n, float* y) {
        for (std::size_t i = 0; i + 8 <= n; i += 8) simd::store<A>(y + i, simd::narrow(simd::load<A>(x + i)));
    }
    static double reduce(const double* eight) { return simd::reduce(simd::load<A>(eight)); }

    template <Format F>
    static void decode(const Bytes& w, std::size_t r, double* out) {
        using T = typename FormatOf<F>::type;
        const auto row = packed<T>(w).row(r);
        std::size_t i = 0;
        for (; i + T::kBlock <= w.cols; i += T::kBlock) {
            simd::f64x8<A> values[T::kBlock / 8];
            T::template decode<A>(row, i, values);
            for (std::size_t k = 0; k < T::kBlock / 8; ++k) simd::store<A>(out + i + 8 * k, values[k]);
        }
        if (i == w.cols) return;
        double padded[T::kBlock];
        T::decode_tail(row, i, w.cols - i, padded);
        for (std::size_t k = 0; i + k < w.cols; ++k) out[i + k] = padded[k];
    }
    static double dot64(const float* x, const float* y, std::size_t n) { return kernels::dot64<A>(x, y, n); }
    static Scratch matmul_scratch(std::size_t cols) {
        const auto need = kernels::matmul_scratch(cols);
        return {need.local_bytes, need.shared_bytes};
    }
    template <Format F, class Out>
    static void matmul(const core::Exec& exec, const Bytes& w, In x, core::MatView<Out> y) {
        using T = typename FormatOf<F>::type;
        kernels::matmul<T, A>(exec, packed<T>(w), x, y);
    }
    template <Format F, class Out>
    static void matmul_on_thread(core::Arena scratch, const Bytes& w, In x, core::MatView<Out> y) {
        using T = typename FormatOf<F>::type;
        kernels::matmul_on_thread<T, A>(scratch, packed<T>(w), x, y);
    }
    template <Format F>
    static void column_dot(const Bytes& w, In x, core::MatView<float> y) {
        using T = typename FormatOf<F>::type;
        kernels::column_dot<T, A>(packed<T>(w), x, y);
    }

    static void rmsnorm(const float* x, const float* w, std::size_t n, double eps, float* y) {
        kernels::rmsnorm<A>(x, w, n, eps, y);
    }
    static void l2norm(const float* x, std::size_t n, float* y) { kernels::l2norm<A>(x, n, y); }
    static void l2norm_scaled(const float* x, std::size_t n, float scale, float* y) {
        kernels::l2norm_scaled<A>(x, n, scale, y);
    }
    static double inverse_sqrt(double v) { return kernels::inverse_sqrt(v); }
    static void add(const float* a, const float* b, std::size_t n, float* y) { kernels::add<A>(a, b, n, y); }
    static void sigmoid_gate(const float* x, const float* gate, std::size_t n, float* y) {
        kernels::sigmoid_gate<A>(x, gate, n, y);
    }
    static void scaled_add(float w, const float* x, std::size_t n, float* acc) { kernels::scaled_add<A>(w, x, n, acc); }
    static void situ_glu(const float* gate, const float* up, std::size_t n, float b1, float b2, float* y) {
        kernels::situ_glu<A>(gate, up, n, b1, b2, y);
    }
    static void decay(const float* z, const float* dt_bias, std::size_t n, float a, float lower_bound, float* alpha) {
        kernels::decay<A>(z, dt_bias, n, a, lower_bound, alpha);
    }
    static void short_conv(In u, const float* w, std::size_t taps, const float* history, std::size_t begin,
                           std::size_t end, core::MatView<float> y) {
        kernels::short_conv<A>(u, w, taps, history, begin, end, y);
    }
    static void shift_history(In u, std::size_t tokens, std::size_t taps, std::size_t begin, std::size_t end,
                              float* history) {
        kernels::shift_history<A>(u, tokens, taps, begin, end, history);
    }
    static void delta_rule(float* state, std::size_t keys, std::size_t values, const Delta& in, float* out) {
        kernels::delta_rule<A>(state, keys, values, {in.q, in.k, in.v, in.alpha, in.beta}, out);
    }
    static void attention_residual(const float* const* sources, std::size_t count, const float* fold, std::size_t n,
                                   double eps, float* out, float* scratch) {
        kernels::attention_residual<A>(sources, count, fold, n, eps, out, scratch);
    }
    static bool route(const float* logits, const float* bias, std::size_t experts, const Router& rule,
                      std::int32_t* ids, float* weights, float* scratch) {
        return kernels::route<A>(logits, bias, experts, {rule.top_k, rule.renormalize, rule.scale}, ids, weights,
                                 scratch);
    }
    static std::int64_t argmax(const float* x, std::size_t n) { return kernels::argmax<A>(x, n); }
    static std::size_t latent_attention_scratch(std::size_t positions, std::size_t row_floats) {
        return kernels::latent_attention_scratch(positions, row_floats);
    }
    static void latent_attention(const Cache& c, std::size_t positions, std::size_t heads, const float* qa,
                                 std::size_t qa_stride, const float* q_rope, std::size_t rope_stride, double scale,
                                 float* out, std::size_t out_stride, core::Arena scratch) {
        kernels::latent_attention<A>({c.pages, c.page_positions, c.latent, c.rope}, positions, heads, qa, qa_stride,
                                     q_rope, rope_stride, scale, out, out_stride, scratch);
    }
};

template <simd::Arch A>
constexpr KernelTable make_table() noexcept {
    using W = Wrap<A>;
    KernelTable t{};
    t.name = A::name;
    t.canary = W::canary;
    t.exp = W::exp;
    t.sigmoid = W::sigmoid;
    t.tanh = W::tanh;
    t.silu = W::silu;
    t.narrow = W::narrow;
    t.reduce = W::reduce;
    t.decode[kBf16] = W::template decode<kBf16>;
    t.decode[kF32] = W::template decode<kF32>;
    t.decode[kMxfp4] = W::template decode<kMxfp4>;
    t.dot64 = W::dot64;
    t.matmul_scratch = W::matmul_scratch;
    t.matmul[kBf16] = W::template matmul<kBf16, float>;
    t.matmul[kF32] = W::template matmul<kF32, float>;
    t.matmul[kMxfp4] = W::template matmul<kMxfp4, float>;
    t.matmul_sums[kBf16] = W::template matmul<kBf16, double>;
    t.matmul_sums[kF32] = W::template matmul<kF32, double>;
    t.matmul_sums[kMxfp4] = W::template matmul<kMxfp4, double>;
    t.matmul_on_thread[kBf16] = W::template matmul_on_thread<kBf16, float>;
    t.matmul_on_thread[kF32] = W::template matmul_on_thread<kF32, float>;
    t.matmul_on_thread[kMxfp4] = W::template matmul_on_thread<kMxfp4, float>;
    t.matmul_on_thread_sums[kBf16] = W::template matmul_on_thread<kBf16, double>;
    t.matmul_on_thread_sums[kF32] = W::template matmul_on_thread<kF32, double>;
    t.matmul_on_thread_sums[kMxfp4] = W::template matmul_on_thread<kMxfp4, double>;
    t.column_dot[kBf16] = W::template column_dot<kBf16>;
    t.column_dot[kF32] = W::template column_dot<kF32>;
    t.rmsnorm = W::rmsnorm;
    t.l2norm = W::l2norm;
    t.l2norm_scaled = W::l2norm_scaled;
    t.inverse_sqrt = W::inverse_sqrt;
    t.add = W::add;
    t.sigmoid_gate = W::sigmoid_gate;
    t.scaled_add = W::scaled_add;
    t.situ_glu = W::situ_glu;
    t.decay = W::decay;
    t.short_conv = W::short_conv;
    t.shift_history = W::shift_history;
    t.delta_rule = W::delta_rule;
    t.attention_residual = W::attention_residual;
    t.route = W::route;
    t.argmax = W::argmax;
    t.latent_attention_scratch = W::latent_attention_scratch;
    t.latent_attention = W::latent_attention;
    return t;
}

}  // namespace k3::kernel_table::inline K3_TARGET

/// Defines the table of one arch: K3_KERNEL_TABLE(avx2).
#define K3_KERNEL_TABLE(ARCH)                                                         \
    constinit const k3::kernel_table::KernelTable k3::kernel_table::kKernels_##ARCH = \
        k3::kernel_table::make_table<k3::simd::ARCH>();

#endif
