#ifndef K3_SIMD_MATH_HPP
#define K3_SIMD_MATH_HPP
// exp, sigmoid, tanh and silu of binary32 arguments, computed in binary64 with unfused plain operations in a fixed
// order and rounded once. exp and tanh are correctly rounded; docs/NUMERICS.md prints the constants, the tree and the
// specials. At the end exp and log in binary64, for probabilities.
//
//   n = round(x / ln 2)   r = x - n ln2_high - n ln2_low   p = expm1(r)   s = 2^n
//   exp(x) = s + s p      sigmoid(x) = 1 / ((1 + s) + s p) at -x      tanh(x) = e / (e + 2), e = (s - 1) + s p at 2x
#include <bit>
#include <cstdint>

#include "k3/simd/lanes.hpp"

namespace k3::simd::inline K3_TARGET {

namespace detail {

inline constexpr double kLog2E = 0x1.71547652b82fep+0;
inline constexpr double kLn2High = 0x1.62e42feep-1;  // few enough bits that n * kLn2High is exact for |n| < 2^20
inline constexpr double kLn2Low = 0x1.a39ef35793c76p-33;
inline constexpr double kRound = 0x1.8p+52;  // adding it leaves the nearest integer in the low bits

/// 1/k! for k = 2 .. 13, rounded to binary64.
inline constexpr double kTaylor[12] = {0x1.0000000000000p-1,  0x1.5555555555555p-3,  0x1.5555555555555p-5,
                                       0x1.1111111111111p-7,  0x1.6c16c16c16c17p-10, 0x1.a01a01a01a01ap-13,
                                       0x1.a01a01a01a01ap-16, 0x1.71de3a556c734p-19, 0x1.27e4fb7789f5cp-22,
                                       0x1.ae64567f544e4p-26, 0x1.1eed8eff8d898p-29, 0x1.6124613a86d09p-33};

/// 2 / (2 j + 1) for j = 1 .. 10, rounded to binary64.
inline constexpr double kAtanh[10] = {
    0x1.5555555555555p-1, 0x1.999999999999ap-2, 0x1.2492492492492p-2, 0x1.c71c71c71c71cp-3, 0x1.745d1745d1746p-3,
    0x1.3b13b13b13b14p-3, 0x1.1111111111111p-3, 0x1.e1e1e1e1e1e1ep-4, 0x1.af286bca1af28p-4, 0x1.8618618618618p-4};

template <Arch A>
struct ExpParts {
    f64x8<A> s, p;  // exp(x) = s * (1 + p)
};

/// x in [-708, 709] or NaN.
template <Arch A>
K3_INLINE ExpParts<A> exp_parts(const f64x8<A>& x) noexcept {
    const auto constant = [](double v) __attribute__((always_inline)) { return broadcast<f64x8, A>(v); };
    const f64x8<A> t = mul_then_add(constant(kRound), x, constant(kLog2E));
    const f64x8<A> n = t - constant(kRound);
    const f64x8<A> r = (x - mul(n, constant(kLn2High))) - mul(n, constant(kLn2Low));
    const f64x8<A> r2 = mul(r, r), r4 = mul(r2, r2), r8 = mul(r4, r4);
    // Estrin: pairs in r, then in r^2, then in r^4 and r^8.
    f64x8<A> a[6];
    unroll<6>([&](auto k) __attribute__((always_inline)) {
        a[k] = mul_then_add(constant(kTaylor[2 * k]), r, constant(kTaylor[2 * k + 1]));
    });
    const f64x8<A> b0 = mul_then_add(a[0], a[1], r2);
    const f64x8<A> b1 = mul_then_add(a[2], a[3], r2);
    const f64x8<A> b2 = mul_then_add(a[4], a[5], r2);
    const f64x8<A> q = mul_then_add(mul_then_add(b0, b1, r4), b2, r8);
    return {exponent(t), mul_then_add(r, r2, q)};
}

/// v < low ? low : (high < v ? high : v); a NaN passes.
template <Arch A>
K3_INLINE f64x8<A> clamp(const f64x8<A>& v, double low, double high) noexcept {
    const f64x8<A> lo = broadcast<f64x8, A>(low), hi = broadcast<f64x8, A>(high);
    const f64x8<A> raised = select_lt(v, lo, lo, v);
    return select_lt(hi, raised, hi, raised);
}

}  // namespace detail

/// exp, correctly rounded. exp(-inf) = +0, exp(+inf) = +inf, exp(+-0) = 1, NaN stays NaN.
template <Arch A>
K3_INLINE f32x8<A> exp(const f32x8<A>& x) noexcept {
    const auto [s, p] = detail::exp_parts<A>(detail::clamp<A>(widen(x), -104.0, 89.0));
    return narrow(mul_then_add(s, s, p));
}

/// 1 / (1 + exp(-x)), within 1 ulp. sigmoid(-inf) = +0, sigmoid(+inf) = 1.
template <Arch A>
K3_INLINE f32x8<A> sigmoid(const f32x8<A>& x) noexcept {
    const f64x8<A> one = broadcast<f64x8, A>(1.0);
    const f64x8<A> negated = broadcast<f64x8, A>(0.0) - widen(x);
    const auto [s, p] = detail::exp_parts<A>(detail::clamp<A>(negated, -104.0, 104.0));
    return narrow(one / mul_then_add(one + s, s, p));
}

/// tanh, correctly rounded. tanh(+-inf) = +-1, tanh(-0) = -0.
template <Arch A>
K3_INLINE f32x8<A> tanh(const f32x8<A>& x) noexcept {
    const f64x8<A> wide = widen(x);
    const f64x8<A> one = broadcast<f64x8, A>(1.0), two = broadcast<f64x8, A>(2.0);
    const auto [s, p] = detail::exp_parts<A>(detail::clamp<A>(wide + wide, -40.0, 40.0));
    const f64x8<A> e = mul_then_add(s - one, s, p);
    const f64x8<A> value = e / (e + two);
    // Below 2^-20 tanh(x) rounds to x; this keeps the sign of zero too.
    const f64x8<A> tiny = broadcast<f64x8, A>(0x1p-20), minus_tiny = broadcast<f64x8, A>(-0x1p-20);
    return narrow(select_lt(wide, tiny, select_lt(minus_tiny, wide, wide, value), value));
}

/// x * sigmoid(x), the product in binary32.
template <Arch A>
K3_INLINE f32x8<A> silu(const f32x8<A>& x) noexcept {
    return mul(x, sigmoid<A>(x));
}

/// exp of binary64, within 1 ulp. +0 below -700, +inf above 709; NaN stays NaN.
template <Arch A>
K3_INLINE f64x8<A> exp(const f64x8<A>& x) noexcept {
    const f64x8<A> low = broadcast<f64x8, A>(-700.0), high = broadcast<f64x8, A>(709.0);
    const auto [s, p] = detail::exp_parts<A>(detail::clamp<A>(x, -700.0, 709.0));
    const f64x8<A> value = mul_then_add(s, s, p);
    const f64x8<A> above = select_lt(high, x, broadcast<f64x8, A>(__builtin_inf()), value);
    return select_lt(x, low, broadcast<f64x8, A>(0.0), above);
}

/// log of one binary64, within 1 ulp. Requires x normal, positive and finite.
///
///   x = 2^k (1 + f), 1 + f in (sqrt(1/2), sqrt(2)]; s = f / (2 + f); log(1 + f) = 2 atanh(s) = f - s (f - R(s^2))
K3_INLINE double log(double x) noexcept {
    const std::uint64_t bits = std::bit_cast<std::uint64_t>(x);
    double k = static_cast<double>(static_cast<std::int64_t>(bits >> 52) - 1023);
    double mantissa = std::bit_cast<double>((bits & 0xfffffffffffffU) | 0x3ff0000000000000U);
    if (mantissa > 0x1.6a09e667f3bcdp+0) {
        mantissa = mul_exact(mantissa, 0.5);
        k += 1.0;
    }
    const double f = mantissa - 1.0;
    const double s = f / (2.0 + f);
    const double z = mul(s, s);
    double series = detail::kAtanh[9];
    for (int j = 8; j >= 0; --j) series = mul_then_add(detail::kAtanh[j], series, z);
    const double low = mul(s, f - mul(series, z)) - mul(k, detail::kLn2Low);
    return mul_exact(k, detail::kLn2High) + (f - low);
}

}  // namespace k3::simd::inline K3_TARGET
#endif
