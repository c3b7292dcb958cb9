#ifndef K3_TEXT_BPE_HPP
#define K3_TEXT_BPE_HPP
// Byte-level BPE by ranks. A piece that is a token as a whole is that token; any other starts as single bytes, and the
// adjacent pair whose concatenation has the lowest rank is merged, the leftmost one on ties, until no pair is a token.
//
// The parts are a linked list over byte positions. Where the next pair comes from depends on the length: for a short
// piece (nearly all are) from a look at all pairs, which is a few vector instructions; for a long one that would take
// hours on a megabyte of one letter, and a heap makes it O(n log n). No recursion.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <string_view>
#include <vector>

#include "k3/text/rank_file.hpp"

namespace k3::text {

namespace detail {

/// A pair that may be merged: its rank, and the byte position of its left part.
struct RankedPair {
    TokenId rank;  // kNoToken: there is none
    std::uint32_t at;
};

/// The pairs of a piece of at most 256 bytes, one place for each position: smallest first, by rank and position.
class FewPairs {
  public:
    static constexpr std::size_t kMost = 256;
    static constexpr std::size_t kMostRanks = std::size_t{1} << 23;  // rank and position share 31 bits

    void start(std::size_t size) {
        places_ = (size + kBlock - 1) / kBlock * kBlock;
        std::fill_n(keys_.begin(), places_, kNone);
    }
    void put(RankedPair pair) {
        keys_[pair.at] = pair.rank == kNoToken ? kNone : pair.rank << 8 | static_cast<int>(pair.at);
    }
    RankedPair take() const {
        std::array<std::int32_t, kBlock> least;  // blocks of a fixed length: the compiler uses vectors for them
        least.fill(kNone);
        for (std::size_t from = 0; from < places_; from += kBlock)
            for (std::size_t i = 0; i < kBlock; ++i) least[i] = std::min(least[i], keys_[from + i]);
        const std::int32_t key = *std::min_element(least.begin(), least.end());
        return key == kNone ? RankedPair{kNoToken, 0} : RankedPair{key >> 8, static_cast<std::uint32_t>(key & 255)};
    }

  private:
    static constexpr std::size_t kBlock = 16;
    static constexpr std::int32_t kNone = std::numeric_limits<std::int32_t>::max();
    std::array<std::int32_t, kMost> keys_{};
    std::size_t places_ = 0;
};

/// Any number of pairs. Those that a neighbour's merge has changed stay in the heap: the caller knows them by their
/// rank.
class ManyPairs {
  public:
    void start(std::size_t) { heap_.clear(); }
    void put(RankedPair pair) {
        if (pair.rank == kNoToken) return;
        heap_.push_back(std::uint64_t{static_cast<std::uint32_t>(pair.rank)} << 32 | pair.at);
        std::push_heap(heap_.begin(), heap_.end(), std::greater<>());
    }
    RankedPair take() {
        if (heap_.empty()) return {kNoToken, 0};
        std::pop_heap(heap_.begin(), heap_.end(), std::greater<>());
        const std::uint64_t entry = heap_.back();
        heap_.pop_back();
        return {static_cast<TokenId>(entry >> 32), static_cast<std::uint32_t>(entry)};
    }

  private:
    std::vector<std::uint64_t> heap_;
};

}  // namespace detail

/// Scratch space for merging; one per thread, reused from piece to piece.
class Merger {
  public:
    /// Appends the tokens of one piece. Requires a non-empty piece below 4 GiB (the official cuts keep them below 101
    /// kB).
    void encode(std::string_view piece, const RankFile& ranks, std::vector<TokenId>& out) {
        if (const TokenId whole = ranks.find(piece); whole != kNoToken) {
            out.push_back(whole);
        } else if (piece.size() <= detail::FewPairs::kMost && ranks.size() <= detail::FewPairs::kMostRanks) {
            merge_all(few_, piece, ranks, out);
        } else {
            merge_all(many_, piece, ranks, out);
        }
    }

  private:
    /// The part that starts at this byte position, if one does.
    struct Part {
        std::uint32_t previous, next;  // starts of the neighbours; next of the last part is the piece's size
        TokenId token;                 // its own rank
        TokenId pair;                  // the rank of it and the next part together, or kNoToken
    };

    template <class Pairs>
    void merge_all(Pairs& pairs, std::string_view piece, const RankFile& ranks, std::vector<TokenId>& out) {
        const auto size = static_cast<std::uint32_t>(piece.size());
        if (parts_.size() < size) parts_.resize(size);
        pairs.start(size);
        for (std::uint32_t at = 0; at < size; ++at) {
            const TokenId pair = at + 1 < size ? ranks.find_pair(piece[at], piece[at + 1]) : kNoToken;
            parts_[at] = {at - 1, at + 1, ranks.find_byte(piece[at]), pair};
            pairs.put({pair, at});
        }
        const auto find_pair = [&](std::uint32_t at) {
            Part& part = parts_[at];
            part.pair = part.next < size ? ranks.find(piece.substr(at, parts_[part.next].next - at)) : kNoToken;
            pairs.put({part.pair, at});
        };
        for (;;) {
            const detail::RankedPair best = pairs.take();
            if (best.rank == kNoToken) break;
            Part& part = parts_[best.at];
            if (part.pair != best.rank) continue;  // a neighbour's merge made it stale
            Part& gone = parts_[part.next];
            gone.pair = kNoToken;
            pairs.put({kNoToken, part.next});
            part.token = part.pair;
            part.next = gone.next;
            if (part.next < size) parts_[part.next].previous = best.at;
            find_pair(best.at);
            if (best.at > 0) find_pair(part.previous);
        }
        for (std::uint32_t at = 0; at < size; at = parts_[at].next) out.push_back(parts_[at].token);
    }

    std::vector<Part> parts_;
    detail::FewPairs few_;
    detail::ManyPairs many_;
};

}  // namespace k3::text
#endif
