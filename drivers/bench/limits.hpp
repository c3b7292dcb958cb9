#ifndef K3_DRIVERS_BENCH_LIMITS_HPP
#define K3_DRIVERS_BENCH_LIMITS_HPP
// The limits of the machine, as candidates that take turns with what is compared with them: reading memory two ways,
// reading and writing it two ways, and multiply-adds on registers. One way to read is not the limit: which is faster
// depends on the machine, so the better of the two counts.
#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "drivers/bench/arch_table.hpp"
#include "drivers/bench/bandwidth.hpp"
#include "drivers/bench/measure.hpp"
#include "drivers/bench/pool.hpp"
#include "k3/core/parallel.hpp"

namespace k3::bench {

inline constexpr std::size_t kProbeBytes = std::size_t{256} << 20;  // of one reading call
inline constexpr std::size_t kPeakRounds = 100'000;

namespace detail {

inline void flip_signs(std::uint64_t* words, std::size_t begin, std::size_t end, std::size_t streams) {
    const std::size_t each = (end - begin) / streams / 8 * 8;
    for (std::size_t i = 0; i < each; i += 8)
        for (std::size_t s = 0; s < streams; ++s) {
            std::uint64_t* at = words + begin + s * each + i;
            __builtin_prefetch(at + 128);
            for (std::size_t k = 0; k < 8; ++k) at[k] ^= 0x8000000080000000U;
        }
}

}  // namespace detail

/// Two reading candidates over the pool. They change nothing.
inline void add_read_probes(std::vector<Candidate>& candidates, Pool& pool, unsigned threads) {
    for (const std::size_t streams : {std::size_t{1}, std::size_t{4}}) {
        const auto probe = [&pool, threads, streams] {
            read_once(threads, reinterpret_cast<const std::uint64_t*>(pool.next(kProbeBytes)), kProbeBytes / 8,
                      streams);
        };
        candidates.push_back({"read " + std::to_string(streams), probe, Role::read});
    }
}

/// Two that read and write: they flip the signs of the f32 values there.
inline void add_write_probes(std::vector<Candidate>& candidates, Pool& pool, unsigned threads) {
    for (const std::size_t streams : {std::size_t{1}, std::size_t{4}}) {
        const auto probe = [&pool, threads, streams] {
            auto* words = reinterpret_cast<std::uint64_t*>(pool.next(kProbeBytes / 4));
            core::parallel(threads_only(threads), kProbeBytes / 4 / 8, 1,
                           [&](std::size_t begin, std::size_t end, unsigned) noexcept {
                detail::flip_signs(words, begin, end, streams);
            });
        };
        candidates.push_back({"read+write " + std::to_string(streams), probe, Role::read_write});
    }
}

enum class Width { f64, f32 };

inline std::string peak_name(Width width, const char* arch) {
    return std::string(width == Width::f64 ? "f64 " : "f32 ") + arch;
}

inline void add_peak_probe(std::vector<Candidate>& candidates, const kernel_table::KernelTable& table, Width width,
                           unsigned threads) {
    const Role role = width == Width::f64 ? Role::peak_f64 : Role::peak_f32;
    for (const Candidate& candidate : candidates)  // two peers may share an arch
        if (candidate.role == role && std::string_view(candidate.arch) == table.name) return;
    const ArchTable& arch = arch_of(table.name);
    const auto peak = width == Width::f64 ? arch.peak_f64 : arch.peak_f32;
    const auto probe = [peak, threads] {
        static std::atomic<double> sink;
        core::parallel(threads_only(threads), threads, 1, [&](std::size_t, std::size_t, unsigned) noexcept {
            sink.store(peak(kPeakRounds), std::memory_order_relaxed);
        });
    };
    candidates.push_back({peak_name(width, table.name), probe, role, table.name});
}

/// The limits of one group, from its own samples.
class Limits {
  public:
    Limits(const std::vector<Candidate>& candidates, unsigned threads, Results& results) {
        for (const Candidate& c : candidates) {
            if (c.role == Role::kernel) continue;
            if (c.role == Role::read) {
                read_ = std::max(read_, static_cast<double>(kProbeBytes) / c.median());
            } else if (c.role == Role::read_write) {  // bytes read and bytes written
                write_ = std::max(write_, 2.0 * (kProbeBytes / 4) / c.median());
            } else {
                const ArchTable& arch = arch_of(c.arch);
                const std::size_t flops = c.role == Role::peak_f64 ? arch.f64_flops : arch.f32_flops;
                // The best sample, not the median: nothing but an interruption can slow the probe.
                const double rate = static_cast<double>(kPeakRounds * flops * threads) / c.least();
                peaks_.push_back({c.name, threads, rate});
                results.note_limit(c.name, threads, rate);
            }
        }
        if (read_ > 0) results.note_limit("read", threads, read_);
        if (write_ > 0) results.note_limit("read+write", threads, write_);
    }
    double read() const { return read_; }
    double read_write() const { return write_; }
    double peak(Width width, const char* arch) const {
        for (const auto& [name, threads, rate] : peaks_)
            if (name == peak_name(width, arch)) return rate;
        return 0;
    }
    /// Fills in the shares of a row: which limit leaves the longest time, and how near the row is to it. The limit is
    /// that of the product, so of one pass over its bytes, however many passes the candidate makes.
    void judge(Row& row, double bandwidth, const char* bandwidth_name, double peak, const char* peak_name) const {
        const double memory = bandwidth > 0 ? row.bytes / bandwidth : 0, arithmetic = peak > 0 ? row.flops / peak : 0;
        row.read_share = memory / row.seconds;
        row.limit_share = std::max(memory, arithmetic) / row.seconds;
        row.limit = memory > arithmetic ? bandwidth_name : peak_name;
    }

  private:
    double read_ = 0, write_ = 0;
    std::vector<Results::Limit> peaks_{};
};

}  // namespace k3::bench
#endif
