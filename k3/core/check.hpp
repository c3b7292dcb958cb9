#ifndef K3_CORE_CHECK_HPP
#define K3_CORE_CHECK_HPP
// Refuses builds whose arithmetic is not IEEE binary32 and binary64 as written (docs/NUMERICS.md, Environment). Flags
// that leave no macro behind are caught at run time by the canary (simd/canary.hpp).
#include <bit>
#include <cfloat>

#if defined(__FAST_MATH__)
#error "k3: -ffast-math (or -Ofast) changes results; build without it"
#endif
#if defined(__FINITE_MATH_ONLY__) && __FINITE_MATH_ONLY__ == 1
#error "k3: -ffinite-math-only changes results; build without it"
#endif
#if defined(__ASSOCIATIVE_MATH__)
#error "k3: -fassociative-math (or -funsafe-math-optimizations) changes results; build without it"
#endif
#if defined(__RECIPROCAL_MATH__)
#error "k3: -freciprocal-math changes results; build without it"
#endif
#if defined(__NO_SIGNED_ZEROS__)
#error "k3: -fno-signed-zeros changes results; build without it"
#endif

static_assert(FLT_EVAL_METHOD == 0, "k3: float expressions must not be evaluated in a wider format (no x87)");
static_assert(1e-6 != 1e-6f, "k3: -fsingle-precision-constant changes results; build without it");

static_assert(std::endian::native == std::endian::little, "k3: weights are read as stored, little-endian");

// Below the seam every function is templated on its arch or always inlined: an ordinary inline function compiled with
// wide flags could be the copy the linker keeps for everyone.
#define K3_INLINE [[gnu::always_inline]] inline

// A call the compiler may look neither into nor across, so that no arithmetic moves over the change of the
// floating-point environment around it.
#if defined(__clang__)
#define K3_OPAQUE [[gnu::noinline]]
#else
#define K3_OPAQUE [[gnu::noipa]]
#endif

#endif
