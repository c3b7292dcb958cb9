#ifndef K3_IO_PARALLEL_READ_HPP
#define K3_IO_PARALLEL_READ_HPP
// Fills many byte ranges from files with a few threads: how resident weights are loaded. Streaming has its own reader.
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <span>
#include <system_error>
#include <thread>
#include <vector>

#include "k3/io/file.hpp"

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
    std::atomic<std::size_t> next{0};
    std::atomic<std::uint64_t> done{0};
    std::atomic<bool> failed{false};
    std::exception_ptr error;
    std::mutex error_mutex;
    const auto work = [&](bool reports) noexcept {
        try {
            for (std::size_t i = next++; i < pieces.size() && !failed; i = next++) {
                pieces[i].file->read(pieces[i].offset, pieces[i].out);
                const std::uint64_t now = done += pieces[i].out.size();
                if (reports && progress) progress(now, total);
            }
        } catch (...) {
            const std::lock_guard lock(error_mutex);
            if (!failed.exchange(true)) error = std::current_exception();
        }
    };
    std::vector<std::thread> helpers;
    try {
        for (unsigned i = 1; i < threads && i < pieces.size(); ++i) helpers.emplace_back(work, false);
    } catch (const std::system_error&) {
        // The system gives no more threads: those that are there do the work.
    }
    work(true);
    for (std::thread& helper : helpers) helper.join();
    if (error) std::rethrow_exception(error);
    if (progress) progress(total, total);
}

}  // namespace k3::io
#endif
