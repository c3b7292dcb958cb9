#include "k3/stream/trunk_layout.hpp"

#include <random>

#include "stream/walks.hpp"
#include "support/doctest.hpp"

using namespace k3;
using namespace k3::tests;
using stream::TrunkMatrix;

namespace {

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;

std::uint64_t all_bytes(const Walk& walk) { return stream::pinned_bytes(walk, std::vector<bool>(walk.size(), true)); }

TrunkMatrix matrix(std::uint64_t offset, std::size_t rows, std::size_t row_bytes) {
    TrunkMatrix m;
    m.place = {nullptr, offset, rows * row_bytes};
    m.rows = rows;
    m.row_bytes = row_bytes;
    return m;
}

/// Matrices like those of a model: tens of MiB, among them small ones, routers' gates of 12 MiB, and lm_head.
Walk large_walk(std::mt19937_64& random, std::size_t layers) {
    Walk walk;
    std::uint64_t at = 4096;
    const auto add = [&](std::size_t bytes) -> TrunkMatrix& {
        walk.push_back(matrix(at, bytes / 4096, 4096));
        at += bytes / 4096 * 4096;
        return walk.back();
    };
    for (std::size_t n = 0; n < layers; ++n) {
        for (int i = 0; i < 4; ++i) add((20 + random() % 60) * kMiB);
        add(1 * kMiB + random() % kMiB);
        add(12 * kMiB).router = true;
        add((5 + random() % 30) * kMiB).undivided = true;
    }
    add(300 * kMiB).lm_head = true;
    return walk;
}

/// What choose_pinned must respect whatever the walk and the budget; the name of what it does not.
std::string fault_of(const Walk& walk, std::uint64_t budget, const std::vector<bool>& pinned) {
    if (pinned.size() != walk.size()) return "size";
    std::uint64_t used = 0;
    for (std::size_t i = 0; i < walk.size(); ++i) used += pinned[i] ? walk[i].window_bytes() : 0;
    if (used != stream::pinned_bytes(walk, pinned)) return "pinned_bytes";
    if (used > budget) return "over the budget";
    bool small_left = false, router_left = false, any_left = false;
    for (std::size_t i = 0; i < walk.size(); ++i) {
        if (pinned[i]) continue;
        if (walk[i].window_bytes() <= budget - used) return "something unpinned still fits";
        if (walk[i].lm_head) continue;
        any_left = true;
        small_left = small_left || walk[i].window_bytes() <= 4 * kMiB;
        router_left = router_left || walk[i].router;
    }
    // Whoever is left behind was too large for what those before it left over, so nobody of a later kind took its
    // place: all pinned bytes of later kinds together must not have had room for the smallest of an earlier one.
    std::uint64_t smalls = 0, routers = 0, smallest_small = ~std::uint64_t{0}, smallest_router = ~std::uint64_t{0};
    std::uint64_t smallest = ~std::uint64_t{0}, head = 0;
    for (std::size_t i = 0; i < walk.size(); ++i) {
        const std::uint64_t bytes = walk[i].window_bytes();
        const bool small = !walk[i].lm_head && bytes <= 4 * kMiB, router = walk[i].router && !small;
        if (pinned[i]) {
            if (small) smalls += bytes;
            if (router) routers += bytes;
            if (walk[i].lm_head) head += bytes;
        } else {
            if (small) smallest_small = std::min(smallest_small, bytes);
            if (router) smallest_router = std::min(smallest_router, bytes);
            if (!walk[i].lm_head) smallest = std::min(smallest, bytes);
        }
    }
    if (small_left && budget - smalls >= smallest_small) return "a small one was left out for a large one";
    if (router_left && budget - smalls - routers >= smallest_router) return "a router was left out for another matrix";
    if (any_left && head > 0 && budget - (used - head) >= smallest) return "lm_head was kept before another";
    return {};
}

}  // namespace

