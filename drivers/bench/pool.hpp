#ifndef K3_DRIVERS_BENCH_POOL_HPP
#define K3_DRIVERS_BENCH_POOL_HPP
// The memory that weights are read from: larger than the last-level cache and walked round, so that a matrix is not in
// a cache when it is read, whatever its size.
#include <algorithm>
#include <cstdint>

#include "drivers/bench/inputs.hpp"
#include "k3/core/buffer.hpp"
#include "k3/core/parallel.hpp"

namespace k3::bench {

class Pool {
  public:
    /// Filled by the threads that will read it.
    Pool(std::size_t bytes, unsigned threads) : memory_((bytes + kAlign - 1) / kAlign * kAlign) {
        core::Exec exec;
        exec.threads = threads;
        auto* const words = memory_.as<std::uint64_t>();
        core::parallel(exec, memory_.size() / 8, 1, [&](std::size_t begin, std::size_t end, unsigned) noexcept {
            for (std::size_t i = begin; i < end; ++i) words[i] = weight_word(1, i);
        });
    }
    std::size_t size() const { return memory_.size(); }
    /// The first `bytes`: the same in every run, for digests.
    std::byte* first() const { return memory_.data(); }
    /// The next `bytes`, from the start again when the end is reached.
    std::byte* next(std::size_t bytes) {
        if (at_ + bytes > memory_.size()) at_ = 0;
        std::byte* const place = memory_.data() + at_;
        at_ += (bytes + kAlign - 1) / kAlign * kAlign;
        return place;
    }

  private:
    static constexpr std::size_t kAlign = 4096;
    core::Buffer memory_;
    std::size_t at_ = 0;
};

/// Twice the last-level caches of most machines, and every matrix but lm_head fits as the f32 that peers read: of that
/// a panel is measured. For a quick look, what hardly profits from the cache will do.
inline std::size_t pool_bytes(bool quick, std::size_t cache_bytes) {
    constexpr std::size_t kMost = 2'500'000'000;
    return quick ? std::clamp(4 * cache_bytes, std::size_t{1} << 30, kMost) : kMost;
}

}  // namespace k3::bench
#endif
