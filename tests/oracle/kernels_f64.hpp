#ifndef K3_TESTS_ORACLE_KERNELS_F64_HPP
#define K3_TESTS_ORACLE_KERNELS_F64_HPP
// The kernels in float64, one plain function each, and their rounding budgets (bounded_f64.hpp says what a budget is).
// Rows are tokens throughout. Here: dot, matmul, the norms, SiTU-GLU, attention residual, router, MLPs, latent MoE.
// kda_f64.hpp has short_conv, decay and delta_rule; attention_f64.hpp has the expanded latent attention.
#include <numeric>
#include <type_traits>

#include "oracle/attention_f64.hpp"
#include "oracle/bounded_f64.hpp"
#include "oracle/kda_f64.hpp"

namespace k3::oracle {

// ---- dot and matmul
// -------------------------------------------------------------------------------------------------------

/// y = sum_i x_i w_i.
inline double dot(const Vec& x, const Vec& w) { return x.dot(w); }

/// |engine dot - exact|. The engine: y = RN32(f64 sum of n exact products in eight lanes). Each product meets at most
/// n/8 + 3 < n binary64 roundings, so the sum is off by n u64 sum|x w|; the oracle's own sum by as much again; then one
/// rounding:
///   b = u |y| + 2 n u64 sum|x_i w_i| + kTiny.
inline double dot_budget(const Vec& x, const Vec& w) {
    const double sum = x.cwiseAbs().dot(w.cwiseAbs());
    return rounded(x.dot(w), 2 * static_cast<double>(x.size()) * kU64 * sum);
}
/// The same for the engine's dot64 (no final rounding).
inline double dot64_budget(const Vec& x, const Vec& w) {
    return 2 * static_cast<double>(x.size()) * kU64 * x.cwiseAbs().dot(w.cwiseAbs()) +
           std::numeric_limits<double>::denorm_min();
}

/// y[t][r] = sum_c x[t][c] w[r][c].
inline Mat matmul(const Mat& x, const Weight& w) { return w.times(x); }
/// dot_budget with inexact x: the sum is also off by sum |dx_c| |w_rc|. Weights are exact values.
inline Bounded matmul(const Bounded& x, const Weight& w) {
    const double n = 2 * static_cast<double>(w.cols()) * kU64;
    auto [value, error] = w.times_with_abs(x.value, x.budget + n * (x.value.cwiseAbs() + x.budget));
    Bounded y{std::move(value), std::move(error)};
    for (Index i = 0; i < y.value.size(); ++i) y.budget.data()[i] = rounded(y.value.data()[i], y.budget.data()[i]);
    return y;
}

// ---- norms
// ----------------------------------------------------------------------------------------------------------------

/// y_i = w_i x_i / sqrt(mean(x^2) + eps), each row on its own.
inline Mat rmsnorm(const Mat& x, const Vec& w, double eps) {
    Mat y(x.rows(), x.cols());
    for (Index t = 0; t < x.rows(); ++t) {
        const double inv = 1 / std::sqrt(x.row(t).squaredNorm() / static_cast<double>(x.cols()) + eps);
        y.row(t) = (x.row(t) * inv).cwiseProduct(w.transpose());
    }
    return y;
}
/// The engine: inv = RN32(1/sqrt(dot64(x,x)/n + eps)), y = (x_i * inv) * w_i in binary32. See inverse_norm_error for
/// inv; then two products, each rounded.
inline Bounded rmsnorm(const Bounded& x, const Vec& w, double eps) {
    Bounded y{rmsnorm(x.value, w, eps), Mat(x.rows(), x.cols())};
    const double n = static_cast<double>(x.cols());
    for (Index t = 0; t < x.rows(); ++t) {
        const double r = std::sqrt(x.value.row(t).squaredNorm() / n + eps);
        const double inv_error = inverse_norm_error(r, x.budget.row(t).norm() / std::sqrt(n), x.cols());
        for (Index i = 0; i < x.cols(); ++i) {
            const double v = x.value(t, i), xi = v / r;
            const double e = rounded(xi, product_error(v, x.budget(t, i), 1 / r, inv_error));
            y.budget(t, i) = rounded(xi * w(i), e * std::fabs(w(i)));
        }
    }
    return y;
}

// ---- SiTU-GLU
// -------------------------------------------------------------------------------------------------------------

struct Situ {
    double beta = 0, linear_beta = 0;
};

/// y = b1 tanh(g/b1) sigmoid(g) * b2 tanh(u/b2); the sigmoid takes the raw gate.
inline Mat situ_glu(const Mat& g, const Mat& u, Situ s) {
    return hadamard(hadamard(s.beta * tanh(g / s.beta), sigmoid(g)), s.linear_beta * tanh(u / s.linear_beta));
}
namespace detail {
/// b tanh(v/b) as the engine forms it: b = RN32(b) (relative u in the quotient and in the product), v/b rounded, tanh
/// rounded, product rounded. The constant's error is charged whole to both places.
inline Bounded cap(const Bounded& v, double b) {
    const auto quotient = map(
        v, [b](double x) { return x / b; },
        [b](double x, double e) { return rounded(x / b, e / b + kU32 * (std::fabs(x) + e) / b); });
    return map(
        tanh(quotient), [b](double x) { return x * b; },
        [b](double x, double e) { return rounded(x * b, e * b + kU32 * b * (std::fabs(x) + e)); });
}
}  // namespace detail
/// Four functions and three products, each rounded; error carried through each step.
inline Bounded situ_glu(const Bounded& g, const Bounded& u, Situ s) {
    return hadamard(hadamard(detail::cap(g, s.beta), sigmoid(g)), detail::cap(u, s.linear_beta));
}

// ---- attention residual
// ---------------------------------------------------------------------------------------------------

/// Sources s_0 .. s_{m-1} (each [tokens][E]), f = norm * proj: score_j = (s_j / sqrt(mean(s_j^2) + eps)) . f,
/// out = sum_j softmax(score)_j s_j: normalised sources are the keys, raw sources the values.
inline Mat attention_residual(const std::vector<Mat>& sources, const Vec& norm, const Vec& proj, double eps) {
    const Index m = static_cast<Index>(sources.size()), tokens = sources[0].rows();
    const Vec fold = norm.cwiseProduct(proj);
    Mat score(tokens, m);
    for (Index j = 0; j < m; ++j)
        score.col(j) = rmsnorm(sources[static_cast<std::size_t>(j)], fold, eps).rowwise().sum();
    const Mat p = softmax(score);
    Mat out = Mat::Zero(tokens, sources[0].cols());
    for (Index j = 0; j < m; ++j) out += p.col(j).asDiagonal() * sources[static_cast<std::size_t>(j)];
    return out;
}
/// The engine: fold = RN32(norm*proj); key_i = RN32(v_i inv); score = dot(key, fold); softmax (see softmax in
/// attention_f64.hpp), p rounded; out in binary32 from +0: one product and at most m adds a term, gamma(m + 1) sum
/// p|v|, plus sum (dp |v| + p dv + dp dv).
inline Bounded attention_residual(const std::vector<Bounded>& sources, const Vec& norm, const Vec& proj, double eps) {
    const Index m = static_cast<Index>(sources.size()), tokens = sources[0].rows(), width = sources[0].cols();
    const Vec fold = norm.cwiseProduct(proj);
    const double n = static_cast<double>(width);
    std::vector<Mat> values;
    Bounded score = zeros<Bounded>(tokens, m);
    for (Index j = 0; j < m; ++j) {
        const Bounded& s = sources[static_cast<std::size_t>(j)];
        values.push_back(s.value);
        const Bounded key =
            rmsnorm(s, Vec::Ones(width), eps);  // the product with 1 is exact; its rounding charged is a spare u
        for (Index t = 0; t < tokens; ++t) {
            const double v = key.value.row(t).dot(fold);
            double e = 0;
            for (Index i = 0; i < width; ++i) {
                const double k = std::fabs(key.value(t, i)) + key.budget(t, i);
                e += key.budget(t, i) * std::fabs(fold(i)) + k * std::fabs(fold(i)) * (kU32 + 2 * n * kU64);
            }
            score.value(t, j) = v;
            score.budget(t, j) = rounded(v, e);
        }
    }
    const Bounded p = softmax(score);
    Bounded out{attention_residual(values, norm, proj, eps), Mat::Zero(tokens, width)};
    for (Index t = 0; t < tokens; ++t)
        for (Index j = 0; j < m; ++j) {
            const Bounded& s = sources[static_cast<std::size_t>(j)];
            const double dp = rounded(p.value(t, j), p.budget(t, j));
            for (Index i = 0; i < width; ++i)
                out.budget(t, i) += product_error(p.value(t, j), dp, s.value(t, i), s.budget(t, i)) + kTiny +
                                    gamma32(m + 1) * (p.value(t, j) + dp) * (std::fabs(s.value(t, i)) + s.budget(t, i));
        }
    return out;
}

// ---- router
// ---------------------------------------------------------------------------------------------------------------

using Picks = std::vector<std::vector<Index>>;  ///< [token][rank]

template <class V>
struct Routing {
    V scores;     ///< sigmoid of the logits [tokens][experts]
    V keys;       ///< scores + bias: what selection goes by
    Picks picks;  ///< by key descending, ties to the lower id
    V weights;    ///< [tokens][k], in rank order
    Vec margin;   ///< per token: key of the last chosen minus the best key left out (infinity if none is)
};
struct RouterSettings {
    Index top_k = 0;
    bool renormalize = true;
    double scale = 1;
};

namespace detail {
inline Mat biased(const Mat& s, const Vec& bias) { return s.rowwise() + bias.transpose(); }
inline Bounded biased(const Bounded& s, const Vec& bias) {
    return add(s, exact(bias.transpose().replicate(s.rows(), 1)));
}
inline std::vector<Index> ranked(const Mat& keys, Index t) {
    std::vector<Index> order(static_cast<std::size_t>(keys.cols()));
    std::iota(order.begin(), order.end(), Index{0});
    std::stable_sort(order.begin(), order.end(), [&](Index a, Index b) { return keys(t, a) > keys(t, b); });
    return order;
}
/// w_j = s_j scale / (sum s + 1e-20), or s_j scale (no renormalisation, or one expert). Rows are one token's chosen
/// scores.
inline Mat route_weights(const Mat& s, RouterSettings set) {
    if (!set.renormalize || set.top_k == 1) return s * set.scale;
    return (s.array().colwise() / (s.rowwise().sum().array() + 1e-20) * set.scale).matrix();
}
/// With sum off by ds = sum ds_j: |w' - w| <= scale (ds_j + s_j ds / sum) / (sum - ds), then one rounding. The engine's
/// f64 steps (k + 3 of them) are charged as (k + 3) u64 relative.
inline Bounded route_weights(const Bounded& s, RouterSettings set) {
    Bounded w{route_weights(s.value, set), Mat(s.rows(), s.cols())};
    const bool renormalize = set.renormalize && set.top_k != 1;
    for (Index t = 0; t < s.rows(); ++t) {
        const double sum = s.value.row(t).sum() + 1e-20, off = s.budget.row(t).sum();
        for (Index j = 0; j < s.cols(); ++j) {
            double e = s.budget(t, j);
            if (renormalize)
                e = off < sum ? (e + s.value(t, j) * off / sum) / (sum - off) : std::numeric_limits<double>::infinity();
            e = e * std::fabs(set.scale) + static_cast<double>(2 * s.cols() + 6) * kU64 * std::fabs(w.value(t, j));
            w.budget(t, j) = rounded(w.value(t, j), e);
        }
    }
    return w;
}
}  // namespace detail

/// s_e = sigmoid(gate_e . x); choice by s_e + bias_e; weights from the unbiased s. `forced` replaces the choice (an
/// engine's picks, where two keys are closer than their budgets; see choice_allowed).
template <class V>
Routing<V> router(const V& x, const Weight& gate, const Vec& bias, RouterSettings set, const Picks* forced = nullptr) {
    Routing<V> r;
    r.scores = sigmoid(matmul(x, gate));
    r.keys = detail::biased(r.scores, bias);
    r.margin = Vec(x.rows());
    V chosen = zeros<V>(x.rows(), set.top_k);
    for (Index t = 0; t < x.rows(); ++t) {
        const Mat& keys = value_of(r.keys);
        auto order = detail::ranked(keys, t);
        const bool spare = set.top_k < static_cast<Index>(order.size());
        const auto k = static_cast<std::size_t>(set.top_k);
        r.margin(t) = spare ? keys(t, order[k - 1]) - keys(t, order[k]) : std::numeric_limits<double>::infinity();
        order.resize(k);
        if (forced != nullptr) order = forced->at(static_cast<std::size_t>(t));
        for (std::size_t j = 0; j < k; ++j) {
            const auto to = static_cast<Index>(j);
            if constexpr (std::is_same_v<V, Bounded>) chosen.budget(t, to) = r.scores.budget(t, order.at(j));
            if constexpr (std::is_same_v<V, Bounded>) chosen.value(t, to) = r.scores.value(t, order.at(j));
            if constexpr (std::is_same_v<V, Mat>) chosen(t, to) = r.scores(t, order.at(j));
        }
        r.picks.push_back(std::move(order));
    }
    r.weights = detail::route_weights(chosen, set);
    return r;
}

/// Whether an engine may have picked `picks` for token t, in that order: distinct experts, and no expert stands behind
/// one (or is left out for one) whose key is lower by more than the two budgets.
inline bool choice_allowed(const Routing<Bounded>& r, Index t, const std::vector<Index>& picks) {
    std::vector<bool> used(static_cast<std::size_t>(r.keys.cols()), false);
    for (const Index e : picks) {
        if (e < 0 || e >= r.keys.cols() || used[static_cast<std::size_t>(e)]) return false;
        used[static_cast<std::size_t>(e)] = true;
        const double high = r.keys.value(t, e) + r.keys.budget(t, e);
        for (Index f = 0; f < r.keys.cols(); ++f)
            if (!used[static_cast<std::size_t>(f)] && r.keys.value(t, f) - r.keys.budget(t, f) > high) return false;
    }
    return static_cast<Index>(picks.size()) == r.weights.cols();
}

// ---- MLPs
// -----------------------------------------------------------------------------------------------------------------

struct Mlp {
    Weight gate, up, down;
};

/// y = down(situ_glu(gate x, up x)). Dense layer, shared expert, one routed expert (w1 = gate, w3 = up, w2 = down).
template <class V>
V dense_mlp(const V& x, const Mlp& m, Situ s) {
    return matmul(situ_glu(matmul(x, m.gate), matmul(x, m.up), s), m.down);
}

namespace detail {
/// acc[t] = sum_j w[t][j] e_j[t], e_j = outputs of rank j for all tokens.
inline Mat weighted_sum(const std::vector<Mat>& e, const Mat& w) {
    Mat acc = Mat::Zero(e[0].rows(), e[0].cols());
    for (std::size_t j = 0; j < e.size(); ++j) acc += w.col(static_cast<Index>(j)).asDiagonal() * e[j];
    return acc;
}
/// In binary32 from +0 in rank order: one product and at most k adds a term: gamma(k + 1) sum |w e|.
inline Bounded weighted_sum(const std::vector<Bounded>& e, const Bounded& w) {
    Bounded acc = zeros<Bounded>(e[0].rows(), e[0].cols());
    const double g = gamma32(static_cast<Index>(e.size()) + 1);
    for (std::size_t j = 0; j < e.size(); ++j)
        for (Index t = 0; t < acc.rows(); ++t)
            for (Index i = 0; i < acc.cols(); ++i) {
                const double a = w.value(t, static_cast<Index>(j)), da = w.budget(t, static_cast<Index>(j));
                const double b = e[j].value(t, i), db = e[j].budget(t, i);
                acc.value(t, i) += a * b;
                acc.budget(t, i) += product_error(a, da, b, db) + g * (std::fabs(a) + da) * (std::fabs(b) + db) + kTiny;
            }
    return acc;
}
}  // namespace detail

struct Moe {
    Weight gate, down, up;  ///< router, routed_expert_down_proj (E to L), routed_expert_up_proj (L to E)
    Vec bias, norm;         ///< e_score_correction_bias, routed_expert_norm
    bool latent_norm = true;
    Mlp shared;
    std::function<Mlp(Index)> expert;  ///< fetched when needed
    RouterSettings routing;
};

template <class V>
struct MoeResult {
    V out, aggregate;  ///< [tokens][E]; the weighted sum in latent space, before its norm
    Routing<V> routing;
};

/// route on x; z = down x; acc = sum_j w_j expert_j(z); acc = rmsnorm(acc); out = up acc + shared(x).
template <class V>
MoeResult<V> latent_moe(const V& x, const Moe& m, Situ s, double eps, const Picks* forced = nullptr) {
    MoeResult<V> r;
    r.routing = router(x, m.gate, m.bias, m.routing, forced);
    const V z = matmul(x, m.down);
    std::vector<V> ranks(static_cast<std::size_t>(m.routing.top_k), zeros<V>(x.rows(), z.cols()));
    std::map<Index, std::vector<std::pair<Index, std::size_t>>>
        work;  // expert -> (token, rank): each expert is decoded once
    for (std::size_t t = 0; t < r.routing.picks.size(); ++t)
        for (std::size_t j = 0; j < ranks.size(); ++j)
            work[r.routing.picks[t][j]].emplace_back(static_cast<Index>(t), j);
    for (const auto& [expert, uses] : work) {
        std::vector<Index> tokens;
        for (const auto& use : uses) tokens.push_back(use.first);
        const V e = dense_mlp(take_rows(z, tokens), m.expert(expert), s);
        for (std::size_t i = 0; i < uses.size(); ++i)
            set_row(ranks[uses[i].second], uses[i].first, e, static_cast<Index>(i));
    }
    r.aggregate = detail::weighted_sum(ranks, r.routing.weights);
    const V latent = m.latent_norm ? rmsnorm(r.aggregate, m.norm, eps) : r.aggregate;
    r.out = add(matmul(latent, m.up), dense_mlp(x, m.shared, s));
    return r;
}

}  // namespace k3::oracle
#endif
