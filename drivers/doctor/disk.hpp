#ifndef K3_DRIVERS_DOCTOR_DISK_HPP
#define K3_DRIVERS_DOCTOR_DISK_HPP
// The disk, read as the engine reads it: io::Reader past the page cache, expert-sized blocks anywhere with 1, 4, 16 and
// the engine's own number of pieces at the device, and large runs in the order of the file. From the shards of the
// model, or, where there are none worth it, from a file of random bytes that has no name while it exists. All patterns
// take turns, so that a disk that changes its speed hits all of them.
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <exception>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "drivers/doctor/products.hpp"
#include "drivers/synth/values.hpp"
#include "k3/core/buffer.hpp"
#include "k3/core/error.hpp"
#include "k3/io/reader.hpp"

namespace k3::doctor {

struct Pattern {
    bool in_order;
    unsigned depth;     // pieces at the device at a time
    std::size_t block;  // bytes of one read
    Rate rate{};
};

struct Disk {
    std::vector<Pattern> patterns{};
    std::string place{};       // what was read
    std::string reader{};      // io_uring, threads
    std::string why_memory{};  // what was measured may be memory: the page cache, or a file system in it
    std::string why_not{};     // nothing was measured

    /// As the engine reads the trunk, and experts.
    Rate in_order() const { return patterns.empty() ? Rate{} : patterns.back().rate; }
    Rate at_random() const { return patterns.size() < 2 ? Rate{} : patterns[patterns.size() - 2].rate; }
};

struct DiskRequest {
    std::vector<std::string> shards{};  // of the model; may be empty
    std::string scratch_dir = ".";      // where a file may be made
    std::size_t expert = 17547264;      // bytes
    double seconds = 6;
};

namespace detail {

inline constexpr std::uint64_t kLeastToRead = std::uint64_t{512} << 20;

/// A file worth reading has data: a disk is not read where there are holes.
inline bool holds_data(const std::string& path) {
    struct stat info {};
    return ::stat(path.c_str(), &info) == 0 && info.st_blocks * 512 >= info.st_size / 2;
}

/// Why reading there says nothing about a disk, whatever the file system takes; empty if it does.
inline std::string why_memory(const std::string& path) {
    constexpr std::uint64_t kTmpfs = 0x01021994, kRamfs = 0x858458f6;
    struct statfs system {};
    if (::statfs(path.c_str(), &system) != 0) return {};
    const auto type = static_cast<std::uint32_t>(system.f_type);
    return type == kTmpfs || type == kRamfs ? "its file system is in memory" : "";
}

/// A file without a name, full of random bytes, that are on the disk. Errors: Code::write.
inline io::StreamFile scratch_file(const std::string& dir, std::uint64_t bytes) {
    const auto failed = [&](const std::string& what) {
        return Error(Code::write, "cannot make a file to read: " + what + " (" + std::strerror(errno) + ")",
                     "name a folder on the disk in question with --scratch", {.path = dir});
    };
    struct statvfs system {};
    if (::statvfs(dir.c_str(), &system) != 0) throw failed("there is no such folder");
    if (std::uint64_t{system.f_bavail} * system.f_frsize < 2 * bytes) {
        errno = ENOSPC;
        throw failed("it needs " + std::to_string(2 * bytes / 1000000) + " MB of free space");
    }
    std::string path = dir + "/.k3-doctor-XXXXXX";
    const int file = ::mkostemp(path.data(), O_CLOEXEC);
    if (file < 0) throw failed("it cannot be written");
    struct Closer {
        int file;
        const std::string& path;
        ~Closer() {
            ::unlink(path.c_str());
            ::close(file);
        }
    } closer{file, path};
    if (::ftruncate(file, static_cast<off_t>(bytes)) != 0) throw failed("it cannot be written");
    io::StreamFile stream = io::StreamFile::open(path);
    ::unlink(path.c_str());  // before a byte is in it: whatever ends this program, nothing stays
    std::vector<std::uint64_t> block(std::size_t{1} << 19);
    for (std::uint64_t at = 0; at < bytes; at += block.size() * 8) {
        for (std::size_t i = 0; i < block.size(); ++i) block[i] = synth::word(synth::mix(1), at / 8 + i);
        const std::size_t wanted = std::min<std::uint64_t>(bytes - at, block.size() * 8);
        for (std::size_t done = 0; done < wanted;) {
            const ssize_t got = ::pwrite(file, reinterpret_cast<const char*>(block.data()) + done, wanted - done,
                                         static_cast<off_t>(at + done));
            if (got < 0 && errno == EINTR) continue;
            if (got <= 0) throw failed("it cannot be written");
            done += static_cast<std::size_t>(got);
        }
    }
    if (::fdatasync(file) != 0) throw failed("it cannot be written");
    ::posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED);
    return stream;
}

struct Block {
    const io::StreamFile* file;
    std::uint64_t offset;
};

/// The blocks of one pattern in its order; goes on where it stopped, so that what was just read is not read again.
class Walk {
  public:
    Walk(const std::deque<io::StreamFile>& files, std::size_t block, bool in_order, std::uint64_t seed) {
        for (const io::StreamFile& file : files)
            for (std::uint64_t at = 0; at + block <= file.size(); at += block) blocks_.push_back({&file, at});
        std::mt19937_64 random(seed);
        if (in_order)
            std::rotate(blocks_.begin(), blocks_.begin() + static_cast<std::ptrdiff_t>(random() % blocks_.size()),
                        blocks_.end());
        else
            std::shuffle(blocks_.begin(), blocks_.end(), random);
    }
    const Block& next() {
        at_ = at_ + 1 >= blocks_.size() ? 0 : at_ + 1;
        return blocks_[at_];
    }

