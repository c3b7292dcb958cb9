#ifndef K3_CHECKPOINT_SHARD_INDEX_HPP
#define K3_CHECKPOINT_SHARD_INDEX_HPP
// Every tensor of a checkpoint directory: where it lies and what it looks like. Built from the headers of all shards,
// which are read in parallel and checked in full (header.hpp); after open() nothing about the layout can surprise.
//
// The release has 497,220 tensors, of which 494,592 belong to routed experts. Those are kept as coordinates in one
// sorted array of 32-byte entries (16 MB); the rest, and any expert tensor that is not a matrix, by name.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "k3/checkpoint/expert_name.hpp"
#include "k3/checkpoint/tensor_info.hpp"
#include "k3/core/error.hpp"
#include "k3/io/file.hpp"

namespace k3::checkpoint {

struct Shard {
    io::File file;
    std::uint64_t data_begin = 0;  // where its data section starts: 8 bytes + header
    std::uint64_t tensors = 0;
    std::uint64_t payload = 0;  // bytes of its data section
};

/// Thread-safe after open(): it never changes.
class ShardIndex {
  public:
    /// Indexes all model*.safetensors of `model_dir` on `threads` threads (0 counts as 1). The result does not depend
    /// on the number of threads, nor does the order in which problems are named.
    /// Errors: one Error that lists every bad, missing or foreign shard; duplicate tensor names with both shards;
    /// and every disagreement with model.safetensors.index.json if that file exists.
    static ShardIndex open(const std::string& model_dir, unsigned threads);

    /// Any tensor by its full name.
    std::optional<TensorInfo> find(std::string_view name) const;
    /// One tensor of a routed expert, without building its name.
    std::optional<TensorInfo> expert(std::uint32_t layer, std::uint32_t expert, ExpertMatrix matrix,
                                     ExpertPart part) const;

    const std::string& directory() const noexcept { return directory_; }
    std::span<const Shard> shards() const noexcept { return shards_; }
    const Shard& shard(const TensorInfo& info) const { return shards_[info.shard]; }
    /// Number of tensors.
    std::size_t size() const noexcept { return experts_.size() + named_.size(); }
    /// Bytes of all tensors together.
    std::uint64_t payload_bytes() const noexcept;
    /// Of names, dtypes and shapes (and so of sizes), not of shards and offsets: the same for the same tensors cut into
    /// other shards.
    std::uint64_t checksum() const noexcept;
    /// Heap bytes held by the index itself.
    std::size_t memory_bytes() const noexcept;

    /// callback(std::string_view name, const TensorInfo&) for every tensor, by shard, then by offset.
    /// Needs 24 bytes a tensor for the time of the call.
    template <class Callback>
    void for_each(Callback&& callback) const;

  private:
    struct ExpertEntry {
        std::uint64_t key;  // ExpertName::key
        std::uint64_t offset;
        std::uint32_t rows, cols;
        std::uint32_t shard;
        Dtype dtype;
    };
    struct NamedEntry {
        std::string name;
        TensorInfo info;
    };
    struct Part;  // what one shard contributes

    ShardIndex() = default;
    static TensorInfo info_of(const ExpertEntry& entry) noexcept;
    static std::uint64_t bytes_of(const ExpertEntry& entry) noexcept {
        return std::uint64_t{entry.rows} * entry.cols * bits(entry.dtype) / 8;
    }
    const ExpertEntry* find_expert(std::uint64_t key) const noexcept;
    void add(std::vector<Part>& parts);
    void check_duplicates() const;

    std::string directory_;
    std::vector<Shard> shards_;
    std::vector<ExpertEntry> experts_;  // by key
    std::vector<NamedEntry> named_;     // by name
};

}  // namespace k3::checkpoint

#include "k3/checkpoint/detail/shard_index_impl.hpp"
#endif
