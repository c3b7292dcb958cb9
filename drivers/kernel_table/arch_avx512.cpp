// The kernels of avx512, compiled with its flags (drivers/kernel_table/meson.build).
#include "drivers/kernel_table/impl.hpp"

K3_KERNEL_TABLE(avx512)
