// The probes of neon, compiled with its flags (drivers/bench/meson.build).
#define K3_BENCH_ARCH neon
#include "drivers/bench/arch_impl.hpp"
