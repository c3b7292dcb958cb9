#include "k3/stream/plan.hpp"

#include <random>

#include "stream/walks.hpp"
#include "support/doctest.hpp"
#include "support/mini_checkpoint.hpp"

using namespace k3;
using namespace k3::tests;
using stream::MemoryRequest;
using stream::Plan;
using stream::PlanFacts;

namespace {

constexpr std::uint64_t kKiB = 1024, kMiB = 1024 * kKiB, kGiB = 1024 * kMiB;

/// A model that is planned for: its facts without a file.
struct Model {
    Walk walk;
    std::size_t experts = 1000, per_layer = 50, top_k = 8;
    std::uint64_t slot_bytes = 5 * kMiB + 4096, held = 80 * kMiB, limit = 200 * kGiB;
    std::uint64_t state = 3 * kMiB, workspace_per_token = 300 * kKiB, workspace = 5 * kMiB;
    std::size_t positions = 1000, fixed_chunk = 0;
    stream::Policy policy = stream::Policy::lru;

    PlanFacts facts() const {
        return {.walk = walk,
                .experts = experts,
                .least_slots = stream::least_slots(top_k, experts),
                .slot_bytes = slot_bytes,
                .keys = experts + 2 * per_layer,
                .most_distinct = per_layer,
                .policy = policy,
                .held = held,
                .limit = {limit, "a test"},
                .positions = positions,
                .fixed_chunk = fixed_chunk,
                .step_memory = [this](std::size_t chunk) -> stream::StepMemory {
                    return {state, workspace + chunk * workspace_per_token};
                }};
    }
    Plan plan(const MemoryRequest& request = {}) const { return stream::make_plan(facts(), request); }
    Plan at(std::uint64_t ceiling, MemoryRequest request = {}) const {
        request.ceiling = ceiling;
        return plan(request);
    }
    std::uint64_t windows() const { return stream::pinned_bytes(walk, std::vector<bool>(walk.size(), true)); }
};

/// Like the release scaled down, a middling one, one whose trunk is tiny, one of large experts and little trunk, one
/// without experts.
std::vector<Model> models() {
    std::mt19937_64 random(1);
    const auto walk = [&](std::size_t layers, std::uint64_t bytes) {
        Walk w;
        std::uint64_t at = 4096 + 8;
        const auto add = [&](std::uint64_t size) -> stream::TrunkMatrix& {
            stream::TrunkMatrix m;
            m.row_bytes = 4096;
            m.rows = std::max<std::uint64_t>(1, size / 4096);
            m.place = {nullptr, at, m.rows * m.row_bytes};
            at += m.place.bytes;
            w.push_back(m);
            return w.back();
        };
        for (std::size_t n = 0; n < layers; ++n) {
            for (int i = 0; i < 5; ++i) add(bytes / 2 + random() % bytes);
            add(bytes / 20);
            add(bytes / 3).router = true;
            add(bytes / 2).undivided = true;
        }
        add(bytes * 5).lm_head = true;
        return w;
    };
    std::vector<Model> all(5);
    all[0].walk = walk(12, 40 * kMiB);
    all[0].slot_bytes = 17 * kMiB;
    all[1].walk = walk(20, 3 * kMiB);
    all[2].walk = walk(4, 60 * kKiB);
    all[2].slot_bytes = 36864;
    all[2].policy = stream::Policy::s3fifo;
    all[3].walk = walk(4, 2 * kMiB);
    all[3].slot_bytes = 40 * kMiB;
    all[3].policy = stream::Policy::lfru;
    all[4].walk = walk(10, 10 * kMiB);
    all[4].experts = all[4].slot_bytes = all[4].per_layer = 0;
    return all;
}

/// Ceilings from far too little to more than all, close together around what is needed.
std::vector<std::uint64_t> ceilings(const Model& m, std::uint64_t least) {
    const std::uint64_t all = m.held + 24 * kMiB + m.state + m.workspace + 512 * m.workspace_per_token + m.windows() +
                              m.experts * m.slot_bytes + 64 * kMiB;
    std::vector<std::uint64_t> out{0, m.held, least / 2, least - 1, least, least + 1, least + 4096};
    for (std::uint64_t c = least; c < all; c += (all - least) / 300 + 1) out.push_back(c);
    for (std::uint64_t i = 0; i < 64; ++i) out.push_back(least + i * 700 * kKiB);
    out.push_back(all);
    out.push_back(all + all / 3);
    std::sort(out.begin(), out.end());
    return out;
}

/// What is wrong with a plan that says that it fits; empty: nothing.
std::string fault_of(const Model& m, const Plan& p) {
    const auto pages = [](std::uint64_t bytes) {
        return bytes < 2 * kMiB ? bytes : (bytes + 2 * kMiB - 1) / (2 * kMiB) * (2 * kMiB);
    };
    if (p.held + p.reserve + p.state + p.workspace + p.pinned + p.ring + p.experts != p.total()) return "the sum";
    if (p.total() > p.ceiling) return "above the ceiling";
    if (p.ceiling > p.available) return "a ceiling above what there is";
    if (p.held != m.held) return "held";
    if (p.state != m.state || p.workspace != m.workspace + p.prefill_chunk * m.workspace_per_token) return "a step";
    if (p.pinned_matrices.size() != m.walk.size()) return "not every matrix";
    const std::uint64_t pinned = stream::pinned_bytes(m.walk, p.pinned_matrices);
    if (p.pinned < pinned || p.pinned > pages(pinned)) return "pinned bytes";
    const bool all = pinned == m.windows();
    if (!all && p.ring < stream::ring_slot_bytes(m.walk)) return "a ring below one slot";
    if (all && p.ring != 0) return "a ring for nothing";
    if (m.experts > 0 && p.expert_slots < stream::least_slots(m.top_k, m.experts)) return "too few slots";
    if (p.expert_slots > m.experts) return "more slots than experts";
    if (p.experts < p.expert_slots * m.slot_bytes) return "slots without memory";
    const stream::StreamedBytes streamed = stream::streamed_bytes(m.walk, p.pinned_matrices);
    if (p.streamed_bytes != streamed.per_step + streamed.lm_head) return "streamed bytes";
    if (p.prefill_chunk < 1 || p.prefill_chunk > 512) return "the chunk";
    return {};
}

}  // namespace

