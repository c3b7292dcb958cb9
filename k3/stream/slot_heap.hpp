#ifndef K3_STREAM_SLOT_HEAP_HPP
#define K3_STREAM_SLOT_HEAP_HPP
// A binary min-heap of slots by a 64-bit rank, with the place of every slot known: any member can be changed, hidden
// and shown again in O(log slots). Equal ranks: the lower slot is less, so that no order depends on the heap's history.
#include <cstddef>
#include <cstdint>
#include <vector>

namespace k3::stream {

class SlotHeap {
  public:
    static constexpr std::uint32_t kNone = ~std::uint32_t{0};

    /// Members are slots 0..slots-1. All memory is allocated here.
    explicit SlotHeap(std::size_t slots) : place_(slots, kNone), rank_(slots) { heap_.reserve(slots); }

    static constexpr std::uint64_t memory_bytes(std::uint64_t slots) noexcept {
        return slots * (2 * sizeof(std::uint32_t) + sizeof(std::uint64_t));
    }
    std::uint64_t memory_bytes() const noexcept {
        return (heap_.capacity() + place_.capacity()) * sizeof(std::uint32_t) +
               rank_.capacity() * sizeof(std::uint64_t);
    }

    /// No member is visible.
    bool empty() const noexcept { return heap_.empty(); }

    void add(std::uint32_t slot, std::uint64_t rank) noexcept {
        rank_[slot] = rank;
        show(slot);
    }
    /// A hidden slot keeps hidden and has the new rank when it is shown.
    void change(std::uint32_t slot, std::uint64_t rank) noexcept {
        rank_[slot] = rank;
        if (place_[slot] != kNone) settle(place_[slot], slot);
    }
    void hide(std::uint32_t slot) noexcept { remove(slot); }
    void show(std::uint32_t slot) noexcept {
        heap_.push_back(slot);  // within the reserved capacity
        settle(static_cast<std::uint32_t>(heap_.size() - 1), slot);
    }
    /// Takes a slot out, hidden or not.
    void remove(std::uint32_t slot) noexcept {
        const std::uint32_t hole = place_[slot];
        if (hole == kNone) return;
        place_[slot] = kNone;
        const std::uint32_t moved = heap_.back();
        heap_.pop_back();
        if (moved != slot) settle(hole, moved);
    }
    /// Takes the least visible slot out. kNone if there is none.
    std::uint32_t take_least() noexcept {
        if (heap_.empty()) return kNone;
        const std::uint32_t least = heap_[0];
        remove(least);
        return least;
    }

  private:
    bool less(std::uint32_t a, std::uint32_t b) const noexcept {
        return rank_[a] != rank_[b] ? rank_[a] < rank_[b] : a < b;
    }
    void put(std::size_t at, std::uint32_t slot) noexcept {
        heap_[at] = slot;
        place_[slot] = static_cast<std::uint32_t>(at);
    }
    /// `slot` goes where it belongs, starting from the hole `at`.
    void settle(std::size_t at, std::uint32_t slot) noexcept {
        while (at > 0 && less(slot, heap_[(at - 1) / 2])) {
            put(at, heap_[(at - 1) / 2]);
            at = (at - 1) / 2;
        }
        for (std::size_t child = 2 * at + 1; child < heap_.size(); child = 2 * at + 1) {
            if (child + 1 < heap_.size() && less(heap_[child + 1], heap_[child])) ++child;
            if (!less(heap_[child], slot)) break;
            put(at, heap_[child]);
            at = child;
        }
        put(at, slot);
    }

    std::vector<std::uint32_t> heap_;
    std::vector<std::uint32_t> place_;  // in heap_, or kNone
    std::vector<std::uint64_t> rank_;
};

}  // namespace k3::stream
#endif
