#ifndef K3_KERNELS_TOP_K_HPP
#define K3_KERNELS_TOP_K_HPP
// Choosing: the experts of a token, and the next token.
#include <cstdint>

#include "k3/simd/math.hpp"

namespace k3::kernels::inline K3_TARGET {

/// What the router does with its scores.
struct RouterRule {
    std::size_t top_k;
    bool renormalize;
    double scale;  // routed_scaling_factor
};

/// Chooses top_k experts of one token from its router logits and gives their weights.
///
///   s_e = sigmoid(logit_e); chosen by c_e = s_e + bias_e, descending, the lower id on ties; weights from s, not from c
///   renormalize and k > 1: w_j = RN32((s_j / (sum + 1e-20)) * scale), sum over the chosen in rank order; else RN32(s_j
///   * scale)
///
/// Shapes    logits, bias: [E]; ids, weights: [k], in rank order; scratch: [E] floats.
/// Numerics  s and c in f32; the weights in f64, rounded once.
/// Errors    false if any c is NaN; ids and weights are then unset.
template <simd::Arch A>
bool route(const float* logits, const float* bias, std::size_t experts, const RouterRule& rule, std::int32_t* ids,
           float* weights, float* scratch) noexcept {
    for (std::size_t e = 0; e < experts; e += 8)
        simd::store<A>(scratch + e, simd::sigmoid<A>(simd::load<A>(logits + e, experts - e)), experts - e);
    std::size_t chosen = 0;
    for (std::size_t e = 0; e < experts; ++e) {
        const float c = scratch[e] + bias[e];
        if (c != c) return false;
        // weights[] holds the keys of the chosen while the list is kept sorted; an equal key stays behind (lower id
        // first).
        if (chosen == rule.top_k && !(weights[chosen - 1] < c)) continue;
        std::size_t at = chosen < rule.top_k ? chosen++ : chosen - 1;
        for (; at > 0 && weights[at - 1] < c; --at) {
            weights[at] = weights[at - 1];
            ids[at] = ids[at - 1];
        }
        weights[at] = c;
        ids[at] = static_cast<std::int32_t>(e);
    }
    double sum = 0.0;
    for (std::size_t j = 0; j < chosen; ++j) sum += static_cast<double>(scratch[ids[j]]);
    for (std::size_t j = 0; j < chosen; ++j) {
        const double s = static_cast<double>(scratch[ids[j]]);
        const double w = rule.renormalize && rule.top_k > 1 ? s / (sum + 1e-20) : s;
        weights[j] = simd::round32(simd::mul(w, rule.scale));
    }
    return true;
}

/// Index of the largest value, the lowest on ties; -1 if any value is NaN (or n is 0).
template <simd::Arch A>
std::int64_t argmax(const float* x, std::size_t n) noexcept {
    std::int64_t best = -1;
    for (std::size_t i = 0; i < n; ++i) {
        if (x[i] != x[i]) return -1;
        if (best < 0 || x[best] < x[i]) best = static_cast<std::int64_t>(i);
    }
    return best;
}

}  // namespace k3::kernels::inline K3_TARGET
#endif
