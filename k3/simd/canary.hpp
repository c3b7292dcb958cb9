#ifndef K3_SIMD_CANARY_HPP
#define K3_SIMD_CANARY_HPP
// A start-up check of what no macro shows: whether this unit fuses a product with a sum, reassociates, or flushes
// subnormals. Run it before anything is computed (engine::make_forward does); a build that fails it must not compute
// anything.
#include <bit>

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

        // Nothing may be reassociated, replaced by a reciprocal, or lose the sign of zero. Each volatile is read once:
        // two reads are two values to the compiler, and it would have nothing to simplify.
        volatile double volatile_big = 0x1p+53, volatile_49 = 49.0, volatile_minus_zero = -0.0;
        const double big = volatile_big, divisor = volatile_49, minus_zero = volatile_minus_zero;
        exact = exact && (big + 1.0) - big == 0.0 && divisor / 49.0 == 1.0 &&
                std::bit_cast<std::uint64_t>(minus_zero + 0.0) == 0;
        const f64x8<A> bigs = broadcast<f64x8, A>(big), ones = broadcast<f64x8, A>(1.0);
        exact = exact && reduce((bigs + ones) - bigs) == 0.0;

        // Lanes divide, not multiply by an estimate of the reciprocal: x / 3 has another last bit then for many x.
        volatile float three = 3.0F;
        for (std::uint32_t i = 1; i < 64; ++i) {
            const float dividend = static_cast<float>(i) * 0x1p-3F;
            store<A>(lane, broadcast<f32x8, A>(dividend) / broadcast<f32x8, A>(three));
            for (const float value : lane) exact = exact && value == dividend / three;
        }

        volatile float tiny = 0x1p-126F, half = 0.5F;  // the product is a subnormal
        // Compared as bits: a unit that reads subnormals as zero would call them equal.
        constexpr std::uint32_t kSubnormal = 0x00400000;  // 2^-127
        exact = exact && std::bit_cast<std::uint32_t>(mul<float>(tiny, half)) == kSubnormal;
        store<A>(lane, mul(broadcast<f32x8, A>(tiny), broadcast<f32x8, A>(half)));
        for (const float value : lane) exact = exact && std::bit_cast<std::uint32_t>(value) == kSubnormal;

        // NaN is told apart from numbers: the router and argmax rely on it.
        volatile float volatile_zero = 0.0F;
        const float nan = volatile_zero / volatile_zero;
        exact = exact && nan != nan && !(nan < 1.0F) && !(1.0F < nan);
        const auto ones32 = broadcast<f32x8, A>(1.0F);
        store<A>(lane, select_lt(broadcast<f32x8, A>(nan), ones32, ones32, broadcast<f32x8, A>(2.0F)));
        for (const float value : lane) exact = exact && value == 2.0F;
    };
    core::parallel(core::Exec{}, 1, 1, check);
    return exact;
}

}  // namespace k3::simd::inline K3_TARGET
#endif