TEST_CASE(
    "stream/trunk_layout: for any walk and budget, what stays is within it to the byte, nothing left out still fits, "
    "and small ones go before routers before the rest before lm_head") {
    std::mt19937_64 random(1);
    for (int round = 0; round < 300; ++round) {
        const Walk walk =
            round % 2 == 0 ? large_walk(random, 1 + random() % 6)
                           : random_walk(random, {.matrices = 1 + random() % 40, .most_rows = 6000, .most_cols = 9000});
        const std::uint64_t all = all_bytes(walk);
        for (int i = 0; i < 30; ++i) {
            const std::uint64_t budget = i == 0 ? 0 : i == 1 ? all : i == 2 ? all - 1 : random() % (all + all / 8);
            const std::vector<bool> pinned = stream::choose_pinned(walk, budget);
            const std::string fault = fault_of(walk, budget, pinned);
            if (!fault.empty()) FAIL_CHECK(fault << ": round " << round << ", budget " << budget << " of " << all);
            const bool whole = stream::pinned_bytes(walk, pinned) == all;
            CHECK(whole == (budget >= all));
        }
    }
}

TEST_CASE("stream/trunk_layout: a budget of exactly the small ones keeps those, and one byte less one of them less") {
    std::mt19937_64 random(2);
    const Walk walk = large_walk(random, 8);
    std::uint64_t smalls = 0, routers = 0, head = 0;
    for (const TrunkMatrix& m : walk) {
        if (m.lm_head)
            head += m.window_bytes();
        else if (m.router)
            routers += m.window_bytes();
        else if (m.window_bytes() <= 4 * kMiB)
            smalls += m.window_bytes();
    }
    const auto count = [&](std::uint64_t budget, auto&& of_kind) {
        const std::vector<bool> pinned = stream::choose_pinned(walk, budget);
        std::size_t n = 0;
        for (std::size_t i = 0; i < walk.size(); ++i) n += pinned[i] && of_kind(walk[i]);
        return n;
    };
    const auto any = [](const TrunkMatrix&) { return true; };
    const auto router = [](const TrunkMatrix& m) { return m.router; };
    const auto lm_head = [](const TrunkMatrix& m) { return m.lm_head; };
    CHECK(count(smalls, any) == 8);
    CHECK(count(smalls - 1, any) == 7);
    CHECK(count(smalls + routers, any) == 16);
    CHECK(count(smalls + routers, router) == 8);
    CHECK(count(smalls + routers - 1, router) == 7);
    const std::uint64_t all = all_bytes(walk);
    CHECK(count(all - head, any) == walk.size() - 1);
    CHECK(count(all - head, lm_head) == 0);
    CHECK(count(all - 1, lm_head) == 0);  // not instead of another
    CHECK(count(all, lm_head) == 1);
}

TEST_CASE("stream/trunk_layout: what stays is spread: along the walk its bytes follow the share of the budget") {
    std::mt19937_64 random(3);
    for (int round = 0; round < 100; ++round) {
        const Walk walk = large_walk(random, 12);
        std::uint64_t first = 0, rest = 0, largest = 0;
        const auto of_rest = [](const TrunkMatrix& m) {
            return !m.lm_head && !m.router && m.window_bytes() > 4 * kMiB;
        };
        for (const TrunkMatrix& m : walk) {
            if (of_rest(m)) {
                rest += m.window_bytes();
                largest = std::max(largest, m.window_bytes());
            } else if (!m.lm_head) {
                first += m.window_bytes();
            }
        }
        const double share = 0.05 + 0.9 * static_cast<double>(random() % 1000) / 1000;
        const auto room = static_cast<std::uint64_t>(static_cast<double>(rest) * share);
        const std::vector<bool> pinned = stream::choose_pinned(walk, first + room);
        double seen = 0, kept = 0, worst = 0;
        for (std::size_t i = 0; i < walk.size(); ++i) {
            if (!of_rest(walk[i])) continue;
            seen += static_cast<double>(walk[i].window_bytes());
            kept += pinned[i] ? static_cast<double>(walk[i].window_bytes()) : 0;
            worst = std::max(worst, std::abs(kept - seen * share));
        }
        // Half a matrix by rounding, and what the last pass adds to use the rest up.
        CHECK(worst <= 2.0 * static_cast<double>(largest));
        // No long stretch without one: the ring would have nothing to fill behind.
        if (share > 0.4 && share < 0.6) {
            std::size_t run = 0, longest = 0;
            for (std::size_t i = 0; i < walk.size(); ++i) {
                if (!of_rest(walk[i])) continue;
                run = pinned[i] ? 0 : run + 1;
                longest = std::max(longest, run);
            }
            CHECK(longest <= 8);
        }
    }
}

