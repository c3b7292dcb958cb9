#ifndef K3_LAYERS_MOE_HPP
#define K3_LAYERS_MOE_HPP
// Latent mixture of experts: route on the hidden vector, work in the latent space, add the shared expert.
#include "k3/kernels/norm.hpp"
#include "k3/kernels/top_k.hpp"
#include "k3/layers/mlp.hpp"

namespace k3::layers {

struct MoeShape {
    std::size_t experts, top_k, latent, expert_width, shared_width;
    bool latent_norm, renormalize;
    double scale;  // routed_scaling_factor
    double eps;
    Situ situ;
};

struct MoeWeights {
    Weight gate;        // router, [experts, hidden]
    const float* bias;  // [experts]: for the choice only
    Weight down, up;    // [latent, hidden], [hidden, latent]
    const float* norm;  // [latent]
    MlpWeights shared;  // one MLP of shared_width on the hidden vector
};

}  // namespace k3::layers

namespace k3::layers::inline K3_TARGET {

namespace detail {

struct MoeBuffers {
    float *logits, *latent, *outputs, *shared, *weights;
    std::int32_t* ids;
    K3_INLINE MoeBuffers(core::Arena& arena, const MoeShape& s, std::size_t hidden, std::size_t tokens) noexcept {
        ids = arena.take<std::int32_t>(tokens * s.top_k);
        weights = arena.take<float>(tokens * s.top_k);
        logits = arena.take<float>(tokens * s.experts);
        latent = arena.take<float>(tokens * s.latent);
        outputs = arena.take<float>(tokens * s.top_k * s.latent);
        shared = arena.take<float>(tokens * hidden);
    }
};

}  // namespace detail

/// What the expert service may take from the arena it is handed: one expert's tokens, gathered.
K3_INLINE std::size_t expert_bytes(const MoeShape& s, std::size_t tokens) noexcept {
    return 2 * (tokens * s.latent * sizeof(float) + core::Arena::kAlign) + mlp_bytes(tokens, s.expert_width) +
           (tokens * s.top_k + s.experts + 1) * sizeof(std::uint32_t) + 4 * core::Arena::kAlign;
}
K3_INLINE std::size_t moe_bytes(const MoeShape& s, std::size_t hidden, std::size_t tokens) noexcept {
    core::Arena count;
    const detail::MoeBuffers buffers(count, s, hidden, tokens);
    static_cast<void>(buffers);
    const std::size_t experts = expert_bytes(s, tokens), shared = mlp_bytes(tokens, s.shared_width);
    return count.used() + (experts > shared ? experts : shared);
}
/// Bytes each thread takes from its own scratch: the scores of one token.
K3_INLINE std::size_t moe_local_bytes(const MoeShape& s) noexcept {
    return s.experts * sizeof(float) + core::Arena::kAlign;
}

/// y[t] = W_up rmsnorm(sum over the chosen experts of w_j * e_j(W_down x)) + shared(x).
///
/// Numerics  NUMERICS, sections router and latent_moe: the sum in rank order from +0, the norm once on the aggregate.
/// Faults    faults[t] is set for a token whose router score is NaN or whose expert failed; its row is then
/// meaningless,
///           other rows are not touched. The return value is a fault of the whole step.
/// Threads   rows; tokens of the routing and of the sum.
template <simd::Arch A>
[[nodiscard]] core::Fault moe(const Context& context, std::size_t layer, const MoeShape& s, const MoeWeights& w,
                              core::MatView<const float> x, core::MatView<float> y, core::Fault* faults,
                              core::Arena scratch) noexcept {
    const std::size_t tokens = x.rows, hidden = x.cols;
    const detail::MoeBuffers b(scratch, s, hidden, tokens);
    const core::MatView<float> latent(b.latent, tokens, s.latent);
    if (const core::Fault fault = linear<A>(context, w.gate, x, {b.logits, tokens, s.experts})) return fault;
    const kernels::RouterRule rule{s.top_k, s.renormalize, s.scale};
    core::parallel(context.exec, tokens, 32 * s.experts,
                   [&](std::size_t begin, std::size_t end, unsigned thread) noexcept {
        core::Arena local = context.exec.local_of(thread);
        float* const scores = local.take<float>(s.experts);
        for (std::size_t t = begin; t < end; ++t) {
            std::int32_t* const ids = b.ids + t * s.top_k;
            if (!faults[t] && !kernels::route<A>(b.logits + t * s.experts, w.bias, s.experts, rule, ids,
                                                 b.weights + t * s.top_k, scores)) {
                faults[t] = {.code = core::FaultCode::router_nan,
                             .layer = static_cast<std::int32_t>(layer),
                             .token = static_cast<std::int32_t>(t)};
            }
            if (faults[t]) {
                for (std::size_t j = 0; j < s.top_k; ++j) ids[j] = -1;
            }
        }
    });
    if (const core::Fault fault = linear<A>(context, w.down, x, latent)) return fault;
    if (context.experts == nullptr)
        return {.code = core::FaultCode::expert_failed, .layer = static_cast<std::int32_t>(layer)};
    const core::MatView<float> outputs(b.outputs, tokens * s.top_k, s.latent);
    context.experts->submit(context.exec, layer, {b.ids, tokens, s.top_k}, latent, outputs, faults, scratch);

    core::parallel(context.exec, tokens, s.top_k * s.latent,
                   [&](std::size_t begin, std::size_t end, unsigned) noexcept {
        for (std::size_t t = begin; t < end; ++t) {
            float* const acc = latent.row(t);  // the experts have read it: now it holds their sum
            for (std::size_t i = 0; i < s.latent; ++i) acc[i] = 0.0F;
            if (faults[t]) continue;
            for (std::size_t j = 0; j < s.top_k; ++j)
                kernels::scaled_add<A>(b.weights[t * s.top_k + j], outputs.row(t * s.top_k + j), s.latent, acc);
            if (s.latent_norm) kernels::rmsnorm<A>(acc, w.norm, s.latent, s.eps, acc);
        }
    });
    if (const core::Fault fault = linear<A>(context, w.up, latent, y)) return fault;
    const core::MatView<float> shared(b.shared, tokens, hidden);
    if (const core::Fault fault = mlp<A>(context, w.shared, s.situ, x, shared, scratch)) return fault;
    core::parallel(context.exec, tokens, hidden, [&](std::size_t begin, std::size_t end, unsigned) noexcept {
        for (std::size_t t = begin; t < end; ++t) kernels::add<A>(y.row(t), shared.row(t), hidden, y.row(t));
    });
    return {};
}

/// Tells the expert service what `layer`, a layer to come, will probably ask for: its router applied to the hidden
/// vector that an earlier layer's router saw. For one token, and only if that router is in memory.
template <simd::Arch A>
void look_ahead(const Context& context, std::size_t layer, const MoeShape& s, const MoeWeights& w,
                core::MatView<const float> x, core::Arena scratch) noexcept {
    if (context.experts == nullptr || x.rows != 1 || w.gate.data == nullptr) return;
    const std::size_t wanted = context.experts->wants_prediction(layer);
    const std::size_t count = wanted < s.top_k ? wanted : s.top_k;  // the scratch of moe() covers as many
    if (count == 0) return;
    float* const logits = scratch.take<float>(s.experts);
    float* const scores = scratch.take<float>(s.experts);
    float* const weights = scratch.take<float>(count);
    std::int32_t* const ids = scratch.take<std::int32_t>(count);
    if (linear<A>(context, w.gate, x, {logits, 1, s.experts})) return;
    bool sound = false;
    core::parallel(context.exec, 1, 1, [&](std::size_t, std::size_t, unsigned) noexcept {
        sound = kernels::route<A>(logits, w.bias, s.experts, {count, s.renormalize, s.scale}, ids, weights, scores);
    });
    if (sound) context.experts->predict(layer, ids, count);
}

}  // namespace k3::layers::inline K3_TARGET
#endif
