#ifndef K3_DRIVERS_CONFORM_CHECK_MLP_HPP
#define K3_DRIVERS_CONFORM_CHECK_MLP_HPP
// The stages of a dense MLP, of the router, and of the latent mixture of experts.
#include <algorithm>
#include <cstdio>
#include <map>
#include <numeric>
#include <vector>

#include "drivers/conform/check_attention.hpp"

namespace k3::conform {

namespace detail {

inline Mat check_mlp_parts(Judge& judge, const Reference& ref, const char* inner_stage, const char* out_stage,
                           const std::string& part, const Tensor& gate, const Tensor& up, const Tensor& down,
                           const Mat& x, const Rows& inner, const Rows& out) {
    const Value act =
        situ_glu(gate.times(x, ref.threads), up.times(x, ref.threads), ref.c.situ_beta, ref.c.situ_linear_beta);
    return judge(out_stage, out, down.times(judge(inner_stage, inner, act, part), ref.threads), part);
}

/// Whether the engine may have chosen `ids` for a token: distinct experts, in an order in which none stands behind one
/// (or is left out for one) whose key is lower by more than both budgets. The ratio is the worst such excess. An expert
/// with a correction bias of -inf is switched off: it may be left out for any, and precede none but its like. A NaN
/// among the keys leaves nothing to judge by, and no comparison may pass for that.
inline double choice_excess(const Value& keys, Index t, const std::vector<std::int32_t>& ids, std::string& what) {
    std::vector<bool> used(static_cast<std::size_t>(keys.cols()), false);
    double worst = 0;
    for (Index f = 0; f < keys.cols(); ++f) {
        if (!std::isnan(keys.value(t, f))) continue;
        what = "token " + std::to_string(t) + ": the key of expert " + std::to_string(f) +
               " is NaN on the reference's side";
        return std::numeric_limits<double>::infinity();
    }
    for (const std::int32_t e : ids) {
        if (e < 0 || e >= keys.cols() || used[static_cast<std::size_t>(e)]) {
            what = "token " + std::to_string(t) + ": the engine chose expert " + std::to_string(e) +
                   " twice or out of range";
            return std::numeric_limits<double>::infinity();
        }
        used[static_cast<std::size_t>(e)] = true;
        for (Index f = 0; f < keys.cols(); ++f) {
            // Not by the difference: of two equal infinities it is NaN.
            if (used[static_cast<std::size_t>(f)] || keys.value(t, f) <= keys.value(t, e)) continue;
            const double excess = (keys.value(t, f) - keys.value(t, e)) / (keys.budget(t, f) + keys.budget(t, e));
            if (excess <= worst) continue;  // not so for NaN: an infinite key before or behind a finite one
            worst = std::isnan(excess) ? std::numeric_limits<double>::infinity() : excess;
            char by[32];
            std::snprintf(by, sizeof by, "%.3g", keys.value(t, f) - keys.value(t, e));
            what = "token " + std::to_string(t) + ": the engine put expert " + std::to_string(e) + " before expert " +
                   std::to_string(f) + ", whose key is larger by " + by;
        }
    }
    return worst;
}

/// Weights of the chosen experts: s_j scale / (sum + 1e-20), or s_j scale. With the sum off by ds = sum ds_j:
/// |dw| <= scale (ds_j + s_j ds / sum) / (sum - ds), the f64 steps as (2 k + 6) u64 |w|, one rounding.
inline Value router_weights(const Value& scores, const std::vector<std::int32_t>& ids, const model::Config& c) {
    const auto k = static_cast<Index>(c.experts_per_token);
    const Index tokens = scores.tokens();
    const bool renormalize = c.renormalize && k > 1;
    Value w{Mat(2 * tokens, k), Mat(tokens, k)};
    for (Index row = 0; row < 2 * tokens; ++row) {
        const Index t = row % tokens;
        const auto chosen = [&](Index j) { return static_cast<Index>(ids[static_cast<std::size_t>(t * k + j)]); };
        double sum = 1e-20, off = 0;
        for (Index j = 0; j < k; ++j) {
            sum += scores.value(row, chosen(j));
            if (row < tokens) off += scores.budget(t, chosen(j));
        }
        for (Index j = 0; j < k; ++j) {
            const double s = scores.value(row, chosen(j));
            const double v = w.value(row, j) = (renormalize ? s / sum : s) * c.routed_scale;
            if (row >= tokens) continue;
            double e = scores.budget(t, chosen(j));
            if (renormalize)
                e = off < sum ? (e + s * off / sum) / (sum - off) : std::numeric_limits<double>::infinity();
            w.budget(t, j) =
                rounded(v, e * std::fabs(c.routed_scale) + static_cast<double>(2 * k + 6) * kU64 * std::fabs(v));
        }
    }
    return w;
}

}  // namespace detail

inline Mat check_dense(Judge& judge, const Reference& ref, std::size_t n, const Mat& x, const MlpRun& e) {
    namespace names = model::names::mlp;
    const model::Config& c = ref.c;
    return detail::check_mlp_parts(judge, ref, "dense inner", "dense output", {},
                                   ref.matrix(n, names::kGate, c.dense_width, c.hidden),
                                   ref.matrix(n, names::kUp, c.dense_width, c.hidden),
                                   ref.matrix(n, names::kDown, c.hidden, c.dense_width), x, e.inner, e.out);
}

inline Mat check_moe(Judge& judge, const Reference& ref, std::size_t n, const Mat& x, const MoeRun& e) {
    namespace names = model::names::moe;
    using checkpoint::ExpertMatrix;
    const model::Config& c = ref.c;
    const auto k = static_cast<Index>(c.experts_per_token), latent = static_cast<Index>(c.latent);
    const Index tokens = x.rows() / 2;
    const auto times = [&](std::string_view name, std::size_t rows, std::size_t cols, const Mat& in) {
        return ref.matrix(n, name, rows, cols).times(in, ref.threads);
    };

    const std::vector<std::int32_t>& ids = e.experts.ids;
    const Mat logits = judge("router logits", e.logits, times(names::kRouter, c.experts, c.hidden, x));
    if (!e.failure.empty()) {
        judge("router choice", std::numeric_limits<double>::infinity(), e.failure);
        return x;  // the walk ends here (Walk::broken)
    }
    const Value scores = sigmoids(exact(logits));
    Mat bias(2 * tokens, static_cast<Index>(c.experts));
    bias.rowwise() = ref.vector(n, names::kRouterBias, c.experts).transpose();
    const Value keys = sum(scores, exact(bias));
    for (Index t = 0; t < tokens; ++t) {
        std::string what;
        const std::vector<std::int32_t> chosen(ids.begin() + t * k, ids.begin() + (t + 1) * k);
        const double excess = detail::choice_excess(keys, t, chosen, what);
        judge("router choice", excess, what);
        // The chain follows the engine's choice, too: what it reports is drift of numbers, not which tie broke how.
        std::vector<std::int32_t> order(c.experts);
        std::iota(order.begin(), order.end(), 0);
        const auto key = [&](std::int32_t id) {  // a sort needs an order, which NaN has not
            const double v = keys.value(tokens + t, id);
            return std::isnan(v) ? -std::numeric_limits<double>::infinity() : v;
        };
        std::stable_sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) { return key(a) > key(b); });
        judge.layer().choices += chosen.size();
        for (const std::int32_t id : chosen)
            judge.layer().other_choices +=
                static_cast<std::size_t>(std::find(order.begin(), order.begin() + k, id) == order.begin() + k);
        for (const std::int32_t id : chosen)
            if (id < 0 || id >= static_cast<std::int32_t>(c.experts)) return x;  // nothing below would mean anything
    }
    const Mat z = judge("latent", e.experts.z, times(names::kLatentDown, c.latent, c.hidden, x));

    std::map<std::int32_t, std::vector<Index>> slots;  // expert -> token * k + rank: each expert is decoded once
    for (Index s = 0; s < tokens * k; ++s) slots[ids[static_cast<std::size_t>(s)]].push_back(s);
    std::vector<Mat> ranks(static_cast<std::size_t>(k), Mat(2 * tokens, latent));
    for (const auto& entry : slots) {
        const std::int32_t expert = entry.first;
        const std::vector<Index>& wanted = entry.second;
        const auto count = static_cast<Index>(wanted.size());
        const auto gather = [&](const Rows& from) {
            Rows rows(wanted.size(), from.cols);
            for (std::size_t i = 0; i < wanted.size(); ++i)
                std::copy_n(from.view().row(static_cast<std::size_t>(wanted[i])), from.cols, rows.view().row(i));
            return rows;
        };
        Mat in(2 * count, latent);
        for (Index i = 0; i < count; ++i) {
            in.row(i) = z.row(wanted[static_cast<std::size_t>(i)] / k);
            in.row(count + i) = z.row(tokens + wanted[static_cast<std::size_t>(i)] / k);
        }
        const auto id = static_cast<std::size_t>(expert);
        const Mat out = detail::check_mlp_parts(
            judge, ref, "expert inner", "expert output", "expert " + std::to_string(expert) + " ",
            Tensor::expert(ref.index, n, id, ExpertMatrix::gate, c.expert_width, c.latent),
            Tensor::expert(ref.index, n, id, ExpertMatrix::up, c.expert_width, c.latent),
            Tensor::expert(ref.index, n, id, ExpertMatrix::down, c.latent, c.expert_width), in, gather(e.experts.inner),
            gather(e.experts.out));
        for (Index i = 0; i < count; ++i) {
            const Index s = wanted[static_cast<std::size_t>(i)];
            ranks[static_cast<std::size_t>(s % k)].row(s / k) = out.row(i);
            ranks[static_cast<std::size_t>(s % k)].row(tokens + s / k) = out.row(count + i);
        }
    }

    // In binary32 from +0 in rank order: one product and at most k additions a term.
    const Value w = detail::router_weights(scores, ids, c);
    Value total{Mat::Zero(2 * tokens, latent), Mat::Zero(tokens, latent)};
    for (Index j = 0; j < k; ++j) {
        const Mat& expert = ranks[static_cast<std::size_t>(j)];
        for (Index t = 0; t < 2 * tokens; ++t) total.value.row(t) += w.value(t, j) * expert.row(t);
        for (Index t = 0; t < tokens; ++t) {
            const double dw = w.budget(t, j), size = std::fabs(w.value(t, j)) + dw;
            total.budget.row(t).array() += (dw + gamma32(k + 1) * size) * expert.row(t).array().abs() + kTiny;
        }
    }
    Mat aggregate = judge("weighted sum", e.total, total);
    if (c.latent_norm)
        aggregate =
            judge("aggregate", e.aggregate,
                  rmsnorm(exact(aggregate), latent, ref.vector(n, names::kLatentNorm, c.latent), c.rms_norm_eps));
    const Mat shared = detail::check_mlp_parts(
        judge, ref, "shared inner", "shared output", {}, ref.matrix(n, names::kSharedGate, c.shared_width(), c.hidden),
        ref.matrix(n, names::kSharedUp, c.shared_width(), c.hidden),
        ref.matrix(n, names::kSharedDown, c.hidden, c.shared_width()), x, e.shared.inner, e.shared.out);
    return judge("moe output", e.out, sum(times(names::kLatentUp, c.hidden, c.latent, aggregate), exact(shared)));
}

}  // namespace k3::conform
#endif
