#ifndef K3_STREAM_EXPERT_SLOTS_HPP
#define K3_STREAM_EXPERT_SLOTS_HPP
// Which expert is in which slot, and the counters: the decisions of the expert cache, without bytes, I/O or threads.
// The engine and the offline simulator drive this same class with the same events, a pure function of the sequence of
// requests and never of timing, so their counters agree to the digit.
//
// A key is layer * experts + expert. A batch is all requests of one layer in one step. Its events:
//   1. The distinct keys in order of first request; those that are resident first, then the missing ones.
//   2. For the i-th of that order: if i >= depth, key i - depth is released; then key i is reserved. At the end the
//   rest
//      is released in order. depth = clamp(slots - 1, 1, kMostInFlight).
//   3. Reserving pins: resident keys stay where they are, missing ones get an empty slot or the policy's victim.
//      Since all resident keys come first and at most `depth` slots are pinned, nothing this batch still needs is
//      evicted, and a victim always exists.
// Look-aheads (prefetch) come between batches. They, and predicted keys that are there already, are kept until the next
// batch begins: one look-ahead does not push out another.
#include <algorithm>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "k3/stream/replacement.hpp"

namespace k3::stream {

/// Most reads of one batch under way at a time.
inline constexpr std::size_t kMostInFlight = 64;

/// requests == resident_hits + prefetched_hits + lookahead_hits + misses. Bytes are counts times expert bytes.
struct CacheCounters {
    std::uint64_t requests = 0;          ///< (token, rank) pairs
    std::uint64_t resident_hits = 0;     ///< the expert was there, and had been used before
    std::uint64_t prefetched_hits = 0;   ///< its load was caused by an earlier request of the same batch
    std::uint64_t lookahead_hits = 0;    ///< first request for an expert that a look-ahead loaded
    std::uint64_t misses = 0;            ///< first request of the batch for an absent expert: a load
    std::uint64_t evictions = 0;         ///< an expert was pushed out of its slot
    std::uint64_t lookahead_loads = 0;   ///< loads that look-ahead caused
    std::uint64_t lookahead_wasted = 0;  ///< of these, pushed out or dropped before any request
    std::uint64_t drops = 0;             ///< experts forgotten because their load failed

    /// Experts read.
    constexpr std::uint64_t loads() const noexcept { return misses + lookahead_loads; }

    template <class Fn>  // fn(name, member): one list for printing, reading and comparing
    static constexpr void for_each(Fn&& fn) {
        fn("requests", &CacheCounters::requests);
        fn("resident_hits", &CacheCounters::resident_hits);
        fn("prefetched_hits", &CacheCounters::prefetched_hits);
        fn("lookahead_hits", &CacheCounters::lookahead_hits);
        fn("misses", &CacheCounters::misses);
        fn("evictions", &CacheCounters::evictions);
        fn("lookahead_loads", &CacheCounters::lookahead_loads);
        fn("lookahead_wasted", &CacheCounters::lookahead_wasted);
        fn("drops", &CacheCounters::drops);
    }
    constexpr CacheCounters& operator+=(const CacheCounters& other) noexcept {
        for_each([&](const char*, auto member) { this->*member += other.*member; });
        return *this;
    }
    /// What happened between two snapshots.
    friend constexpr CacheCounters operator-(CacheCounters later, const CacheCounters& earlier) noexcept {
        for_each([&](const char*, auto member) { later.*member -= earlier.*member; });
        return later;
    }
    friend constexpr bool operator==(const CacheCounters&, const CacheCounters&) noexcept = default;
};

/// What reserving an expert found: it was there; a look-ahead had loaded it and this is its first use (its load may
/// still be in flight); or it must be loaded now.
enum class Outcome : std::uint8_t { resident, lookahead, miss };

class ExpertSlots {
  public:
    static constexpr std::uint32_t kNone = ~std::uint32_t{0};

    /// `most_distinct` is the most distinct keys of a batch (experts of a layer): memory is reserved for so many, and
    /// grows if a batch has more. The caller makes sure that slots >= top_k + 1 (the planner refuses less); any
    /// slots >= 1 works here, and none where there is nothing to ask for.
    ExpertSlots(std::size_t slots, std::size_t keys, Policy policy, std::size_t most_distinct)
        : replacement_(policy, slots, keys),
          slot_of_(keys, kNone),
          key_of_(slots, kNone),
          flags_(slots),
          seen_(keys),
          depth_(depth_of(slots)) {
        empty_.reserve(slots);
        for (std::size_t slot = slots; slot-- > 0;) empty_.push_back(static_cast<std::uint32_t>(slot));
        kept_.reserve(slots);
        order_.reserve(most_distinct);
        missing_.reserve(most_distinct);
    }

