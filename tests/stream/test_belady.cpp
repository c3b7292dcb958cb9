#include "k3/stream/belady.hpp"

#include <algorithm>
#include <bit>
#include <random>
#include <set>
#include <vector>

#include "k3/stream/expert_slots.hpp"
#include "support/doctest.hpp"

using namespace k3::stream;

namespace {

using Batches = std::vector<std::vector<std::uint32_t>>;

Belady belady_of(const Batches& batches, std::size_t keys) {
    Belady belady(keys);
    for (const auto& batch : batches) belady.add_batch(batch);
    return belady;
}

/// Every choice of what to keep after every batch.
std::uint64_t brute_force(const Batches& batches, unsigned keys, int slots) {
    constexpr std::uint64_t kMany = 1U << 30;
    std::vector<std::uint64_t> best(std::size_t{1} << keys, kMany);  // by the set of held keys
    best[0] = 0;
    for (const auto& batch : batches) {
        unsigned wanted = 0;
        for (const auto key : batch) wanted |= 1U << key;
        std::vector<std::uint64_t> next(best.size(), kMany);
        for (unsigned held = 0; held < best.size(); ++held) {
            if (best[held] == kMany) continue;
            const std::uint64_t cost = best[held] + static_cast<std::uint64_t>(std::popcount(wanted & ~held));
            for (unsigned keep = 0; keep < best.size(); ++keep)
                if ((keep & ~(held | wanted)) == 0 && std::popcount(keep) <= slots)
                    next[keep] = std::min(next[keep], cost);
        }
        best = std::move(next);
    }
    return *std::min_element(best.begin(), best.end());
}

Batches random_batches(std::mt19937_64& rng, std::size_t count, std::size_t keys, std::size_t most) {
    Batches batches(count);
    for (auto& batch : batches) {
        batch.resize(rng() % (most + 1));
        for (auto& key : batch) key = static_cast<std::uint32_t>(std::min(rng() % keys, rng() % keys));
    }
    return batches;
}

}  // namespace

TEST_CASE("stream/belady: no cache can do better, by brute force over everything a cache could keep") {
    std::mt19937_64 rng(1);
    for (int n = 0; n < 250; ++n) {
        const unsigned keys = 3 + static_cast<unsigned>(rng() % 4);
        const Batches batches = random_batches(rng, 2 + rng() % 9, keys, 4);
        const Belady belady = belady_of(batches, keys);
        for (int slots = 1; slots <= 4; ++slots)
            CHECK(belady.loads(static_cast<std::size_t>(slots)) == brute_force(batches, keys, slots));
    }
}

TEST_CASE("stream/belady: the textbook sequence, one request a batch") {
    Belady belady(8);
    for (const std::uint32_t key : {7, 0, 1, 2, 0, 3, 0, 4, 2, 3, 0, 3, 2, 1, 2, 0, 1, 7, 0, 1})
        belady.add_batch(std::vector<std::uint32_t>{key});
    CHECK(belady.loads(3) == 8);  // 9 where what was loaded last must be kept
    CHECK(belady.batches() == 20);
    CHECK(belady.compulsory() == 6);
    CHECK(belady.loads(8) == 6);
}

TEST_CASE("stream/belady: a lower bound for every policy at every capacity, with and without look-ahead") {
    for (const bool ahead : {false, true}) {
        std::mt19937_64 rng(7);
        constexpr std::size_t kKeys = 120;
        const Batches batches = random_batches(rng, 900, kKeys, 30);
        const Belady belady = belady_of(batches, kKeys);
        std::uint64_t latest = ~std::uint64_t{0};
        for (const std::size_t slots : {5, 9, 20, 31, 60, 100, 120}) {
            const std::uint64_t bound = belady.loads(slots);
            CHECK(bound <= latest);  // more slots, no more loads
            latest = bound;
            for (const Policy policy : kPolicies) {
                ExpertSlots cache(slots, kKeys, policy, 64);
                for (std::size_t b = 0; b < batches.size(); ++b) {
                    cache.batch(
                        batches[b], [](auto...) {}, [](auto...) { return true; });
                    if (!ahead || b + 1 == batches.size()) continue;
                    for (std::size_t i = 0; i < batches[b + 1].size(); i += 2) cache.prefetch(batches[b + 1][i]);
                }
                CHECK(cache.counters().loads() >= bound);
                if (slots == kKeys) CHECK(cache.counters().loads() == belady.compulsory());
            }
        }
        CHECK(latest == belady.compulsory());
    }
}

TEST_CASE("stream/belady: loads are told by batch, and repeats in a batch count once") {
    const Belady belady = belady_of({{1, 2, 1}, {}, {2, 3}, {1}}, 4);
    std::vector<std::uint64_t> loads;
    belady.replay(1, [&](std::size_t batch, std::uint64_t n) {
        CHECK(batch == loads.size());
        loads.push_back(n);
    });
    CHECK(loads == std::vector<std::uint64_t>{2, 0, 1, 1});
    CHECK(belady_of({}, 4).loads(1) == 0);
}

TEST_CASE("stream/belady: a long trace of full size takes seconds, not minutes") {
    std::mt19937_64 rng(3);
    constexpr std::uint32_t kLayers = 92, kExperts = 896;
    Belady belady(kLayers * kExperts);
    std::vector<std::uint32_t> batch(16);
    for (int token = 0; token < 200; ++token)
        for (std::uint32_t layer = 0; layer < kLayers; ++layer) {
            for (auto& key : batch) key = layer * kExperts + static_cast<std::uint32_t>(rng() % kExperts);
            belady.add_batch(batch);
        }
    std::uint64_t latest = ~std::uint64_t{0};
    for (const std::size_t slots : {17, 2052, 40000, 82432}) {
        CHECK(belady.loads(slots) <= latest);
        latest = belady.loads(slots);
    }
}
