// The probes of scalar, compiled with its flags (drivers/bench/meson.build).
#define K3_BENCH_ARCH scalar
#include "drivers/bench/arch_impl.hpp"
