#ifndef K3_DRIVERS_BENCH_BANDWIDTH_HPP
#define K3_DRIVERS_BENCH_BANDWIDTH_HPP
// The machine's read bandwidth, measured in the same run as what is compared with it: the best of two ways to sum a
// large buffer (one stream a thread, and four far apart with prefetch), over several repeats. 16-byte loads are enough:
// a core can issue several times what its memory delivers.
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>

#include "k3/core/parallel.hpp"

namespace k3::bench {

inline double seconds_since(std::chrono::steady_clock::time_point start) {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
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

/// Bytes a second with `threads` threads over `bytes` of memory (use at least several times the last-level cache).
inline double read_bandwidth(const std::byte* data, std::size_t bytes, unsigned threads, int repeats = 3) {
    const auto* words = reinterpret_cast<const std::uint64_t*>(data);
    core::Exec exec;
    exec.threads = threads;
    volatile std::uint64_t sink = 0;
    double best = 0;
    for (int repeat = 0; repeat < repeats; ++repeat)
        for (const std::size_t streams : {std::size_t{1}, std::size_t{4}}) {
            const auto start = std::chrono::steady_clock::now();
            core::parallel(exec, bytes / 8, 1, [&](std::size_t begin, std::size_t end, unsigned) noexcept {
                sink = sink + sum_words(words, begin, end, streams);
            });
            best = std::max(best, static_cast<double>(bytes) / seconds_since(start));
        }
    return best;
}

}  // namespace k3::bench
#endif