  private:
    std::vector<Block> blocks_;
    std::size_t at_ = 0;
};

/// Bytes a second over about `seconds`. `memory` holds the blocks under way.
inline double read_window(Walk& walk, std::size_t block, unsigned depth, double seconds, const core::Buffer& memory,
                          std::string& reader_name) {
    using Clock = std::chrono::steady_clock;
    const std::size_t stride = (block + 2 * io::kBlock - 1) / io::kBlock * io::kBlock;
    const std::size_t most = memory.size() / stride;
    // As many as keep the pieces of two queues ready.
    const std::size_t count = std::clamp<std::size_t>(2 + 2 * depth * (std::size_t{1} << 20) / block, 1, most);
    std::deque<io::Read> reads(count);
    io::Reader reader({.depth = depth});
    reader_name = reader.kind() == io::ReaderKind::uring ? "io_uring" : "threads";
    reader.register_memory({memory.data(), memory.size()});
    std::vector<io::Read*> open;
    const auto aim = [&](io::Read& read) {
        const Block& at = walk.next();
        read.file = at.file;
        read.offset = at.offset;
        read.bytes = block;
    };
    const auto start = Clock::now();
    const auto spent = [&] { return std::chrono::duration<double>(Clock::now() - start).count(); };
    for (std::size_t i = 0; i < count; ++i) {
        reads[i].window = memory.data() + i * stride;
        aim(reads[i]);
        open.push_back(&reads[i]);
    }
    for (io::Read* read : open) reader.submit(*read);
    std::uint64_t total = 0;
    for (std::size_t i = reader.wait_any(open); i < open.size(); i = reader.wait_any(open)) {
        if (open[i]->state != io::ReadState::done) throw reader.error_of(*open[i]);
        total += open[i]->bytes;
        if (spent() >= seconds) {
            open[i] = nullptr;
        } else {
            aim(*open[i]);
            reader.submit(*open[i]);
        }
    }
    return static_cast<double>(total) / spent();
}

/// Shards that are worth reading, or a file of our own.
inline std::deque<io::StreamFile> files_to_read(Disk& disk, const DiskRequest& request, std::size_t largest_block) {
    std::deque<io::StreamFile> files;
    std::uint64_t bytes = 0;
    for (const std::string& shard : request.shards) {
        if (!holds_data(shard)) continue;
        files.push_back(io::StreamFile::open(shard));
        if (files.back().size() < 2 * largest_block)
            files.pop_back();
        else
            bytes += files.back().size();
    }
    disk.place = std::to_string(files.size()) + " shards of the model";
    const bool from_shards = bytes >= kLeastToRead;
    if (!from_shards) {
        files.clear();
        // 256 MiB for each second of reading: a short look is a short write.
        bytes = static_cast<std::uint64_t>(std::clamp(request.seconds * 0x1p28, 0x1p26, 0x1p30));
        bytes = std::max<std::uint64_t>(bytes, 2 * largest_block) / io::kBlock * io::kBlock;
        files.push_back(scratch_file(request.scratch_dir, bytes));
        disk.place = "a file of " + std::to_string(bytes / 1000000) + " MB in " + request.scratch_dir + ", removed";
    }
    disk.why_memory = why_memory(from_shards ? request.shards.front() : request.scratch_dir);
    for (const io::StreamFile& file : files) {
        if (disk.why_memory.empty()) disk.why_memory = file.why_buffered();
        ::posix_fadvise(file.buffered_descriptor(), 0, 0, POSIX_FADV_DONTNEED);
    }
    return files;
}

inline void measure(Disk& disk, const DiskRequest& request) {
    constexpr std::size_t kPanel = std::size_t{16} << 20;  // stream::kPanelBytes
    constexpr std::size_t kLeastBlock = std::size_t{64} << 10;
    const std::size_t expert = std::clamp(request.expert, kLeastBlock, 2 * kPanel);
    const unsigned depth = io::ReaderOptions{}.depth;  // the engine's
    std::vector<Pattern> patterns{
        {false, 1, expert}, {false, 4, expert}, {false, 16, expert}, {false, depth, expert}, {true, depth, kPanel}};
    const std::deque<io::StreamFile> files = files_to_read(disk, request, std::max(expert, kPanel));
    const core::Buffer memory(std::max(expert, kPanel) * 4 + (std::size_t{depth} << 22));
    std::memset(memory.data(), 0, memory.size());
    std::vector<Walk> walks;
    for (std::size_t i = 0; i < patterns.size(); ++i)
        walks.emplace_back(files, patterns[i].block, patterns[i].in_order, i + 1);
    constexpr int kRounds = 5;
    const double window = request.seconds / (kRounds * static_cast<double>(patterns.size()));
    std::vector<std::vector<double>> samples(patterns.size());
    for (int round = 0; round < kRounds; ++round)
        for (std::size_t i = 0; i < patterns.size(); ++i)
            samples[i].push_back(
                read_window(walks[i], patterns[i].block, patterns[i].depth, window, memory, disk.reader));
    for (std::size_t i = 0; i < samples.size(); ++i) patterns[i].rate = rate_of(samples[i]);
    disk.patterns = std::move(patterns);
}

}  // namespace detail

/// Takes request.seconds and the time to write a file, if one is needed. What goes wrong is in why_not.
inline Disk measure_disk(const DiskRequest& request) {
    Disk disk;
    try {
        detail::measure(disk, request);
    } catch (const std::exception& error) {
        disk.why_not = error.what();
    }
    return disk;
}

}  // namespace k3::doctor
#endif
