// The layers of avx2; compiled with that arch's flags (meson.build).
#include "layers/table.hpp"

constinit const k3::tests::LayerTable k3::tests::layers_avx2 = k3::tests::layer_table<k3::simd::avx2>();
