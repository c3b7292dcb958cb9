#ifndef K3_TESTS_ORACLE_ATTENTION_F64_HPP
#define K3_TESTS_ORACLE_ATTENTION_F64_HPP
// MLA's attention, expanded per head: keys and values of every position are formed with kv_b, as the released code
// does. The engine absorbs kv_b into query and output instead; the budget is that of the absorbed form (what is
// judged), the value is not.
#include "oracle/bounded_f64.hpp"

namespace k3::oracle {

/// softmax of each row; -inf is a masked place.
inline Mat softmax(const Mat& score) {
    Mat p(score.rows(), score.cols());
    for (Index t = 0; t < score.rows(); ++t) {
        p.row(t) = (score.row(t).array() - score.row(t).maxCoeff()).exp().matrix();
        p.row(t) /= p.row(t).sum();
    }
    return p;
}
/// The engine: m = max (exact), e_s = exp(RN32(score_s - m)), z = f64 sum, quotient in f64. A common shift by m cancels
/// in e_s / z, so only each exponent's own error counts: eta_s = dscore_s + u (|score_s - m| + dscore_s + dm), e_s =
/// exact (1 + th_s), with th_s = expm1(eta_s) + 1.01 u exp(eta_s) and an absolute 2^-149 where e_s is subnormal (z >= 1
/// after the shift). With Th = sum p_s th_s: |dp_s| <= p_s (th_s + Th) / (1 - Th). No rounding of p itself (attention
/// divides later, the residual rounds p).
inline Bounded softmax(const Bounded& score) {
    Bounded p{softmax(score.value), Mat::Zero(score.rows(), score.cols())};
    const Index n = score.cols();
    for (Index t = 0; t < score.rows(); ++t) {
        const double m = score.value.row(t).maxCoeff(), dm = score.budget.row(t).maxCoeff();
        Vec th(n);
        double total = static_cast<double>(n) * (2 * kU64 + kTiny);
        for (Index s = 0; s < n; ++s) {
            if (std::isinf(score.value(t, s))) {
                th(s) = 0;
                continue;
            }
            const double d = score.budget(t, s), eta = d + kU32 * (m - score.value(t, s) + d + dm);
            th(s) = std::expm1(eta) + kUfn * std::exp(eta);
            total += p.value(t, s) * th(s);
        }
        for (Index s = 0; s < n; ++s) {
            if (std::isinf(score.value(t, s))) continue;
            p.budget(t, s) = total < 1 ? p.value(t, s) * (th(s) + total) / (1 - total) + kTiny
                                       : std::numeric_limits<double>::infinity();
        }
    }
    return p;
}

struct AttentionShape {
    Index heads = 0, nope = 0, rope = 0, v_dim = 0, rank = 0;  ///< rank: kv_lora_rank
};

namespace detail {
inline Mat masked(Mat score, Index past) {  // row t sees positions 0 .. past + t
    for (Index t = 0; t < score.rows(); ++t)
        for (Index s = past + t + 1; s < score.cols(); ++s) score(t, s) = -std::numeric_limits<double>::infinity();
    return score;
}
}  // namespace detail

/// q [T][heads*(nope+rope)] (per head nope, then rope); latents [S][rank] (normalised) and shared keys [S][rope] of all
/// positions, the last T of them the queries' own; kv_b [heads*(nope+v)][rank]: per head nope key rows, then v value
/// rows. Causal. Out [T][heads*v].
///   score[h][t][s] = (q_nope . k_nope[h][s] + q_rope . key[s]) / sqrt(nope + rope);  o[h][t] = sum_s softmax(score)_s
///   v[h][s].
inline Mat latent_attention(const Mat& q, const Mat& latent, const Mat& key, const Weight& kv_b, AttentionShape a) {
    const Index width = a.nope + a.rope, past = latent.rows() - q.rows();
    Mat out(q.rows(), a.heads * a.v_dim);
    for (Index h = 0; h < a.heads; ++h) {
        const Mat w = kv_b.block(h * (a.nope + a.v_dim), a.nope + a.v_dim);
        const Mat kv = latent * w.transpose();  // [S][nope + v]
        const Mat qh = q.middleCols(h * width, width);
        const Mat score =
            (qh.leftCols(a.nope) * kv.leftCols(a.nope).transpose() + qh.rightCols(a.rope) * key.transpose()) /
            std::sqrt(static_cast<double>(width));
        out.middleCols(h * a.v_dim, a.v_dim) = softmax(detail::masked(score, past)) * kv.rightCols(a.v_dim);
    }
    return out;
}

/// Budget of the engine's absorbed form, head by head:
///   qa = RN32(W_k^T q_nope)            dqa = sum_d |W_k| (dq + 2 nope u64 |q|), rounded
///   score = RN32((qa . latent + q_rope . key) / sqrt)   sum_c (dqa |l| + |qa| dl + ...) + rope likewise + 2 (rank +
///   rope + 2) u64 sum, rounded p = e / z                          softmax above a = RN32(sum_s p latent_s) sum_s (dp
///   |l| + p dl + dp dl) + 2 S u64 sum p|l|, rounded o = RN32(W_v a)                    sum_c |W_v| (da + 2 rank u64
///   |a|), rounded
inline Bounded latent_attention(const Bounded& q, const Bounded& latent, const Bounded& key, const Weight& kv_b,
                                AttentionShape a) {
    const Index width = a.nope + a.rope, past = latent.rows() - q.rows(), positions = latent.rows();
    const double scale = 1 / std::sqrt(static_cast<double>(width));
    const auto n64 = [](Index n) { return 2 * static_cast<double>(n) * kU64; };
    const auto round_all = [](const Mat& v, Mat e) {
        for (Index i = 0; i < e.size(); ++i) e.data()[i] = rounded(v.data()[i], e.data()[i]);
        return e;
    };
    const Mat big_latent = latent.value.cwiseAbs() + latent.budget, big_key = key.value.cwiseAbs() + key.budget;
    Bounded out{latent_attention(q.value, latent.value, key.value, kv_b, a), Mat(q.rows(), a.heads * a.v_dim)};
    for (Index h = 0; h < a.heads; ++h) {
        const Mat w = kv_b.block(h * (a.nope + a.v_dim), a.nope + a.v_dim);
        const Mat wk = w.topRows(a.nope), wv = w.bottomRows(a.v_dim);
        const Mat qn = q.value.middleCols(h * width, a.nope), dqn = q.budget.middleCols(h * width, a.nope);
        const Mat qr = q.value.middleCols(h * width + a.nope, a.rope);
        const Mat dqr = q.budget.middleCols(h * width + a.nope, a.rope);
        const Mat qa = qn * wk;
        const Mat dqa = round_all(qa, (dqn + n64(a.nope) * (qn.cwiseAbs() + dqn)) * wk.cwiseAbs());
        const Mat big_qa = qa.cwiseAbs() + dqa, big_qr = qr.cwiseAbs() + dqr;
        const double f64 = n64(a.rank + a.rope + 4);
        const Mat score = (qa * latent.value.transpose() + qr * key.value.transpose()) * scale;
        const Mat raw = (dqa + f64 * big_qa) * big_latent.transpose() + qa.cwiseAbs() * latent.budget.transpose() +
                        (dqr + f64 * big_qr) * big_key.transpose() + qr.cwiseAbs() * key.budget.transpose();
        Mat dscore = round_all(score, raw * scale);
        for (Index t = 0; t < q.rows(); ++t)
            for (Index s = past + t + 1; s < positions; ++s) dscore(t, s) = 0;
        const Bounded p = softmax(Bounded{detail::masked(score, past), dscore});
        const Mat mixed = p.value * latent.value;
        const Mat dmixed = round_all(
            mixed, (p.budget + n64(positions + 2) * (p.value + p.budget)) * big_latent + p.value * latent.budget);
        const Mat o = mixed * wv.transpose();
        const Mat raw_o = (dmixed + n64(a.rank) * (mixed.cwiseAbs() + dmixed)) * wv.cwiseAbs().transpose();
        out.budget.middleCols(h * a.v_dim, a.v_dim) = round_all(o, raw_o);
    }
    return out;
}

}  // namespace k3::oracle
#endif
