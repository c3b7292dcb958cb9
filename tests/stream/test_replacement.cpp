#include "k3/stream/replacement.hpp"

#include <algorithm>
#include <deque>
#include <random>
#include <vector>

#include "support/doctest.hpp"

using namespace k3::stream;

namespace {

using Key = std::uint32_t;

/// The docstring of Replacement once more, by scanning lists.
class Naive {
  public:
    Naive(Policy policy, std::uint64_t slots, std::size_t keys) : policy_(policy), slots_(slots), fame_(keys) {}

    void insert(Key slot, Key key) {
        members_.push_back({slot, key, 0, 0, false});
        if (policy_ != Policy::s3fifo) return use(members_.back(), true);
        const auto begin =
            departed_.size() > slots_ ? departed_.end() - static_cast<std::ptrdiff_t>(slots_) : departed_.begin();
        const auto ghost = std::find(begin, departed_.end(), static_cast<std::int64_t>(key));
        if (ghost == departed_.end()) return small_.push_back(slot);
        *ghost = -1;
        main_.push_back(slot);
    }
    void touch(Key slot, Use how) {
        Member& m = find(slot);
        if (policy_ != Policy::s3fifo) return use(m, how == Use::again);
        if (how == Use::again) m.count = std::min(m.count + 1, 3);
    }
    void pin(Key slot) { find(slot).pinned = true; }
    void unpin(Key slot) { find(slot).pinned = false; }
    void remove(Key slot) {
        members_.erase(std::find_if(members_.begin(), members_.end(), [&](auto& m) { return m.slot == slot; }));
        for (auto* queue : {&small_, &main_})
            queue->erase(std::remove(queue->begin(), queue->end(), slot), queue->end());
    }
    Key evict() {
        if (std::all_of(members_.begin(), members_.end(), [](auto& m) { return m.pinned; })) return Replacement::kNone;
        if (policy_ == Policy::s3fifo) return evict_s3fifo();
        const Member* least = nullptr;
        for (const Member& m : members_)
            if (!m.pinned &&
                (least == nullptr || m.score < least->score || (m.score == least->score && m.slot < least->slot)))
                least = &m;
        const Key slot = least->slot;
        remove(slot);
        return slot;
    }

    struct Member {
        Key slot, key;
        std::uint64_t score;
        int count;
        bool pinned;
    };
    const std::vector<Member>& members() const { return members_; }

  private:
    struct Fame {
        std::uint64_t last = 0, uses = 0;
    };

    Member& find(Key slot) {
        return *std::find_if(members_.begin(), members_.end(), [&](auto& m) { return m.slot == slot; });
    }
    void use(Member& m, bool more) {
        ++time_;
        m.score = time_;
        if (policy_ == Policy::lru) return;
        Fame& fame = fame_[m.key];
        for (std::uint64_t idle = time_ - fame.last; idle >= 8 * slots_; idle -= 8 * slots_) fame.uses /= 2;
        fame.uses += more ? 1 : 0;
        if (fame.uses == 0) fame.uses = 1;
        fame.last = time_;
        std::uint64_t power = 1, log = 0;
        for (; 2 * power <= fame.uses; power *= 2) log += 256;
        m.score += slots_ * (log + (fame.uses - power) * 256 / power) / 256;
    }
    Key oldest(const std::deque<Key>& queue) {
        for (const Key slot : queue)
            if (!find(slot).pinned) return slot;
        return Replacement::kNone;
    }
    Key evict_s3fifo() {
        while (true) {
            const Key small = oldest(small_), main = oldest(main_);
            const bool full = small_.size() >= std::max<std::size_t>(1, slots_ / 10);
            if (small != Replacement::kNone && (full || main == Replacement::kNone)) {
                small_.erase(std::find(small_.begin(), small_.end(), small));
                if (find(small).count <= 1) {
                    departed_.push_back(find(small).key);
                    remove(small);
                    return small;
                }
                find(small).count = 0;
                main_.push_back(small);
                continue;
            }
            main_.erase(std::find(main_.begin(), main_.end(), main));
            if (find(main).count == 0) {
                remove(main);
                return main;
            }
            --find(main).count;
            main_.push_back(main);
        }
    }

