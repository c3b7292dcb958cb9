// The avx2 entry points of k3-conform; compiled with that arch's flags (drivers/meson.build).
#include "drivers/conform/arch_table_impl.hpp"

constinit const k3::conform::ArchTable k3::conform::kAvx2Table = k3::conform::make_arch_table<k3::simd::avx2>();
