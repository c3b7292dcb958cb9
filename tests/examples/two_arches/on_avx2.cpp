// Compiled with -mavx2 -mfma.
#include "recurrence.hpp"

std::uint64_t on_avx2() noexcept { return recurrence<k3::simd::avx2>(); }
