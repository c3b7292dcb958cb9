#ifndef K3_DRIVERS_CONFORM_DELTA_RULE_HPP
#define K3_DRIVERS_CONFORM_DELTA_RULE_HPP
// The gated delta rule of one head, by chunks with the UT transform (the engine goes token by token), and the budget of
// the engine's form.
#include <algorithm>
#include <cmath>

#include "drivers/conform/rounding.hpp"
#include "drivers/conform/rows.hpp"

namespace k3::conform {

inline constexpr Index kUtChunk = 64;

/// One head of one sequence: q already scaled; all [T][dim], beta [T].
struct DeltaHead {
    Mat q, k, v, alpha;
    Vec beta;
};

/// O [T][dim] from the empty state; `state` [key][value] is left as after the last token.
///
/// In a chunk of n tokens with state S before it, let w(t, s) be the product of alpha over (s, t] and P_t that from the
/// start of the chunk to t. The rows e_t = beta_t (v_t - u_t) that the rule writes solve
///     (I + Akk) E = diag(beta) (V - (P o K) S),   Akk[t][s] = beta_t sum_i k_t k_s w(t, s)  for s < t: no diagonal
/// and then                                        Aqk[t][s] = sum_i q_t k_s w(t, s)         for s <= t: with it
///     O = (P o Q) S + Aqk E,                      S' = diag(P_last) S + sum_s (w(last, s) o k_s) e_s^T.
/// (I + Akk) is unit lower triangular and its inverse is formed. The products w are running ones: no logarithm and no
/// quotient, so an alpha of 0 does no harm.
// INVARIANT 2: E comes from the inverse of (I + Akk), not from Akk. INVARIANT 3: Aqk keeps its diagonal, Akk has none.
inline Mat delta_rule_by_chunks(const DeltaHead& h, Mat& state, Index chunk = kUtChunk) {
    const Index tokens = h.q.rows(), dim = h.k.cols();
    Mat out(tokens, h.v.cols());
    state = Mat::Zero(dim, h.v.cols());
    for (Index first = 0; first < tokens; first += chunk) {
        const Index n = std::min(chunk, tokens - first);
        const auto q = h.q.middleRows(first, n), k = h.k.middleRows(first, n), a = h.alpha.middleRows(first, n);
        Mat akk = Mat::Zero(n, n), aqk = Mat::Zero(n, n), from_start(n, dim), to_end(n, dim);
        Eigen::RowVectorXd run = Eigen::RowVectorXd::Ones(dim);
        for (Index t = 0; t < n; ++t) from_start.row(t) = run = run.cwiseProduct(a.row(t)).eval();
        for (Index s = 0; s < n; ++s) {
            run = k.row(s);
            aqk(s, s) = q.row(s).dot(run);
            for (Index t = s + 1; t < n; ++t) {
                run = run.cwiseProduct(a.row(t)).eval();
                akk(t, s) = h.beta(first + t) * k.row(t).dot(run);
                aqk(t, s) = q.row(t).dot(run);
            }
            to_end.row(s) = run;
        }
        Mat inverse = Mat::Identity(n, n);  // forward substitution, row by row
        for (Index t = 1; t < n; ++t)
            inverse.row(t).head(t) = -(akk.row(t).head(t) * inverse.topLeftCorner(t, t)).eval();
        const Mat target = h.beta.segment(first, n).asDiagonal() *
                           (h.v.middleRows(first, n) - from_start.cwiseProduct(k) * state).eval();
        const Mat written = inverse * target;
        out.middleRows(first, n) = from_start.cwiseProduct(q) * state + aqk * written;
        state = (from_start.row(n - 1).transpose().asDiagonal() * state + to_end.transpose() * written).eval();
    }
    return out;
}

struct DeltaBudget {
    Mat out;    ///< [T][dim]
    Vec state;  ///< per value column: bounds the 2-norm of its error, so also each entry
};

/// What the engine's recurrence may be off by where k, v, alpha, beta are shared bit for bit and q is off by dq.
///
/// Let column j of its state be S_j + E_j, |E_j|_2 <= eps_j. In exact arithmetic one step maps E_j by
/// (I - beta k k^T) diag(alpha), whose 2-norm is at most mu = max(1, |1 - beta k.k|) max alpha: for unit keys old
/// errors do not grow, which an entry-by-entry bound cannot see (it doubles a step). What a step adds, with |S| <=
/// |S_ij| + eps_j:  a_ij = u |S| alpha (R rounded);  b_j = sum |k| a + gamma(dim + 1) sum |k||R| (the sum for u);
///   c_j = b_j and the rounding of v - u;  f_i = u |k beta|;  then the product (k beta)(v - u) and R + ..., each
///   rounded.
/// eps_j <- mu eps_j + |what was added to column j|_2; output: sum |dq||S| + gamma(dim + 1) sum |q||S| + |q|_2 eps_j.
/// The states here are the plain recurrence in float64: they serve as magnitudes only.
inline DeltaBudget delta_rule_budget(const DeltaHead& h, const Mat& dq) {
    using namespace rounding;
    const Index tokens = h.q.rows(), dim = h.k.cols(), values = h.v.cols();
    DeltaBudget r{Mat(tokens, values), Vec::Zero(values)};
    Mat s = Mat::Zero(dim, values);
    const double g = gamma32(dim + 1), tiny = kTiny * static_cast<double>(dim);
    for (Index t = 0; t < tokens; ++t) {
        const auto k = h.k.row(t), a = h.alpha.row(t), q = h.q.row(t);
        const double k_norm = k.norm(), q_norm = q.norm(), decay = a.cwiseAbs().maxCoeff();
        const double mu = std::max(1.0, std::fabs(1 - h.beta(t) * k_norm * k_norm)) * decay;
        const Mat decayed = a.transpose().asDiagonal() * s;
        const Eigen::RowVectorXd diff = h.v.row(t) - k * decayed;
        s = decayed + (k.transpose() * (h.beta(t) * diff)).eval();
        for (Index j = 0; j < values; ++j) {
            const double eps = r.state(j);
            double sum = 0, b = tiny;
            for (Index i = 0; i < dim; ++i) {
                const double row = std::fabs(decayed(i, j)) + std::fabs(a(i)) * eps, size = std::fabs(k(i)) * row;
                b += kU32 * size + kTiny;
                sum += size;
            }
            b += g * (1 + kU32) * sum;
            const double carried = k_norm * decay * eps, most = std::fabs(diff(j)) + carried, c = rounded(most, b);
            double added = 0, out = tiny;
            for (Index i = 0; i < dim; ++i) {
                const double kb = std::fabs(k(i) * h.beta(t)), f = kU32 * kb + kTiny;
                const double step = (kb + f) * c + f * most;
                const double here_r = kU32 * (std::fabs(decayed(i, j)) + std::fabs(a(i)) * eps) + kTiny;
                const double p = step + kU32 * (kb + f) * (most + c) + kTiny;
                const double here = here_r + p + kU32 * (std::fabs(s(i, j)) + mu * eps + here_r + p) + kTiny;
                added += here * here;
            }
            r.state(j) = mu * eps + std::sqrt(added) + 2 * static_cast<double>(dim) * kU64 * s.col(j).norm();
            for (Index i = 0; i < dim; ++i) {
                const double size = std::fabs(s(i, j)) + r.state(j), d = dq(t, i);
                out += d * size + g * (std::fabs(q(i)) + d) * size;
            }
            r.out(t, j) = out + q_norm * r.state(j);
        }
    }
    return r;
}

}  // namespace k3::conform
#endif
