#ifndef K3_IO_STREAM_FILE_HPP
#define K3_IO_STREAM_FILE_HPP
// A file opened for streaming: past the page cache (O_DIRECT) where the file system really does that, else buffered,
// with the reason. Whether direct reads work is found by one real read per file: open() succeeds on file systems whose
// reads then fail. Direct reads want address, offset and length aligned, so all reads are of windows of whole blocks.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>

#include "k3/core/buffer.hpp"
#include "k3/core/error.hpp"
#include "k3/io/file.hpp"

namespace k3::io {

/// The unit of windows, in bytes. Devices with blocks of 512 or 4096 bytes take it; others are read buffered.
inline constexpr std::size_t kBlock = 4096;

/// The whole blocks around some bytes of a file. `begin` and `bytes` are multiples of kBlock; the bytes wanted start
/// `skip` behind `begin`. No bytes wanted: no blocks.
struct Window {
    std::uint64_t begin = 0;
    std::size_t bytes = 0, skip = 0;
};
constexpr Window window_of(std::uint64_t offset, std::size_t bytes) noexcept {
    const std::size_t skip = offset % kBlock;
    return {offset - skip, bytes == 0 ? 0 : (skip + bytes + kBlock - 1) / kBlock * kBlock, skip};
}

/// How a file is read. Buffered readers drop the pages they have read, so that the page cache does not grow.
enum class Access : std::uint8_t { direct, buffered };

/// Read-only and immutable but for lose_direct(); thread-safe. Has to outlive every Read of it.
class StreamFile {
  public:
    /// Opens `path`; `wanted` direct is a wish, see access(). Errors: as io::File::open.
    static StreamFile open(const std::string& path, Access wanted = Access::direct) {
        StreamFile file(File::open(path));
        const int plain = file.plain_.descriptor();
        // File opens with O_NONBLOCK for the sake of FIFOs. On a regular file it would turn some io_uring reads into
        // EAGAIN instead of a wait.
        const int flags = ::fcntl(plain, F_GETFL);
        if (flags >= 0) ::fcntl(plain, F_SETFL, flags & ~O_NONBLOCK);
        ::posix_fadvise(plain, 0, 0, POSIX_FADV_RANDOM);  // read-ahead beyond a window would stay in the page cache
        if (wanted == Access::buffered)
            file.why_ = "buffered reads were asked for";
        else
            file.why_ = file.try_direct();
        file.direct_works_ = file.why_.empty();
        return file;
    }

    StreamFile(StreamFile&& other) noexcept
        : plain_(std::move(other.plain_)),
          direct_(std::exchange(other.direct_, -1)),
          direct_works_(other.direct_works_.load()),
          why_(std::move(other.why_)) {}
    StreamFile& operator=(StreamFile&& other) noexcept {
        std::swap(plain_, other.plain_);
        std::swap(direct_, other.direct_);
        direct_works_ = other.direct_works_.exchange(direct_works_);
        std::swap(why_, other.why_);
        return *this;
    }
    ~StreamFile() {
        if (direct_ >= 0) ::close(direct_);
    }

    /// How it is read now.
    Access access() const noexcept { return direct_works_ ? Access::direct : Access::buffered; }
    /// Why it was opened buffered, for an announcement; empty if it was opened direct.
    const std::string& why_buffered() const noexcept { return why_; }
    const std::string& path() const noexcept { return plain_.path(); }
    /// Bytes, when it was opened.
    std::uint64_t size() const noexcept { return plain_.size(); }
    /// What to read it with now.
    int descriptor() const noexcept { return direct_works_ ? direct_ : plain_.descriptor(); }
    int buffered_descriptor() const noexcept { return plain_.descriptor(); }
    /// From now on it is read buffered: a direct read was refused although the first one was not. True for the caller
    /// that changed it.
    bool lose_direct() const noexcept { return direct_works_.exchange(false); }

  private:
    explicit StreamFile(File plain) : plain_(std::move(plain)) {}

    // Empty, or why not. Two descriptors are kept, so that a file that loses O_DIRECT later is not opened a second time
    // by a name that may mean another file by then.
    std::string try_direct() {
        direct_ = ::open(path().c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_DIRECT);
        if (direct_ < 0) return std::string("the file system refuses O_DIRECT (") + std::strerror(errno) + ")";
        const int flags = ::fcntl(direct_, F_GETFL);
        if (flags >= 0) ::fcntl(direct_, F_SETFL, flags & ~O_NONBLOCK);
        struct stat mine {
        }, other{};
        if (::fstat(direct_, &mine) != 0 || ::fstat(plain_.descriptor(), &other) != 0 || mine.st_dev != other.st_dev ||
            mine.st_ino != other.st_ino) {
            return "the file was replaced while it was opened";
        }
#ifdef STATX_DIOALIGN
        struct statx info {};
        if (::statx(direct_, "", AT_EMPTY_PATH, STATX_DIOALIGN, &info) == 0 && (info.stx_mask & STATX_DIOALIGN) != 0) {
            if (info.stx_dio_offset_align == 0) return "the file system has no direct reads for this file";
            if (info.stx_dio_offset_align > kBlock || info.stx_dio_mem_align > kBlock)
                return "the device wants direct reads of " + std::to_string(info.stx_dio_offset_align) +
                       "-byte blocks, more than " + std::to_string(kBlock);
        }
#endif
        const core::Buffer block(kBlock);  // page-aligned
        ssize_t got = 0;
        do {
            got = ::pread(direct_, block.data(), kBlock, 0);
        } while (got < 0 && errno == EINTR);
        if (got < 0) return std::string("a direct read of its first block failed (") + std::strerror(errno) + ")";
        return {};
    }

    File plain_;
    int direct_ = -1;
    mutable std::atomic<bool> direct_works_{false};
    std::string why_;
};

}  // namespace k3::io
#endif