    std::size_t slots() const noexcept { return key_of_.size(); }
    std::size_t keys() const noexcept { return slot_of_.size(); }
    Policy policy() const noexcept { return replacement_.policy(); }
    /// Most experts reserved at a time within a batch.
    std::size_t depth() const noexcept { return depth_; }
    static constexpr std::size_t depth_of(std::size_t slots) noexcept {
        return std::clamp<std::size_t>(slots == 0 ? 0 : slots - 1, 1, kMostInFlight);
    }
    const CacheCounters& counters() const noexcept { return counters_; }

    /// The slot of a key, or kNone; the key in a slot, or kNone.
    std::uint32_t slot_of(std::uint32_t key) const noexcept { return slot_of_[key]; }
    std::uint32_t key_of(std::uint32_t slot) const noexcept { return key_of_[slot]; }
    bool is_pinned(std::uint32_t slot) const noexcept { return (flags_[slot] & kPinned) != 0; }

    /// Heap bytes of one with these sizes, before it is made.
    static constexpr std::uint64_t memory_bytes(Policy policy, std::uint64_t slots, std::uint64_t keys,
                                                std::uint64_t most_distinct) noexcept {
        return Replacement::memory_bytes(policy, slots, keys) + keys * (sizeof(std::uint32_t) + 1) +
               slots * (3 * sizeof(std::uint32_t) + 1) + most_distinct * 2 * sizeof(std::uint32_t);
    }
    std::uint64_t memory_bytes() const noexcept {
        return replacement_.memory_bytes() + flags_.capacity() + seen_.capacity() +
               sizeof(std::uint32_t) * (slot_of_.capacity() + key_of_.capacity() + empty_.capacity() +
                                        kept_.capacity() + order_.capacity() + missing_.capacity());
    }

    /// Runs one batch. `requests` are keys, token-major in rank order; requests of tokens that already failed are left
    /// out by the caller.
    ///
    /// on_reserve(i, key, slot, outcome): the i-th distinct key has `slot` until it is released. A miss: the load into
    ///   `slot` is started. What the slot held before is gone; if that was a wasted look-ahead, its load may still be
    ///   in flight, and the slot must not be filled again before it has ended.
    /// on_release(i, key, slot) -> bool: the user finishes with the expert (waits, computes). false: its load failed;
    ///   the slot becomes empty and the key is forgotten.
    /// Neither may throw or call this object.
    template <class Reserve, class Release>
    void batch(std::span<const std::uint32_t> requests, Reserve&& on_reserve, Release&& on_release) {
        assert(slots() >= 1 || requests.empty());
        for (const std::uint32_t slot : kept_) unpin(slot);
        kept_.clear();
        collect(requests);
        const std::size_t residents = order_.size();
        order_.insert(order_.end(), missing_.begin(), missing_.end());
        const auto release = [&](std::size_t i) {
            const std::uint32_t key = order_[i], slot = slot_of_[key];
            const bool sound = on_release(i, key, slot);
            unpin(slot);
            if (!sound) forget(key);
        };
        for (std::size_t i = 0; i < order_.size(); ++i) {
            if (i >= depth_) release(i - depth_);
            const std::uint32_t key = order_[i];
            const auto [slot, outcome] = i < residents ? reuse(key) : load(key);
            pin(slot);
            on_reserve(i, key, slot, outcome);
        }
        for (std::size_t i = order_.size() > depth_ ? order_.size() - depth_ : 0; i < order_.size(); ++i) release(i);
    }

    /// Look-ahead: the slot that `key` is to be loaded into, or nothing if it is there already or every slot is pinned.
    /// Either way a key that is there is kept until the next batch begins. Between batches only.
    std::optional<std::uint32_t> prefetch(std::uint32_t key) noexcept {
        std::uint32_t slot = slot_of_[key];
        const bool absent = slot == kNone;
        if (absent) {
            slot = take_slot();
            if (slot == kNone) return std::nullopt;
            occupy(slot, key);
            flags_[slot] |= kUnused;
            ++counters_.lookahead_loads;
        }
        if (!is_pinned(slot)) {
            pin(slot);
            kept_.push_back(slot);
        }
        return absent ? std::optional(slot) : std::nullopt;
    }

