#ifndef K3_DRIVERS_CONFORM_ATTENTION_HPP
#define K3_DRIVERS_CONFORM_ATTENTION_HPP
// MLA's attention expanded per head: keys and values of every position are formed with kv_b, as the released code does.
// The engine absorbs kv_b into query and output instead; the budget is that of the absorbed form.
#include <cmath>
#include <limits>

#include "drivers/conform/rounding.hpp"
#include "drivers/conform/rows.hpp"

namespace k3::conform {

struct AttentionWidths {
    Index nope, rope, value, latent;
};

/// One head of one sequence, causal: q [T][nope + rope], latents [T][latent], keys [T][rope], w = its rows of kv_b,
/// [nope + value][latent]. o_t = sum_s softmax_s(q_t . k_s / sqrt(nope + rope)) v_s. `p` receives the softmax [T][T].
inline Mat attend_head(const Mat& q, const Mat& latent, const Mat& key, const Mat& w, const AttentionWidths& a,
                       Mat& p) {
    const Index tokens = q.rows();
    const Mat expanded = latent * w.transpose();  // [T][nope + value]
    p = (q.leftCols(a.nope) * expanded.leftCols(a.nope).transpose() + q.rightCols(a.rope) * key.transpose()) /
        std::sqrt(static_cast<double>(a.nope + a.rope));
    for (Index t = 0; t < tokens; ++t) {
        const double most = p.row(t).head(t + 1).maxCoeff();
        p.row(t).head(t + 1) = (p.row(t).head(t + 1).array() - most).exp();
        p.row(t).tail(tokens - t - 1).setZero();
        p.row(t) /= p.row(t).sum();
    }
    return p * expanded.rightCols(a.value);
}

/// What the engine's absorbed head may be off by, all inputs shared bit for bit, p being the exact softmax:
///   qa    = RN32(W_k^T q_nope)                        2 nope u64 |q| |W_k|, rounded
///   score = RN32((qa . latent + q_rope . key) scale)  dqa |l|, and 2 (latent + rope + 4) u64 of the sum, rounded
///   p                                                 eta_s = dscore_s + u (|score_s - m| + dscore_s + dm), th_s =
///                                                     expm1(eta_s) + 1.01 u exp(eta_s), Th = sum p_s th_s:
///                                                     dp_s = p_s (th_s + Th) / (1 - Th); a common shift cancels
///   mixed = RN32(sum_s p_s latent_s)                  noise: 2 (T + 2) u64 p |l|, rounded
///   o     = RN32(W_v mixed)                           |W_v| noise, and 2 latent u64, rounded; and dp: W_v is linear,
///                                                     so an error of p moves o by sum_s dp_s |v_s|, v = W_v latent,
///                                                     which is some sqrt(latent) less than |W_v| (dp |l|)
inline Mat attend_head_budget(const Mat& q, const Mat& latent, const Mat& key, const Mat& w, const AttentionWidths& a,
                              const Mat& p) {
    using namespace rounding;
    const Index tokens = q.rows();
    const double scale = 1 / std::sqrt(static_cast<double>(a.nope + a.rope));
    const auto n64 = [](Index n) { return 2 * static_cast<double>(n) * kU64; };
    const auto round_all = [](const Mat& v, Mat e) {
        for (Index i = 0; i < e.size(); ++i) e.data()[i] = rounded(v.data()[i], e.data()[i]);
        return e;
    };
    const Mat wk = w.topRows(a.nope), wv = w.bottomRows(a.value), big_latent = latent.cwiseAbs();
    const Mat qn = q.leftCols(a.nope), qr = q.rightCols(a.rope);
    const Mat qa = qn * wk, dqa = round_all(qa, n64(a.nope) * qn.cwiseAbs() * wk.cwiseAbs());
    const Mat score = (qa * latent.transpose() + qr * key.transpose()) * scale;
    const double f64 = n64(a.latent + a.rope + 4);
    const Mat raw =
        (dqa + f64 * (qa.cwiseAbs() + dqa)) * big_latent.transpose() + f64 * qr.cwiseAbs() * key.cwiseAbs().transpose();
    const Mat dscore = round_all(score, raw * scale);
    Mat dp = Mat::Zero(tokens, tokens);
    for (Index t = 0; t < tokens; ++t) {
        const auto seen = score.row(t).head(t + 1), off = dscore.row(t).head(t + 1);
        const double m = seen.maxCoeff(), dm = off.maxCoeff();
        double all = static_cast<double>(t + 1) * (2 * kU64 + kTiny);
        for (Index s = 0; s <= t; ++s) {
            const double eta = off(s) + kU32 * (m - seen(s) + off(s) + dm);
            dp(t, s) = std::expm1(eta) + kUfn * std::exp(eta);
            all += p(t, s) * dp(t, s);
        }
        for (Index s = 0; s <= t; ++s)
            dp(t, s) =
                all < 1 ? p(t, s) * (dp(t, s) + all) / (1 - all) + kTiny : std::numeric_limits<double>::infinity();
    }
    const Mat mixed = p * latent, values = latent * wv.transpose(), moved = dp * big_latent;
    Mat noise = n64(tokens + 2) * (p + dp) * big_latent;
    for (Index i = 0; i < noise.size(); ++i)
        noise.data()[i] = rounded(std::fabs(mixed.data()[i]) + moved.data()[i], noise.data()[i]);
    const Mat sums = n64(a.latent) * (mixed.cwiseAbs() + moved + noise);
    return round_all(p * values, dp * values.cwiseAbs() + (noise + sums) * wv.cwiseAbs().transpose());
}

}  // namespace k3::conform
#endif
