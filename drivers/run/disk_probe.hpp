#ifndef K3_DRIVERS_RUN_DISK_PROBE_HPP
#define K3_DRIVERS_RUN_DISK_PROBE_HPP
// What the disk can do, measured right after a run on the same files in the same way (1 MiB pieces in the order of the
// file, past the page cache), by code that shares nothing with the engine's reader: threads and pread.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "k3/checkpoint/shard_index.hpp"
#include "k3/core/buffer.hpp"

namespace k3::run {

/// What probe_disk() holds while it runs.
inline constexpr std::uint64_t kProbeBytes = std::uint64_t{24} << 20;

/// Bytes a second over about `seconds`; 0 if it cannot be measured (no O_DIRECT, too little to read, files with holes:
/// no disk is read where there is nothing).
inline double probe_disk(const checkpoint::ShardIndex& index, double seconds) {
    using Clock = std::chrono::steady_clock;
    constexpr std::size_t kPiece = std::size_t{1} << 20, kThreads = 16;
    struct Piece {
        int file;
        off_t offset;
    };
    std::vector<int> files;
    std::vector<Piece> pieces;
    for (const checkpoint::Shard& shard : index.shards()) {
        if (pieces.size() * kPiece > (std::uint64_t{64} << 30)) break;  // more than any disk reads in that time
        const int file = ::open(shard.file.path().c_str(), O_RDONLY | O_CLOEXEC | O_DIRECT);
        if (file < 0) continue;
        files.push_back(file);
        struct stat info {};
        if (::fstat(file, &info) != 0 || info.st_blocks * 512 < info.st_size / 2) {
            for (const int open : files) ::close(open);
            return 0;
        }
        for (std::uint64_t at = 0; at + kPiece <= shard.file.size(); at += kPiece)
            pieces.push_back({file, static_cast<off_t>(at)});
    }
    const core::Buffer memory(kThreads * kPiece);  // on huge pages, as the engine's: the disk's rate depends on it
    std::memset(memory.data(), 0, memory.size());
    std::atomic<std::size_t> next{0}, turn{0};
    std::atomic<std::uint64_t> bytes{0};
    std::atomic<bool> failed{false};
    const auto start = Clock::now();
    const auto end = start + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
    const auto work = [&] {
        std::byte* const buffer = memory.data() + turn++ * kPiece;
        for (std::size_t i = next++; i < pieces.size() && Clock::now() < end; i = next++) {
            if (::pread(pieces[i].file, buffer, kPiece, pieces[i].offset) != static_cast<ssize_t>(kPiece)) {
                failed = true;
                break;
            }
            bytes += kPiece;
        }
    };
    {
        std::vector<std::jthread> threads;
        try {
            for (std::size_t i = 0; i < kThreads; ++i) threads.emplace_back(work);
        } catch (const std::system_error&) {
            failed = threads.empty();
        }
    }
    const std::chrono::duration<double> spent = Clock::now() - start;
    for (const int file : files) ::close(file);
    if (failed || bytes < 16 * kPiece) return 0;
    return static_cast<double>(bytes) / spent.count();
}

}  // namespace k3::run
#endif
