#include "k3/stream/expert_batch.hpp"

#include <algorithm>
#include <map>
#include <vector>

#include "support/doctest.hpp"

using namespace k3;
using stream::ExpertBatch;

namespace {

using Visits = std::vector<std::pair<std::size_t, std::vector<std::uint32_t>>>;

Visits visits(const std::vector<std::int32_t>& ids, std::size_t top_k, std::size_t experts) {
    std::vector<std::byte> memory(1 << 16);
    std::byte* const at = memory.data() + (64 - reinterpret_cast<std::size_t>(memory.data()) % 64) % 64;
    core::Arena arena(at, memory.size() - 64);
    const ExpertBatch batch({ids.data(), ids.size() / top_k, top_k}, experts, arena);
    CHECK_FALSE(arena.overflowed());
    Visits all;
    batch.for_each([&](std::size_t expert, std::span<const std::uint32_t> slots) {
        all.push_back({expert, {slots.begin(), slots.end()}});
    });
    return all;
}

}  // namespace

TEST_CASE("stream/expert_batch: each distinct expert once, ids ascending, slots ascending, -1 passed over") {
    CHECK(visits({5, 2, /**/ -1, -1, /**/ 2, 0, /**/ 5, 6}, 2, 7) ==
          Visits{{0, {5}}, {2, {1, 4}}, {5, {0, 6}}, {6, {7}}});
    CHECK(visits({0}, 1, 1) == Visits{{0, {0}}});
    CHECK(visits({-1, -1, -1}, 3, 4).empty());
    CHECK(visits({}, 2, 4).empty());
    CHECK(visits({3, 2, 1, 0}, 4, 4) == Visits{{0, {3}}, {1, {2}}, {2, {1}}, {3, {0}}});
}

TEST_CASE("stream/expert_batch: random routes: every slot exactly once, under its expert") {
    std::uint64_t seed = 1;
    for (int round = 0; round < 50; ++round) {
        const std::size_t tokens = 1 + static_cast<std::size_t>(round), top_k = 3, experts = 11;
        std::vector<std::int32_t> ids;
        for (std::size_t i = 0; i < tokens * top_k; ++i) {
            seed = seed * 6364136223846793005U + 1442695040888963407U;
            ids.push_back(static_cast<std::int32_t>((seed >> 33) % (experts + 1)) - 1);
        }
        std::map<std::size_t, std::vector<std::uint32_t>> want;
        for (std::size_t i = 0; i < ids.size(); ++i)
            if (ids[i] >= 0) want[static_cast<std::size_t>(ids[i])].push_back(static_cast<std::uint32_t>(i));
        CHECK(visits(ids, top_k, experts) == Visits(want.begin(), want.end()));
    }
}

TEST_CASE("stream/expert_batch: run_expert gathers its tokens' rows and scatters to its slots, and to no others") {
    // A kernel that adds 100 to what it gets, and counts how it was called.
    static std::vector<std::size_t> calls;
    const layers::ExpertKernel kernel = [](const core::Exec&, const layers::ExpertWeights&, layers::Situ,
                                           core::MatView<const float> z, core::MatView<float> out,
                                           core::Arena) noexcept -> core::Fault {
        calls.push_back(z.rows);
        for (std::size_t t = 0; t < z.rows; ++t)
            for (std::size_t i = 0; i < z.cols; ++i) out.row(t)[i] = z.row(t)[i] + 100;
        return {};
    };
    constexpr std::size_t kTokens = 4, kTopK = 2, kCols = 5;
    std::vector<float> z(kTokens * kCols);
    for (std::size_t i = 0; i < z.size(); ++i) z[i] = static_cast<float>(i);
    std::vector<std::byte> memory(1 << 12);
    std::byte* const at = memory.data() + (64 - reinterpret_cast<std::size_t>(memory.data()) % 64) % 64;
    for (const std::vector<std::uint32_t>& slots :
         {std::vector<std::uint32_t>{5}, std::vector<std::uint32_t>{0, 3, 6}}) {
        calls.clear();
        std::vector<float> e(kTokens * kTopK * kCols, -1.0F);
        CHECK(!stream::run_expert({}, kernel, {}, {}, kTopK, slots, {z.data(), kTokens, kCols},
                                  {e.data(), kTokens * kTopK, kCols}, {at, memory.size() - 64}));
        CHECK(calls == std::vector<std::size_t>{slots.size()});
        for (std::size_t s = 0; s < kTokens * kTopK; ++s) {
            const bool mine = std::find(slots.begin(), slots.end(), s) != slots.end();
            for (std::size_t i = 0; i < kCols; ++i)
                CHECK(e[s * kCols + i] == (mine ? z[s / kTopK * kCols + i] + 100 : -1.0F));
        }
    }
}
