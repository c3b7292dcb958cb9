#ifndef K3_KERNELS_ELEMENTWISE_HPP
#define K3_KERNELS_ELEMENTWISE_HPP
// Operations without sums: additions, gates, the SiTU activation, the decay of the delta rule. All in binary32, left to
// right as the formulas are written; outputs may be inputs.
#include "k3/simd/math.hpp"

namespace k3::kernels::inline K3_TARGET {

/// y_i = a_i + b_i
template <simd::Arch A>
K3_INLINE void add(const float* a, const float* b, std::size_t n, float* y) noexcept {
    for (std::size_t i = 0; i < n; i += 8)
        simd::store<A>(y + i, simd::load<A>(a + i, n - i) + simd::load<A>(b + i, n - i), n - i);
}

/// y_i = sigmoid(x_i)
template <simd::Arch A>
K3_INLINE void sigmoid(const float* x, std::size_t n, float* y) noexcept {
    for (std::size_t i = 0; i < n; i += 8) simd::store<A>(y + i, simd::sigmoid<A>(simd::load<A>(x + i, n - i)), n - i);
}

/// y_i = x_i * sigmoid(gate_i): the output gate of both kinds of attention.
template <simd::Arch A>
K3_INLINE void sigmoid_gate(const float* x, const float* gate, std::size_t n, float* y) noexcept {
    for (std::size_t i = 0; i < n; i += 8)
        simd::store<A>(y + i, simd::mul(simd::load<A>(x + i, n - i), simd::sigmoid<A>(simd::load<A>(gate + i, n - i))),
                       n - i);
}

/// acc_i = acc_i + w * x_i, two roundings.
template <simd::Arch A>
K3_INLINE void scaled_add(float w, const float* x, std::size_t n, float* acc) noexcept {
    const auto factor = simd::broadcast<simd::f32x8, A>(w);
    for (std::size_t i = 0; i < n; i += 8)
        simd::store<A>(acc + i, simd::mul_then_add(simd::load<A>(acc + i, n - i), factor, simd::load<A>(x + i, n - i)),
                       n - i);
}

/// SiTU-GLU: a = (b1 * tanh(g / b1)) * sigmoid(g); y = a * (b2 * tanh(u / b2)). |y| <= b1 * b2.
///
/// The sigmoid takes the raw gate, not the capped one. Source: released modelling code, activation "situ".
template <simd::Arch A>
K3_INLINE void situ_glu(const float* gate, const float* up, std::size_t n, float b1, float b2, float* y) noexcept {
    const auto beta = simd::broadcast<simd::f32x8, A>(b1), linear_beta = simd::broadcast<simd::f32x8, A>(b2);
    for (std::size_t i = 0; i < n; i += 8) {
        const auto g = simd::load<A>(gate + i, n - i), u = simd::load<A>(up + i, n - i);
        const auto a = simd::mul(simd::mul(beta, simd::tanh<A>(g / beta)), simd::sigmoid<A>(g));
        simd::store<A>(y + i, simd::mul(a, simd::mul(linear_beta, simd::tanh<A>(u / linear_beta))), n - i);
    }
}

/// Decay of one head: u = a * (z + dt_bias), g = lower_bound * sigmoid(u), alpha = exp(g), in (exp(lower_bound), 1].
///
/// `a` is exp(A_log) of the head. The bound scales the sigmoid; it does not clamp it.
template <simd::Arch A>
K3_INLINE void decay(const float* z, const float* dt_bias, std::size_t n, float a, float lower_bound,
                     float* alpha) noexcept {
    const auto scale = simd::broadcast<simd::f32x8, A>(a), bound = simd::broadcast<simd::f32x8, A>(lower_bound);
    for (std::size_t i = 0; i < n; i += 8) {
        const auto u = simd::mul(scale, simd::load<A>(z + i, n - i) + simd::load<A>(dt_bias + i, n - i));
        simd::store<A>(alpha + i, simd::exp<A>(simd::mul(bound, simd::sigmoid<A>(u))), n - i);
    }
}

/// y_i = exp(x_i)
template <simd::Arch A>
K3_INLINE void exp(const float* x, std::size_t n, float* y) noexcept {
    for (std::size_t i = 0; i < n; i += 8) simd::store<A>(y + i, simd::exp<A>(simd::load<A>(x + i, n - i)), n - i);
}

}  // namespace k3::kernels::inline K3_TARGET
#endif
