#ifndef K3_TESTS_STREAM_WALKS_HPP
#define K3_TESTS_STREAM_WALKS_HPP
// Walks of random matrices: places in a file that may not be there.
#include <random>
#include <vector>

#include "k3/stream/trunk_layout.hpp"

namespace k3::tests {

using Walk = std::vector<stream::TrunkMatrix>;

struct WalkShape {
    std::size_t matrices = 20;
    std::size_t most_rows = 40, most_cols = 700;
    std::size_t most_gap = 5000;  // bytes between two matrices
    std::uint64_t start = 77;     // of the first
    bool shuffled = true;         // in the file in another order than in the walk
};

/// Every fifth matrix is a router's gate, every seventh undivided; the last is lm_head.
inline Walk random_walk(std::mt19937_64& random, const WalkShape& shape) {
    const auto upto = [&](std::size_t most) { return std::uniform_int_distribution<std::size_t>(0, most)(random); };
    Walk walk(shape.matrices);
    for (std::size_t i = 0; i < walk.size(); ++i) {
        stream::TrunkMatrix& m = walk[i];
        m.element_bytes = upto(2) == 0 ? 4 : 2;
        m.rows = 1 + upto(shape.most_rows - 1);
        m.row_bytes = (1 + upto(shape.most_cols - 1)) * m.element_bytes;
        m.lm_head = i + 1 == walk.size();
        m.router = !m.lm_head && i % 5 == 3;
        m.undivided = !m.lm_head && !m.router && i % 7 == 2;
        m.place.bytes = m.rows * m.row_bytes;
    }
    std::vector<std::size_t> order(walk.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    if (shape.shuffled) std::shuffle(order.begin(), order.end(), random);
    std::uint64_t at = shape.start;
    for (const std::size_t i : order) {
        walk[i].place.offset = at;
        at += walk[i].place.bytes + upto(shape.most_gap);
    }
    return walk;
}

inline std::uint64_t end_of(const Walk& walk) {
    std::uint64_t end = 0;
    for (const stream::TrunkMatrix& m : walk) end = std::max(end, m.place.offset + m.place.bytes);
    return end;
}

/// Where the rows of a panel are.
inline stream::Place place_of(const Walk& walk, const stream::TrunkPanel& panel) {
    const stream::TrunkMatrix& m = walk[panel.matrix];
    return {m.place.file, m.place.offset + panel.first * m.row_bytes, panel.rows * m.row_bytes};
}

}  // namespace k3::tests
#endif
