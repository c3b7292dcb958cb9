#ifndef K3_STREAM_TRUNK_LAYOUT_HPP
#define K3_STREAM_TRUNK_LAYOUT_HPP
// Which matrices of the trunk stay in memory, and in which panels the others pass by. Arithmetic only: nothing is read
// or allocated, so a plan can try many budgets.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <string_view>
#include <vector>

#include "k3/io/stream_file.hpp"
#include "k3/model/bound_model.hpp"
#include "k3/model/tensor_names.hpp"
#include "k3/stream/stream_files.hpp"

namespace k3::stream {

/// A matrix of the trunk, in the order in which a step uses them (the walk).
struct TrunkMatrix {
    Place place{};
    std::size_t rows = 0, row_bytes = 0, element_bytes = 2;
    bool router = false;     // the router's gate
    bool lm_head = false;    // used only by steps that want logits
    bool undivided = false;  // asked for whole (kv_b): it cannot be cut into panels

    std::uint64_t window_bytes() const noexcept { return io::window_of(place.offset, place.bytes).bytes; }
};

/// Rows [first, first + rows) of matrix number `matrix` of the walk: what one read of the ring brings.
struct TrunkPanel {
    std::uint32_t matrix;
    std::size_t first, rows;
};

inline std::vector<TrunkMatrix> make_walk(const model::BoundModel& model, const StreamFiles& files) {
    std::vector<TrunkMatrix> walk;
    for (const model::BoundModel::Matrix& m : model.matrices()) {
        const std::string_view name = m.name;
        TrunkMatrix matrix;
        matrix.place = files.place(name, m.info);
        matrix.rows = m.weight->rows;
        matrix.row_bytes = m.info.bytes / matrix.rows;
        matrix.element_bytes = m.weight->format == layers::Format::f32 ? 4 : 2;
        matrix.router = name.ends_with(model::names::moe::kRouter);
        matrix.lm_head = name == model::names::kLmHead;
        matrix.undivided = name.ends_with(model::names::mla::kKvUp);
        walk.push_back(matrix);
    }
    return walk;
}

inline constexpr std::uint64_t kPanelBytes = std::uint64_t{16} << 20;

/// The matrices to keep within `budget` bytes: all that are small first (thousands of tiny reads otherwise), then the
/// routers' gates (they make look-ahead possible), then the rest spread over the walk in proportion to its bytes, so
/// that the ring keeps filling while layers that are in memory compute; lm_head last. Exact to the last matrix that
/// fits. result[i]: matrix i stays.
inline std::vector<bool> choose_pinned(const std::vector<TrunkMatrix>& walk, std::uint64_t budget) {
    constexpr std::uint64_t kSmall = std::uint64_t{4} << 20;
    std::vector<bool> pinned(walk.size(), false);
    std::uint64_t used = 0;
    const auto pin = [&](std::size_t i) {
        const std::uint64_t bytes = walk[i].window_bytes();
        if (pinned[i] || bytes > budget - used) return;
        pinned[i] = true;
        used += bytes;
    };
    for (std::size_t i = 0; i < walk.size(); ++i)
        if (!walk[i].lm_head && walk[i].window_bytes() <= kSmall) pin(i);
    for (std::size_t i = 0; i < walk.size(); ++i)
        if (walk[i].router) pin(i);

    std::uint64_t rest = 0;
    for (std::size_t i = 0; i < walk.size(); ++i)
        if (!pinned[i] && !walk[i].lm_head) rest += walk[i].window_bytes();
    // Error diffusion: along the walk, the kept bytes follow the share that the budget allows.
    const double share = rest == 0 ? 0 : std::min(1.0, static_cast<double>(budget - used) / static_cast<double>(rest));
    double owed = 0;
    for (std::size_t i = 0; i < walk.size(); ++i) {
        if (pinned[i] || walk[i].lm_head) continue;
        const auto bytes = static_cast<double>(walk[i].window_bytes());
        owed += bytes * share;
        if (owed < bytes / 2) continue;
        pin(i);
        if (pinned[i]) owed -= bytes;
    }
    // What is left over takes whatever still fits, large matrices first.
    std::vector<std::size_t> order(walk.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
        if (walk[a].lm_head != walk[b].lm_head) return walk[b].lm_head;
        return walk[a].window_bytes() > walk[b].window_bytes();
    });
    for (const std::size_t i : order) pin(i);
    return pinned;
}

inline std::uint64_t pinned_bytes(const std::vector<TrunkMatrix>& walk, const std::vector<bool>& pinned) {
    std::uint64_t bytes = 0;
    for (std::size_t i = 0; i < walk.size(); ++i)
        if (pinned[i]) bytes += walk[i].window_bytes();
    return bytes;
}

/// Bytes that a step reads because they do not stay; those of lm_head only if it wants logits.
struct StreamedBytes {
    std::uint64_t per_step = 0, lm_head = 0;
};
inline StreamedBytes streamed_bytes(const std::vector<TrunkMatrix>& walk, const std::vector<bool>& pinned) {
    StreamedBytes sum;
    for (std::size_t i = 0; i < walk.size(); ++i) {
        if (pinned[i]) continue;
        (walk[i].lm_head ? sum.lm_head : sum.per_step) += walk[i].place.bytes;
    }
    return sum;
}

/// One slot of the ring: the largest panel there can be.
inline std::uint64_t ring_slot_bytes(const std::vector<TrunkMatrix>& walk, std::uint64_t panel_bytes = kPanelBytes) {
    std::uint64_t slot = 0;
    for (const TrunkMatrix& m : walk) {
        const std::uint64_t cut =
            m.undivided ? m.window_bytes()
                        : std::min<std::uint64_t>(m.window_bytes(),
                                                  std::max<std::uint64_t>(panel_bytes, m.row_bytes) + 2 * io::kBlock);
        slot = std::max(slot, (cut + io::kBlock - 1) / io::kBlock * io::kBlock);
    }
    return slot;
}

/// Cuts what does not stay into panels of about `panel_bytes`, in the order of the walk.
inline std::vector<TrunkPanel> cut_panels(const std::vector<TrunkMatrix>& walk, const std::vector<bool>& pinned,
                                          std::uint64_t panel_bytes = kPanelBytes) {
    std::vector<TrunkPanel> panels;
    for (std::size_t i = 0; i < walk.size(); ++i) {
        const TrunkMatrix& m = walk[i];
        if (pinned[i]) continue;
        const std::size_t most = m.undivided ? m.rows : std::max<std::size_t>(1, panel_bytes / m.row_bytes);
        const std::size_t pieces = (m.rows + most - 1) / most;  // panels of one matrix are about equal
        for (std::size_t p = 0; p < pieces; ++p) {
            const std::size_t begin = m.rows * p / pieces, end = m.rows * (p + 1) / pieces;
            panels.push_back({static_cast<std::uint32_t>(i), begin, end - begin});
        }
    }
    return panels;
}

}  // namespace k3::stream
#endif
