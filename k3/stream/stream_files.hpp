#ifndef K3_STREAM_STREAM_FILES_HPP
#define K3_STREAM_STREAM_FILES_HPP
// The shards of a checkpoint, opened once more for streaming (past the page cache where the file system allows it), and
// where a tensor's bytes are.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "k3/checkpoint/shard_index.hpp"
#include "k3/io/reader.hpp"
#include "k3/io/stream_file.hpp"
#include "k3/stream/packed_trunk.hpp"

namespace k3::stream {

/// Bytes [offset, offset + bytes) of a file.
struct Place {
    const io::StreamFile* file = nullptr;
    std::uint64_t offset = 0, bytes = 0;
};

/// Makes a Read of a place into a window. It must not be queued.
inline void aim(io::Read& read, const Place& place, std::byte* window, io::Urgency urgency) noexcept {
    read.file = place.file;
    read.offset = place.offset;
    read.bytes = place.bytes;
    read.window = window;
    read.urgency = urgency;
}

/// Where the bytes of a finished Read are, once they have moved `down` bytes towards the start of the window: a value
/// of several bytes must not begin at an odd address. 0 moves nothing.
inline std::byte* settle(const io::Read& read, std::size_t down) noexcept {
    std::byte* const data = read.window + io::window_of(read.offset, read.bytes).skip;
    if (down != 0) std::memmove(data - down, data, read.bytes);
    return data - down;
}

class StreamFiles {
  public:
    /// Opens every shard, and trunk.bin of `trunk_dir` if that is not empty. `index` must outlive the result.
    /// Errors: Code::read; Code::checkpoint if the packed trunk is damaged or belongs to another checkpoint.
    StreamFiles(const checkpoint::ShardIndex& index, io::Access wanted, const std::string& trunk_dir) : index_(index) {
        for (const checkpoint::Shard& shard : index.shards())
            files_.push_back(io::StreamFile::open(shard.file.path(), wanted));
        if (trunk_dir.empty()) return;
        packed_.emplace(PackedTrunk::open(trunk_dir));
        packed_->check_against(index);
        packed_file_.emplace(io::StreamFile::open(packed_->file().path(), wanted));
    }
    StreamFiles(const StreamFiles&) = delete;
    StreamFiles& operator=(const StreamFiles&) = delete;

    Place shard_place(const checkpoint::TensorInfo& info) const {
        return {&files_[info.shard], info.offset, info.bytes};
    }

    /// Of a trunk matrix: in the packed trunk if it has it, else in its shard.
    Place place(std::string_view name, const checkpoint::TensorInfo& info) const {
        if (packed_) {
            if (const auto found = packed_->find(name)) return {&*packed_file_, found->offset, found->bytes};
        }
        return shard_place(info);
    }

    const checkpoint::ShardIndex& index() const noexcept { return index_; }
    bool packed() const noexcept { return packed_.has_value(); }

    /// Why reads go through the page cache although they were to go past it; empty if they do not.
    std::string why_buffered() const {
        for (const io::StreamFile& file : files_)
            if (!file.why_buffered().empty()) return file.why_buffered();
        return packed_file_ ? packed_file_->why_buffered() : std::string();
    }

  private:
    const checkpoint::ShardIndex& index_;
    std::deque<io::StreamFile> files_;  // by shard; a deque: reads point into it
    std::optional<PackedTrunk> packed_;
    std::optional<io::StreamFile> packed_file_;
};

}  // namespace k3::stream
#endif
