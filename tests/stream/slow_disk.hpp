#ifndef K3_TESTS_STREAM_SLOW_DISK_HPP
#define K3_TESTS_STREAM_SLOW_DISK_HPP
// What a reader's threads call instead of pread: a disk that answers late and out of order, fails where it is told to,
// and counts. It fills the target before it reads, so bytes that are used before they arrive are wrong for certain; and
// it knows which memory is in use, so that a read into it is found without a race having to be lost first.
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <map>
#include <mutex>
#include <thread>
#include <vector>

#include "k3/io/reader.hpp"

namespace k3::tests {

#if defined(__SANITIZE_THREAD__)
inline constexpr bool kThreadSanitizer = true;
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
inline constexpr bool kThreadSanitizer = true;
#else
inline constexpr bool kThreadSanitizer = false;
#endif
#else
inline constexpr bool kThreadSanitizer = false;
#endif

class SlowDisk {
  public:
    struct Request {
        int fd;
        std::uint64_t offset;
        std::size_t bytes;
        friend auto operator<=>(const Request&, const Request&) = default;
    };

    /// Microseconds that a request waits, at most.
    std::atomic<unsigned> slowest{30};
    /// Requests that touch [fail_begin, fail_end) fail: with this errno, or, if it is 0, as if the file ended there.
    std::atomic<std::uint64_t> fail_begin{0}, fail_end{0};
    std::atomic<int> fail_errno{EIO};
    std::atomic<std::uint64_t> moved{0}, requests{0}, overwrites{0};

    /// Threads with pread, few enough to be reordered and many enough to overlap.
    io::ReaderOptions options(unsigned depth = 4) {
        io::ReaderOptions options;
        options.kind = io::ReaderKind::threads;
        options.depth = depth;
        options.pread = [this](int fd, void* at, std::size_t bytes, off_t offset) {
            return read(fd, static_cast<std::byte*>(at), bytes, offset);
        };
        return options;
    }

    void fail(std::uint64_t begin, std::uint64_t bytes, int error = EIO) {
        fail_errno = error;
        fail_begin = begin;
        fail_end = begin + bytes;
    }
    void heal() { fail(0, 0); }

    /// Memory [at, at + bytes) is being used: a request that writes into it from now on is counted as an overwrite.
    /// With the thread sanitizer nothing is watched: the lock would order what is to be found unordered.
    void hold(const void* at, std::size_t bytes) {
        if (kThreadSanitizer) return;
        const std::lock_guard lock(mutex_);
        held_[reinterpret_cast<std::uintptr_t>(at)] = bytes;
    }
    void let_go(const void* at) {
        if (kThreadSanitizer) return;
        const std::lock_guard lock(mutex_);
        held_.erase(reinterpret_cast<std::uintptr_t>(at));
    }

    /// The requests since the last call; empty with the thread sanitizer.
    std::vector<Request> take_log() {
        const std::lock_guard lock(mutex_);
        return std::exchange(log_, {});
    }
    /// Waits until `count` requests have been answered in all, a second at most; then a little longer for more than
    /// that.
    std::uint64_t settle(std::uint64_t count) const {
        for (int i = 0; i < 2000 && requests < count; ++i) std::this_thread::sleep_for(std::chrono::microseconds(500));
        std::this_thread::sleep_for(std::chrono::milliseconds(3));
        return requests;
    }

  private:
    ssize_t read(int fd, std::byte* at, std::size_t bytes, off_t offset) {
        const auto from = static_cast<std::uint64_t>(offset);
        note(fd, at, bytes, true, from);
        std::memset(at, 0xe7, bytes);
        const unsigned most = slowest.load(std::memory_order_relaxed);
        if (most > 0) std::this_thread::sleep_for(std::chrono::microseconds(random() % most));
        ssize_t got = 0;
        if (from < fail_end && from + bytes > fail_begin) {
            if (fail_errno != 0) {
                errno = fail_errno;
                got = -1;
            } else {
                const std::uint64_t there = fail_begin > from ? fail_begin - from : 0;
                got = there == 0 ? 0 : ::pread(fd, at, there, offset);
            }
        } else {
            got = ::pread(fd, at, bytes, offset);
        }
        const int error = errno;
        note(fd, at, bytes, false, from);
        if (got > 0) moved.fetch_add(static_cast<std::uint64_t>(got), std::memory_order_relaxed);
        requests.fetch_add(1, std::memory_order_relaxed);
        errno = error;
        return got;
    }
    void note(int fd, const std::byte* at, std::size_t bytes, bool begins, std::uint64_t offset) {
        if (kThreadSanitizer) return;
        const std::lock_guard lock(mutex_);
        if (begins) log_.push_back({fd, offset, bytes});
        const auto first = reinterpret_cast<std::uintptr_t>(at);
        for (auto held = held_.begin(); held != held_.end() && held->first < first + bytes; ++held)
            if (held->first + held->second > first) ++overwrites;
    }
    static std::uint64_t random() {
        static std::atomic<std::uint64_t> seeds{1};
        static thread_local std::uint64_t state = seeds.fetch_add(0x9e3779b97f4a7c15U, std::memory_order_relaxed);
        state = state * 6364136223846793005U + 1442695040888963407U;
        return state >> 40;
    }

    std::mutex mutex_;
    std::map<std::uintptr_t, std::size_t> held_;
    std::vector<Request> log_;
};

}  // namespace k3::tests
#endif
