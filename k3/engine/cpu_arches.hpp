#ifndef K3_ENGINE_CPU_ARCHES_HPP
#define K3_ENGINE_CPU_ARCHES_HPP
// Which instruction sets this build has and this CPU (and its operating system) supports. Light: the kernel tables of
// the drivers and tests ask here too. For baseline units.
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "k3/simd/arch.hpp"

namespace k3::engine {

enum class ArchName : std::uint8_t { scalar, sse42, avx2, avx512, neon };

constexpr const char* name(ArchName arch) noexcept {
    constexpr const char* kNames[] = {simd::scalar::name, simd::sse42::name, simd::avx2::name, simd::avx512::name,
                                      simd::neon::name};
    return kNames[static_cast<std::size_t>(arch)];
}

inline std::optional<ArchName> arch_named(std::string_view text) noexcept {
    for (const ArchName arch : {ArchName::scalar, ArchName::sse42, ArchName::avx2, ArchName::avx512, ArchName::neon})
        if (text == name(arch)) return arch;
    return std::nullopt;
}

/// Arches of this build that the CPU and the system support, narrowest first. Never empty.
inline std::vector<ArchName> arches_of_this_cpu() {
    std::vector<ArchName> arches{ArchName::scalar};
#if defined(__x86_64__)
    __builtin_cpu_init();  // the compiler's run-time library also asks the system about wide registers (XCR0)
    if (__builtin_cpu_supports("sse4.2")) arches.push_back(ArchName::sse42);
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) arches.push_back(ArchName::avx2);
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("fma"))
        arches.push_back(ArchName::avx512);
#elif defined(__aarch64__)
    arches.push_back(ArchName::neon);  // part of the architecture
#endif
    return arches;
}

inline ArchName widest_arch() { return arches_of_this_cpu().back(); }

}  // namespace k3::engine
#endif
