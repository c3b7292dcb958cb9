#ifndef K3_KERNELS_DOT_HPP
#define K3_KERNELS_DOT_HPP
// The sum everything is built on, for two f32 vectors.
#include "k3/simd/lanes.hpp"

namespace k3::kernels::inline K3_TARGET {

/// dot64: sum of x_i * y_i in binary64.
///
/// Shapes    x, y: [n]
/// Numerics  eight lanes from +0; lane[i mod 8] = RN64(lane + x_i * y_i), i ascending; products are exact. Then
///           lane[j] += lane[j+4] (j < 4), lane[j] += lane[j+2] (j < 2), lane[0] + lane[1].
/// Errors    none; NaN and infinities propagate.
template <simd::Arch A>
K3_INLINE double dot64(const float* x, const float* y, std::size_t n) noexcept {
    auto acc = simd::broadcast<simd::f64x8, A>(0.0);
    for (std::size_t i = 0; i < n; i += 8) {
        const std::size_t count = n - i;
        acc = simd::madd_exact(simd::widen(simd::load<A>(x + i, count)), simd::widen(simd::load<A>(y + i, count)), acc);
    }
    return simd::reduce(acc);
}

}  // namespace k3::kernels::inline K3_TARGET
#endif