TEST_CASE(
    "stream/plan: whatever the ceiling, a plan that fits stays within it and is whole; what is above least fits") {
    for (const Model& m : models()) {
        INFO("trunk ", m.windows(), ", slot ", m.slot_bytes);
        const std::uint64_t least = m.at(0).least;
        CHECK(least > m.held);
        std::size_t wrong = 0;
        for (const std::uint64_t ceiling : ceilings(m, least)) {
            const Plan p = m.at(ceiling);
            if (p.least != least) ++wrong;
            const std::string fault = p.fits() ? fault_of(m, p) : std::string();
            if (!fault.empty()) FAIL_CHECK(fault << " at " << ceiling);
            if (p.fits() != (ceiling >= least)) {
                if (wrong++ == 0) FAIL_CHECK("least is " << least << "; at " << ceiling << " it fits: " << p.fits());
            }
        }
        CHECK(wrong == 0);
    }
}

TEST_CASE("stream/plan: least is the smallest ceiling that fits, with and without requests, to the byte") {
    for (Model m : models())
        for (const std::size_t fixed_chunk : {0, 1, 7, 64, 512})
            for (const std::size_t positions : {1, 5, 1000})
                for (int ask = 0; ask < 7; ++ask) {
                    m.fixed_chunk = fixed_chunk;
                    m.positions = positions;
                    MemoryRequest request;
                    const std::uint64_t all = m.windows();
                    if (ask == 1) request.trunk = 0;
                    if (ask == 2) request.trunk = all / 2;
                    if (ask == 3) request.trunk = all * 2;
                    if (ask == 4) request.ring = 3;
                    if (ask == 5) request.cache = (m.top_k + 9) * (m.slot_bytes + 4096) + 4 * kMiB;
                    if (ask == 6) {
                        request.trunk = all / 3;
                        request.ring = 2;
                        request.cache = (m.top_k + 2) * (m.slot_bytes + 4096) + 4 * kMiB;
                    }
                    INFO("trunk ", all, ", slot ", m.slot_bytes, ", chunk ", fixed_chunk, ", positions ", positions,
                         ", ask ", ask);
                    const std::uint64_t least = m.at(0, request).least;
                    const Plan enough = m.at(least, request), short_of = m.at(least - 1, request);
                    CHECK(enough.least == least);
                    CHECK(enough.fits());
                    CHECK(enough.total() <= least);
                    CHECK_FALSE(short_of.fits());
                    CHECK(m.at(least + 2 * kMiB, request).fits());
                }
}

