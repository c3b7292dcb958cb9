#ifndef K3_DRIVERS_SYNTH_SPARSE_HPP
#define K3_DRIVERS_SYNTH_SPARSE_HPP
// Which blocks of a shard a sparse checkpoint stores; the rest are holes, which read as zeros.
//
//   whole     header, norms, biases, A_log, convolutions, router gates, embedding, lm_head, anything below 2 MiB
//   windows   one block in every 4 MiB (256 KiB in the narrow MLA matrices), at an offset that varies from window to
//             window and from shard to shard, and is the same for tensors of one size: q, k, v and the output gate then
//             meet in the same channels, gate and up of an expert in the same rows. Placed at random they would not,
//             and every product of the two would be zero.
//   experts   one block of codes a matrix and the block with its scales, in 11 of 16 experts; the others are zeros.
//
// Zeros are harmless: a code of +0 times 2^-127 is +0, and every norm adds its epsilon. Weights that are stored are
// kPagedGain times as large as in a full checkpoint, so that what is left of each layer still moves the residual by
// about its own size. Blocks lie on multiples of 4096 of the *file*, where file systems have their holes; a tensor does
// not start on one. The header's size therefore decides where the blocks are.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "drivers/synth/values.hpp"
#include "k3/checkpoint/safetensors_writer.hpp"

namespace k3::synth {

inline constexpr std::uint64_t kBlock = 4096;
inline constexpr std::uint64_t kWindow = std::uint64_t{4} << 20, kNarrowWindow = std::uint64_t{256} << 10;
inline constexpr std::uint64_t kSmallTensor = std::uint64_t{2} << 20;
inline constexpr double kPagedGain = 8, kPagedExpertGain = 16;

/// What of one tensor a sparse checkpoint stores.
struct Pages {
    enum class Kind : std::uint8_t {
        whole,    ///< all of it
        windows,  ///< one block in every `window` bytes
        codes,    ///< one block of an MXFP4 matrix, or none
        scales    ///< the block with the scales of that one; follows the codes in the shard
    };
    Kind kind = Kind::whole;
    std::uint64_t window = 0;
    std::uint64_t expert = 0;  // layer and number of an expert's tensors: its matrices share a draw
};

/// Bytes [begin, end) of a file.
struct Extent {
    std::uint64_t begin, end;
    friend bool operator==(const Extent&, const Extent&) = default;
};

namespace detail {
/// The blocks that lie inside [begin, end) as a whole; empty if there are none.
inline Extent blocks_inside(std::uint64_t begin, std::uint64_t end) noexcept {
    const std::uint64_t first = (begin + kBlock - 1) / kBlock * kBlock;
    return {first, std::max(first, end / kBlock * kBlock)};
}
inline Extent pick_block(const Extent& blocks, std::uint64_t draw) noexcept {
    const std::uint64_t count = (blocks.end - blocks.begin) / kBlock;
    const std::uint64_t at = blocks.begin + (count == 0 ? 0 : draw % count) * kBlock;
    return {at, count == 0 ? at : at + kBlock};
}
inline bool is_live_expert(std::uint64_t draw) noexcept { return (draw >> 60) < 11; }
}  // namespace detail

/// The stored extents of a shard, ascending, at least a block apart, and block-aligned but for the end of the file.
/// `key` is the shard's draw, `data_begin` the size of its header.
inline std::vector<Extent> stored_extents(std::span<const checkpoint::WriterTensor> tensors,
                                          std::span<const Pages> pages, std::uint64_t data_begin, std::uint64_t key) {
    std::vector<Extent> found;
    const auto store = [&found](Extent extent) {
        if (extent.begin == extent.end) return;
        extent = {extent.begin / kBlock * kBlock, (extent.end + kBlock - 1) / kBlock * kBlock};
        // Tensors come in the order of the file, so the blocks do too.
        if (!found.empty() && extent.begin <= found.back().end) {
            found.back().end = std::max(found.back().end, extent.end);
        } else {
            found.push_back(extent);
        }
    };
    store({0, data_begin});
    std::uint64_t begin = data_begin, codes_at = 0;  // codes_at: where in its tensor the last block of codes begins
    bool live = false;
    for (std::size_t i = 0; i < tensors.size(); ++i) {
        const std::uint64_t bytes = tensors[i].bytes(), end = begin + bytes;
        const std::uint64_t draw = word(key, pages[i].expert);
        switch (pages[i].kind) {
            case Pages::Kind::whole: store({begin, end}); break;
            case Pages::Kind::windows:
                for (std::uint64_t at = 0, w = 0; at < bytes; at += pages[i].window, ++w) {
                    const std::uint64_t stop = std::min(at + pages[i].window, bytes);
                    store(detail::pick_block(detail::blocks_inside(begin + at, begin + stop), word(key, w)));
                }
                break;
            case Pages::Kind::codes:
                live = detail::is_live_expert(draw);
                if (live) {
                    const Extent block = detail::pick_block(detail::blocks_inside(begin, end), draw);
                    codes_at = block.begin - begin;
                    store(block);
                }
                break;
            case Pages::Kind::scales:  // 16 bytes of codes are 32 weights, which share a scale
                if (live) {
                    const std::uint64_t middle = begin + (codes_at + kBlock / 2) / 16;
                    store({middle / kBlock * kBlock, middle / kBlock * kBlock + kBlock});
                }
                break;
        }
        begin = end;
    }
    if (!found.empty()) found.back().end = std::min(found.back().end, begin);
    return found;
}

inline std::uint64_t stored_bytes(std::span<const Extent> extents) noexcept {
    std::uint64_t total = 0;
    for (const Extent& extent : extents) total += (extent.end - extent.begin + kBlock - 1) / kBlock * kBlock;
    return total;
}

}  // namespace k3::synth
#endif
