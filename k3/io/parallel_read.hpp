#ifndef K3_IO_PARALLEL_READ_HPP
#define K3_IO_PARALLEL_READ_HPP
// Fills many byte ranges from files with a few threads: how resident weights are loaded. Streaming has its own reader.
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "k3/io/file.hpp"
#include "k3/io/jobs.hpp"

namespace k3::io {

/// Bytes [offset, offset + out.size()) of a file, and where they go.
struct ReadJob {
    const File* file;
    std::uint64_t offset;
    std::span<std::byte> out;
};

/// Runs every job; big ones are cut into pieces so that all threads stay busy. `progress(done, total)` in bytes is
/// called from the calling thread; what it throws stops the reading. Errors: the first failure (a read's is
/// Code::read), after all threads have stopped.
inline void parallel_read(std::span<const ReadJob> jobs, unsigned threads,
                          const std::function<void(std::uint64_t, std::uint64_t)>& progress = {}) {
    constexpr std::size_t kPiece = std::size_t{8} << 20;
    std::vector<ReadJob> pieces;
    std::uint64_t total = 0;
    for (const ReadJob& job : jobs) {
        total += job.out.size();
        for (std::size_t at = 0; at < job.out.size(); at += kPiece)
            pieces.push_back({job.file, job.offset + at, job.out.subspan(at, std::min(kPiece, job.out.size() - at))});
    }
    std::atomic<std::uint64_t> done{0};
    run_jobs(threads, pieces.size(), [&](unsigned worker, std::size_t i) {
        pieces[i].file->read(pieces[i].offset, pieces[i].out);
        const std::uint64_t now = done += pieces[i].out.size();
        if (worker == 0 && progress) progress(now, total);
    });
    if (progress) progress(total, total);
}

}  // namespace k3::io
#endif
