#ifndef K3_TESTS_ORACLE_KDA_F64_HPP
#define K3_TESTS_ORACLE_KDA_F64_HPP
// KDA's own kernels in float64: l2norm, short_conv, decay, and the gated delta rule in two forms that share no step:
// token by token, and chunked with the UT transform. Rows are tokens; one head at a time.
#include "oracle/bounded_f64.hpp"

namespace k3::oracle {

/// y_i = x_i / sqrt(sum(x^2) + 1e-6), times `scale` (1/sqrt(dk) for q, after the norm; 1 for k).
inline Mat l2norm(const Mat& x, double scale = 1) {
    Mat y(x.rows(), x.cols());
    for (Index t = 0; t < x.rows(); ++t) y.row(t) = x.row(t) * (scale / std::sqrt(x.row(t).squaredNorm() + 1e-6));
    return y;
}
/// The engine: x_i * inv rounded; with a scale, times RN32(scale), rounded (the constant's own error: one more u).
inline Bounded l2norm(const Bounded& x, double scale = 1) {
    Bounded y{l2norm(x.value, scale), Mat(x.rows(), x.cols())};
    for (Index t = 0; t < x.rows(); ++t) {
        const double r = std::sqrt(x.value.row(t).squaredNorm() + 1e-6);
        const double inv_error = inverse_norm_error(r, x.budget.row(t).norm(), x.cols());
        for (Index i = 0; i < x.cols(); ++i) {
            const double v = x.value(t, i);
            double e = rounded(v / r, product_error(v, x.budget(t, i), 1 / r, inv_error));
            if (scale != 1) e = rounded(v / r * scale, product_error(v / r, e, scale, kU32 * scale));
            y.budget(t, i) = e;
        }
    }
    return y;
}

/// Depthwise, causal: y[t][c] = silu( sum_{j<K} w[c][j] u[t-K+1+j][c] ): oldest tap first, w[c][K-1] meets the current
/// token; u before the start is `history` ([K-1][channels], oldest first), or 0. w is [channels][K].
inline Mat short_conv(const Mat& u, const Mat& w, const Mat& history) {
    const Index taps = w.cols();
    Mat y(u.rows(), u.cols());
    for (Index t = 0; t < u.rows(); ++t)
        for (Index c = 0; c < u.cols(); ++c) {
            double acc = 0;
            for (Index j = 0; j < taps; ++j) {
                const Index s = t - (taps - 1) + j;
                acc += w(c, j) * (s >= 0 ? u(s, c) : history(s + taps - 1, c));
            }
            y(t, c) = silu(acc);
        }
    return y;
}
inline Mat short_conv(const Mat& u, const Mat& w) { return short_conv(u, w, Mat::Zero(w.cols() - 1, u.cols())); }
/// The engine sums K binary32 products: each term meets one product rounding and at most K - 1 adds: gamma(K) sum|w u|,
/// then silu.
inline Bounded short_conv(const Bounded& u, const Mat& w, const Bounded& history) {
    const Index taps = w.cols();
    Bounded y{short_conv(u.value, w, history.value), Mat(u.rows(), u.cols())};
    for (Index t = 0; t < u.rows(); ++t)
        for (Index c = 0; c < u.cols(); ++c) {
            double acc = 0, e = 0;
            for (Index j = 0; j < taps; ++j) {
                const Index s = t - (taps - 1) + j;
                const double v = s >= 0 ? u.value(s, c) : history.value(s + taps - 1, c);
                const double d = s >= 0 ? u.budget(s, c) : history.budget(s + taps - 1, c);
                acc += w(c, j) * v;
                e += std::fabs(w(c, j)) * (d + gamma32(taps) * (std::fabs(v) + d)) + kTiny;
            }
            y.budget(t, c) = silu_error(acc, e);
        }
    return y;
}
inline Bounded short_conv(const Bounded& u, const Mat& w) {
    return short_conv(u, w, zeros<Bounded>(w.cols() - 1, u.cols()));
}

/// alpha = exp(lower_bound * sigmoid(exp(A_log[h]) * (z + dt_bias))), z and dt_bias of one head [tokens][dk], A_log of
/// that head.
inline Mat decay(const Mat& z, double a_log, const Vec& dt_bias, double lower_bound) {
    return exp(lower_bound * sigmoid(std::exp(a_log) * (z.rowwise() + dt_bias.transpose())));
}
/// Sum rounded, exp(A_log) rounded, product rounded, sigmoid, product with RN32(lower_bound) rounded, exp.
inline Bounded decay(const Bounded& z, double a_log, const Vec& dt_bias, double lower_bound) {
    const Bounded sum = add(z, exact(dt_bias.transpose().replicate(z.rows(), 1)));
    const auto constant = [&](double v, double e) {
        return Bounded{Mat::Constant(z.rows(), z.cols(), v), Mat::Constant(z.rows(), z.cols(), e)};
    };
    const Bounded u = hadamard(constant(std::exp(a_log), exp_error(a_log, 0)), sum);
    return exp(hadamard(constant(lower_bound, std::fabs(lower_bound) * kU32), sigmoid(u)));
}

/// Output and final state of one head. For Bounded the state's budget is entry by entry (each column's bound,
/// repeated).
template <class V>
struct DeltaResult {
    V out;    ///< [tokens][dv]
    V state;  ///< [dk][dv]
};

/// Token by token, S [dk][dv] in and out, q already scaled, beta [tokens][1], alpha [tokens][dk]:
///   S = diag(alpha) S;  u = S^T k;  S = S + k (beta (v - u))^T;  o = S^T q.
inline DeltaResult<Mat> delta_rule(const Mat& q, const Mat& k, const Mat& v, const Mat& alpha, const Mat& beta,
                                   const Mat& initial) {
    DeltaResult<Mat> r{Mat(q.rows(), v.cols()), initial};
    Mat& s = r.state;
    for (Index t = 0; t < q.rows(); ++t) {
        s = alpha.row(t).transpose().asDiagonal() * s;
        const Mat u = k.row(t) * s;
        s += k.row(t).transpose() * (beta(t, 0) * (v.row(t) - u));
        r.out.row(t) = q.row(t) * s;
    }
    return r;
}

/// The same by chunks of at most `chunk` tokens (the UT transform). In a chunk with state S0 before it, w(t,s) = prod
/// of alpha over (s, t] and P_t = prod of alpha over [start, t], the written rows e_t = beta_t (v_t - u_t) solve
///   (I + Akk) E = diag(beta) (V - (P o K) S0),   Akk[t][s] = beta_t sum_i k_t k_s w(t,s)  for s < t: no diagonal,
///   O = (P o Q) S0 + Aqk E,                      Aqk[t][s] = sum_i q_t k_s w(t,s)         for s <= t: with its
///   diagonal, S' = diag(P_last) S0 + sum_s (w(last,s) o k_s) e_s^T.
/// The triangular inverse T is formed and E = T diag(beta) V - (T diag(beta) (P o K)) S0. w by running products: no
/// logarithm and no quotient, so alpha = 0 and strong decay are harmless.
inline DeltaResult<Mat> delta_rule_chunked(const Mat& q, const Mat& k, const Mat& v, const Mat& alpha, const Mat& beta,
                                           const Mat& initial, Index chunk) {
    DeltaResult<Mat> r{Mat(q.rows(), v.cols()), initial};
    for (Index first = 0; first < q.rows(); first += chunk) {
        const Index n = std::min(chunk, q.rows() - first), dk = k.cols();
        const Mat qc = q.middleRows(first, n), kc = k.middleRows(first, n), a = alpha.middleRows(first, n);
        const Vec b = beta.col(0).segment(first, n);
        Mat akk = Mat::Zero(n, n), aqk = Mat::Zero(n, n), p(n, dk), tail(n, dk);
        for (Index s = 0; s < n; ++s) {
            p.row(s) = s == 0 ? a.row(0) : Mat(p.row(s - 1).cwiseProduct(a.row(s)));
            Eigen::RowVectorXd decayed = kc.row(s);  // w(t, s) o k_s, for t = s, s + 1, ...
            aqk(s, s) = qc.row(s).dot(decayed);
            for (Index t = s + 1; t < n; ++t) {
                decayed = decayed.cwiseProduct(a.row(t)).eval();
                akk(t, s) = b(t) * kc.row(t).dot(decayed);
                aqk(t, s) = qc.row(t).dot(decayed);
            }
            tail.row(s) = decayed;
        }
        const Mat unit = Mat::Identity(n, n) + akk;
        const Mat inverse = unit.triangularView<Eigen::UnitLower>().solve(Mat::Identity(n, n));
        const Mat scaled = inverse * b.asDiagonal();
        const Mat written = scaled * v.middleRows(first, n) - (scaled * p.cwiseProduct(kc)) * r.state;
        r.out.middleRows(first, n) = p.cwiseProduct(qc) * r.state + aqk * written;
        r.state = (p.row(n - 1).transpose().asDiagonal() * r.state + tail.transpose() * written).eval();
    }
    return r;
}

/// The budget of the engine's recurrence (binary32, R = S alpha formed twice with the same bits, sums over i ascending
/// from +0).
///
/// Let column j of the engine's state be S_j + E_j with |E_j|_2 <= eps_j. In exact arithmetic one step maps E_j by
/// M = (I - beta k k^T) diag(alpha), whose 2-norm is at most mu = max(1, |1 - beta k.k|) max alpha <= 1 for unit keys:
/// old errors do not grow, which an entry-by-entry bound cannot see (it doubles a step). What the step adds, per entry,
/// with |S| <= |S_ij| + eps_j and da, dk, dv, db the input budgets:
///   a_ij: R = S alpha, rounded                       |S| da + u |S| (alpha + da)
///   b_j : u_j = sum k R, dk products and adds         sum |k| a + dk |R|  + gamma(dk + 1) sum |k||R|
///   c_j : v - u, rounded;  f_i: k beta, rounded;  then the product (k beta)(v - u) and the sum R + ..., each rounded.
/// (`carried` is what E_j does to u_j; M accounts for it, so it enters here only where it is multiplied by another
/// error.) eps_j <- mu eps_j + |added column j|_2. Output: |dq| |S| + gamma(dk + 1) sum |q||S| + |q|_2 eps_j.
inline DeltaResult<Bounded> delta_rule(const Bounded& q, const Bounded& k, const Bounded& v, const Bounded& alpha,
                                       const Bounded& beta, const Bounded& initial) {
    const Index tokens = q.rows(), dk = k.cols(), dv = v.cols();
    DeltaResult<Bounded> r{zeros<Bounded>(tokens, dv), initial};
    const double g = gamma32(dk + 1), tiny = kTiny * static_cast<double>(dk);
    Mat& s = r.state.value;
    Vec eps = initial.budget.colwise().norm().transpose();
    for (Index t = 0; t < tokens; ++t) {
        const double bt = beta.value(t, 0), db = beta.budget(t, 0);
        const double mu =
            std::max(1.0, std::fabs(1 - bt * k.value.row(t).squaredNorm())) * alpha.value.row(t).cwiseAbs().maxCoeff();
        const Mat decayed = alpha.value.row(t).transpose().asDiagonal() * s;
        const Mat u = k.value.row(t) * decayed;
        const Mat next = decayed + k.value.row(t).transpose() * (bt * (v.value.row(t) - u));
        Vec kb(dk), f(dk);  // |k beta| and the error of its binary32 form
        for (Index i = 0; i < dk; ++i) {
            kb(i) = std::fabs(k.value(t, i) * bt);
            f(i) = rounded(kb(i), product_error(k.value(t, i), k.budget(t, i), bt, db));
        }
        for (Index j = 0; j < dv; ++j) {
            double b = 0, sum = 0;
            Vec a(dk);
            for (Index i = 0; i < dk; ++i) {
                const double size = std::fabs(s(i, j)) + eps(j), al = std::fabs(alpha.value(t, i)),
                             da = alpha.budget(t, i);
                a(i) = size * da + kU32 * size * (al + da) + kTiny;
                const double row = size * al + a(i), ki = std::fabs(k.value(t, i)), dki = k.budget(t, i);
                b += ki * a(i) + dki * row;
                sum += (ki + dki) * row;
            }
            b += g * sum + tiny;
            const double carried = k.value.row(t).norm() * alpha.value.row(t).cwiseAbs().maxCoeff() * eps(j);
            const double diff = v.value(t, j) - u(0, j), dvj = v.budget(t, j);
            const double c = rounded(std::fabs(diff) + carried, dvj + b);
            const double most = std::fabs(diff) + carried + c;
            double added = 0;
            for (Index i = 0; i < dk; ++i) {
                const double product = (kb(i) + f(i)) * c + f(i) * (std::fabs(diff) + carried);
                const double p = product + kU32 * (kb(i) + f(i)) * most + kTiny;
                const double here = a(i) + p + kU32 * (std::fabs(next(i, j)) + mu * eps(j) + a(i) + p) + kTiny;
                added += here * here;
            }
            eps(j) = mu * eps(j) + std::sqrt(added) + 2 * static_cast<double>(dk) * kU64 * next.col(j).norm();
            double out = q.value.row(t).norm() * eps(j) + tiny;
            for (Index i = 0; i < dk; ++i) {
                const double size = std::fabs(next(i, j)) + eps(j), dq = q.budget(t, i);
                out += dq * size + g * (std::fabs(q.value(t, i)) + dq) * size;
            }
            r.out.budget(t, j) = out;
        }
        s = next;
        r.out.value.row(t) = q.value.row(t) * s;
    }
    r.state.budget = eps.transpose().replicate(dk, 1);
    return r;
}

}  // namespace k3::oracle
#endif
