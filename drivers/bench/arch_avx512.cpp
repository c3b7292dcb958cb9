// The probes of avx512, compiled with its flags (drivers/bench/meson.build).
#define K3_BENCH_ARCH avx512
#include "drivers/bench/arch_impl.hpp"
