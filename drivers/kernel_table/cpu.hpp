#ifndef K3_DRIVERS_KERNEL_TABLE_CPU_HPP
#define K3_DRIVERS_KERNEL_TABLE_CPU_HPP
// Which tables this machine can run. Baseline code.
#include <string_view>
#include <vector>

#include "drivers/kernel_table/kernel_table.hpp"
#include "k3/engine/cpu_arches.hpp"

namespace k3::kernel_table {

/// Scalar first, the widest last.
inline std::vector<const KernelTable*> tables_of_this_cpu() {
    constexpr const KernelTable* kTables[] = {
        &kKernels_scalar,
#if defined(__x86_64__)
        &kKernels_sse42,
        &kKernels_avx2,
        &kKernels_avx512,
#elif defined(__aarch64__)
        &kKernels_neon,
#endif
    };
    std::vector<const KernelTable*> tables;
    for (const engine::ArchName arch : engine::arches_of_this_cpu())
        for (const KernelTable* table : kTables)
            if (std::string_view(table->name) == engine::name(arch)) tables.push_back(table);
    return tables;
}

}  // namespace k3::kernel_table
#endif
