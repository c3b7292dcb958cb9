#ifndef K3_STREAM_REPLACEMENT_HPP
#define K3_STREAM_REPLACEMENT_HPP
// Which resident expert goes when a slot is needed: LRU, LFRU and S3-FIFO over slots and keys. Decisions only: no
// bytes, no I/O, no clock; time is the number of calls. The engine and the offline simulator use this same code.
// Belady's rule, which needs the future, is in belady.hpp.
//
// Every policy is an order on slots, kept in indexed heaps (slot_heap.hpp), so that a pinned slot can be taken out and
// put back at its own place: pins change no order. O(log slots) an operation, amortised for S3-FIFO.
#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "k3/stream/slot_heap.hpp"

namespace k3::stream {

enum class Policy : std::uint8_t { lru, lfru, s3fifo };

inline constexpr std::array<Policy, 3> kPolicies{Policy::lru, Policy::lfru, Policy::s3fifo};

constexpr std::string_view name(Policy policy) noexcept {
    constexpr std::array<std::string_view, 3> kNames{"lru", "lfru", "s3fifo"};
    return kNames[static_cast<std::size_t>(policy)];
}

/// The policy of that name, or nothing.
constexpr std::optional<Policy> parse_policy(std::string_view text) noexcept {
    for (const Policy policy : kPolicies)
        if (name(policy) == text) return policy;
    return std::nullopt;
}

/// How a touch counts. `first`: a look-ahead is wanted for the first time, which makes it recent but no more frequent
/// than a miss would have made it. `again`: it was used before.
enum class Use : std::uint8_t { first, again };

/// A replacement policy over slots 0..slots-1 holding keys 0..keys-1.
///
/// Meaning  evict() takes the slot that is least under the policy's order among those that are not pinned:
///          lru     the one inserted or touched longest ago.
///          lfru    the least `last + slots * log2(uses)`. `last` is the number, among all inserts and touches, of the
///                  key's latest one. `uses` counts the key's inserts and touches, evictions in between included, and
///                  is halved (rounding down, before the new one is added) for each full 8 * slots steps since the one
///                  before. log2 is in 256ths, linear between powers of two. So each doubling of the uses outweighs
///                  `slots` steps of age, and old fame fades. Equal scores: the lower slot goes.
///          s3fifo  two queues. A new key enters the small one, or the main one if it is among the last `slots` keys
///                  that left the small queue for good (the ghosts). Touches count to at most 3. To evict: if the small
///                  queue has at least max(1, slots / 10) slots, or the main queue none that is not pinned, its oldest
///                  slot with a count > 1 moves to the main queue, count 0, and with less leaves and becomes a ghost;
///                  else the main queue's oldest is requeued with a count one less while that is > 0, else leaves.
/// Requires insert() of slots that hold nothing, everything else of slots that hold something. Not thread-safe.
/// Errors   std::bad_alloc from the constructor only; nothing is allocated later.
class Replacement {
  public:
    static constexpr std::uint32_t kNone = ~std::uint32_t{0};

    Replacement(Policy policy, std::size_t slots, std::size_t keys)
        : policy_(policy),
          slots_(slots),
          heap_(slots),
          main_(policy == Policy::s3fifo ? slots : 0),
          key_(slots),
          last_(policy == Policy::lfru ? keys : 0),
          uses_(policy == Policy::lfru ? keys : 0),
          queue_(policy == Policy::s3fifo ? slots : 0),
          ghost_(policy == Policy::s3fifo ? keys : 0) {}

    Policy policy() const noexcept { return policy_; }

    /// Heap bytes of one with these sizes.
    static constexpr std::uint64_t memory_bytes(Policy policy, std::uint64_t slots, std::uint64_t keys) noexcept {
        const std::uint64_t common = SlotHeap::memory_bytes(slots) + slots * sizeof(std::uint32_t);
        switch (policy) {
            case Policy::lru: return common;
            case Policy::lfru: return common + keys * (sizeof(std::uint64_t) + sizeof(std::uint32_t));
            case Policy::s3fifo:
                return common + SlotHeap::memory_bytes(slots) + slots * sizeof(Queued) + keys * sizeof(std::uint64_t);
        }
        return common;
    }
    std::uint64_t memory_bytes() const noexcept {
        return heap_.memory_bytes() + main_.memory_bytes() + key_.capacity() * sizeof(std::uint32_t) +
               last_.capacity() * sizeof(std::uint64_t) + uses_.capacity() * sizeof(std::uint32_t) +
               queue_.capacity() * sizeof(Queued) + ghost_.capacity() * sizeof(std::uint64_t);
    }

