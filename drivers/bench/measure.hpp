#ifndef K3_DRIVERS_BENCH_MEASURE_HPP
#define K3_DRIVERS_BENCH_MEASURE_HPP
// Timing in turn: one round calls every candidate once, and there are several rounds, so that what the machine does
// meanwhile (frequency, neighbours, memory traffic) meets all candidates alike.
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace k3::bench {

inline double seconds_now() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// What a candidate tells: how fast a kernel is, or one of the machine's limits.
enum class Role : std::uint8_t { kernel, read, read_write, peak_f64, peak_f32 };

struct Candidate {
    std::string name{};
    std::function<void()> run{};
    Role role = Role::kernel;
    const char* arch = "-";         // of a peak: whose
    std::size_t inner = 1;          // calls in one sample
    std::vector<double> seconds{};  // of one call, a sample a round

    double median() const {
        std::vector<double> sorted = seconds;
        std::sort(sorted.begin(), sorted.end());
        const std::size_t n = sorted.size();
        return n % 2 != 0 ? sorted[n / 2] : (sorted[n / 2 - 1] + sorted[n / 2]) / 2;
    }
    double least() const { return *std::min_element(seconds.begin(), seconds.end()); }
    double most() const { return *std::max_element(seconds.begin(), seconds.end()); }
};

/// A sample is at least this long, so that the clock and a single interruption do not matter.
inline constexpr double kLeastSample = 2e-3;

/// Fills Candidate::seconds. A first call of each, not counted, warms it up and sets `inner`.
inline void take_turns(std::vector<Candidate>& candidates, std::size_t rounds) {
    for (Candidate& candidate : candidates) {
        for (double start = seconds_now(), took = 0; took < kLeastSample; candidate.inner *= 2) {
            for (std::size_t i = 0; i < candidate.inner; ++i) candidate.run();
            took = seconds_now() - start;
            if (took >= kLeastSample) break;
            start = seconds_now();
        }
    }
    for (std::size_t round = 0; round < rounds; ++round)
        for (Candidate& candidate : candidates) {
            const double start = seconds_now();
            for (std::size_t i = 0; i < candidate.inner; ++i) candidate.run();
            candidate.seconds.push_back((seconds_now() - start) / static_cast<double>(candidate.inner));
        }
}

/// One line of the results.
struct Row {
    std::string kernel{}, format{}, shape{}, who{};  // who: an arch of k3, "seed avx2", "eigen avx2", "openblas", ...
    std::size_t tokens = 1;
    unsigned threads = 1;
    std::size_t panel = 0;                      // rows of the matrix that were multiplied; 0 if it is none
    bool cut = false;                           // these are not all of its rows
    double seconds = 0, least = 0, most = 0;    // of one call: median and extremes
    double bytes = 0, flops = 0, elements = 0;  // what the product needs: bytes are those of one pass
    double passes = 1;                          // that the candidate makes over the bytes
    double read_share = 0;    // bytes a second over the read (or read+write) bandwidth; 0: not compared
    double limit_share = 0;   // least possible time by the limit that binds, over the time; 0: no limit is claimed
    const char* limit = "-";  // which one: read, read+write, f64, f32
    double of_seed = 0;       // speed over the seed's kernel for the same product; 0: none
    double of_auto = 0;       // speed over the seed's scalar loops, vectorised by the compiler for the row's arch
    std::string digest{};     // of the first result; empty if none is taken
    bool cached = false;      // the working set fits a cache: no statement about memory
};

struct Results {
    std::vector<Row> rows{};
    struct Limit {
        std::string name{};
        unsigned threads = 1;
        double value = 0;  // bytes or operations a second, the largest of all groups
    };
    std::vector<Limit> limits{};
    std::vector<std::string> differences{};  // digests that should be equal and are not

    void note_limit(const std::string& name, unsigned threads, double value) {
        for (Limit& limit : limits)
            if (limit.name == name && limit.threads == threads) {
                limit.value = std::max(limit.value, value);
                return;
            }
        limits.push_back({name, threads, value});
    }
    const Row* find(const std::string& kernel, const std::string& format, const std::string& shape, std::size_t tokens,
                    unsigned threads, const std::string& who) const {
        for (const Row& row : rows)
            if (row.kernel == kernel && row.format == format && row.shape == shape && row.tokens == tokens &&
                row.threads == threads && row.who == who)
                return &row;
        return nullptr;
    }
};

/// The rule of Row::cached: what the candidates cycle through is less than twice the last-level cache, so that part of
/// it is found there again.
inline bool fits_cache(double working_bytes, std::size_t cache_bytes) {
    return working_bytes < 2 * static_cast<double>(cache_bytes);
}

/// A row with the times of a candidate.
inline Row row_of(const Candidate& candidate) {
    Row row;
    row.who = candidate.name;
    row.seconds = candidate.median();
    row.least = candidate.least();
    row.most = candidate.most();
    return row;
}

}  // namespace k3::bench
#endif
