// The kernels of avx2, compiled with its flags (drivers/kernel_table/meson.build).
#include "drivers/kernel_table/impl.hpp"

K3_KERNEL_TABLE(avx2)
