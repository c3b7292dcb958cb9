#ifndef K3_TESTS_ORACLE_LAYERS_F64_HPP
#define K3_TESTS_ORACLE_LAYERS_F64_HPP
// Whole sublayers in float64 (specification 3.4 to 3.9), on Mat (values) or Bounded (values and budgets): the code is
// written once. The two forms of the delta rule are chosen by `KdaForm`; budgets always follow the sequential form,
// which the engine runs.
#include "oracle/kernels_f64.hpp"

namespace k3::oracle {

enum class KdaForm { sequential, chunked };
inline constexpr Index kUtChunk = 64;

struct KdaWeights {
    Index heads = 0, dim = 0;
    double lower_bound = 0, eps = 0;
    Weight q, k, v, gate, out, f_a, f_b, b;  ///< q_proj .. v_proj, g_proj, o_proj, f_a_proj, f_b_proj, b_proj
    Mat q_conv, k_conv, v_conv;              ///< [heads*dim][taps], oldest first
    Vec a_log, dt_bias, o_norm;              ///< [heads], [heads*dim], [dim]
};

/// What a KDA layer computes on the way, for stage-by-stage comparison. All [tokens][..].
template <class V>
struct KdaStages {
    V q, k, v;      ///< after conv, SiLU, l2norm (q also scaled), heads side by side
    V alpha, beta;  ///< [heads*dim], [heads]
    V mixed;        ///< delta rule output
    V gated;        ///< per-head norm, then sigmoid gate
    V out;
};

namespace detail {
inline Mat delta(KdaForm form, const Mat& q, const Mat& k, const Mat& v, const Mat& alpha, const Mat& beta) {
    const Mat start = Mat::Zero(k.cols(), v.cols());
    return form == KdaForm::sequential ? delta_rule(q, k, v, alpha, beta, start).out
                                       : delta_rule_chunked(q, k, v, alpha, beta, start, kUtChunk).out;
}
inline Bounded delta(KdaForm form, const Bounded& q, const Bounded& k, const Bounded& v, const Bounded& alpha,
                     const Bounded& beta) {
    Bounded y = delta_rule(q, k, v, alpha, beta, zeros<Bounded>(k.cols(), v.cols())).out;
    if (form == KdaForm::chunked) y.value = delta(form, q.value, k.value, v.value, alpha.value, beta.value);
    return y;
}
}  // namespace detail

/// Steps 1 to 5 of 3.4: q, k, v, alpha, beta from the normalised layer input x [T][E] at the start of a sequence.
template <class V>
KdaStages<V> kda_project(const V& x, const KdaWeights& w) {
    KdaStages<V> r;
    r.q = short_conv(matmul(x, w.q), w.q_conv);
    r.k = short_conv(matmul(x, w.k), w.k_conv);
    r.v = short_conv(matmul(x, w.v), w.v_conv);
    r.beta = sigmoid(matmul(x, w.b));
    const V z = matmul(matmul(x, w.f_a), w.f_b);
    r.alpha = zeros<V>(x.rows(), w.heads * w.dim);
    for (Index h = 0; h < w.heads; ++h) {
        const Index at = h * w.dim;
        set_columns(r.q, at, l2norm(columns(r.q, at, w.dim), 1 / std::sqrt(static_cast<double>(w.dim))));
        set_columns(r.k, at, l2norm(columns(r.k, at, w.dim)));
        set_columns(r.alpha, at, decay(columns(z, at, w.dim), w.a_log(h), w.dt_bias.segment(at, w.dim), w.lower_bound));
    }
    return r;
}
/// Step 6, all heads: reads q, k, v, alpha, beta of `r`.
template <class V>
V kda_mix(const KdaStages<V>& r, const KdaWeights& w, KdaForm form = KdaForm::chunked) {
    V mixed = zeros<V>(r.q.rows(), w.heads * w.dim);
    for (Index h = 0; h < w.heads; ++h) {
        const Index at = h * w.dim;
        const auto head = [&](const V& m) { return columns(m, at, w.dim); };
        set_columns(mixed, at,
                    detail::delta(form, head(r.q), head(r.k), head(r.v), head(r.alpha), columns(r.beta, h, 1)));
    }
    return mixed;
}
/// Step 7: per-head norm, then the sigmoid gate.
template <class V>
V kda_gate(const V& x, const V& mixed, const KdaWeights& w) {
    V gated = sigmoid(matmul(x, w.gate));
    for (Index h = 0; h < w.heads; ++h) {
        const Index at = h * w.dim;
        const V o = rmsnorm(columns(mixed, at, w.dim), w.o_norm, w.eps);
        set_columns(gated, at, hadamard(o, columns(gated, at, w.dim)));
    }
    return gated;
}
/// All of 3.4 from an empty state, x [T][E] the normalised layer input.
template <class V>
KdaStages<V> kda_layer(const V& x, const KdaWeights& w, KdaForm form = KdaForm::chunked) {
    KdaStages<V> r = kda_project(x, w);
    r.mixed = kda_mix(r, w, form);
    r.gated = kda_gate(x, r.mixed, w);
    r.out = matmul(r.gated, w.out);
    return r;
}

struct MlaWeights {
    AttentionShape shape;
    double eps = 0;  ///< of q_a_layernorm and kv_a_layernorm: 1e-6 in the release
    bool output_gate = true;
    Weight q_a, q_b, kv_a, kv_b, gate, out;
    Vec q_norm, kv_norm;
};

template <class V>
struct MlaStages {
    V q, latent, key;  ///< [heads*(nope+rope)], normalised [rank], shared [rope]
    V mixed;           ///< attention output [heads*v]
    V gated;           ///< times the sigmoid gate
    V out;
};

/// Queries, normalised latents (only the latent is normalised) and shared keys.
template <class V>
MlaStages<V> mla_project(const V& x, const MlaWeights& w) {
    MlaStages<V> r;
    r.q = matmul(rmsnorm(matmul(x, w.q_a), w.q_norm, w.eps), w.q_b);
    const V c = matmul(x, w.kv_a);
    r.latent = rmsnorm(columns(c, 0, w.shape.rank), w.kv_norm, w.eps);
    r.key = columns(c, w.shape.rank, w.shape.rope);
    return r;
}
/// Gate, before o_proj.
template <class V>
V mla_gate(const V& x, const V& mixed, const MlaWeights& w) {
    return w.output_gate ? hadamard(mixed, sigmoid(matmul(x, w.gate))) : mixed;
}
/// All of 3.5 from an empty cache, x [T][E] the normalised layer input.
template <class V>
MlaStages<V> mla_layer(const V& x, const MlaWeights& w) {
    MlaStages<V> r = mla_project(x, w);
    r.mixed = latent_attention(r.q, r.latent, r.key, w.kv_b, w.shape);
    r.gated = mla_gate(x, r.mixed, w);
    r.out = matmul(r.gated, w.out);
    return r;
}

}  // namespace k3::oracle
#endif
