#ifndef K3_LAYERS_KDA_HPP
#define K3_LAYERS_KDA_HPP
// Kimi delta attention: projections, short convolution, gated delta rule by head, per-head norm, sigmoid gate, output.
#include "k3/kernels/delta_rule.hpp"
#include "k3/kernels/elementwise.hpp"
#include "k3/kernels/norm.hpp"
#include "k3/kernels/short_conv.hpp"
#include "k3/layers/linear.hpp"

namespace k3::layers {

struct KdaShape {
    std::size_t heads, dim, taps;
    float lower_bound;
    double eps;
    K3_INLINE std::size_t width() const noexcept { return heads * dim; }
};

struct KdaWeights {
    Weight q, k, v, g, o;  // [width, hidden]; o: [hidden, width]
    Weight f_a, f_b, b;    // decay low-rank down and up; beta logits [heads, hidden]
    const float* conv[3];  // q, k, v taps as [taps, width], oldest first
    const float* a_log;    // [heads]: one value a head; a stored tensor may be longer, the rest is padding
    const float* dt_bias;  // [width]
    const float* o_norm;   // [dim], shared by the heads
};

}  // namespace k3::layers

namespace k3::layers::inline K3_TARGET {

namespace detail {

/// Buffers of one call, all [T, width] unless noted.
struct KdaBuffers {
    float* in[3];   // q, k, v before the convolution
    float* qkv[3];  // after it
    float *decay, *gate, *mixed;
    float *rank, *beta;  // [T, rank of f_a], [T, heads]
    K3_INLINE KdaBuffers(core::Arena& arena, const KdaShape& shape, std::size_t rank_width,
                         std::size_t tokens) noexcept {
        const std::size_t n = tokens * shape.width();
        for (float*& p : in) p = arena.take<float>(n);
        for (float*& p : qkv) p = arena.take<float>(n);
        decay = arena.take<float>(n);
        gate = arena.take<float>(n);
        mixed = arena.take<float>(n);
        rank = arena.take<float>(tokens * rank_width);
        beta = arena.take<float>(tokens * shape.heads);
    }
};

/// One head over the tokens of one segment: norms, decay, recurrence, output norm and gate.
template <simd::Arch A>
void kda_head(const KdaShape& shape, const KdaWeights& w, const SegmentRows& rows, const KdaBuffers& b,
              std::size_t head, core::Arena scratch) noexcept {
    const std::size_t dim = shape.dim, width = shape.width(), at = head * dim;
    const float scale = simd::round32(kernels::inverse_sqrt(static_cast<double>(dim)));
    float a;
    kernels::exp<A>(w.a_log + head, 1, &a);
    float* state = rows.kda.recurrent + head * dim * dim;
    const float* const next = head + 1 < shape.heads ? state + dim * dim : nullptr;
    if (rows.log.k != nullptr) {  // the step may be taken back: work on a copy
        float* copy = scratch.take<float>(dim * dim);
        __builtin_memcpy(copy, state, dim * dim * sizeof(float));
        state = copy;
    }
    for (std::size_t t = 0; t < rows.tokens; ++t) {
        const std::size_t row = (rows.first + t) * width + at;
        float *q = b.qkv[0] + row, *k = b.qkv[1] + row, *v = b.qkv[2] + row, *alpha = b.decay + row, *o = b.mixed + row;
        float* beta = b.beta + (rows.first + t) * shape.heads + head;
        kernels::l2norm_scaled<A>(q, dim, scale, q);
        kernels::l2norm<A>(k, dim, k);
        kernels::decay<A>(alpha, w.dt_bias + at, dim, a, shape.lower_bound, alpha);
        kernels::sigmoid<A>(beta, 1, beta);
        kernels::delta_rule<A>(state, dim, dim, {q, k, v, alpha, *beta}, o, t + 1 == rows.tokens ? next : nullptr);
        if (rows.log.k != nullptr) {
            const std::size_t to = t * width + at;
            __builtin_memcpy(rows.log.k + to, k, dim * sizeof(float));
            __builtin_memcpy(rows.log.v + to, v, dim * sizeof(float));
            __builtin_memcpy(rows.log.alpha + to, alpha, dim * sizeof(float));
            rows.log.beta[t * shape.heads + head] = *beta;
        }
        kernels::rmsnorm<A>(o, w.o_norm, dim, shape.eps, o);  // norm first, gate second
        kernels::sigmoid_gate<A>(o, b.gate + row, dim, o);
    }
}

}  // namespace detail

/// Bytes of scratch kda() takes from its arena for T tokens, and each thread from its own.
K3_INLINE std::size_t kda_bytes(const KdaShape& shape, std::size_t rank_width, std::size_t tokens) noexcept {
    core::Arena count;
    const detail::KdaBuffers buffers(count, shape, rank_width, tokens);
    static_cast<void>(buffers);
    return count.used();
}
K3_INLINE std::size_t kda_local_bytes(const KdaShape& shape) noexcept {
    return shape.dim * shape.dim * sizeof(float) + core::Arena::kAlign;
}

/// y[t] = KDA(x[t]) for every segment of the step; x: [T, hidden], already normalised.
///
/// Numerics  NUMERICS, sections short_conv, decay, delta_rule; heads are independent; tokens of a segment in order.
/// State     with a log the state is only read and the log is filled; without one the state moves in place.
/// Threads   rows of the projections, channels of the convolution, heads of the recurrence.
template <simd::Arch A>
[[nodiscard]] core::Fault kda(const Context& context, const KdaShape& shape, const KdaWeights& w,
                              core::MatView<const float> x, const SegmentRows* segments, std::size_t segment_count,
                              core::MatView<float> y, core::Arena scratch) noexcept {
    const std::size_t tokens = x.rows, width = shape.width();
    const detail::KdaBuffers b(scratch, shape, w.f_a.rows, tokens);
    const auto view = [tokens](float* data, std::size_t cols) noexcept {
        return core::MatView<float>(data, tokens, cols);
    };

    const Weight* const projections[3] = {&w.q, &w.k, &w.v};
    for (std::size_t i = 0; i < 3; ++i)
        if (const core::Fault fault = linear<A>(context, *projections[i], x, view(b.in[i], width))) return fault;
    if (const core::Fault fault = linear<A>(context, w.b, x, view(b.beta, shape.heads))) return fault;
    if (const core::Fault fault = linear<A>(context, w.f_a, x, view(b.rank, w.f_a.rows))) return fault;
    if (const core::Fault fault = linear<A>(context, w.f_b, view(b.rank, w.f_a.rows), view(b.decay, width)))
        return fault;
    if (const core::Fault fault = linear<A>(context, w.g, x, view(b.gate, width))) return fault;

    for (std::size_t s = 0; s < segment_count; ++s) {
        const SegmentRows& rows = segments[s];
        core::parallel(context.exec, width, 3 * rows.tokens * (shape.taps + 32),
                       [&](std::size_t begin, std::size_t end, unsigned) noexcept {
            for (std::size_t i = 0; i < 3; ++i) {
                const auto in = view(b.in[i], width).row_range(rows.first, rows.tokens);
                kernels::short_conv<A>(in, w.conv[i], shape.taps, rows.kda.conv[i], begin, end,
                                       view(b.qkv[i], width).row_range(rows.first, rows.tokens));
                if (rows.log.k == nullptr) {
                    kernels::shift_history<A>(in, rows.tokens, shape.taps, begin, end, rows.kda.conv[i]);
                } else {
                    for (std::size_t t = 0; t < rows.tokens; ++t)
                        __builtin_memcpy(rows.log.conv[i] + t * width + begin, in.row(t) + begin,
                                         (end - begin) * sizeof(float));
                }
            }
        });
        core::parallel(context.exec, shape.heads, rows.tokens * shape.dim * (4 * shape.dim + 64),
                       [&](std::size_t begin, std::size_t end, unsigned thread) noexcept {
            for (std::size_t head = begin; head < end; ++head)
                detail::kda_head<A>(shape, w, rows, b, head, context.exec.local_of(thread));
        });
    }
    return linear<A>(context, w.o, view(b.mixed, width), y);
}

/// Moves the state over the first `tokens` tokens of a log: the same operations as in kda(), so the same bits.
template <simd::Arch A>
void kda_commit(const core::Exec& exec, const KdaShape& shape, const KdaState& state, const KdaLog& log,
                std::size_t tokens) noexcept {
    const std::size_t dim = shape.dim, width = shape.width();
    core::parallel(exec, shape.heads, tokens * 4 * shape.dim * shape.dim,
                   [&](std::size_t begin, std::size_t end, unsigned thread) noexcept {
        core::Arena scratch = exec.local_of(thread);
        float* const unused = scratch.take<float>(dim);
        for (std::size_t head = begin; head < end; ++head) {
            const std::size_t at = head * dim;
            for (std::size_t t = 0; t < tokens; ++t) {
                const std::size_t row = t * width + at;
                float* const recurrent = state.recurrent + head * dim * dim;
                kernels::delta_rule<A>(
                    recurrent, dim, dim,
                    {log.k + row, log.k + row, log.v + row, log.alpha + row, log.beta[t * shape.heads + head]}, unused,
                    t + 1 == tokens && head + 1 < shape.heads ? recurrent + dim * dim : nullptr);
            }
            for (std::size_t i = 0; i < 3; ++i)
                kernels::shift_history<A>(core::MatView<const float>(log.conv[i], tokens, width), tokens, shape.taps,
                                          at, at + dim, state.conv[i]);
        }
    });
}

}  // namespace k3::layers::inline K3_TARGET
#endif
