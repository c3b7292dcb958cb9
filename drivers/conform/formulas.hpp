#ifndef K3_DRIVERS_CONFORM_FORMULAS_HPP
#define K3_DRIVERS_CONFORM_FORMULAS_HPP
// The model's row-wise formulas in float64, each with the budget of the engine's binary32 steps (docs/NUMERICS.md says
// which; rounding.hpp says how errors go through an operation). A Value carries both sequences; budgets belong to the
// shared one. What mixes tokens is in delta_rule.hpp and attention.hpp.
#include <cmath>
#include <vector>

#include "drivers/conform/rounding.hpp"
#include "drivers/conform/rows.hpp"

namespace k3::conform {

using namespace rounding;

inline double sigmoid(double v) {  // written so that neither branch overflows
    if (v >= 0) return 1 / (1 + std::exp(-v));
    const double e = std::exp(v);
    return e / (1 + e);
}
inline double silu(double v) { return v * sigmoid(v); }

/// fn(v) entry by entry; err(v, e) is the engine's error where its input is off by e.
template <class Fn, class Err>
Value map(const Value& x, Fn fn, Err err) {
    Value y{Mat(x.value.rows(), x.cols()), Mat(x.tokens(), x.cols())};
    for (Index i = 0; i < y.value.size(); ++i) y.value.data()[i] = fn(x.value.data()[i]);
    for (Index i = 0; i < y.budget.size(); ++i) y.budget.data()[i] = err(x.value.data()[i], x.budget.data()[i]);
    return y;
}

/// a * b, rounded once.
inline Value product(const Value& a, const Value& b) {
    Value y{a.value.cwiseProduct(b.value), Mat(a.tokens(), a.cols())};
    for (Index i = 0; i < y.budget.size(); ++i)
        y.budget.data()[i] = rounded(y.value.data()[i], product_error(a.value.data()[i], a.budget.data()[i],
                                                                      b.value.data()[i], b.budget.data()[i]));
    return y;
}
/// a + b, rounded once.
inline Value sum(const Value& a, const Value& b) {
    Value y{a.value + b.value, a.budget + b.budget};
    for (Index i = 0; i < y.budget.size(); ++i) y.budget.data()[i] = rounded(y.value.data()[i], y.budget.data()[i]);
    return y;
}
inline Value sigmoids(const Value& x) {
    return map(
        x, [](double v) { return sigmoid(v); }, sigmoid_error);
}

/// y_i = w_i x_i / sqrt(mean(x^2) + eps) over each `dim` columns (w is [dim], the same for all of them). The engine:
/// inv = RN32(...), then two products, each rounded.
inline Value rmsnorm(const Value& x, Index dim, const Vec& w, double eps) {
    Value y{Mat(x.value.rows(), x.cols()), Mat(x.tokens(), x.cols())};
    const double n = static_cast<double>(dim);
    for (Index t = 0; t < x.value.rows(); ++t) {
        for (Index at = 0; at < x.cols(); at += dim) {
            const double r = std::sqrt(x.value.row(t).segment(at, dim).squaredNorm() / n + eps);
            for (Index i = 0; i < dim; ++i) y.value(t, at + i) = x.value(t, at + i) / r * w(i);
            if (t >= x.tokens()) continue;
            const double inv = inverse_norm_error(r, x.budget.row(t).segment(at, dim).norm() / std::sqrt(n), dim);
            for (Index i = 0; i < dim; ++i) {
                const double v = x.value(t, at + i);
                const double e = rounded(v / r, product_error(v, x.budget(t, at + i), 1 / r, inv));
                y.budget(t, at + i) = rounded(v / r * w(i), e * std::fabs(w(i)));
            }
        }
    }
    return y;
}

/// y_i = x_i * scale / sqrt(sum(x^2) + 1e-6) over each `dim` columns. The engine rounds inv, the product, and, where
/// the scale is not 1, RN32(scale) and the product with it.
inline Value l2norm(const Value& x, Index dim, double scale) {
    Value y{Mat(x.value.rows(), x.cols()), Mat(x.tokens(), x.cols())};
    for (Index t = 0; t < x.value.rows(); ++t) {
        for (Index at = 0; at < x.cols(); at += dim) {
            const double r = std::sqrt(x.value.row(t).segment(at, dim).squaredNorm() + 1e-6);
            for (Index i = 0; i < dim; ++i) y.value(t, at + i) = x.value(t, at + i) * (scale / r);
            if (t >= x.tokens()) continue;
            const double inv = inverse_norm_error(r, x.budget.row(t).segment(at, dim).norm(), dim);
            for (Index i = 0; i < dim; ++i) {
                const double v = x.value(t, at + i);
                double e = rounded(v / r, product_error(v, x.budget(t, at + i), 1 / r, inv));
                if (scale != 1) e = rounded(v / r * scale, product_error(v / r, e, scale, kU32 * scale));
                y.budget(t, at + i) = e;
            }
        }
    }
    return y;
}

/// silu(sum over the taps, oldest first), each sequence from an empty history; taps [channels][K]. The engine rounds
/// one product a tap and at most K - 1 additions a term.
inline Value short_conv(const Value& u, const Mat& taps) {
    const Index tokens = u.tokens(), k = taps.cols();
    Value y{Mat(u.value.rows(), u.cols()), Mat(tokens, u.cols())};
    for (Index row = 0; row < u.value.rows(); ++row) {
        const Index t = row % tokens;  // both sequences have `tokens` rows
        for (Index c = 0; c < u.cols(); ++c) {
            double acc = 0, e = 0;
            for (Index j = 0; j < k; ++j) {
                const Index back = k - 1 - j;
                if (back > t) continue;
                const double v = u.value(row - back, c), w = taps(c, j);
                acc += w * v;
                if (row >= tokens) continue;
                const double d = u.budget(row - back, c);
                e += std::fabs(w) * (d + gamma32(k) * (std::fabs(v) + d)) + kTiny;
            }
            y.value(row, c) = silu(acc);
            if (row < tokens) y.budget(row, c) = silu_error(acc, e);
        }
    }
    return y;
}

/// alpha = exp(lower * sigmoid(exp(A_log[h]) (z + dt_bias))), heads of `dim` columns. Six roundings in turn.
inline Value decay(const Value& z, Index dim, const Vec& a_log, const Vec& dt_bias, double lower) {
    Value y{Mat(z.value.rows(), z.cols()), Mat(z.tokens(), z.cols())};
    for (Index t = 0; t < z.value.rows(); ++t) {
        for (Index c = 0; c < z.cols(); ++c) {
            const double scale = std::exp(a_log(c / dim)), s = z.value(t, c) + dt_bias(c), u = scale * s;
            const double g = lower * sigmoid(u);
            y.value(t, c) = std::exp(g);
            if (t >= z.tokens()) continue;
            const double es = rounded(s, z.budget(t, c));
            const double eu = rounded(u, product_error(scale, exp_error(a_log(c / dim), 0), s, es));
            const double eg =
                rounded(g, product_error(lower, std::fabs(lower) * kU32, sigmoid(u), sigmoid_error(u, eu)));
            y.budget(t, c) = exp_error(g, eg);
        }
    }
    return y;
}

/// b tanh(v / b): the constant rounded (charged to the quotient and to the product), quotient, tanh, product rounded.
inline Value soft_cap(const Value& x, double b) {
    return map(
        x, [b](double v) { return b * std::tanh(v / b); },
        [b](double v, double e) {
        const double quotient = rounded(v / b, e / b + kU32 * (std::fabs(v) + e) / b);
        const double tanh_off = tanh_error(v / b, quotient), tanh_size = std::fabs(std::tanh(v / b));
        return rounded(b * tanh_size, b * tanh_off + kU32 * b * (tanh_size + tanh_off));
        });
}
/// SiTU-GLU: b1 tanh(g / b1) sigmoid(g) * b2 tanh(u / b2), left to right.
inline Value situ_glu(const Value& gate, const Value& up, double beta, double linear_beta) {
    return product(product(soft_cap(gate, beta), sigmoids(gate)), soft_cap(up, linear_beta));
}

/// softmax(score) over the sources of each token, the normalised sources being the keys and the raw ones the values;
/// score = sum_i v_i norm_i proj_i / rms(v). The engine: fold and keys rounded, score = RN32(f64 dot), e = exp(score -
/// m), z in f64, p rounded, and the sum in binary32 from +0.
inline Value attention_residual(const std::vector<Mat>& sources, const Vec& norm, const Vec& proj, double eps) {
    const auto m = static_cast<Index>(sources.size());
    const Index rows = sources[0].rows(), tokens = rows / 2, width = sources[0].cols();
    const Vec fold = norm.cwiseProduct(proj);
    const double n = static_cast<double>(width);
    Value out{Mat::Zero(rows, width), Mat::Zero(tokens, width)};
    for (Index t = 0; t < rows; ++t) {
        Vec score(m), off(m), p(m), dp(m);
        for (Index j = 0; j < m; ++j) {
            const auto v = sources[static_cast<std::size_t>(j)].row(t);
            const double r = std::sqrt(v.squaredNorm() / n + eps);
            score(j) = v.dot(fold.transpose()) / r;
            // key: inv off by its error, product rounded; fold rounded; f64 sum; score rounded. All relative to |v f| /
            // r.
            const double relative = inverse_norm_error(r, 0, width) * r + 2.01 * kU32 + 2 * n * kU64;
            const double size = v.cwiseAbs().dot(fold.cwiseAbs().transpose()) / r;
            off(j) = rounded(score(j), relative * size + n * kTiny);
        }
        const double top = score.maxCoeff(), top_off = off.maxCoeff();
        p = (score.array() - top).exp();
        p /= p.sum();
        double all = static_cast<double>(m) * (2 * kU64 + kTiny);
        for (Index j = 0; j < m; ++j) {  // a common shift cancels in e / z: only each exponent's own error counts
            const double eta = off(j) + kU32 * (top - score(j) + off(j) + top_off);
            dp(j) = std::expm1(eta) + kUfn * std::exp(eta);
            all += p(j) * dp(j);
        }
        for (Index j = 0; j < m; ++j) {
            const auto v = sources[static_cast<std::size_t>(j)].row(t);
            out.value.row(t) += p(j) * v;
            if (t >= tokens) continue;
            const double e = all < 1 ? rounded(p(j), p(j) * (dp(j) + all) / (1 - all) + kTiny)
                                     : std::numeric_limits<double>::infinity();
            out.budget.row(t).array() += (e + gamma32(m + 1) * (p(j) + e)) * v.array().abs() + kTiny;
        }
    }
    return out;
}

}  // namespace k3::conform
#endif