    /// A look-ahead's load failed, found between batches: its slot becomes empty. Counts a drop.
    void drop(std::uint32_t key) noexcept {
        const std::uint32_t slot = slot_of_[key];
        if (slot == kNone) return;
        kept_.erase(std::remove(kept_.begin(), kept_.end(), slot), kept_.end());
        if (is_pinned(slot)) unpin(slot);
        forget(key);
    }

  private:
    static constexpr std::uint8_t kPinned = 1, kUnused = 2;  // kUnused: a look-ahead that nothing asked for yet

    /// Counts the requests and sorts the distinct keys into order_ (resident) and missing_. Nothing moves meanwhile, so
    /// a further request finds the same as the first.
    void collect(std::span<const std::uint32_t> requests) {
        order_.clear();
        missing_.clear();
        counters_.requests += requests.size();
        for (const std::uint32_t key : requests) {
            assert(key < keys());
            const std::uint32_t slot = slot_of_[key];
            if (slot == kNone) {
                ++(seen_[key] != 0 ? counters_.prefetched_hits : counters_.misses);
                if (seen_[key] == 0) missing_.push_back(key);
            } else {
                const bool unused = seen_[key] == 0 && (flags_[slot] & kUnused) != 0;
                ++(unused ? counters_.lookahead_hits : counters_.resident_hits);
                if (seen_[key] == 0) order_.push_back(key);
            }
            seen_[key] = 1;
        }
        for (const std::uint32_t key : requests) seen_[key] = 0;
    }

    std::pair<std::uint32_t, Outcome> reuse(std::uint32_t key) noexcept {
        const std::uint32_t slot = slot_of_[key];
        const bool unused = (flags_[slot] & kUnused) != 0;
        flags_[slot] &= static_cast<std::uint8_t>(~kUnused);
        replacement_.touch(slot, unused ? Use::first : Use::again);
        return {slot, unused ? Outcome::lookahead : Outcome::resident};
    }
    std::pair<std::uint32_t, Outcome> load(std::uint32_t key) noexcept {
        const std::uint32_t slot = take_slot();
        assert(slot != kNone);
        occupy(slot, key);
        return {slot, Outcome::miss};
    }

    /// An empty slot, else the victim's, else kNone.
    std::uint32_t take_slot() noexcept {
        if (!empty_.empty()) {
            const std::uint32_t slot = empty_.back();
            empty_.pop_back();
            return slot;
        }
        const std::uint32_t slot = replacement_.evict();
        if (slot == kNone) return kNone;
        ++counters_.evictions;
        vacate(slot);
        return slot;
    }
    void occupy(std::uint32_t slot, std::uint32_t key) noexcept {
        slot_of_[key] = slot;
        key_of_[slot] = key;
        replacement_.insert(slot, key);
    }
    void vacate(std::uint32_t slot) noexcept {
        if ((flags_[slot] & kUnused) != 0) ++counters_.lookahead_wasted;
        slot_of_[key_of_[slot]] = kNone;
        key_of_[slot] = kNone;
        flags_[slot] = 0;
    }
    void forget(std::uint32_t key) noexcept {
        const std::uint32_t slot = slot_of_[key];
        ++counters_.drops;
        replacement_.remove(slot);
        vacate(slot);
        empty_.push_back(slot);
    }
    void pin(std::uint32_t slot) noexcept {
        flags_[slot] |= kPinned;
        replacement_.pin(slot);
    }
    void unpin(std::uint32_t slot) noexcept {
        flags_[slot] &= static_cast<std::uint8_t>(~kPinned);
        replacement_.unpin(slot);
    }

    Replacement replacement_;
    std::vector<std::uint32_t> slot_of_, key_of_;
    std::vector<std::uint8_t> flags_;   // by slot
    std::vector<std::uint8_t> seen_;    // by key, within collect()
    std::vector<std::uint32_t> empty_;  // a stack; slot 0 is used first
    std::vector<std::uint32_t> kept_;   // pinned until the next batch
    std::vector<std::uint32_t> order_, missing_;
    std::size_t depth_;
    CacheCounters counters_{};
};

}  // namespace k3::stream
#endif
