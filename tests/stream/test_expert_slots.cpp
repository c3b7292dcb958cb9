#include "k3/stream/expert_slots.hpp"

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <vector>

#include "support/doctest.hpp"

using namespace k3::stream;

namespace {

using Key = std::uint32_t;
using Keys = std::vector<Key>;

/// What the events of an ExpertSlots say is where; every event is checked against it.
class Watcher {
  public:
    Watcher(std::size_t slots, std::size_t keys, Policy policy, std::size_t most = 64)
        : cache(slots, keys, policy, most), keys_(keys) {}

    ExpertSlots cache;
    CacheCounters want{};

    /// `fails(key)`: its load fails.
    template <class Fails>
    void batch(const Keys& requests, Fails&& fails) {
        kept_.clear();
        std::vector<Key> order, missing;
        std::set<Key> seen;
        for (const Key key : requests) {
            const bool first = seen.insert(key).second;
            const auto at = slot_of_.find(key);
            ++want.requests;
            if (at == slot_of_.end()) {
                ++(first ? want.misses : want.prefetched_hits);
                if (first) missing.push_back(key);
            } else {
                ++(first && unused_.count(key) != 0 ? want.lookahead_hits : want.resident_hits);
                if (first) order.push_back(key);
            }
        }
        const std::size_t residents = order.size();
        order.insert(order.end(), missing.begin(), missing.end());
        const std::size_t depth = std::max<std::size_t>(1, std::min<std::size_t>(cache.slots() - 1, 64));
        std::size_t reserved = 0, released = 0;
        cache.batch(
            requests,
            [&](std::size_t i, Key key, Key slot, Outcome outcome) {
            REQUIRE(i == reserved++);
            REQUIRE(key == order.at(i));
            REQUIRE(released == (i >= depth ? i - depth + 1 : 0));
            REQUIRE(slot < cache.slots());
            if (i < residents) {
                REQUIRE(slot_of_.at(key) == slot);
                REQUIRE(outcome == (unused_.erase(key) != 0 ? Outcome::lookahead : Outcome::resident));
            } else {
                REQUIRE(outcome == Outcome::miss);
                REQUIRE(slot_of_.count(key) == 0);
                fill(slot, key);
            }
            pinned_.insert(slot);
            },
            [&](std::size_t i, Key key, Key slot) {
            REQUIRE(i == released++);
            REQUIRE(key == order.at(i));
            REQUIRE(slot_of_.at(key) == slot);
            REQUIRE(pinned_.erase(slot) == 1);
            if (!fails(key)) return true;
            ++want.drops;
            forget(key);
            return false;
        });
        REQUIRE(released == order.size());
        REQUIRE(pinned_.empty());
        compare();
    }
    void batch(const Keys& requests) {
        batch(requests, [](Key) { return false; });
    }

    void prefetch(Key key) {
        const bool there = slot_of_.count(key) != 0;
        const auto slot = cache.prefetch(key);
        if (there) {
            REQUIRE(!slot);
            kept_.insert(slot_of_.at(key));
        } else if (slot) {
            pinned_ = kept_;
            fill(*slot, key);
            pinned_.clear();
            kept_.insert(*slot);
            unused_.insert(key);
            ++want.lookahead_loads;
        } else {
            REQUIRE(kept_.size() == cache.slots());
        }
        compare();
    }
    void drop(Key key) {
        cache.drop(key);
        if (slot_of_.count(key) != 0) {
            ++want.drops;
            kept_.erase(slot_of_.at(key));
            forget(key);
        }
        compare();
    }
    std::size_t resident() const { return slot_of_.size(); }

