// Compiled for the baseline.
#include "recurrence.hpp"

std::uint64_t on_scalar() noexcept { return recurrence<k3::simd::scalar>(); }
