#ifndef K3_KERNELS_SOFTMAX_HPP
#define K3_KERNELS_SOFTMAX_HPP
// From a row of logits to probabilities, in binary64: as integers to sample from, as a sum to take the logarithm of.
// docs/NUMERICS.md, "sampling" and "scoring". Call from the body of core::parallel.
#include <cstddef>
#include <cstdint>

#include "k3/simd/math.hpp"

namespace k3::kernels::inline K3_TARGET {

/// The weight of the largest logit; sums of up to 2^24 weights stay below 2^64.
inline constexpr std::uint64_t kFullWeight = std::uint64_t{1} << 39;

/// w_i = floor(exp((x_i - most) / temperature) * 2^39 + 1/2). As integers their sums have no order.
///
/// Shapes    x, w: [n]
/// Requires  most is the largest x, and finite; temperature > 0 and finite; no x is NaN.
template <simd::Arch A>
void softmax_weights(const float* x, std::size_t n, float most, double temperature, std::uint64_t* w) noexcept {
    const auto largest = simd::broadcast<simd::f64x8, A>(static_cast<double>(most));
    const auto divisor = simd::broadcast<simd::f64x8, A>(temperature);
    for (std::size_t i = 0; i < n; i += 8) {
        const std::size_t count = n - i < 8 ? n - i : 8;
        const auto below = simd::widen(simd::load<A>(x + i, count)) - largest;
        double e[8];
        simd::store<A>(e, simd::exp<A>(below / divisor));
        for (std::size_t j = 0; j < count; ++j)  // truncated at twice the scale, then halved upwards: exact
            w[i + j] = (static_cast<std::uint64_t>(static_cast<std::int64_t>(simd::mul_exact(e[j], 0x1p+40))) + 1) / 2;
    }
}

/// sum of exp(x_i - most), eight lanes as in dot64.
///
/// Requires  most is the largest x, and finite; no x is NaN. The sum is then at least 1.
template <simd::Arch A>
double softmax_sum(const float* x, std::size_t n, float most) noexcept {
    const auto largest = simd::broadcast<simd::f64x8, A>(static_cast<double>(most));
    auto sum = simd::broadcast<simd::f64x8, A>(0.0);
    std::size_t i = 0;
    for (; i + 8 <= n; i += 8) sum = sum + simd::exp<A>(simd::widen(simd::load<A>(x + i)) - largest);
    if (i < n) {
        float tail[8];
        for (std::size_t j = 0; j < 8; ++j) tail[j] = i + j < n ? x[i + j] : -__builtin_inff();  // exp: +0
        sum = sum + simd::exp<A>(simd::widen(simd::load<A>(tail)) - largest);
    }
    return simd::reduce(sum);
}

/// log of the probability of x[at]: (x_at - most) - log(sum). -inf where x_at is -inf. Requires as softmax_sum.
template <simd::Arch A>
double log_softmax(const float* x, std::size_t n, float most, std::size_t at) noexcept {
    const double below = static_cast<double>(x[at]) - static_cast<double>(most);
    return below - simd::log(softmax_sum<A>(x, n, most));
}

}  // namespace k3::kernels::inline K3_TARGET
#endif
