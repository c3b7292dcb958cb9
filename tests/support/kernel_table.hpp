#ifndef K3_TESTS_SUPPORT_KERNEL_TABLE_HPP
#define K3_TESTS_SUPPORT_KERNEL_TABLE_HPP
// The table of all kernels of an arch (drivers/kernel_table), under the tests' names.
#include "drivers/kernel_table/cpu.hpp"
#include "drivers/kernel_table/kernel_table.hpp"

namespace k3::tests {
using namespace k3::kernel_table;
}
#endif
