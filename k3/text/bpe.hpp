#ifndef K3_TEXT_BPE_HPP
#define K3_TEXT_BPE_HPP
// Byte-level BPE by ranks. A piece that is a token as a whole is that token; any other starts as single bytes, and the
// adjacent pair whose concatenation has the lowest rank is merged, the leftmost one on ties, until no pair is a token.
//
// The parts are a linked list over byte positions and the pairs wait in a heap, so a piece of n bytes takes O(n log n)
// steps and no recursion: scanning for the best pair again after each merge would take hours on a megabyte of one
// letter.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string_view>
#include <vector>

#include "k3/text/rank_file.hpp"

namespace k3::text {

/// Scratch space for merging; one per thread, reused from piece to piece.
class Merger {
  public:
    /// Appends the tokens of one piece. Requires a non-empty piece below 4 GiB (the official cuts keep them below 101
    /// kB).
    void encode(std::string_view piece, const RankFile& ranks, std::vector<TokenId>& out) {
        if (const TokenId whole = ranks.find(piece); whole != kNoToken) {
            out.push_back(whole);
            return;
        }
        start(piece, ranks);
        while (!heap_.empty()) {
            std::pop_heap(heap_.begin(), heap_.end(), std::greater<>());
            const std::uint64_t entry = heap_.back();
            heap_.pop_back();
            const auto rank = static_cast<TokenId>(entry >> 32);
            const auto left = static_cast<std::uint32_t>(entry);
            if (parts_[left].pair == rank) merge(left, piece, ranks);  // else a neighbour's merge made it stale
        }
        for (std::uint32_t at = 0; at < piece.size(); at = parts_[at].next) out.push_back(parts_[at].token);
    }

  private:
    /// The part that starts at this byte position, if one does.
    struct Part {
        std::uint32_t previous, next;  // starts of the neighbours; next of the last part is the piece's size
        TokenId token;                 // its own rank
        TokenId pair;                  // the rank of it and the next part together, or kNoToken
    };

    void start(std::string_view piece, const RankFile& ranks) {
        const auto size = static_cast<std::uint32_t>(piece.size());
        parts_.resize(size);
        heap_.clear();
        for (std::uint32_t at = 0; at < size; ++at) {
            const TokenId pair = at + 1 < size ? ranks.find(piece.substr(at, 2)) : kNoToken;
            parts_[at] = {at - 1, at + 1, ranks.find(piece.substr(at, 1)), pair};
            if (pair != kNoToken) heap_.push_back(entry_of(pair, at));
        }
        std::make_heap(heap_.begin(), heap_.end(), std::greater<>());
    }

    void merge(std::uint32_t left, std::string_view piece, const RankFile& ranks) {
        Part& part = parts_[left];
        Part& gone = parts_[part.next];
        part.token = part.pair;
        part.next = gone.next;
        gone.pair = kNoToken;
        if (part.next < piece.size()) parts_[part.next].previous = left;
        find_pair(left, piece, ranks);
        if (left > 0) find_pair(part.previous, piece, ranks);
    }

    void find_pair(std::uint32_t at, std::string_view piece, const RankFile& ranks) {
        Part& part = parts_[at];
        part.pair = part.next < piece.size() ? ranks.find(piece.substr(at, parts_[part.next].next - at)) : kNoToken;
        if (part.pair == kNoToken) return;
        heap_.push_back(entry_of(part.pair, at));
        std::push_heap(heap_.begin(), heap_.end(), std::greater<>());
    }

    /// Smallest first: by rank, then by position.
    static std::uint64_t entry_of(TokenId rank, std::uint32_t at) {
        return std::uint64_t{static_cast<std::uint32_t>(rank)} << 32 | at;
    }

    std::vector<Part> parts_;
    std::vector<std::uint64_t> heap_;
};

}  // namespace k3::text
#endif
