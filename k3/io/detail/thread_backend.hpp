#ifndef K3_IO_DETAIL_THREAD_BACKEND_HPP
#define K3_IO_DETAIL_THREAD_BACKEND_HPP
// Works off a ReadQueue with a pool of threads, each with one pread at a time.
#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <functional>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "k3/core/error.hpp"
#include "k3/io/detail/piece.hpp"
#include "k3/io/detail/read_queue.hpp"

namespace k3::io {

/// As ::pread: descriptor, memory, bytes, offset; a count or -1 with errno. Called from many threads.
using PreadHook = std::function<ssize_t(int, void*, std::size_t, off_t)>;

namespace detail {

class ThreadBackend {
  public:
    static constexpr unsigned kMostThreads = 16;

    /// Fewer threads than `depth` are fine. Errors: Code::plan if the system gives none.
    ThreadBackend(ReadQueue& queue, unsigned depth, PreadHook hook, bool force_buffered)
        : queue_(queue), hook_(std::move(hook)), force_buffered_(force_buffered) {
        const unsigned wanted = std::min(depth, kMostThreads);
        threads_.reserve(wanted);
        try {
            while (threads_.size() < wanted) threads_.emplace_back([this] { run(); });
        } catch (const std::system_error& error) {
            if (threads_.empty())
                throw Error(Code::plan, "the system gives no thread to read with: " + std::string(error.what()),
                            "raise the limit of processes (ulimit -u)");
        }
    }
    ~ThreadBackend() {
        queue_.stop();
        for (std::thread& thread : threads_) thread.join();
    }
    ThreadBackend(const ThreadBackend&) = delete;
    ThreadBackend& operator=(const ThreadBackend&) = delete;

    unsigned size() const noexcept { return static_cast<unsigned>(threads_.size()); }

  private:
    void run() noexcept {
        for (Piece piece; queue_.wait_and_take(piece);) {
            Next next = Next::again;
            while (next == Next::again || next == Next::later) {
                if (next == Next::later) std::this_thread::sleep_for(std::chrono::milliseconds(1));
                piece.aim(force_buffered_);
                const auto offset = static_cast<off_t>(piece.offset);
                const ssize_t got = hook_ ? hook_(piece.fd, piece.at, piece.left, offset)
                                          : ::pread(piece.fd, piece.at, piece.left, offset);
                next = piece.judge(got < 0 ? -errno : got);
            }
            piece.drop_pages();
            queue_.finish(piece, next == Next::failed);
        }
    }

    ReadQueue& queue_;
    PreadHook hook_;
    bool force_buffered_;
    std::vector<std::thread> threads_;
};

}  // namespace detail
}  // namespace k3::io
#endif
