// The layers of neon; compiled with that arch's flags (meson.build).
#include "layers/table.hpp"

constinit const k3::tests::LayerTable k3::tests::layers_neon = k3::tests::layer_table<k3::simd::neon>();
