#ifndef K3_KERNELS_NORM_HPP
#define K3_KERNELS_NORM_HPP
// Normalisations of one vector. Both take the sum of squares in binary64 and round the factor once.
#include "k3/kernels/dot.hpp"
#include "k3/simd/fence.hpp"

namespace k3::kernels::inline K3_TARGET {

/// RN32(1 / sqrt(dot64(x, x) / n + eps)), the four operations in binary64.
template <simd::Arch A>
K3_INLINE float rms_factor(const float* x, std::size_t n, double eps) noexcept {
    return simd::round32(1.0 / __builtin_sqrt(dot64<A>(x, x, n) / static_cast<double>(n) + eps));
}

/// y_i = (x_i * inv) * w_i with inv = rms_factor(x).
///
/// Shapes    x, w, y: [n]. y may be x.
/// Numerics  the two products in binary32, left to right.
template <simd::Arch A>
K3_INLINE void rmsnorm(const float* x, const float* w, std::size_t n, double eps, float* y) noexcept {
    const auto inv = simd::broadcast<simd::f32x8, A>(rms_factor<A>(x, n, eps));
    for (std::size_t i = 0; i < n; i += 8) {
        const std::size_t count = n - i;
        simd::store<A>(y + i, simd::mul(simd::mul(simd::load<A>(x + i, count), inv), simd::load<A>(w + i, count)),
                       count);
    }
}

/// RN32(1 / sqrt(dot64(x, x) + 1e-6)): the sum of squares, not the mean.
template <simd::Arch A>
K3_INLINE float l2_factor(const float* x, std::size_t n) noexcept {
    return simd::round32(1.0 / __builtin_sqrt(dot64<A>(x, x, n) + 1e-6));
}

/// y_i = x_i * l2_factor(x). y may be x.
template <simd::Arch A>
K3_INLINE void l2norm(const float* x, std::size_t n, float* y) noexcept {
    const auto inv = simd::broadcast<simd::f32x8, A>(l2_factor<A>(x, n));
    for (std::size_t i = 0; i < n; i += 8) simd::store<A>(y + i, simd::mul(simd::load<A>(x + i, n - i), inv), n - i);
}

/// y_i = (x_i * l2_factor(x)) * scale: the query of the delta rule. y may be x.
template <simd::Arch A>
K3_INLINE void l2norm_scaled(const float* x, std::size_t n, float scale, float* y) noexcept {
    const auto inv = simd::broadcast<simd::f32x8, A>(l2_factor<A>(x, n));
    const auto factor = simd::broadcast<simd::f32x8, A>(scale);
    for (std::size_t i = 0; i < n; i += 8)
        simd::store<A>(y + i, simd::mul(simd::mul(simd::load<A>(x + i, n - i), inv), factor), n - i);
}

/// RN64(1 / RN64(sqrt(v))): the scale of attention scores; the delta rule takes it rounded to binary32.
K3_INLINE double inverse_sqrt(double v) noexcept { return 1.0 / __builtin_sqrt(v); }

}  // namespace k3::kernels::inline K3_TARGET
#endif
