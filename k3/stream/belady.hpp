#ifndef K3_STREAM_BELADY_HPP
#define K3_STREAM_BELADY_HPP
// The fewest loads any cache of that many slots could do, knowing the future: Belady's rule on batches. Offline only.
//
// A batch is a set of distinct keys. Between two batches at most `slots` keys are held, and a batch loads those of its
// keys that are not held. Nothing else is asked of the cache: within a batch keys come in any order, and what was used
// may leave at once, even if it was just loaded. (A real cache must keep the last one it loaded for a while; that is
// why the textbook's figure for the same slots can be slightly higher. To ask for it makes the greedy rule wrong for
// batches.) So this is a lower bound for ExpertSlots under any policy, with or without look-ahead, which moves loads
// and saves none.
//
// Each pair of consecutive uses of a key is an interval of batches; holding the key over it saves one load, at most
// `slots` intervals may overlap, and dropping the one that ends last is optimal.
#include <cstddef>
#include <cstdint>
#include <queue>
#include <span>
#include <utility>
#include <vector>

namespace k3::stream {

class Belady {
  public:
    explicit Belady(std::size_t keys) : last_(keys, kNever) {}

    /// The requests of one batch, in any order; repeats count once. Keys < keys. O(requests).
    void add_batch(std::span<const std::uint32_t> requests) {
        const auto batch = static_cast<std::uint32_t>(ends_.size());
        for (const std::uint32_t key : requests) {
            if (last_[key] != kNever) {
                if (uses_[last_[key]].batch == batch) continue;
                uses_[last_[key]].next = batch;
            } else {
                ++compulsory_;
            }
            last_[key] = static_cast<std::uint32_t>(uses_.size());
            uses_.push_back({key, batch, kNever});
        }
        ends_.push_back(static_cast<std::uint32_t>(uses_.size()));
    }

    std::size_t batches() const noexcept { return ends_.size(); }
    /// Distinct keys: what a cache that holds everything loads.
    std::uint64_t compulsory() const noexcept { return compulsory_; }

    /// Calls on_batch(batch, loads) for every batch in order. O(n log n) for n distinct requests,
    /// at any number of slots.
    template <class Fn>
    void replay(std::size_t slots, Fn&& on_batch) const {
        std::vector<std::uint32_t> held(last_.size(), kNever);                // by key: the batch it is held for
        std::priority_queue<std::pair<std::uint32_t, std::uint32_t>> latest;  // (next batch, key), old ones included
        std::size_t count = 0, at = 0;
        for (std::size_t batch = 0; batch < ends_.size(); ++batch) {
            std::uint64_t loads = 0;
            for (; at < ends_[batch]; ++at) {
                const Use& use = uses_[at];
                if (held[use.key] == kNever) {
                    ++loads;
                } else {
                    held[use.key] = kNever;
                    --count;
                }
                if (use.next == kNever) continue;
                held[use.key] = use.next;
                latest.push({use.next, use.key});
                ++count;
            }
            // Entries of intervals that ended are for batches that are past: never at the top while a key is held.
            for (; count > slots; --count) {
                held[latest.top().second] = kNever;
                latest.pop();
            }
            on_batch(batch, loads);
        }
    }

    std::uint64_t loads(std::size_t slots) const {
        std::uint64_t sum = 0;
        replay(slots, [&](std::size_t, std::uint64_t loads) { sum += loads; });
        return sum;
    }

  private:
    static constexpr std::uint32_t kNever = ~std::uint32_t{0};
    struct Use {
        std::uint32_t key, batch, next;  // next: the batch that wants the key again
    };
    std::vector<Use> uses_;
    std::vector<std::uint32_t> ends_;  // of each batch in uses_
    std::vector<std::uint32_t> last_;  // by key: its latest use
    std::uint64_t compulsory_ = 0;
};

}  // namespace k3::stream
#endif
