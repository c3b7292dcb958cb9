// The probes of sse42, compiled with its flags (drivers/bench/meson.build).
#define K3_BENCH_ARCH sse42
#include "drivers/bench/arch_impl.hpp"
