#ifndef K3_DRIVERS_FETCH_RELEASE_SIZES_HPP
#define K3_DRIVERS_FETCH_RELEASE_SIZES_HPP
// The published sizes of the 96 shards of moonshotai/Kimi-K3. Shard n holds layer n - 1: a dense one, then MoE layers
// with KDA or, every fourth and the last, MLA. A layer number of two digits makes the header 5,408 or 5,400 bytes
// longer.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "drivers/fetch/listing.hpp"
#include "drivers/release_size.hpp"
#include "k3/core/error.hpp"

namespace k3::fetch {

inline constexpr std::uint64_t kReleaseShards = 96;
using drivers::kReleaseBytes;

/// Bytes of shard n, 1 <= n <= 96.
constexpr std::uint64_t release_shard_bytes(std::uint64_t n) noexcept {
    if (n == 1) return 2341216112;
    if (n == 94) return 4697664072;  // embedding, lm_head
    if (n == 95) return 92289328;    // projector
    if (n == 96) return 802448352;   // vision tower
    const bool mla = n % 4 == 0 || n == 93;
    if (n <= 10) return mla ? 16567501776 : 16990911504;
    return mla ? 16567507176 : 16990916912;
}

static_assert([] {
    std::uint64_t sum = 0;
    for (std::uint64_t n = 1; n <= kReleaseShards; ++n) sum += release_shard_bytes(n);
    return sum;
}() == kReleaseBytes);

/// A copy of the release keeps its name at other owners and hubs.
inline bool is_release(const std::string& repo) { return repo.substr(repo.rfind('/') + 1) == "Kimi-K3"; }

inline std::string release_shard_name(std::uint64_t n) {
    char name[64];
    std::snprintf(name, sizeof name, "model-%05llu-of-000096.safetensors", static_cast<unsigned long long>(n));
    return name;
}

/// Errors: Code::plan naming every shard that the listing lacks or has with another size.
inline void check_release(const Listing& listing, const std::string& repo) {
    std::string wrong;
    std::size_t count = 0;
    for (std::uint64_t n = 1; n <= kReleaseShards; ++n) {
        const std::string name = release_shard_name(n);
        const auto file = std::ranges::lower_bound(listing.files, name, {}, &RemoteFile::path);
        const bool there = file != listing.files.end() && file->path == name;
        if (there && file->size == release_shard_bytes(n)) continue;
        if (++count > 8) continue;
        wrong += (wrong.empty() ? "" : ", ") + name + " " +
                 (there ? "with " + std::to_string(file->size) + " bytes instead of " : "missing, published with ") +
                 std::to_string(release_shard_bytes(n));
    }
    if (count == 0) return;
    throw Error(Code::plan,
                repo + " is not the published release here: " + wrong +
                    (count > 8 ? " and " + std::to_string(count - 8) + " more" : ""),
                "check HF_ENDPOINT and the revision, or take what is listed with --any-size");
}

}  // namespace k3::fetch
#endif
