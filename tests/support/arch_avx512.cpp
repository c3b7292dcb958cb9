// The kernels of avx512, compiled with its flags (tests/meson.build).
#include "support/kernel_table_impl.hpp"

K3_KERNEL_TABLE(avx512)
