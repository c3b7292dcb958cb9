#ifndef K3_DRIVERS_FETCH_PART_FILE_HPP
#define K3_DRIVERS_FETCH_PART_FILE_HPP
// A file on its way: NAME.part, of its full size from the start, and NAME.part.journal, lines of text that say which of
// its bytes are on the disk. A line is written after fdatasync of what it claims, so whatever ends the process, every
// claim holds; a last line without its end is not one.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "drivers/fetch/http.hpp"
#include "k3/core/error.hpp"
#include "k3/io/atomic_file.hpp"
#include "k3/io/file.hpp"

namespace k3::fetch {

inline constexpr const char* kPartEnd = ".part";

/// A descriptor of a file being written. Errors: Code::write, by PendingFile's words.
class Output {
  public:
    Output(const std::string& path, int flags)
        : path_(path), fd_(::open(path.c_str(), flags | O_NOFOLLOW | O_CLOEXEC, 0644)) {
        if (fd_ < 0) io::PendingFile::fail(path_, "cannot be created", errno);
    }
    Output(Output&& other) noexcept : path_(std::move(other.path_)), fd_(std::exchange(other.fd_, -1)) {}
    Output& operator=(Output&&) = delete;
    ~Output() {
        if (fd_ >= 0) ::close(fd_);
    }

    void write(std::uint64_t offset, std::span<const std::byte> bytes) const {
        put(bytes, [&](const std::byte* data, std::size_t count, std::size_t done) {
            return ::pwrite(fd_, data, count, static_cast<off_t>(offset + done));
        });
    }
    void append(std::string_view text) const {
        put(std::as_bytes(std::span(text.data(), text.size())),
            [&](const std::byte* data, std::size_t count, std::size_t) { return ::write(fd_, data, count); });
    }
    void sync() const {
        if (::fdatasync(fd_) != 0) io::PendingFile::fail(path_, "fdatasync failed", errno);
    }
    int descriptor() const noexcept { return fd_; }

