#ifndef K3_IO_ATOMIC_FILE_HPP
#define K3_IO_ATOMIC_FILE_HPP
// Files that appear whole or not at all, and the check that there is room for them.
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "k3/core/error.hpp"

namespace k3::io {

/// A file that does not exist under its name until commit(): written as "NAME.tmp.PID" (".1", ... if taken), then
/// fsync, rename, fsync of the folder. Not committed, it is removed. Errors: Code::write with the final path and the
/// reason.
class PendingFile {
  public:
    /// `direct` asks for O_DIRECT; file systems that refuse it get plain writes. A path that is something else than a
    /// regular file is refused: renaming would put a file in the place of a device.
    static PendingFile create(const std::string& path, bool direct = false) {
        struct stat info {};
        if (::stat(path.c_str(), &info) == 0 && !S_ISREG(info.st_mode))
            fail(path, "is not a regular file and cannot be replaced", S_ISDIR(info.st_mode) ? EISDIR : EEXIST);
        const std::string first = path + ".tmp." + std::to_string(::getpid());
        std::string temporary = first;
        // A killed process of the same number may have left one (in a container, numbers are small and come again).
        // Another container may also be writing it right now, so it stays.
        for (int other = 1;; ++other) {
            if (const int fd = open_new(temporary, direct); fd >= 0) return {fd, path, std::move(temporary)};
            if (errno != EEXIST || other == 1000) fail(path, "cannot be created", errno);
            temporary = first + "." + std::to_string(other);
        }
    }

    PendingFile(PendingFile&& other) noexcept
        : fd_(std::exchange(other.fd_, -1)), path_(std::move(other.path_)), temporary_(std::move(other.temporary_)) {}
    PendingFile& operator=(PendingFile&&) = delete;
    ~PendingFile() {
        if (fd_ < 0) return;
        ::close(fd_);
        ::unlink(temporary_.c_str());
    }

    const std::string& path() const noexcept { return path_; }
    /// Where the bytes are until commit().
    const std::string& temporary_path() const noexcept { return temporary_; }

    /// Reserves the blocks: a full disk is found before the work, and parallel direct writes do not wait for one
    /// another to extend the file.
    void reserve(std::uint64_t bytes) const {
        if (bytes == 0 || ::fallocate(fd_, 0, 0, static_cast<off_t>(bytes)) == 0) return;
        if (errno != EOPNOTSUPP && errno != ENOSYS && errno != EINTR) fail(path_, "cannot reserve its space", errno);
    }

    /// Thread-safe: positional. With O_DIRECT the caller keeps address, offset and length aligned.
    void write(std::uint64_t offset, std::span<const std::byte> bytes) const {
        for (std::size_t done = 0; done < bytes.size();) {
            const ssize_t put =
                ::pwrite(fd_, bytes.data() + done, bytes.size() - done, static_cast<off_t>(offset + done));
            if (put < 0 && errno == EINTR) continue;
            if (put < 0 && errno == EINVAL && drop_direct()) continue;
            if (put <= 0)
                fail(path_, "write failed at byte " + std::to_string(offset + done), put < 0 ? errno : ENOSPC);
            done += static_cast<std::size_t>(put);
        }
    }

    void truncate(std::uint64_t bytes) const {
        if (::ftruncate(fd_, static_cast<off_t>(bytes)) != 0) fail(path_, "cannot be cut to its size", errno);
    }

    /// What was written is on the disk when this returns.
    void sync() const {
        if (::fsync(fd_) != 0) fail(path_, "fsync failed", errno);
    }

    /// Bytes of disk behind the file. Some file systems decide late: sync() first.
    std::uint64_t allocated_bytes() const {
        struct stat info {};
        if (::fstat(fd_, &info) != 0) fail(path_, "cannot be examined", errno);
        return static_cast<std::uint64_t>(info.st_blocks) * 512;
    }

