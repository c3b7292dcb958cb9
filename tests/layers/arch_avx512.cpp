// The layers of avx512; compiled with that arch's flags (meson.build).
#include "layers/table.hpp"

constinit const k3::tests::LayerTable k3::tests::layers_avx512 = k3::tests::layer_table<k3::simd::avx512>();
