// The neon instantiation of the engine's seam; compiled with that arch's flags (drivers/meson.build).
#include "k3/model/forward_impl.hpp"

template class k3::model::Forward<k3::simd::neon>;