    Policy policy_;
    std::uint64_t slots_, time_ = 0;
    std::vector<Fame> fame_;
    std::vector<Member> members_;
    std::deque<Key> small_, main_;        // oldest first
    std::vector<std::int64_t> departed_;  // keys in order of leaving the small queue, -1 where one has come back
};

/// `operations` random ones on both; every victim must be the same.
void compare(Policy policy, std::size_t slots, std::size_t keys, std::size_t operations, unsigned seed) {
    Replacement fast(policy, slots, keys);
    Naive slow(policy, slots, keys);
    std::mt19937_64 rng(seed);
    std::vector<Key> empty(slots);
    for (std::size_t i = 0; i < slots; ++i) empty[i] = static_cast<Key>(i);
    std::size_t evictions = 0, none = 0;
    for (std::size_t n = 0; n < operations; ++n) {
        const auto& members = slow.members();
        const unsigned dice = static_cast<unsigned>(rng() % 100);
        if (members.empty() || dice < 35) {
            Key slot;
            if (empty.empty()) {
                slot = slow.evict();
                REQUIRE(fast.evict() == slot);
                ++evictions;
                if (slot == Replacement::kNone) {
                    ++none;
                    const Key freed = members[rng() % members.size()].slot;
                    fast.unpin(freed);
                    slow.unpin(freed);
                    continue;
                }
            } else {
                std::swap(empty[rng() % empty.size()], empty.back());
                slot = empty.back();
                empty.pop_back();
            }
            // a skewed choice among the keys that are not there
            Key key;
            do key = static_cast<Key>(std::min(rng() % keys, rng() % keys));
            while (std::any_of(members.begin(), members.end(), [&](auto& m) { return m.key == key; }));
            fast.insert(slot, key);
            slow.insert(slot, key);
            continue;
        }
        const auto member = members[std::min(rng() % members.size(), rng() % members.size())];
        if (dice < 75) {
            const Use use = dice < 70 ? Use::again : Use::first;
            fast.touch(member.slot, use);
            slow.touch(member.slot, use);
        } else if (dice < 97) {
            member.pinned ? (fast.unpin(member.slot), slow.unpin(member.slot))
                          : (fast.pin(member.slot), slow.pin(member.slot));
        } else {
            fast.remove(member.slot);
            slow.remove(member.slot);
            empty.push_back(member.slot);
        }
    }
    CHECK(evictions > operations / 20);
    if (slots <= 2) CHECK(none > 0);  // the case where all are pinned was met
}

}  // namespace

TEST_CASE("stream/replacement: each policy evicts what its definition says, over 100k random operations with pins") {
    for (const Policy policy : kPolicies) {
        CAPTURE(std::string(name(policy)));
        compare(policy, 13, 60, 100000, 1);
        compare(policy, 40, 90, 100000, 2);
        compare(policy, 2, 9, 20000, 3);
        compare(policy, 1, 5, 5000, 4);
    }
}

TEST_CASE("stream/replacement: pins change no order: LRU after unpinning is LRU as if nothing had been pinned") {
    Replacement lru(Policy::lru, 4, 4);
    for (Key i = 0; i < 4; ++i) lru.insert(i, i);
    lru.pin(0);
    lru.pin(1);
    CHECK(lru.evict() == 2);
    lru.unpin(0);
    lru.touch(1, Use::again);
    lru.unpin(1);
    CHECK(lru.evict() == 0);
    CHECK(lru.evict() == 3);
    CHECK(lru.evict() == 1);
    CHECK(lru.evict() == Replacement::kNone);
}

