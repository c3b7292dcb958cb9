#ifndef K3_DRIVERS_KERNEL_TABLE_CPU_HPP
#define K3_DRIVERS_KERNEL_TABLE_CPU_HPP
// Which tables this machine can run. Baseline code.
#include <vector>

#include "drivers/kernel_table/kernel_table.hpp"

namespace k3::kernel_table {

/// Scalar first, the widest last.
inline std::vector<const KernelTable*> tables_of_this_cpu() {
    std::vector<const KernelTable*> tables{&kKernels_scalar};
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("sse4.2")) tables.push_back(&kKernels_sse42);
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) tables.push_back(&kKernels_avx2);
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("fma"))
        tables.push_back(&kKernels_avx512);
#elif defined(__aarch64__)
    tables.push_back(&kKernels_neon);
#endif
    return tables;
}

}  // namespace k3::kernel_table
#endif