TEST_CASE(
    "stream/trunk_layout: panels cover every row of what streams once, in order; undivided ones are one panel; a slot "
    "has room for the window of any") {
    std::mt19937_64 random(4);
    for (int round = 0; round < 400; ++round) {
        const Walk walk = random_walk(
            random,
            {.matrices = 1 + random() % 30, .most_rows = 1 + random() % 3000, .most_cols = 1 + random() % 5000});
        std::vector<bool> pinned(walk.size());
        for (std::size_t i = 0; i < walk.size(); ++i) pinned[i] = random() % 3 == 0;
        const std::uint64_t panel_bytes = round % 5 == 0 ? 1 : 1 + random() % (round % 2 == 0 ? 20000 : 3000000);
        const std::vector<stream::TrunkPanel> panels = stream::cut_panels(walk, pinned, panel_bytes);
        const std::uint64_t slot = stream::ring_slot_bytes(walk, panel_bytes);
        CHECK(slot % io::kBlock == 0);
        std::size_t next = 0, bad = 0;
        for (std::size_t i = 0; i < walk.size(); ++i) {
            if (pinned[i]) continue;
            const std::size_t begin = next;
            std::size_t row = 0;
            for (; next < panels.size() && panels[next].matrix == i; ++next) {
                bad += panels[next].first != row || panels[next].rows == 0;
                row += panels[next].rows;
                const stream::Place place = place_of(walk, panels[next]);
                bad += io::window_of(place.offset, place.bytes).bytes > slot;
                bad += !walk[i].undivided && place.bytes > std::max<std::uint64_t>(panel_bytes, walk[i].row_bytes);
            }
            bad += row != walk[i].rows;
            bad += walk[i].undivided && next != begin + 1;
        }
        CHECK(next == panels.size());
        CHECK(bad == 0);
    }
}

TEST_CASE("stream/trunk_layout: streamed bytes count what does not stay, lm_head apart") {
    std::mt19937_64 random(5);
    for (int round = 0; round < 100; ++round) {
        const Walk walk = random_walk(random, {.matrices = 1 + random() % 30});
        std::vector<bool> pinned(walk.size());
        std::uint64_t step = 0, head = 0, kept = 0;
        for (std::size_t i = 0; i < walk.size(); ++i) {
            pinned[i] = random() % 2 == 0;
            if (pinned[i]) {
                kept += walk[i].window_bytes();
                continue;
            }
            (walk[i].lm_head ? head : step) += walk[i].rows * walk[i].row_bytes;
        }
        const stream::StreamedBytes sum = stream::streamed_bytes(walk, pinned);
        CHECK(sum.per_step == step);
        CHECK(sum.lm_head == head);
        CHECK(stream::pinned_bytes(walk, pinned) == kept);
    }
}

TEST_CASE("stream/trunk_layout: no walk at all is nothing to keep, to cut or to read") {
    const Walk none;
    CHECK(stream::choose_pinned(none, 0).empty());
    CHECK(stream::cut_panels(none, {}).empty());
    CHECK(stream::ring_slot_bytes(none) == 0);
}