  private:
    void fill(Key slot, Key key) {
        if (const auto old = key_of_.find(slot); old != key_of_.end()) {
            REQUIRE(pinned_.count(slot) == 0);         // trap 57
            REQUIRE(key_of_.size() == cache.slots());  // nothing is evicted while a slot is empty
            ++want.evictions;
            const Key gone = old->second;
            if (unused_.erase(gone) != 0) ++want.lookahead_wasted;
            slot_of_.erase(gone);
        }
        slot_of_[key] = slot;
        key_of_[slot] = key;
    }
    void forget(Key key) {
        if (unused_.erase(key) != 0) ++want.lookahead_wasted;
        key_of_.erase(slot_of_.at(key));
        slot_of_.erase(key);
    }
    void compare() {
        REQUIRE(cache.counters() == want);
        REQUIRE(want.requests == want.resident_hits + want.prefetched_hits + want.lookahead_hits + want.misses);
        REQUIRE(want.lookahead_loads == want.lookahead_hits + want.lookahead_wasted + unused_.size());
        for (Key key = 0; key < keys_; ++key) {
            const auto at = slot_of_.find(key);
            REQUIRE(cache.slot_of(key) == (at == slot_of_.end() ? ExpertSlots::kNone : at->second));
        }
        for (Key slot = 0; slot < cache.slots(); ++slot) {
            const auto at = key_of_.find(slot);
            REQUIRE(cache.key_of(slot) == (at == key_of_.end() ? ExpertSlots::kNone : at->second));
            REQUIRE(cache.is_pinned(slot) == (kept_.count(slot) != 0));
        }
    }

    std::size_t keys_;
    std::map<Key, Key> slot_of_, key_of_;
    std::set<Key> pinned_, kept_, unused_;
};

Keys random_requests(std::mt19937_64& rng, std::size_t keys, std::size_t count) {
    Keys requests(count);
    for (Key& key : requests) key = static_cast<Key>(std::min(rng() % keys, rng() % keys));
    return requests;
}

}  // namespace

TEST_CASE(
    "stream/expert_slots: traps 55 to 59, random batches: no key in two slots, no slot for two keys, nothing in use "
    "evicted, counters add up") {
    for (const Policy policy : kPolicies)
        for (const std::size_t slots : {5, 9, 30, 70, 130}) {  // 4 requests a token: top_k + 1 and more
            CAPTURE(std::string(name(policy)));
            CAPTURE(slots);
            std::mt19937_64 rng(slots);
            constexpr std::size_t kKeys = 160;
            Watcher watcher(slots, kKeys, policy);
            for (int n = 0; n < 700; ++n) {
                const std::size_t size = n % 7 == 0 ? 4 * 60 : n % 11 == 0 ? 0 : 4;  // prefill, failed, decode
                const bool failing = n % 13 == 0;
                watcher.batch(random_requests(rng, kKeys, size), [&](Key key) { return failing && key % 5 == 0; });
                for (std::size_t ahead = rng() % 5; ahead > 0; --ahead)
                    watcher.prefetch(static_cast<Key>(rng() % kKeys));
                if (n % 17 == 0) watcher.drop(static_cast<Key>(rng() % kKeys));
            }
            CHECK(watcher.want.drops > 0);
            CHECK(watcher.want.lookahead_hits > 0);
            CHECK(watcher.want.lookahead_wasted > 0);
            CHECK(watcher.want.prefetched_hits > 0);
        }
}

TEST_CASE("stream/expert_slots: with top_k + 1 slots a batch far larger than the cache is served once an expert") {
    for (const Policy policy : kPolicies) {
        Watcher watcher(17, 896, policy, 896);
        Keys all;
        for (int repeat = 0; repeat < 3; ++repeat)
            for (Key key = 0; key < 896; ++key) all.push_back(key);
        watcher.batch(all);
        CHECK(watcher.want.misses == 896);
        CHECK(watcher.want.prefetched_hits == 2 * 896);
        CHECK(watcher.resident() == 17);
        // What is there goes first, so it hits although the cache is much smaller than the batch.
        watcher.batch(all);
        CHECK(watcher.want.misses == 2 * 896 - 17);
        CHECK(watcher.want.resident_hits == 3 * 17);
    }
}

TEST_CASE("stream/expert_slots: at most 64 and at most slots - 1 experts are held at a time") {
    CHECK(ExpertSlots::depth_of(1) == 1);
    CHECK(ExpertSlots::depth_of(2) == 1);
    CHECK(ExpertSlots::depth_of(17) == 16);
    CHECK(ExpertSlots::depth_of(65) == 64);
    CHECK(ExpertSlots::depth_of(5000) == 64);
    std::size_t held = 0, most = 0;
    ExpertSlots cache(200, 300, Policy::lru, 300);
    Keys all;
    for (Key key = 0; key < 300; ++key) all.push_back(key);
    cache.batch(
        all, [&](std::size_t, Key, Key, Outcome) { most = std::max(most, ++held); },
        [&](std::size_t, Key, Key) {
        --held;
        return true;
        });
    CHECK(most == 64);
    CHECK(held == 0);
}

