#ifndef K3_DRIVERS_CONFORM_CHECK_ATTENTION_HPP
#define K3_DRIVERS_CONFORM_CHECK_ATTENTION_HPP
// The stages of a KDA or MLA sublayer: what the engine computed from each input it shares with the reference. `x` is
// the normalised input, of both sequences; the result is the sublayer's output likewise.
#include <algorithm>

#include "drivers/conform/attention.hpp"
#include "drivers/conform/delta_rule.hpp"
#include "drivers/conform/engine_runs.hpp"
#include "drivers/conform/formulas.hpp"
#include "drivers/conform/judge.hpp"
#include "drivers/conform/tensors.hpp"

namespace k3::conform {

/// The reference's side of a checkpoint: its own config, its own tensors.
struct Reference {
    const checkpoint::ShardIndex& index;
    const model::Config& c;
    unsigned threads;

    Tensor matrix(std::size_t layer, std::string_view suffix, std::size_t rows, std::size_t cols) const {
        return {index, model::names::layer(layer, suffix), rows, cols};
    }
    Vec vector(std::size_t layer, std::string_view suffix, std::size_t n) const {
        return matrix(layer, suffix, 1, n).vector();
    }
};

namespace detail {

/// The recurrence of all heads, both sequences, and the final states of the shared one against the engine's.
inline Value recurrence(const Reference& ref, const Value& q, const Mat& k, const Mat& v, const Mat& alpha,
                        const Mat& beta, Rows& engine_state, Value& state) {
    const auto heads = static_cast<Index>(ref.c.kda_heads), dim = static_cast<Index>(ref.c.kda_head_dim);
    const Index tokens = q.tokens();
    Value o{Mat(2 * tokens, heads * dim), Mat(tokens, heads * dim)};
    state = {Mat::Zero(2 * heads * dim, dim), Mat(heads * dim, dim)};
    engine_state.rows = static_cast<std::size_t>(heads * dim);
    engine_state.cols = static_cast<std::size_t>(dim);
    for_each_index(ref.threads, heads, [&](Index h) {
        const Index at = h * dim;
        for (Index sequence = 0; sequence < 2; ++sequence) {
            const auto cut = [&](const Mat& m) { return Mat(m.block(sequence * tokens, at, tokens, dim)); };
            const DeltaHead head{cut(q.value), cut(k), cut(v), cut(alpha),
                                 beta.col(h).segment(sequence * tokens, tokens)};
            Mat last;
            o.value.block(sequence * tokens, at, tokens, dim) = delta_rule_by_chunks(head, last);
            state.value.middleRows((sequence * heads + h) * dim, dim) = last;
            if (sequence != 0) continue;
            const DeltaBudget off = delta_rule_budget(head, q.budget.middleCols(at, dim));
            o.budget.middleCols(at, dim) = off.out;
            state.budget.middleRows(at, dim) = off.state.transpose().replicate(dim, 1);
        }
    });
    return o;
}

}  // namespace detail

inline Mat check_kda(Judge& judge, const Reference& ref, std::size_t n, const Mat& x, KdaRun& e) {
    namespace names = model::names::kda;
    const model::Config& c = ref.c;
    const std::size_t width = c.kda_width();
    const auto dim = static_cast<Index>(c.kda_head_dim);
    const auto times = [&](std::string_view name, std::size_t rows, std::size_t cols, const Mat& in) {
        return ref.matrix(n, name, rows, cols).times(in, ref.threads);
    };
    const std::string_view projections[3] = {names::kQ, names::kK, names::kV};
    const std::string_view convs[3] = {names::kQConv, names::kKConv, names::kVConv};
    Value after[3];
    for (std::size_t i = 0; i < 3; ++i) {
        const Mat in = judge("projections", e.conv[i], times(projections[i], width, c.hidden, x),
                             std::string("qkv").substr(i, 1) + " ");
        after[i] = short_conv(exact(in), ref.matrix(n, convs[i], width, c.conv_kernel).all());
    }
    const Value q = l2norm(after[0], dim, 1 / std::sqrt(static_cast<double>(dim)));
    const Mat k = judge("convolution", e.k, l2norm(after[1], dim, 1), "k ");
    const Mat v = judge("convolution", e.v, after[2], "v ");
    const Mat rank = judge("decay", e.rank, times(names::kDecayDown, c.kda_head_dim, c.hidden, x), "f_a x ");
    const Mat alpha =
        judge("decay", e.alpha,
              decay(times(names::kDecayUp, width, c.kda_head_dim, rank), dim, ref.vector(n, names::kALog, c.kda_heads),
                    ref.vector(n, names::kDtBias, width), c.gate_lower_bound),
              "alpha ");
    const Mat beta = judge("beta", e.beta, sigmoids(times(names::kBeta, c.kda_heads, c.hidden, x)));
    const Mat gate = judge("gate", e.gate, times(names::kGate, width, c.hidden, x));

    Value state;
    Rows engine_state;
    const Value o = detail::recurrence(ref, q, k, v, alpha, beta, engine_state, state);
    engine_state.data = std::move(e.state);
    judge("state", engine_state, state);
    const Value normed = rmsnorm(o, dim, ref.vector(n, names::kOutNorm, c.kda_head_dim), c.rms_norm_eps);
    const Mat gated = judge("recurrence", e.gated, product(normed, sigmoids(exact(gate))));
    return judge("output", e.out, times(names::kOut, c.hidden, width, gated));
}

inline Mat check_mla(Judge& judge, const Reference& ref, std::size_t n, const Mat& x, const MlaRun& e) {
    namespace names = model::names::mla;
    const model::Config& c = ref.c;
    const std::size_t width = c.heads * c.v_head;
    const auto times = [&](std::string_view name, std::size_t rows, std::size_t cols, const Mat& in) {
        return ref.matrix(n, name, rows, cols).times(in, ref.threads);
    };
    const auto index = [](std::size_t i) { return static_cast<Index>(i); };
    const Mat q_a = judge("queries", e.q_a, times(names::kQDown, c.q_lora, c.hidden, x), "q_a x ");
    const Mat q_norm =
        judge("queries", e.q_norm,
              rmsnorm(exact(q_a), index(c.q_lora), ref.vector(n, names::kQNorm, c.q_lora), c.mla_norm_eps), "norm ");
    const Mat q = judge("queries", e.q, times(names::kQUp, c.heads * c.qk_head(), c.q_lora, q_norm), "q_b ");

    const Value kv = times(names::kKvDown, c.cache_width(), c.hidden, x);
    const auto columns = [&](std::size_t first, std::size_t count) {
        return Value{kv.value.middleCols(index(first), index(count)), kv.budget.middleCols(index(first), index(count))};
    };
    const Mat latent = judge(
        "latents", e.latent,
        rmsnorm(columns(0, c.kv_lora), index(c.kv_lora), ref.vector(n, names::kKvNorm, c.kv_lora), c.mla_norm_eps));
    const Mat key = judge("shared keys", e.key, columns(c.kv_lora, c.qk_rope));

    const Index tokens = x.rows() / 2, head_q = index(c.qk_head()), head_v = index(c.v_head);
    const AttentionWidths widths{index(c.qk_nope), index(c.qk_rope), head_v, index(c.kv_lora)};
    const Tensor kv_b = ref.matrix(n, names::kKvUp, c.heads * (c.qk_nope + c.v_head), c.kv_lora);
    Value o{Mat(2 * tokens, index(width)), Mat(tokens, index(width))};
    for_each_index(ref.threads, index(c.heads), [&](Index h) {
        const Mat w = kv_b.block(h * (widths.nope + head_v), widths.nope + head_v);
        for (Index sequence = 0; sequence < 2; ++sequence) {
            const auto cut = [&](const Mat& m) { return Mat(m.middleRows(sequence * tokens, tokens)); };
            const Mat head = q.block(sequence * tokens, h * head_q, tokens, head_q), l = cut(latent), r = cut(key);
            Mat p;
            o.value.block(sequence * tokens, h * head_v, tokens, head_v) = attend_head(head, l, r, w, widths, p);
            if (sequence == 0) o.budget.middleCols(h * head_v, head_v) = attend_head_budget(head, l, r, w, widths, p);
        }
    });
    if (c.mla_output_gate) {
        const Mat gate = judge("gate", e.gate, times(names::kGate, width, c.hidden, x));
        o = product(o, sigmoids(exact(gate)));
    }
    const Mat gated = judge("attention", e.gated, o);
    return judge("output", e.out, times(names::kOut, c.hidden, width, gated));
}

}  // namespace k3::conform
#endif
