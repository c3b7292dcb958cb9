#ifndef K3_SIMD_FENCE_HPP
#define K3_SIMD_FENCE_HPP
// Arithmetic on single values under the contract: a product that was rounded stays rounded, whatever the flags. An
// empty asm that takes the product as an in/out register operand is the only barrier that held for both compilers in
// every combination of -mfma and -ffp-contract (docs/decisions/0001). Every inexact product is fenced, also one that
// becomes an addend: acc + mul(x, y) still fuses if acc is itself a bare product.
#include "k3/simd/arch.hpp"

namespace k3::simd::inline K3_TARGET {

#if defined(__x86_64__)
K3_INLINE void fence(float& value) noexcept { asm("" : "+x"(value)); }
K3_INLINE void fence(double& value) noexcept { asm("" : "+x"(value)); }
#else
K3_INLINE void fence(float& value) noexcept { asm("" : "+w"(value)); }
K3_INLINE void fence(double& value) noexcept { asm("" : "+w"(value)); }
#endif

/// RN(x * y), never fused with what follows.
template <class T>
K3_INLINE T mul(T x, T y) noexcept {
    T product = x * y;
    fence(product);
    return product;
}

/// RN(acc + RN(x * y)): two roundings.
template <class T>
K3_INLINE T mul_then_add(T acc, T x, T y) noexcept {
    return acc + mul(x, y);
}

/// RN32(x). The fence is needed here too: g++ 12 at -O3 with AVX-512 vectorises a narrowing that is widened again and
/// drops both conversions.
K3_INLINE float round32(double x) noexcept {
    float rounded = static_cast<float>(x);
    fence(rounded);
    return rounded;
}

/// x * y where the caller guarantees an exact product (f32 x f32 widened, or a power of two).
K3_INLINE double mul_exact(double x, double y) noexcept { return x * y; }

/// RN(acc + x * y) where the caller guarantees an exact product, so that fusing cannot show.
K3_INLINE double madd_exact(double x, double y, double acc) noexcept { return acc + x * y; }

}  // namespace k3::simd::inline K3_TARGET
#endif