TEST_CASE("stream/expert_slots: one look-ahead does not push out another or what was predicted and is there") {
    for (const Policy policy : kPolicies) {
        Watcher watcher(3, 10, policy);
        watcher.batch({0, 1});
        watcher.prefetch(0);  // there already: kept
        watcher.prefetch(5);
        CHECK(watcher.cache.slot_of(0) != ExpertSlots::kNone);
        watcher.prefetch(6);  // pushes out 1
        CHECK(watcher.cache.slot_of(1) == ExpertSlots::kNone);
        watcher.prefetch(7);  // no room
        CHECK(watcher.cache.slot_of(7) == ExpertSlots::kNone);
        watcher.batch({5, 0, 5});
        CHECK(watcher.want.lookahead_hits == 1);
        CHECK(watcher.want.resident_hits == 2);  // 0, and 5 again
        watcher.batch({2, 3, 4});                // 6 was never used
        CHECK(watcher.want.lookahead_wasted == 1);
    }
}

TEST_CASE("stream/expert_slots: a look-ahead's first use makes it no more frequent than a miss does") {
    ExpertSlots ahead(3, 10, Policy::s3fifo, 4), plain(3, 10, Policy::s3fifo, 4);
    const auto run = [](ExpertSlots& cache, Keys requests) {
        cache.batch(
            requests, [](std::size_t, Key, Key, Outcome) {}, [](std::size_t, Key, Key) { return true; });
    };
    ahead.prefetch(1);
    for (const Key key : {1, 1, 2, 3, 4}) {  // two uses: count 1 either way, so key 1 leaves for 4
        run(ahead, {key});
        run(plain, {key});
        for (Key k = 0; k < 10; ++k)
            CHECK((ahead.slot_of(k) == ExpertSlots::kNone) == (plain.slot_of(k) == ExpertSlots::kNone));
    }
    CHECK(plain.slot_of(1) == ExpertSlots::kNone);
}

TEST_CASE("stream/expert_slots: a load that failed is forgotten: the next request is a miss again") {
    Watcher watcher(4, 10, Policy::lru);
    watcher.batch({1, 2}, [](Key key) { return key == 2; });
    CHECK(watcher.resident() == 1);
    watcher.batch({1, 2});
    CHECK(watcher.want.misses == 3);
    CHECK(watcher.want.resident_hits == 1);
    CHECK(watcher.want.drops == 1);
    CHECK(watcher.want.evictions == 0);
}

TEST_CASE("stream/expert_slots: counters subtract and add; memory is what was announced and does not grow") {
    Watcher watcher(6, 40, Policy::lfru);
    watcher.batch({1, 2, 3});
    const CacheCounters before = watcher.cache.counters();
    watcher.batch({3, 4, 4});
    const CacheCounters step = watcher.cache.counters() - before;
    CHECK(step == CacheCounters{.requests = 3, .resident_hits = 1, .prefetched_hits = 1, .misses = 1});
    CacheCounters sum = before;
    CHECK((sum += step) == watcher.cache.counters());
    CHECK(step.loads() == 1);
    for (const Policy policy : kPolicies) {
        ExpertSlots cache(100, 896 * 93, policy, 896);
        const std::uint64_t bytes = cache.memory_bytes();
        CHECK(bytes == ExpertSlots::memory_bytes(policy, 100, 896 * 93, 896));
        std::mt19937_64 rng(1);
        for (int n = 0; n < 50; ++n) {
            cache.batch(
                random_requests(rng, 896, 8192), [](std::size_t, Key, Key, Outcome) {},
                [](std::size_t, Key, Key) { return true; });
            for (int i = 0; i < 200; ++i) cache.prefetch(static_cast<Key>(rng() % 5000));
        }
        CHECK(cache.memory_bytes() == bytes);
    }
}
