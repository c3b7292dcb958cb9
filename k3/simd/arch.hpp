#ifndef K3_SIMD_ARCH_HPP
#define K3_SIMD_ARCH_HPP
// The arch tags: which instructions a unit may use. A tag is a name, nothing else; the lane types are in lanes.hpp.
#include <concepts>

#include "k3/core/check.hpp"

namespace k3::simd {

struct scalar {  ///< plain C++; the definition all others must equal
    static constexpr const char* name = "scalar";
};
struct sse42 {  ///< x86-64 with SSE4.2
    static constexpr const char* name = "sse42";
};
struct avx2 {  ///< x86-64 with AVX2 and FMA3
    static constexpr const char* name = "avx2";
};
struct avx512 {  ///< x86-64 with AVX-512 F, BW, DQ, VL
    static constexpr const char* name = "avx512";
};
struct neon {  ///< aarch64
    static constexpr const char* name = "neon";
};

template <class A>
concept Arch = std::same_as<A, scalar> || std::same_as<A, sse42> || std::same_as<A, avx2> || std::same_as<A, avx512> ||
    std::same_as<A, neon>;

}  // namespace k3::simd

// Lane types and kernels live in an inline namespace named after the instructions this unit was compiled for. A host
// project may include the headers in units with different flags: their instantiations then have different names, and
// the linker cannot hand a baseline unit a copy that was compiled with wide flags.
#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__) && defined(__FMA__)
#if defined(__AVX512VBMI__) || defined(__AVX512VNNI__) || defined(__AVX512BF16__) || defined(__AVX512FP16__)
#define K3_TARGET unit_avx512_more
#else
#define K3_TARGET unit_avx512
#endif
#define K3_HAS_AVX512 1
#define K3_HAS_AVX2 1
#define K3_HAS_SSE42 1
#elif defined(__AVX512F__)
#define K3_TARGET unit_avx512_part
#define K3_HAS_SSE42 1
#elif defined(__AVX2__) && defined(__FMA__)
#define K3_TARGET unit_avx2
#define K3_HAS_AVX2 1
#define K3_HAS_SSE42 1
#elif defined(__AVX2__)
#define K3_TARGET unit_avx2_without_fma
#define K3_HAS_SSE42 1
#elif defined(__AVX__) && defined(__FMA__)
#define K3_TARGET unit_avx_fma
#define K3_HAS_SSE42 1
#elif defined(__AVX__)
#define K3_TARGET unit_avx
#define K3_HAS_SSE42 1
#elif defined(__SSE4_2__)
#define K3_TARGET unit_sse42
#define K3_HAS_SSE42 1
#elif defined(__x86_64__)
#define K3_TARGET unit_x86_64
#elif defined(__aarch64__)
#define K3_TARGET unit_aarch64
#define K3_HAS_NEON 1
#else
#error "k3: unknown target; add its fence and registers to k3/simd before building for it"
#endif
#ifndef K3_HAS_AVX512
#define K3_HAS_AVX512 0
#endif
#ifndef K3_HAS_AVX2
#define K3_HAS_AVX2 0
#endif
#ifndef K3_HAS_SSE42
#define K3_HAS_SSE42 0
#endif
#ifndef K3_HAS_NEON
#define K3_HAS_NEON 0
#endif

#endif
