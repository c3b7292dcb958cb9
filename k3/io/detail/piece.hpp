#ifndef K3_IO_DETAIL_PIECE_HPP
#define K3_IO_DETAIL_PIECE_HPP
// A part of a Read that goes to the device as one request, and what a request's result means: finished, again (the
// rest, from a block boundary if it is direct), or failed. Both backends ask here.
#include <fcntl.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>

#include "k3/io/detail/read.hpp"

namespace k3::io::detail {

/// What to do after a request: nothing more, ask for the rest, the same after a pause, give up.
enum class Next : std::uint8_t { finished, again, later, failed };

struct Piece {
    Read* read = nullptr;
    const StreamFile* file = nullptr;
    std::uint64_t begin = 0;   // of the piece
    std::uint64_t offset = 0;  // of what is left of it
    std::byte* at = nullptr;
    std::size_t left = 0;    // bytes to ask for
    std::size_t needed = 0;  // of these must arrive; the others may lie behind the end of the file
    std::size_t got = 0;     // bytes so far
    int fd = -1;             // of the request
    bool direct = false;
    bool lost_direct = false;  // this piece found out that the file's direct reads do not work
    unsigned stalls = 0, pauses = 0, retries = 0;
    int reason = 0;  // after `failed`: errno; 0: the file ended early

    /// Chooses the descriptor of the next request.
    void aim(bool force_buffered) noexcept {
        direct = !force_buffered && file->access() == Access::direct;
        fd = direct ? file->descriptor() : file->buffered_descriptor();
        if (direct && fd == file->buffered_descriptor()) direct = false;  // another piece lost it just now
    }

    /// `result` is a byte count or a negative errno.
    Next judge(std::int64_t result) noexcept {
        constexpr unsigned kMostPauses = 1000, kMostStalls = 3;
        if (result >= 0 && static_cast<std::uint64_t>(result) <= left) {
            const auto count = static_cast<std::size_t>(result);
            if (count >= needed) {
                got += count;
                return Next::finished;
            }
            reason = 0;
            if (count == 0) return Next::failed;
            // A direct read goes on at a block boundary: a count that is none is the end of the file, or a file system
            // that does not do what it says.
            const std::size_t kept = direct ? count / kBlock * kBlock : count;
            ++retries;
            if (kept == 0 && ++stalls >= kMostStalls) {
                if (ends_before(offset + needed)) return Next::failed;
                give_up_direct();
            }
            if (kept > 0) stalls = pauses = 0;
            offset += kept;
            at += kept;
            left -= kept;
            needed -= kept;
            got += kept;
            return Next::again;
        }
        reason = result < 0 ? static_cast<int>(-result) : EIO;  // more bytes than there was room for
        if (reason == EINTR) return ++retries, Next::again;
        if ((reason == EAGAIN || reason == ENOBUFS) && ++pauses <= kMostPauses) return ++retries, Next::later;
        if (direct && (reason == EINVAL || reason == EOPNOTSUPP)) {
            give_up_direct();
            return ++retries, Next::again;
        }
        return Next::failed;
    }

    /// After the last request: buffered reads leave nothing in the page cache.
    void drop_pages() const noexcept {
        if (!direct && fd >= 0) {
            ::posix_fadvise(fd, static_cast<off_t>(begin), static_cast<off_t>(offset - begin + left),
                            POSIX_FADV_DONTNEED);
        }
    }

  private:
    void give_up_direct() noexcept {
        if (file->lose_direct()) lost_direct = true;
    }
    bool ends_before(std::uint64_t end) const noexcept {
        struct stat info {};
        return ::fstat(fd, &info) == 0 && static_cast<std::uint64_t>(info.st_size) < end;
    }
};

}  // namespace k3::io::detail
#endif
