#ifndef K3_DRIVERS_BENCH_ARCH_TABLE_HPP
#define K3_DRIVERS_BENCH_ARCH_TABLE_HPP
// What k3-bench needs of one arch besides its kernels: the peak of its multiply-add units, and the one kernel whose
// fences are worth pricing, without them. One unit per arch (arch_<name>.cpp) fills a table.
#include <cstddef>
#include <string_view>

#include "drivers/kernel_table/kernel_table.hpp"

namespace k3::bench {

struct ArchTable {
    const char* name;
    /// Independent multiply-adds on registers alone, fused where the arch can. The value keeps the work alive.
    double (*peak_f64)(std::size_t rounds);
    double (*peak_f32)(std::size_t rounds);
    std::size_t f64_flops, f32_flops;  // of one round, a multiply-add counting two
    /// kernels::delta_rule with its fences removed, compiled with -ffp-contract=off.
    void (*delta_rule_unfenced)(float* state, std::size_t keys, std::size_t values, const kernel_table::Delta&,
                                float* out);
};

extern const ArchTable kArch_scalar;
#if defined(__x86_64__)
extern const ArchTable kArch_sse42, kArch_avx2, kArch_avx512;
#elif defined(__aarch64__)
extern const ArchTable kArch_neon;
#endif

/// The table of an arch by its name.
inline const ArchTable& arch_of(std::string_view name) {
#if defined(__x86_64__)
    if (name == "sse42") return kArch_sse42;
    if (name == "avx2") return kArch_avx2;
    if (name == "avx512") return kArch_avx512;
#elif defined(__aarch64__)
    if (name == "neon") return kArch_neon;
#endif
    return kArch_scalar;
}

}  // namespace k3::bench
#endif