TEST_CASE("stream/replacement: LFRU by hand: a doubling of the uses outweighs `slots` steps of age, and fades") {
    Replacement lfru(Policy::lfru, 4, 8);
    lfru.insert(0, 0);          // time 1
    lfru.touch(0, Use::again);  // time 2, uses 2: score 2 + 4 = 6
    lfru.insert(1, 1);          // 3
    lfru.insert(2, 2);          // 4
    lfru.insert(3, 3);          // 5
    CHECK(lfru.evict() == 1);   // not 0, which is older
    lfru.insert(1, 4);          // 6: the same score as slot 0, which is the lower slot
    CHECK(lfru.evict() == 2);   // 4
    CHECK(lfru.evict() == 3);   // 5
    CHECK(lfru.evict() == 0);
    CHECK(lfru.evict() == 1);
    lfru.insert(0, 0);                                      // time 7, uses 3: 7 + 4 * 1.5 = 13
    lfru.insert(1, 5);                                      // 8
    for (int i = 0; i < 4; ++i) lfru.touch(1, Use::first);  // 12, and no more uses: score 12
    CHECK(lfru.evict() == 1);
    lfru.insert(1, 6);                                       // 13
    for (int i = 0; i < 26; ++i) lfru.touch(1, Use::first);  // 39: 32 steps after key 0's latest use
    lfru.touch(0, Use::first);                               // 40: uses 3 / 2 = 1, score 40
    lfru.touch(1, Use::again);                               // 41, uses 2: 45
    CHECK(lfru.evict() == 0);
}

TEST_CASE("stream/replacement: S3-FIFO by hand: promotion, ghosts, second chances") {
    Replacement s3(Policy::s3fifo, 4, 8);  // small queue: one slot
    enum : Key { a, b, c, d, e };
    for (const Key slot : {a, b, c, d}) s3.insert(slot, slot);
    s3.touch(a, Use::again);
    s3.touch(a, Use::again);  // a counts 2: to be promoted
    s3.touch(b, Use::again);  // b counts 1: not
    CHECK(s3.evict() == b);   // a goes to main on the way
    s3.insert(b, b);          // a ghost: straight to main; main is a b, small is c d
    s3.touch(a, Use::again);
    CHECK(s3.evict() == c);
    s3.insert(c, e);  // small: d e
    CHECK(s3.evict() == d);
    CHECK(s3.evict() == c);
    CHECK(s3.evict() == b);  // small is empty: a counts 1 and is requeued, b counts 0
    s3.insert(b, b);         // left from main: no ghost, so small
    s3.touch(a, Use::again);
    CHECK(s3.evict() == b);
    CHECK(s3.evict() == a);
}

TEST_CASE("stream/replacement: S3-FIFO keeps as many ghosts as slots, and one return uses a ghost up") {
    Replacement s3(Policy::s3fifo, 2, 16);
    const auto in_and_out = [&](Key key) {  // through the small queue; slot 1 is pinned in main or small
        s3.insert(0, key);
        CHECK(s3.evict() == 0);
    };
    in_and_out(1);
    in_and_out(2);  // ghosts: 1 2
    s3.insert(0, 1);
    s3.insert(1, 9);         // in small
    CHECK(s3.evict() == 1);  // 1 went to main, 9 leaves first; ghosts: 2 9
    s3.insert(1, 10);
    CHECK(s3.evict() == 1);  // ghosts: 9 10
    s3.insert(1, 2);         // no longer a ghost: small
    CHECK(s3.evict() == 1);
    CHECK(s3.evict() == 0);
}

TEST_CASE("stream/replacement: names are read back; what is allocated is what was announced") {
    for (const Policy policy : kPolicies) {
        CHECK(parse_policy(name(policy)) == policy);
        for (const std::size_t slots : {1, 17, 2052})
            CHECK(Replacement(policy, slots, 82432).memory_bytes() == Replacement::memory_bytes(policy, slots, 82432));
    }
    CHECK(!parse_policy("LRU"));
    CHECK(!parse_policy(""));
}