    /// The file appears, whole, under its name; a file of that name is replaced.
    void commit() {
        sync();
        if (::rename(temporary_.c_str(), path_.c_str()) != 0) fail(path_, "cannot be renamed into place", errno);
        ::close(std::exchange(fd_, -1));
        const std::size_t slash = path_.rfind('/');
        const std::string folder = slash == std::string::npos ? "." : path_.substr(0, slash + 1);
        if (const int dir = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC); dir >= 0) {
            ::fsync(dir);  // the name's own durability; some file systems cannot, and the data is safe either way
            ::close(dir);
        }
    }

    [[noreturn]] static void fail(const std::string& path, const std::string& what, int reason) {
        throw Error(Code::write, what + ": " + std::strerror(reason),
                    reason == ENOSPC || reason == EDQUOT ? "free some space or choose another disk"
                                                         : "check the folder, its permissions and the disk",
                    {.path = path});
    }

  private:
    static int open_new(const std::string& path, bool direct) {
        const int flags = O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC;
        int fd = direct ? ::open(path.c_str(), flags | O_DIRECT, 0644) : -1;
        if (fd < 0 && (!direct || errno == EINVAL || errno == ENOTSUP)) {
            if (direct) ::unlink(path.c_str());  // the refused attempt may have made it
            fd = ::open(path.c_str(), flags, 0644);
        }
        return fd;
    }
    PendingFile(int fd, std::string path, std::string temporary)
        : fd_(fd), path_(std::move(path)), temporary_(std::move(temporary)) {}
    // Some file systems accept O_DIRECT at open and refuse the write.
    bool drop_direct() const {
        const int flags = ::fcntl(fd_, F_GETFL);
        return flags >= 0 && (flags & O_DIRECT) != 0 && ::fcntl(fd_, F_SETFL, flags & ~O_DIRECT) == 0;
    }
    int fd_ = -1;
    std::string path_, temporary_;
};

/// Writes a small file at once. Errors: as PendingFile.
inline void write_small_file(const std::string& path, std::string_view text) {
    PendingFile file = PendingFile::create(path);
    file.write(0, std::as_bytes(std::span(text.data(), text.size())));
    file.commit();
}

/// Throws Code::write when the file system of `folder` has less than `bytes` to give.
inline void require_free_space(const std::string& folder, std::uint64_t bytes,
                               const std::string& next =
                                   "free some space, choose another disk or ask for a smaller "
                                   "model") {
    struct statvfs info {};
    if (::statvfs(folder.c_str(), &info) != 0) PendingFile::fail(folder, "cannot be examined", errno);
    const std::uint64_t free_bytes = std::uint64_t{info.f_bavail} * info.f_frsize;
    if (free_bytes < bytes) {
        throw Error(Code::write,
                    "needs " + std::to_string(bytes) + " bytes, " + std::to_string(free_bytes) + " are free", next,
                    {.path = folder});
    }
}

/// Throws Code::write unless a file in `folder` can have holes: four blocks of 4 KiB, 4 MiB apart, must not take much
/// more than 16 KiB. FAT has none; a file system with large blocks, or with huge pages, rounds each block up.
inline void require_holes(const std::string& folder) {
    constexpr std::uint64_t kPage = 4096, kStep = std::uint64_t{4} << 20, kBlocks = 4;
    PendingFile probe = PendingFile::create(folder + "/holes-probe");
    probe.truncate(kBlocks * kStep);
    // Not all zeros, and not the same block twice: some file systems compress or share.
    std::byte block[kPage];
    for (std::uint64_t i = 0; i < kBlocks; ++i) {
        for (std::uint64_t k = 0; k < kPage; ++k)
            block[k] = static_cast<std::byte>((k * k * 7 + k * 31 + i * 101) >> 3);
        probe.write(i * kStep, block);
    }
    probe.sync();
    const std::uint64_t taken = probe.allocated_bytes();
    if (taken > 4 * kBlocks * kPage) {
        throw Error(Code::write,
                    "this file system gave " + std::to_string(taken) + " bytes of disk to " +
                        std::to_string(kBlocks * kPage) + " bytes in a file with holes",
                    "use a disk with holes in 4 KiB steps: ext4, xfs and btrfs have them", {.path = folder});
    }
}

}  // namespace k3::io
#endif