    /// `slot` now holds `key`.
    void insert(std::uint32_t slot, std::uint32_t key) noexcept {
        key_[slot] = key;
        switch (policy_) {
            case Policy::lru: return heap_.add(slot, ++time_);
            case Policy::lfru: return heap_.add(slot, lfru_score(key, 1));
            case Policy::s3fifo:
                if (ghost_[key] != 0 && ghosts_ - ghost_[key] < slots_) {
                    ghost_[key] = 0;
                    queue_[slot] = {0, true};
                    return main_.add(slot, ++time_);
                }
                queue_[slot] = {0, false};
                ++small_size_;
                return heap_.add(slot, ++time_);
        }
    }

    /// The key in `slot` is used, by any number of requests of one batch.
    void touch(std::uint32_t slot, Use use) noexcept {
        switch (policy_) {
            case Policy::lru: return heap_.change(slot, ++time_);
            case Policy::lfru: return heap_.change(slot, lfru_score(key_[slot], use == Use::again ? 1 : 0));
            case Policy::s3fifo:
                if (use == Use::again && queue_[slot].count < 3) ++queue_[slot].count;
        }
    }

    /// A pinned slot is not evicted, and keeps its place in the order. Pins do not nest.
    void pin(std::uint32_t slot) noexcept { heap_of(slot).hide(slot); }
    void unpin(std::uint32_t slot) noexcept { heap_of(slot).show(slot); }

    /// Takes the least slot out, which then holds nothing. kNone if all are pinned.
    std::uint32_t evict() noexcept { return policy_ == Policy::s3fifo ? evict_s3fifo() : heap_.take_least(); }

    /// `slot` holds nothing any more, pinned or not: its load failed. Its key leaves no ghost.
    void remove(std::uint32_t slot) noexcept {
        if (policy_ == Policy::s3fifo && !queue_[slot].main) --small_size_;
        heap_of(slot).remove(slot);
    }

  private:
    struct Queued {
        std::uint8_t count;
        bool main;
    };

    SlotHeap& heap_of(std::uint32_t slot) noexcept {
        return policy_ == Policy::s3fifo && queue_[slot].main ? main_ : heap_;
    }
    /// `key` is used now, and that counts as `more` uses.
    std::uint64_t lfru_score(std::uint32_t key, std::uint32_t more) noexcept {
        ++time_;
        const std::uint64_t halvings = std::min<std::uint64_t>((time_ - last_[key]) / (8 * slots_), 31);
        last_[key] = time_;
        uses_[key] = std::max<std::uint32_t>((uses_[key] >> halvings) + more, 1);
        return time_ + slots_ * log2_256ths(uses_[key]) / 256;
    }
    static constexpr std::uint64_t log2_256ths(std::uint64_t n) noexcept {
        const auto whole = static_cast<unsigned>(std::bit_width(n) - 1);
        return whole * 256 + (((n << 8) >> whole) - 256);
    }

    std::uint32_t evict_s3fifo() noexcept {
        const std::size_t small_target = std::max<std::size_t>(1, slots_ / 10);
        while (true) {
            if (!heap_.empty() && (small_size_ >= small_target || main_.empty())) {
                const std::uint32_t slot = heap_.take_least();
                --small_size_;
                if (queue_[slot].count > 1) {
                    queue_[slot] = {0, true};
                    main_.add(slot, ++time_);
                    continue;
                }
                ghost_[key_[slot]] = ++ghosts_;
                return slot;
            }
            const std::uint32_t slot = main_.take_least();
            if (slot == kNone || queue_[slot].count == 0) return slot;
            --queue_[slot].count;
            main_.add(slot, ++time_);
        }
    }

    Policy policy_;
    std::uint64_t slots_;
    std::uint64_t time_ = 0;
    SlotHeap heap_;  // s3fifo: the small queue
    SlotHeap main_;
    std::vector<std::uint32_t> key_;
    std::vector<std::uint64_t> last_;  // by key
    std::vector<std::uint32_t> uses_;  // by key
    std::vector<Queued> queue_;
    std::vector<std::uint64_t> ghost_;  // by key: the number of its departure from the small queue, 0 if it is no ghost
    std::uint64_t ghosts_ = 0;          // departures so far
    std::size_t small_size_ = 0;        // pinned slots included
};

}  // namespace k3::stream
#endif
