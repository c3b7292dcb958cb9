// The kernels of avx2, compiled with its flags (tests/meson.build).
#include "support/kernel_table_impl.hpp"

K3_KERNEL_TABLE(avx2)