TEST_CASE(
    "stream/plan: with the same chunk, more memory never keeps fewer bytes of the trunk, nor, once it is whole, fewer "
    "slots") {
    for (Model m : models())
        for (const std::size_t fixed_chunk : {0, 1, 64}) {
            INFO("trunk ", m.windows(), ", slot ", m.slot_bytes, ", chunk ", fixed_chunk);
            m.fixed_chunk = fixed_chunk;
            std::uint64_t ceiling_before = 0;
            std::size_t fewer = 0;
            std::string first;
            std::optional<Plan> before;
            for (const std::uint64_t ceiling : ceilings(m, m.at(0).least)) {
                const Plan p = m.at(ceiling);
                if (!p.fits()) continue;
                // A larger chunk may take its scratch from the trunk.
                if (before && before->prefill_chunk == p.prefill_chunk) {
                    const std::uint64_t was = stream::pinned_bytes(m.walk, before->pinned_matrices),
                                        now = stream::pinned_bytes(m.walk, p.pinned_matrices);
                    // Matrices stay or go whole: by less than one more would take, it may be fewer.
                    std::uint64_t smallest = ~std::uint64_t{0};
                    for (std::size_t i = 0; i < m.walk.size(); ++i)
                        if (!p.pinned_matrices[i]) smallest = std::min(smallest, m.walk[i].window_bytes());
                    const bool less = now < was && was - now >= smallest,
                               less_slots = was == m.windows() && p.expert_slots < before->expert_slots;
                    if ((less || less_slots) && fewer++ == 0) {
                        first = std::to_string(ceiling_before) + " kept " + std::to_string(was) + ", " +
                                std::to_string(ceiling) + " keeps " + std::to_string(now);
                    }
                }
                before = p;
                ceiling_before = ceiling;
            }
            if (fewer > 0) FAIL_CHECK(fewer << " times; first: " << first);
        }
}

TEST_CASE("stream/plan: expert slots stay at their least until all of the trunk stays; then they take the rest") {
    for (const Model& m : models()) {
        if (m.experts == 0) continue;
        const std::uint64_t least = m.at(0).least;
        for (const std::uint64_t ceiling : ceilings(m, least)) {
            const Plan p = m.at(ceiling);
            if (!p.fits()) continue;
            const bool whole = stream::pinned_bytes(m.walk, p.pinned_matrices) == m.windows();
            // What trunk matrices are too large for may go to slots, but a matrix that fits in their place may not.
            if (!whole) {
                std::uint64_t smallest = ~std::uint64_t{0};
                for (std::size_t i = 0; i < m.walk.size(); ++i)
                    if (!p.pinned_matrices[i]) smallest = std::min(smallest, m.walk[i].window_bytes());
                const std::uint64_t extra = (p.expert_slots - stream::least_slots(m.top_k, m.experts)) * m.slot_bytes;
                CHECK(extra < smallest + 4 * kMiB);
            } else {
                CHECK((p.expert_slots == m.experts || p.ceiling - p.total() < m.slot_bytes + 3 * kMiB));
            }
        }
    }
}

