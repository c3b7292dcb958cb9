#ifndef K3_DRIVERS_RUN_OUTPUT_HPP
#define K3_DRIVERS_RUN_OUTPUT_HPP
// Where results go: a file that is proven writable before the run and appears whole after it, and standard output.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include "k3/core/error.hpp"
#include "k3/io/atomic_file.hpp"

namespace k3::run {

/// Where a path leads: a link keeps pointing at the result, and "x" and "./x" become one name.
inline std::string resolved(const std::string& path) {
    std::error_code failure;
    std::filesystem::path place = std::filesystem::absolute(path, failure);
    for (int hops = 0; hops < 40 && std::filesystem::is_symlink(place, failure);
         ++hops)  // also one that leads nowhere yet
        place = place.parent_path() / std::filesystem::read_symlink(place, failure);
    place = std::filesystem::weakly_canonical(place, failure);
    return failure ? path : place.string();
}

/// A run may take hours, so the path is tried at open(): a file is made beside it and removed again. Nothing lies on
/// the disk in between, so a killed run leaves nothing behind and an older result stays until the new one is complete.
/// Devices and pipes (/dev/null, /dev/full) cannot be renamed onto: they are opened and written in place.
class OutputFile {
  public:
    /// Errors: Code::write naming the path.
    static OutputFile open(const std::string& path) {
        OutputFile file;
        file.path_ = resolved(path);
        struct stat info {};
        if (::stat(file.path_.c_str(), &info) == 0) {
            if (S_ISDIR(info.st_mode)) fail(path, "is a directory");
            if (!S_ISREG(info.st_mode)) {
                file.device_ = ::open(file.path_.c_str(), O_WRONLY | O_CLOEXEC | O_NOCTTY);
                if (file.device_ < 0) fail(path, std::string("cannot be opened: ") + std::strerror(errno));
                return file;
            }
            if (::access(file.path_.c_str(), W_OK) != 0) fail(path, std::string("exists: ") + std::strerror(errno));
        }
        std::error_code failure;
        const auto folder = std::filesystem::path(file.path_).parent_path();
        if (!folder.empty() && !std::filesystem::exists(folder, failure) && !failure)
            fail(path, "the folder " + folder.string() + " does not exist");
        (void)io::PendingFile::create(file.path_);
        return file;
    }

    OutputFile(OutputFile&& other) noexcept
        : path_(std::move(other.path_)), device_(std::exchange(other.device_, -1)) {}
    OutputFile& operator=(OutputFile&&) = delete;
    ~OutputFile() {
        if (device_ >= 0) ::close(device_);
    }

    const std::string& path() const noexcept { return path_; }

    /// Errors: Code::write naming the path; an older file of that name is then unharmed.
    void write(std::string_view bytes) const {
        if (device_ < 0) return io::write_small_file(path_, bytes);
        while (!bytes.empty()) {
            const ssize_t put = ::write(device_, bytes.data(), bytes.size());
            if (put < 0 && errno == EINTR) continue;
            if (put < 0) fail(path_, std::string("cannot be written: ") + std::strerror(errno));
            bytes.remove_prefix(static_cast<std::size_t>(put));
        }
    }

  private:
    OutputFile() = default;
    [[noreturn]] static void fail(const std::string& path, const std::string& what) {
        throw Error(Code::write, what, "name a file in a folder that can be written to", {.path = path});
    }
    std::string path_{};
    int device_ = -1;
};

/// Standard output. A reader that goes away (`k3 ... | head`) or a full disk is remembered, not fatal: the run can then
/// end in order and still write its results. Needs SIGPIPE ignored.
class Stdout {
  public:
    void write(std::string_view bytes) noexcept {
        if (failed_ || bytes.empty()) return;
        const bool whole = std::fwrite(bytes.data(), 1, bytes.size(), stdout) == bytes.size();
        if (!whole || std::fflush(stdout) != 0) {  // flushed for each token: the reader watches it being written
            failed_ = true;
            reason_ = errno;
        }
        last_ = bytes.back();
    }
    bool failed() const noexcept { return failed_; }
    int reason() const noexcept { return reason_; }
    /// Whether what was written ends inside a line.
    bool inside_line() const noexcept { return last_ != '\n'; }

  private:
    bool failed_ = false;
    int reason_ = 0;
    char last_ = '\n';
};

}  // namespace k3::run
#endif
