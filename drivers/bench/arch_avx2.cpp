// The probes of avx2, compiled with its flags (drivers/bench/meson.build).
#define K3_BENCH_ARCH avx2
#include "drivers/bench/arch_impl.hpp"