TEST_CASE("stream/plan: what is asked for trunk, ring and cache is what is planned, or the plan does not fit") {
    for (const Model& m : models()) {
        const std::uint64_t all = m.windows(), slot = stream::ring_slot_bytes(m.walk);
        const std::uint64_t plenty = m.at(0).least + 2 * all + 40 * m.slot_bytes + 100 * slot + 2 * kGiB;
        for (const std::uint64_t trunk : {std::uint64_t{0}, all / 7, all / 2, all - 1}) {
            const Plan p = m.at(plenty, {.trunk = trunk});
            CHECK(p.fits());
            CHECK(fault_of(m, p).empty());
            const std::uint64_t pinned = stream::pinned_bytes(m.walk, p.pinned_matrices);
            CHECK(pinned <= trunk);
            std::uint64_t smallest = ~std::uint64_t{0};
            for (std::size_t i = 0; i < m.walk.size(); ++i)
                if (!p.pinned_matrices[i]) smallest = std::min(smallest, m.walk[i].window_bytes());
            CHECK(trunk - pinned < smallest + 2 * kMiB);  // to the last that fits, but for whole pages
        }
        const Plan whole = m.at(plenty, {.trunk = all + 2 * kMiB});
        CHECK(stream::pinned_bytes(m.walk, whole.pinned_matrices) == all);
        CHECK(whole.ring == 0);
        for (const std::size_t ring : {1, 2, 3, 20}) {
            const Plan p = m.at(plenty, {.trunk = all / 2, .ring = ring});
            CHECK(p.fits());
            CHECK(p.ring >= std::min(ring * slot, all));  // more than the trunk is never of use
            CHECK(p.ring < ring * slot + 2 * kMiB);
            const std::uint64_t least = m.at(0, {.trunk = all / 2, .ring = ring}).least;
            CHECK(m.at(least, {.trunk = all / 2, .ring = ring}).fits());
            CHECK_FALSE(m.at(least - 1, {.trunk = all / 2, .ring = ring}).fits());
        }
        if (m.experts == 0) continue;
        for (const std::size_t slots : {m.top_k + 1, m.top_k + 5, std::size_t{100}}) {
            const std::uint64_t bytes = stream::detail::cache_bytes(m.facts(), slots);
            CHECK(m.at(plenty + bytes, {.cache = bytes}).expert_slots >= slots);
            CHECK(m.at(plenty + bytes, {.cache = bytes}).experts <= bytes);
            if (slots == m.top_k + 1) {
                const std::string line = refusal([&] { m.at(plenty, {.cache = bytes - 1}); });
                CHECK(holds(line, std::to_string(bytes - 1)));
                CHECK(holds(line, "at least " + std::to_string(bytes)));
                CHECK_FALSE(refusal([&] { m.at(plenty, {.cache = 0}); }).empty());
                CHECK(refusal([&] { m.at(plenty, {.cache = bytes}); }).empty());
            }
        }
        // No ring and no whole trunk: there is nothing to read with.
        const std::string line = refusal([&] {
            const Plan p = m.at(plenty, {.trunk = 0, .ring = 0});
            CHECK((!p.fits() || p.ring >= slot));
        });
        CHECK((line.empty() || holds(line, "ring")));
    }
}

TEST_CASE(
    "stream/plan: the chunk is the largest of 512, 256, ... whose scratch is at most a quarter, or what is fixed") {
    for (Model m : models()) {
        const std::uint64_t least = m.at(0).least;
        for (const std::uint64_t ceiling : ceilings(m, least)) {
            const Plan p = m.at(ceiling);
            if (!p.fits()) continue;
            const std::uint64_t budget = ceiling - m.held - p.reserve;
            const auto workspace = [&](std::size_t chunk) { return m.workspace + chunk * m.workspace_per_token; };
            CHECK((p.prefill_chunk & (p.prefill_chunk - 1)) == 0);
            CHECK((p.prefill_chunk == 1 || workspace(p.prefill_chunk) <= budget / 4));
            if (p.prefill_chunk < 512) {
                // A larger one has too much scratch, or leaves too little for the rest.
                const std::uint64_t grown = p.least - workspace(1) + workspace(2 * p.prefill_chunk);
                CHECK((workspace(2 * p.prefill_chunk) > budget / 4 || grown > ceiling));
            }
        }
        m.positions = 5;
        CHECK(m.plan().prefill_chunk == 5);
        m.positions = 0;
        CHECK(m.plan().prefill_chunk == 1);
        for (const std::size_t chunk : {1, 7, 64, 2000}) {
            m.fixed_chunk = chunk;
            m.positions = 5000;
            CHECK(m.plan().prefill_chunk == chunk);
            m.positions = 3;
            CHECK(m.plan().prefill_chunk == std::min<std::size_t>(chunk, 3));
        }
    }
}

TEST_CASE(
    "stream/plan: without a ceiling it stays below what there is by a 32nd; with one it may use all there is and no "
    "more") {
    for (Model m : models()) {
        const std::uint64_t least = m.at(0).least;
        for (const std::uint64_t limit : {least - m.held + least / 31, least * 2, least * 10}) {
            m.limit = limit;
            const Plan p = m.plan();
            CHECK(p.available == m.held + limit);
            CHECK(p.limited_by == "a test");
            CHECK_FALSE(p.asked_ceiling);
            CHECK(p.fits());
            CHECK(p.total() <= m.held + limit - limit / 32);
            CHECK(m.at(m.held + limit).fits());
            const Plan above = m.at(m.held + 2 * limit);
            CHECK(above.fits() == (above.total() <= m.held + limit));
            CHECK(m.at(m.held + limit + 1).asked_ceiling);
        }
        m.limit = io::kUnlimited;
        const Plan p = m.plan();
        CHECK(p.available == io::kUnlimited);
        CHECK(p.fits());
        CHECK(p.expert_slots == m.experts);
        CHECK(stream::pinned_bytes(m.walk, p.pinned_matrices) == m.windows());
        m.limit = 0;
        CHECK_FALSE(m.plan().fits());
    }
}
