#ifndef K3_CHECKPOINT_TENSOR_READER_HPP
#define K3_CHECKPOINT_TENSOR_READER_HPP
// The plain way to a tensor's bytes: a positional read through the page cache. Streaming has its own reader (io/,
// stream/); this one serves binding small tensors, inspection and tests.
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "k3/checkpoint/shard_index.hpp"

namespace k3::checkpoint {

/// Fills `out` from byte `first` of the tensor. More than 2 GiB is fine. Thread-safe.
/// Errors: Code::internal if that is not inside the tensor; Code::read from the system.
inline void read_tensor(const ShardIndex& index, const TensorInfo& info, std::uint64_t first,
                        std::span<std::byte> out) {
    const io::File& file = index.shard(info).file;
    if (first > info.bytes || out.size() > info.bytes - first) {
        throw Error(Code::internal,
                    "a read of " + std::to_string(out.size()) + " bytes at byte " + std::to_string(first) +
                        " of a tensor of " + std::to_string(info.bytes),
                    "report this", {.path = file.path(), .offset = info.offset});
    }
    file.read(info.offset + first, out);
}

/// All bytes of the tensor.
inline std::vector<std::byte> read_tensor(const ShardIndex& index, const TensorInfo& info) {
    std::vector<std::byte> bytes(info.bytes);
    read_tensor(index, info, 0, bytes);
    return bytes;
}

}  // namespace k3::checkpoint
#endif
