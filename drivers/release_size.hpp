#ifndef K3_DRIVERS_RELEASE_SIZE_HPP
#define K3_DRIVERS_RELEASE_SIZE_HPP
// How large the published release is.
#include <cstdint>

namespace k3::drivers {

/// Bytes of the 96 shards of moonshotai/Kimi-K3, images included: what a disk has to take.
/// drivers/fetch/release_sizes.hpp has them one by one.
inline constexpr std::uint64_t kReleaseBytes = 1'560'936'091'448;

}  // namespace k3::drivers
#endif