  private:
    template <class Put>
    void put(std::span<const std::byte> bytes, const Put& once) const {
        for (std::size_t done = 0; done < bytes.size();) {
            const ssize_t count = once(bytes.data() + done, bytes.size() - done, done);
            if (count < 0 && errno == EINTR) continue;
            if (count <= 0) io::PendingFile::fail(path_, "cannot be written", count < 0 ? errno : ENOSPC);
            done += static_cast<std::size_t>(count);
        }
    }
    std::string path_;
    int fd_;
};

inline void sync_folder_of(const std::string& path) {
    const int fd = ::open(std::filesystem::path(path).parent_path().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return;
    ::fsync(fd);  // some file systems cannot, and the data is safe either way
    ::close(fd);
}

enum class Sync { no, yes };

/// The text appears whole under its name. By way of NAME.new: one process at a time has the folder, and what a killed
/// one, or anybody, left under that name is removed.
inline void replace_text(const std::string& path, std::string_view text, Sync sync) {
    {
        ::unlink((path + ".new").c_str());
        const Output file(path + ".new", O_WRONLY | O_CREAT | O_EXCL);
        file.append(text);
        if (sync == Sync::yes) file.sync();
    }
    if (::rename((path + ".new").c_str(), path.c_str()) != 0)
        io::PendingFile::fail(path, "cannot be renamed into place", errno);
    if (sync == Sync::yes) sync_folder_of(path);
}

/// Ranges sorted, apart and not touching.
inline void add_range(std::vector<Range>& ranges, Range added) {
    if (added.begin >= added.end) return;
    const auto first = std::ranges::find_if(ranges, [&](const Range& r) { return r.end >= added.begin; });
    auto last = first;
    for (; last != ranges.end() && last->begin <= added.end; ++last) {
        added.begin = std::min(added.begin, last->begin);
        added.end = std::max(added.end, last->end);
    }
    ranges.insert(ranges.erase(first, last), added);
}

/// Thread-safe: writes are positional, the journal is guarded.
class PartFile {
  public:
    /// `path` is the final one. `identity` says which content is meant: bytes that are there of another, or of "none",
    /// are dropped. Errors: Code::write.
    static PartFile open(const std::string& path, std::uint64_t size, const std::string& identity) {
        std::error_code failure;
        std::filesystem::create_directories(std::filesystem::path(path).parent_path(), failure);
        if (failure) io::PendingFile::fail(path, "its folder cannot be made", failure.value());
        const std::string head = "k3-fetch-part 1 " + std::to_string(size) + " " + identity + "\n";
        std::vector<Range> durable = identity == "none" ? std::vector<Range>{} : read_journal(path, size, head);
        if (durable.empty()) drop(path);
        Output data(path + kPartEnd, O_RDWR | O_CREAT);
        // The space now: a full disk is found before the work.
        if (size > 0 && ::fallocate(data.descriptor(), 0, 0, static_cast<off_t>(size)) != 0) {
            if (errno == ENOSPC || errno == EDQUOT || errno == EFBIG)
                io::PendingFile::fail(path, "cannot reserve its " + std::to_string(size) + " bytes", errno);
            if (::ftruncate(data.descriptor(), static_cast<off_t>(size)) != 0)
                io::PendingFile::fail(path, "cannot be made its size", errno);
        }
        std::string text = head;
        for (const Range& range : durable) text += line(range);
        replace_text(journal_of(path), text, Sync::no);  // a journal that is lost costs bytes and no more
        Output journal(journal_of(path), O_WRONLY | O_APPEND);
        return {path, size, std::move(durable), std::move(data), std::move(journal)};
    }

    /// Bytes of `path` that a run of this identity would keep. Reads only.
    static std::uint64_t kept(const std::string& path, std::uint64_t size, const std::string& identity) {
        if (identity == "none") return 0;
        const std::string head = "k3-fetch-part 1 " + std::to_string(size) + " " + identity + "\n";
        std::uint64_t sum = 0;
        for (const Range& range : read_journal(path, size, head)) sum += range.size();
        return sum;
    }

    PartFile(PartFile&& other) noexcept
        : path_(std::move(other.path_)),
          size_(other.size_),
          durable_(std::move(other.durable_)),
          data_(std::move(other.data_)),
          journal_(std::move(other.journal_)) {}

    /// Where the bytes are until finish().
    std::string temporary_path() const { return path_ + kPartEnd; }

    void write(std::uint64_t offset, std::span<const std::byte> bytes) const { data_.write(offset, bytes); }

    /// Bytes of `range` that this thread has written are on the disk, and known to be, when this returns.
    void commit(Range range) {
        if (range.begin == range.end) return;
        data_.sync();
        const std::lock_guard lock(guard_);
        journal_.append(line(range));
        add_range(durable_, range);
    }

    /// What is not on the disk, in order.
    std::vector<Range> missing() const {
        const std::lock_guard lock(guard_);
        std::vector<Range> gaps;
        std::uint64_t at = 0;
        for (const Range& range : durable_) {
            if (range.begin > at) gaps.push_back({at, range.begin});
            at = range.end;
        }
        if (at < size_) gaps.push_back({at, size_});
        return gaps;
    }

    /// The file gets its name. A name that is lost with the power is a missing file to the next run.
    void finish() const {
        data_.sync();
        if (::rename((path_ + kPartEnd).c_str(), path_.c_str()) != 0)
            io::PendingFile::fail(path_, "cannot be renamed into place", errno);
        ::unlink(journal_of(path_).c_str());
    }

    /// Nothing of `path` on its way is left.
    static void drop(const std::string& path) {
        ::unlink(journal_of(path).c_str());  // first: a journal must not outlive what it claims
        ::unlink((journal_of(path) + ".new").c_str());
        ::unlink((path + kPartEnd).c_str());
    }

  private:
    PartFile(std::string path, std::uint64_t size, std::vector<Range> durable, Output data, Output journal)
        : path_(std::move(path)),
          size_(size),
          durable_(std::move(durable)),
          data_(std::move(data)),
          journal_(std::move(journal)) {}

    static std::string journal_of(const std::string& path) { return path + kPartEnd + ".journal"; }
    static std::string line(Range range) {
        return std::to_string(range.begin) + " " + std::to_string(range.end) + "\n";
    }

    /// Nothing, unless all of it makes sense.
    static std::vector<Range> read_journal(const std::string& path, std::uint64_t size, const std::string& head) {
        struct stat info {};
        if (::stat((path + kPartEnd).c_str(), &info) != 0 || static_cast<std::uint64_t>(info.st_size) != size)
            return {};
        if (::access(journal_of(path).c_str(), R_OK) != 0) return {};
        const std::string text = io::File::read_text(journal_of(path), std::uint64_t{1} << 28);
        if (!text.starts_with(head)) return {};
        std::vector<Range> ranges;
        for (std::size_t at = head.size(), end = 0; (end = text.find('\n', at)) != std::string::npos; at = end + 1) {
            Range range;
            const char* stop = text.data() + end;
            const auto first = std::from_chars(text.data() + at, stop, range.begin);
            if (first.ec != std::errc{} || first.ptr == stop || *first.ptr != ' ') return {};
            const auto second = std::from_chars(first.ptr + 1, stop, range.end);
            if (second.ec != std::errc{} || second.ptr != stop || range.begin >= range.end || range.end > size)
                return {};
            add_range(ranges, range);
        }
        return ranges;
    }

    std::string path_;
    std::uint64_t size_;
    std::vector<Range> durable_;
    Output data_, journal_;
    mutable std::mutex guard_;
};

}  // namespace k3::fetch
#endif
