#ifndef K3_SIMD_CANARY_HPP
#define K3_SIMD_CANARY_HPP
// A start-up check of what no macro shows: whether this unit fuses a product with a sum, reassociates, or flushes
// subnormals. Run it before anything is computed (the session does when it loads a model); a build that fails it must not compute anything.
#include "k3/core/parallel.hpp"
#include "k3/simd/lanes.hpp"

namespace k3::simd::inline K3_TARGET {

/// True if products and sums of this unit round as written, on single values and on lanes, and subnormals survive.
template <Arch A>
K3_INLINE bool arithmetic_is_exact() noexcept {
    bool exact = true;
    const auto check = [&exact](std::size_t, std::size_t, unsigned) noexcept {
        // volatile: nothing here may be computed by the compiler.
        volatile double x = 1.0 + 0x1p-27, c = -(1.0 + 0x1p-26);  // x*x = 1 + 2^-26 + 2^-54
        exact = exact && mul_then_add<double>(c, x, x) == 0.0 && c + mul<double>(x, x) == 0.0;
        const f64x8<A> wide = mul_then_add(broadcast<f64x8, A>(c), broadcast<f64x8, A>(x), broadcast<f64x8, A>(x));
        exact = exact && reduce(wide) == 0.0;

        volatile float y = 1.0F + 0x1p-12F, d = -(1.0F + 0x1p-11F);  // y*y = 1 + 2^-11 + 2^-24
        exact = exact && mul_then_add<float>(d, y, y) == 0.0F;
        float lane[8];
        store<A>(lane, mul_then_add(broadcast<f32x8, A>(d), broadcast<f32x8, A>(y), broadcast<f32x8, A>(y)));
        for (const float value : lane) exact = exact && value == 0.0F;

        volatile double big = 0x1p+53, one = 1.0;  // (big + one) - big is 0 when nothing is reassociated
        exact = exact && (big + one) - big == 0.0;

        volatile float tiny = 0x1p-126F, half = 0.5F;  // the product is a subnormal
        exact = exact && mul<float>(tiny, half) == 0x1p-127F;
        store<A>(lane, mul(broadcast<f32x8, A>(tiny), broadcast<f32x8, A>(half)));
        for (const float value : lane) exact = exact && value == 0x1p-127F;
    };
    core::parallel(core::Exec{}, 1, 1, check);
    return exact;
}

}  // namespace k3::simd::inline K3_TARGET
#endif
