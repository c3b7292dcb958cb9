#ifndef K3_DRIVERS_CONFORM_ROUNDING_HPP
#define K3_DRIVERS_CONFORM_ROUNDING_HPP
// How far a value computed as docs/NUMERICS.md says may lie from the exact one: running error analysis, one operation
// at a time. Scalars only, and bounds only: k3-conform and tests/oracle share them and no formula of a value.
//
//   u  = 2^-24   one rounding to binary32: RN32(v) = v (1 + d) with |d| <= u, or |RN32(v) - v| <= kTiny where v is
//   subnormal; u64 = 2^-53  one rounding to binary64; the reference's own roundings are charged too (hence 2 n u64
//   where n adds are made).
// A value with an error goes through a rounding by  rounded(v, e) = e + u (|v| + e) + kTiny.  Products keep the e*e
// term, functions use the largest slope over [v-e, v+e], so the bounds do not stop at first order. k roundings of one
// term: gamma(k) = k u / (1 - k u). Budgets are worst cases: roundings are assumed to add up, where in fact they mostly
// cancel.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>

namespace k3::rounding {

inline constexpr double kU32 = 0x1p-24;  ///< unit roundoff of binary32
inline constexpr double kU64 = 0x1p-53;  ///< unit roundoff of binary64
inline constexpr double kTiny =
    0x1p-149;  ///< absolute error of a rounding among binary32 subnormals (half of it, in fact)
inline constexpr double kUfn = 1.01 * kU32;  ///< exp, sigmoid, tanh: RN32 of a binary64 value that is off by < 0.01 ulp

/// k roundings of one term.
inline double gamma32(std::ptrdiff_t k) { return static_cast<double>(k) * kU32 / (1 - static_cast<double>(k) * kU32); }

/// Error after one more rounding to binary32.
inline double rounded(double v, double e, double u = kU32) { return e + u * (std::fabs(v) + e) + kTiny; }

/// Error of a product of two inexact values, before its rounding.
inline double product_error(double a, double ea, double b, double eb) {
    return std::fabs(a) * eb + std::fabs(b) * ea + ea * eb;
}

namespace detail {
/// 1 / (1 + e^-v) as a magnitude in the bounds below. Values are not taken from here: each reference has its own.
inline double logistic(double v) { return 1 / (1 + std::exp(-v)); }
}  // namespace detail

/// exp: |e^(v+e) - e^v| <= e^v (e^e - 1).
inline double exp_error(double v, double e) { return rounded(std::exp(v), std::exp(v) * std::expm1(e), kUfn); }
/// sigmoid: the slope s(1-s) is largest where |v| is smallest.
inline double sigmoid_error(double v, double e) {
    const double s = detail::logistic(-std::max(0.0, std::fabs(v) - e));
    return rounded(detail::logistic(v), e * s * (1 - s), kUfn);
}
/// tanh: the slope 1 - tanh^2 is largest where |v| is smallest (2 s(2v) - 1 form, no cancellation: 4 s(-2v)(1 -
/// s(-2v))).
inline double tanh_error(double v, double e) {
    const double s = detail::logistic(-2 * std::max(0.0, std::fabs(v) - e));
    return rounded(std::tanh(v), e * 4 * s * (1 - s), kUfn);
}
/// silu = v * sigmoid(v), sigmoid rounded, then the product rounded.
inline double silu_error(double v, double e) {
    const double s = detail::logistic(v);
    return rounded(v * s, product_error(v, e, s, sigmoid_error(v, e)));
}

/// Error of inv = RN32(1 / r'), r' = sqrt(f64 sum + eps) where the exact r = |(x/sqrt n, sqrt eps)|_2 is a norm: an
/// input error whose own norm is `rho` moves it by at most rho, so |1/r' - 1/r| <= rho / (r (r - rho)). The f64 steps
/// add (n + 4) u64, doubled for the reference.
inline double inverse_norm_error(double r, double rho, std::ptrdiff_t n) {
    if (rho >= r) return std::numeric_limits<double>::infinity();
    const double e = rho / (r * (r - rho)) + 2 * static_cast<double>(n + 4) * kU64 / (r - rho);
    return rounded(1 / r, e);
}

}  // namespace k3::rounding
#endif
