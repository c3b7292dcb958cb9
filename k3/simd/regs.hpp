#ifndef K3_SIMD_REGS_HPP
#define K3_SIMD_REGS_HPP
// Regs<A>: the registers behind the lanes, and the few operations that need an instruction of their own. The primary
// template is undefined: using an arch that this unit was not compiled for is an incomplete-type error, not a silent
// fallback. Every specialisation offers the same names:
//
//   f64, f32            register types; kF64, kF32: how many hold eight lanes; kWidth64: lanes of one f64
//   set1, load, store   unaligned; sqrt
//   div                 IEEE division
//   fence               the barrier of fence.hpp, on a register
//   madd                acc + x * w, for exact products only: may be fused
//   select_lt           a < b ? x : y in every lane (false if a or b is NaN)
//   exponent            2^n from the sum n + 1.5 * 2^52
//   reduce              the sum of eight lanes in the contract's order
//   widen, narrow       eight f32 to eight f64 and back (round to nearest even)
//   load_bf16           eight bf16 values, widened exactly
//   mxfp4               32 E2M1 codes (16 bytes, low nibble first) by the scale byte's row of e2m1_table.hpp
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "k3/simd/e2m1_table.hpp"
#include "k3/simd/fence.hpp"

namespace k3::simd::inline K3_TARGET {

template <Arch A>
struct Regs;

}  // namespace k3::simd::inline K3_TARGET

#include "k3/simd/regs_scalar.hpp"
#if K3_HAS_SSE42
#include "k3/simd/regs_sse42.hpp"
#endif
#if K3_HAS_AVX2
#include "k3/simd/regs_avx2.hpp"
#endif
#if K3_HAS_AVX512
#include "k3/simd/regs_avx512.hpp"
#endif
#if K3_HAS_NEON
#include "k3/simd/regs_neon.hpp"
#endif
#endif
