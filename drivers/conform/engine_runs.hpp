#ifndef K3_DRIVERS_CONFORM_ENGINE_RUNS_HPP
#define K3_DRIVERS_CONFORM_ENGINE_RUNS_HPP
// One sublayer of the loaded layer, run by the engine, with every intermediate result its public interface can show:
// KDA's log of a step, MLA's latent cache, what the expert service is asked; and by probes in place of the last matrix
// the vector before it. Projections whose results no interface shows (MLA's queries, the gates, the router's logits)
// are run once more by themselves: same function, same input, so the layer's own have the same bits or the stage after
// them fails.
#include <string>
#include <utility>
#include <vector>

#include "drivers/conform/engine.hpp"

namespace k3::conform {

struct KdaRun {
    Rows conv[3], k, v, alpha, beta;  ///< of the log: inputs of the convolution; what the recurrence takes
    Rows rank, gate;                  ///< f_a x; gate logits
    Rows gated, out;                  ///< before and after o_proj
    std::vector<float> state;         ///< [heads][key][value] after the last token
};

inline KdaRun run_kda(Engine& e, std::size_t n, const Rows& x) {
    const model::Config& c = e.c();
    const std::size_t t = x.rows, width = c.kda_width(), history = (c.conv_kernel - 1) * width;
    const layers::KdaShape shape{c.kda_heads, c.kda_head_dim, c.conv_kernel, static_cast<float>(c.gate_lower_bound),
                                 c.rms_norm_eps};
    KdaRun r;
    for (Rows& rows : r.conv) rows = Rows(t, width);
    for (Rows* rows : {&r.k, &r.v, &r.alpha, &r.gated}) *rows = Rows(t, width);
    r.beta = Rows(t, c.kda_heads);
    r.out = Rows(t, c.hidden);
    r.state.assign(c.kda_heads * c.kda_head_dim * c.kda_head_dim, 0.0F);
    std::vector<float> before(3 * history, 0.0F);
    layers::SegmentRows rows{};
    rows.tokens = t;
    rows.kda = {r.state.data(), {before.data(), before.data() + history, before.data() + 2 * history}};
    rows.log = {r.k.data.data(), r.v.data.data(), r.alpha.data.data(), r.beta.data.data(), {}};
    for (std::size_t i = 0; i < 3; ++i) rows.log.conv[i] = r.conv[i].data.data();

    layers::KdaWeights w = e.layer().kda;
    r.rank = e.linear(w.f_a, x, n);
    r.gate = e.linear(w.g, x, n);
    e.require(e.table().kda(e.context(), shape, w, x.in(), &rows, 1, r.out.view(), e.arena()), n);
    w.o = ProbeSource::identity(width, width);
    e.require(e.table().kda(e.probe(), shape, w, x.in(), &rows, 1, r.gated.view(), e.arena()), n);
    e.table().kda_commit(e.exec(), shape, rows.kda, rows.log, t);
    return r;
}

struct MlaRun {
    Rows q_a, q_norm, q;     ///< low-rank query, after its norm, and all heads' queries
    Rows latent, key, gate;  ///< as cached; gate logits (empty without a gate)
    Rows gated, out;
};

inline MlaRun run_mla(Engine& e, std::size_t n, const Rows& x) {
    const model::Config& c = e.c();
    const std::size_t t = x.rows, width = c.heads * c.v_head;
    const layers::MlaShape shape{c.heads,  c.qk_nope, c.qk_rope,         c.v_head,
                                 c.q_lora, c.kv_lora, c.mla_output_gate, c.mla_norm_eps};
    layers::MlaWeights w = e.layer().mla;
    MlaRun r;
    r.q_a = e.linear(w.q_a, x, n);
    r.q_norm = e.rmsnorm(r.q_a, w.q_a_norm, c.mla_norm_eps);
    r.q = e.linear(w.q_b, r.q_norm, n);
    if (c.mla_output_gate) r.gate = e.linear(w.g, x, n);
    using Cache = kernels::LatentCache;
    const std::size_t row = Cache::pad(c.kv_lora) + Cache::pad(c.qk_rope);
    std::vector<float> cache(t * row, 0.0F);
    float* const page = cache.data();
    layers::SegmentRows rows{};
    rows.tokens = t;
    rows.latent = {&page, t, 0};
    r.out = Rows(t, c.hidden);
    r.gated = Rows(t, width);
    e.require(e.table().mla(e.context(), shape, w, x.in(), &rows, 1, r.out.view(), e.arena()), n);
    w.o = ProbeSource::identity(width, width);
    e.require(e.table().mla(e.probe(), shape, w, x.in(), &rows, 1, r.gated.view(), e.arena()), n);
    r.latent = Rows(t, c.kv_lora);
    r.key = Rows(t, c.qk_rope);
    for (std::size_t i = 0; i < t; ++i) {
        const float* from = page + i * row;
        std::copy_n(from, c.kv_lora, r.latent.view().row(i));
        std::copy_n(from + Cache::pad(c.kv_lora), c.qk_rope, r.key.view().row(i));
    }
    return r;
}

struct MlpRun {
    Rows inner, out;  ///< after situ_glu, after the down projection
};

inline MlpRun run_mlp(Engine& e, std::size_t n, layers::MlpWeights w, const Rows& x) {
    const layers::Situ situ{static_cast<float>(e.c().situ_beta), static_cast<float>(e.c().situ_linear_beta)};
    MlpRun r{Rows(x.rows, w.gate.rows), Rows(x.rows, w.down.rows)};
    e.require(e.table().mlp(e.context(), w, situ, x.in(), r.out.view(), e.arena()), n);
    w.down = ProbeSource::identity(w.gate.rows, w.gate.rows);
    e.require(e.table().mlp(e.probe(), w, situ, x.in(), r.inner.view(), e.arena()), n);
    return r;
}

struct MoeRun {
    Rows logits, total, aggregate, out;  ///< router logits; weighted sum of the experts, before and after its norm
    MlpRun shared;
    Experts::Record experts;
    std::string failure{};  ///< the engine's router found a NaN: nothing but logits and shared is there
};

inline MoeRun run_moe(Engine& e, std::size_t n, const Rows& x) {
    const model::Config& c = e.c();
    const layers::Situ situ{static_cast<float>(c.situ_beta), static_cast<float>(c.situ_linear_beta)};
    layers::MoeShape shape{c.experts,     c.experts_per_token, c.latent,       c.expert_width, c.shared_width(),
                           c.latent_norm, c.renormalize,       c.routed_scale, c.rms_norm_eps, situ};
    layers::MoeWeights w = e.layer().moe;
    MoeRun r;
    r.logits = e.linear(w.gate, x, n);
    r.shared = run_mlp(e, n, w.shared, x);
    std::vector<core::Fault> faults(x.rows);
    const auto run = [&](const layers::Context& context, Rows& y) {
        std::fill(faults.begin(), faults.end(), core::Fault{});
        core::Fault fault = e.table().moe(context, n, shape, w, x.in(), y.view(), faults.data(), e.arena());
        for (const core::Fault& of_token : faults)
            if (!fault && of_token) fault = of_token;
        if (fault.code == core::FaultCode::router_nan)
            r.failure = "token " + std::to_string(fault.token) +
                        ": a score is NaN on the engine's side, no expert can be chosen";
        else
            e.require(fault, n);
    };
    r.out = Rows(x.rows, c.hidden);
    e.experts().mode = Experts::Mode::record;
    run(e.context(), r.out);
    e.experts().mode = Experts::Mode::replay;
    // The sum over experts, through a probe in place of the up projection and with nothing from the shared expert; in
    // pieces of the hidden width, as the output has no more.
    w.shared = {ProbeSource::zero(1, c.hidden), ProbeSource::zero(1, c.hidden), ProbeSource::zero(c.hidden, 1)};
    const auto through = [&](Rows& whole) {
        whole = Rows(x.rows, c.latent);
        for (std::size_t at = 0; at < c.latent && r.failure.empty(); at += c.hidden) {
            w.up = ProbeSource::identity(c.hidden, c.latent, at);
            Rows piece(x.rows, c.hidden);
            run(e.probe(), piece);
            for (std::size_t t = 0; t < x.rows; ++t)
                std::copy_n(piece.view().row(t), std::min(c.hidden, c.latent - at), whole.view().row(t) + at);
        }
    };
    through(r.aggregate);
    shape.latent_norm = false;  // the norm would hide a common factor of the weights: routed_scaling_factor
    through(r.total);
    e.experts().mode = Experts::Mode::plain;
    r.experts = std::move(e.experts().record);
    return r;
}

}  // namespace k3::conform
#endif
