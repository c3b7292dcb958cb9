#ifndef K3_IO_DETAIL_READ_HPP
#define K3_IO_DETAIL_READ_HPP
// One read as its caller sees it, and the part of it that belongs to the reader. See io/reader.hpp.
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "k3/io/stream_file.hpp"

namespace k3::io {

/// Reads that are needed now go before read-ahead.
enum class Urgency : std::uint8_t { now, ahead };
enum class ReadState : std::uint8_t { idle, queued, done, failed };

struct Read;

namespace detail {

/// The reader's own part of a Read, guarded by the reader's mutex.
struct ReadProgress {
    Read *before = nullptr, *after = nullptr;  // neighbours in the list of those with pieces to issue
    std::size_t issued = 0;                    // bytes of the window
    unsigned in_flight = 0;                    // pieces
    Urgency lane = Urgency::now;               // the list it is in
    bool listed = false, cancelled = false, failed = false;
    int reason = 0;  // errno; 0: the file ended early
    std::uint64_t failed_offset = 0;
    std::size_t failed_bytes = 0;
};

}  // namespace detail

/// Bytes [offset, offset + bytes) of `file`. The caller owns it and does not move, change or destroy it, its file or
/// its window while `state` is queued. When it is done, data() has the bytes; what lies around them in the window is
/// unspecified. When it has failed, all of the window is unspecified. A finished Read may be changed and submitted
/// again.
struct Read {
    const StreamFile* file = nullptr;
    std::uint64_t offset = 0;
    std::size_t bytes = 0;
    std::byte* window = nullptr;  ///< aligned to kBlock, window_of(offset, bytes).bytes long
    Urgency urgency = Urgency::ahead;
    /// May be looked at any time, from any thread; done is published after the bytes.
    std::atomic<ReadState> state{ReadState::idle};
    detail::ReadProgress progress{};  ///< the reader's

    const std::byte* data() const noexcept { return bytes == 0 ? window : window + offset % kBlock; }
};

}  // namespace k3::io
#endif
