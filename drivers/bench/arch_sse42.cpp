// The probes of sse42, compiled with its flags (drivers/bench/meson.build).
#include "drivers/bench/arch_impl.hpp"

K3_BENCH_ARCH_TABLE(sse42)
