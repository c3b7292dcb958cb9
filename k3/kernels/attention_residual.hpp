#ifndef K3_KERNELS_ATTENTION_RESIDUAL_HPP
#define K3_KERNELS_ATTENTION_RESIDUAL_HPP
// Attention over depth: a softmax mixture of earlier residual streams of the same position.
#include "k3/kernels/norm.hpp"
#include "k3/simd/fence.hpp"
#include "k3/simd/math.hpp"

namespace k3::kernels::inline K3_TARGET {

/// Mixes `count` sources of one position: out = sum of p_s * v_s, p = softmax over s of dot(v_s * inv_s, fold).
///
/// Shapes    sources[s]: [D]; fold: [D], norm_i * proj_i; out: [D]; scratch: [count] floats.
/// Numerics  inv_s as in rmsnorm; key_i = v_i * inv_s in f32; score = dot (RN32 of the eight-lane sum); e = exp(score -
/// m);
///           z = f64 sum of e, s ascending; p_s = RN32(e_s / z); out_i in f32 from +0, s ascending. The values are the
///           RAW sources, only the keys are normalised. One source is returned as it is (but -0 becomes +0).
/// Requires  count >= 1; out overlaps no source.
template <simd::Arch A>
void attention_residual(const float* const* sources, std::size_t count, const float* fold, std::size_t n, double eps,
                        float* out, float* scratch) noexcept {
    float max = 0.0F;
    for (std::size_t s = 0; s < count; ++s) {
        const float* v = sources[s];
        const auto inv = simd::broadcast<simd::f32x8, A>(rms_factor<A>(v, n, eps));
        auto acc = simd::broadcast<simd::f64x8, A>(0.0);
        for (std::size_t i = 0; i < n; i += 8) {
            const auto key = simd::mul(simd::load<A>(v + i, n - i), inv);
            acc = simd::madd_exact(simd::widen(key), simd::widen(simd::load<A>(fold + i, n - i)), acc);
        }
        scratch[s] = simd::round32(simd::reduce(acc));
        if (s == 0 || max < scratch[s]) max = scratch[s];
    }
    const auto shift = simd::broadcast<simd::f32x8, A>(max);
    double z = 0.0;
    for (std::size_t s = 0; s < count; s += 8) {
        simd::store<A>(scratch + s, simd::exp<A>(simd::load<A>(scratch + s, count - s) - shift), count - s);
        for (std::size_t i = s; i < count && i < s + 8; ++i) z += static_cast<double>(scratch[i]);
    }
    for (std::size_t s = 0; s < count; ++s) scratch[s] = simd::round32(static_cast<double>(scratch[s]) / z);
    for (std::size_t i = 0; i < n; i += 8) {
        auto acc = simd::broadcast<simd::f32x8, A>(0.0F);
        for (std::size_t s = 0; s < count; ++s)
            acc = simd::mul_then_add(acc, simd::broadcast<simd::f32x8, A>(scratch[s]),
                                     simd::load<A>(sources[s] + i, n - i));
        simd::store<A>(out + i, acc, n - i);
    }
}

}  // namespace k3::kernels::inline K3_TARGET
#endif
