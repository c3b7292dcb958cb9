#ifndef K3_IO_FILE_HPP
#define K3_IO_FILE_HPP
// A read-only file: open, size, and a positional read that delivers exactly what was asked or throws with file, offset
// and length. Refuses what is not a regular file (and never blocks on a FIFO). Thread-safe: reads are positional.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <utility>

#include "k3/core/error.hpp"

namespace k3::io {

class File {
  public:
    /// Opens `path` for reading. Errors: Code::read, naming the path and the reason.
    static File open(const std::string& path) {
        const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
        if (fd < 0) {
            const int reason = errno;
            throw Error(Code::read, "cannot be opened: " + std::string(std::strerror(reason)),
                        reason == ENOENT ? "check the path" : "check its permissions", {.path = path});
        }
        File file(fd, path);
        struct stat info {};
        if (::fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) {
            throw Error(Code::read, S_ISDIR(info.st_mode) ? "is a directory, not a file" : "is not a regular file",
                        "give the path of a regular file", {.path = path});
        }
        file.size_ = static_cast<std::uint64_t>(info.st_size);
        return file;
    }

    File(File&& other) noexcept
        : fd_(std::exchange(other.fd_, -1)), size_(other.size_), path_(std::move(other.path_)) {}
    File& operator=(File&& other) noexcept {
        std::swap(fd_, other.fd_);
        std::swap(size_, other.size_);
        std::swap(path_, other.path_);
        return *this;
    }
    ~File() {
        if (fd_ >= 0) ::close(fd_);
    }

    std::uint64_t size() const noexcept { return size_; }
    const std::string& path() const noexcept { return path_; }
    int descriptor() const noexcept { return fd_; }

    /// Fills `out` from byte `offset`. One call may exceed 2 GiB: it is split (Linux moves at most 0x7ffff000 bytes at
    /// once). Errors: Code::read on a short read or an I/O error, with offset and length.
    void read(std::uint64_t offset, std::span<std::byte> out) const {
        constexpr std::size_t kPiece = std::size_t{1} << 26;
        for (std::size_t done = 0; done < out.size();) {
            const std::size_t want = std::min(kPiece, out.size() - done);
            const ssize_t got = ::pread(fd_, out.data() + done, want, static_cast<off_t>(offset + done));
            if (got < 0 && errno == EINTR) continue;
            if (got <= 0) {
                const std::string why = got == 0 ? "the file ended early" : std::strerror(errno);
                throw Error(Code::read,
                            "read of " + std::to_string(out.size()) + " bytes failed after " + std::to_string(done) +
                                ": " + why,
                            got == 0 ? "download the file again" : "check the disk", {.path = path_, .offset = offset});
            }
            done += static_cast<std::size_t>(got);
        }
    }

    /// The whole file as a string, for small text files. Refuses more than `limit` bytes.
    static std::string read_text(const std::string& path, std::uint64_t limit = std::uint64_t{1} << 30) {
        const File file = open(path);
        if (file.size() > limit) {
            throw Error(
                Code::read,
                "has " + std::to_string(file.size()) + " bytes, more than the limit of " + std::to_string(limit),
                "check that this is the right file", {.path = path});
        }
        std::string text(file.size(), '\0');
        file.read(0, std::as_writable_bytes(std::span(text.data(), text.size())));
        return text;
    }

  private:
    File(int fd, std::string path) : fd_(fd), path_(std::move(path)) {}
    int fd_ = -1;
    std::uint64_t size_ = 0;
    std::string path_;
};

}  // namespace k3::io
#endif
