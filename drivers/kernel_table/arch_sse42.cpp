// The kernels of sse42, compiled with its flags (drivers/kernel_table/meson.build).
#include "drivers/kernel_table/impl.hpp"

K3_KERNEL_TABLE(sse42)
