#ifndef K3_DRIVERS_BENCH_BANDWIDTH_HPP
#define K3_DRIVERS_BENCH_BANDWIDTH_HPP
// The machine's read bandwidth, measured in the same run as what is compared with it: the best of two ways to sum a
// large buffer (one stream a thread, and four far apart, both with prefetch), over several repeats. 16-byte loads are
// enough: a core can issue several times what its memory delivers.
#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "drivers/bench/measure.hpp"
#include "k3/core/parallel.hpp"

namespace k3::bench {

/// That many threads, whatever the amount of work.
inline core::Exec threads_only(unsigned threads) {
    core::Exec exec;
    exec.threads = threads;
    exec.least_work = 0;
    return exec;
}

/// Sums [begin, end) words in `streams` interleaved streams.
inline std::uint64_t sum_words(const std::uint64_t* words, std::size_t begin, std::size_t end, std::size_t streams) {
    const std::size_t each = (end - begin) / streams / 8 * 8;
    std::uint64_t sum[8] = {};
    for (std::size_t i = 0; i < each; i += 8)
        for (std::size_t s = 0; s < streams; ++s) {
            const std::uint64_t* at = words + begin + s * each + i;
            __builtin_prefetch(at + 128);
            for (std::size_t k = 0; k < 8; ++k) sum[k] += at[k];
        }
    return sum[0] + sum[1] + sum[2] + sum[3] + sum[4] + sum[5] + sum[6] + sum[7];
}

/// Reads `count` words once.
inline void read_once(unsigned threads, const std::uint64_t* words, std::size_t count, std::size_t streams) {
    static std::atomic<std::uint64_t> sink;  // what is not used need not be computed
    core::parallel(threads_only(threads), count, 1, [&](std::size_t begin, std::size_t end, unsigned) noexcept {
        sink.store(sum_words(words, begin, end, streams), std::memory_order_relaxed);
    });
}

/// Bytes a second with `threads` threads over `bytes` of memory (use at least several times the last-level cache).
inline double read_bandwidth(const std::byte* data, std::size_t bytes, unsigned threads, int repeats = 3) {
    double best = 0;
    for (int repeat = 0; repeat < repeats; ++repeat)
        for (const std::size_t streams : {std::size_t{1}, std::size_t{4}}) {
            const double start = seconds_now();
            read_once(threads, reinterpret_cast<const std::uint64_t*>(data), bytes / 8, streams);
            best = std::max(best, static_cast<double>(bytes) / (seconds_now() - start));
        }
    return best;
}

}  // namespace k3::bench
#endif
