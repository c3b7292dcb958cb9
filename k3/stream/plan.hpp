#ifndef K3_STREAM_PLAN_HPP
#define K3_STREAM_PLAN_HPP
// What a run will hold in memory, before it holds it: one budget for everything, split between what is fixed (state,
// scratch), the trunk (what stays, and a ring for the rest) and the cache of experts.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "k3/core/buffer.hpp"
#include "k3/core/error.hpp"
#include "k3/io/memory_limits.hpp"
#include "k3/stream/expert_cache.hpp"
#include "k3/stream/expert_slots.hpp"
#include "k3/stream/trunk_layout.hpp"

namespace k3::stream {

/// What was asked for; nothing: the planner's choice. Bytes; `ring` in slots.
struct MemoryRequest {
    std::optional<std::uint64_t> ceiling{}, trunk{}, cache{};
    std::optional<std::size_t> ring{};
};

/// Bytes that depend on the length of the sequence and on the tokens of a step.
struct StepMemory {
    std::uint64_t state = 0, workspace = 0;
};

struct PlanFacts {
    const std::vector<TrunkMatrix>& walk;
    std::size_t experts = 0, least_slots = 0, slot_bytes = 0;  // routed experts of all layers
    std::size_t keys = 0, most_distinct = 0;                   // of the cache: layers * experts, and of one layer
    std::uint64_t trace = 0;                                   // bytes that a recorded trace may grow to
    Policy policy = Policy::lfru;
    std::uint64_t held = 0;   // resident now: the program, the index, the vectors
    io::MemoryLimit limit{};  // what may be allocated besides
    std::size_t positions = 0;
    std::size_t fixed_chunk = 0;  // 0: the planner's choice
    std::function<StepMemory(std::size_t chunk)> step_memory{};
};

struct Plan {
    std::uint64_t held = 0;     // before the plan: program, index, norm vectors, tokenizer
    std::uint64_t reserve = 0;  // what no plan sees: stacks, the heap, rounding to pages
    std::uint64_t state = 0, workspace = 0;
    std::uint64_t pinned = 0;   // trunk matrices that stay
    std::uint64_t ring = 0;     // panels of the others
    std::uint64_t experts = 0;  // cache slots and their bookkeeping
    std::uint64_t ceiling = 0;  // what total() may be
    std::string limited_by{};
    bool asked_ceiling = false;   // the ceiling was asked for, not found
    std::uint64_t available = 0;  // held and what the system would give besides
    std::uint64_t least = 0;      // the least ceiling that would do for these positions
    std::size_t positions = 0, prefill_chunk = 1;
    std::size_t expert_slots = 0, all_experts = 0;
    std::uint64_t trunk_bytes = 0;     // of all trunk matrices, on disk
    std::uint64_t streamed_bytes = 0;  // of those a decode step reads, lm_head included
    std::vector<bool> pinned_matrices{};
    bool possible = true;  // the least of trunk and experts is in it

    std::uint64_t total() const noexcept { return held + reserve + state + workspace + pinned + ring + experts; }
    bool fits() const noexcept { return possible && total() <= ceiling && total() <= available; }
};

namespace detail {

constexpr std::uint64_t on_pages(std::uint64_t bytes) noexcept { return core::Buffer::most_resident(bytes); }

/// The most bytes whose on_pages() is not above `bytes`.
constexpr std::uint64_t whole_pages(std::uint64_t bytes) noexcept {
    return bytes < core::Buffer::kHugePage ? bytes : bytes - bytes % core::Buffer::kHugePage;
}

inline constexpr std::uint64_t kReserve = std::uint64_t{24} << 20;
inline constexpr std::size_t kLargestChunk = 512;
inline constexpr std::uint64_t kMostRing = std::uint64_t{400} << 20;

inline std::uint64_t cache_bytes(const PlanFacts& facts, std::size_t slots) {
    if (slots == 0) return 0;
    return on_pages(slots * std::uint64_t{facts.slot_bytes}) +
           ExpertSlots::memory_bytes(facts.policy, slots, facts.keys, facts.most_distinct) +
           slots * sizeof(std::uint32_t);
}
/// The most slots that fit in `bytes`.
inline std::size_t slots_within(const PlanFacts& facts, std::uint64_t bytes) {
    if (facts.slot_bytes == 0) return 0;
    std::size_t slots = std::min<std::uint64_t>(facts.experts, bytes / facts.slot_bytes);
    while (slots > 0 && cache_bytes(facts, slots) > bytes) --slots;
    return slots;
}

/// For --cache-gb, rounded up: "0.31".
inline std::string gigabytes(std::uint64_t bytes) {
    const std::string digits = std::to_string(bytes / 1000 + 1);  // in units of 10^-6
    const std::string padded = std::string(digits.size() < 7 ? 7 - digits.size() : 0, '0') + digits;
    return padded.substr(0, padded.size() - 6) + "." + padded.substr(padded.size() - 6);
}

/// What the trunk asks for, whatever the room.
struct TrunkNeeds {
    TrunkNeeds(const std::vector<TrunkMatrix>& walk, const MemoryRequest& request)
        : all(on_pages(pinned_bytes(walk, std::vector<bool>(walk.size(), true)))),
          slot(ring_slot_bytes(walk)),
          stays(std::min(all, request.trunk.value_or(0))) {}
    /// A ring of so many slots; more than the trunk is of no use.
    std::uint64_t ring(std::size_t slots) const noexcept { return std::clamp(slots * slot, slot, std::max(slot, all)); }

    std::uint64_t all;    // to keep all of it
    std::uint64_t slot;   // one panel
    std::uint64_t stays;  // what was asked to stay
};

/// Splits `room` bytes between trunk and experts. False if the least of both does not fit.
inline bool split(const PlanFacts& facts, const MemoryRequest& request, const TrunkNeeds& trunk, std::uint64_t room,
                  Plan& plan) {
    std::size_t slots = facts.least_slots;
    if (request.cache) {
        slots = slots_within(facts, *request.cache);
        if (slots < facts.least_slots) {
            throw Error(Code::plan,
                        "an expert cache of " + std::to_string(*request.cache) + " bytes has " + std::to_string(slots) +
                            " slots of " + std::to_string(facts.slot_bytes) +
                            " bytes and their bookkeeping; a token needs " + std::to_string(facts.least_slots),
                        "give it at least " + std::to_string(cache_bytes(facts, facts.least_slots)) +
                            " bytes: --cache-gb " + gigabytes(cache_bytes(facts, facts.least_slots)));
        }
    }
    const std::uint64_t least_experts = cache_bytes(facts, slots);
    plan.expert_slots = slots;
    plan.experts = least_experts;
    if (least_experts > room) return false;
    const std::uint64_t besides = room - least_experts;
    if (trunk.all <= std::min(besides, request.trunk.value_or(besides))) {
        plan.pinned_matrices.assign(facts.walk.size(), true);
        plan.pinned = trunk.all;
    } else {
        const std::uint64_t left = besides > trunk.stays ? whole_pages(besides - trunk.stays) : 0;
        const std::uint64_t wished =
            request.ring ? trunk.ring(*request.ring)
                         : std::max(trunk.slot, whole_pages(std::min({kMostRing, besides / 8, trunk.all / 4, left})));
        // The ring is not part of what was asked for the trunk that stays.
        plan.ring = on_pages(wished);
        if (plan.ring > besides || trunk.stays > besides - plan.ring) return false;
        const std::uint64_t for_trunk = std::min(request.trunk.value_or(besides), besides - plan.ring);
        plan.pinned_matrices = choose_pinned(facts.walk, whole_pages(for_trunk));
        plan.pinned = on_pages(pinned_bytes(facts.walk, plan.pinned_matrices));
    }
    if (!request.cache) slots = std::max(slots, slots_within(facts, room - plan.ring - plan.pinned));
    plan.expert_slots = slots;
    plan.experts = cache_bytes(facts, slots);
    return true;
}

}  // namespace detail

/// Plans a run. The result may not fit (fits()): it then says what is missing. Expert slots stay at their least until
/// all of the trunk stays; a prefill chunk is the largest of 512, 256, ... whose scratch is at most a quarter of what
/// there is, unless it is fixed. Errors: Code::plan for a cache too small for one token.
inline Plan make_plan(const PlanFacts& facts, const MemoryRequest& request) {
    Plan plan;
    plan.held = facts.held;
    plan.reserve = detail::kReserve + facts.trace;
    plan.positions = facts.positions;
    plan.all_experts = facts.experts;
    for (const TrunkMatrix& m : facts.walk) plan.trunk_bytes += m.place.bytes;
    const std::uint64_t limit = facts.limit.bytes;
    plan.available = limit > io::kUnlimited - facts.held ? io::kUnlimited : facts.held + limit;
    plan.limited_by = facts.limit.source;
    // Head-room: others on this machine allocate too.
    const std::uint64_t found = plan.available - limit / 32;
    plan.asked_ceiling = request.ceiling.has_value();
    plan.ceiling = request.ceiling.value_or(found);

    const detail::TrunkNeeds trunk(facts.walk, request);
    const std::uint64_t least_ring = detail::on_pages(trunk.ring(request.ring.value_or(1)));
    // All of it may stay instead of a ring, unless less was asked for.
    const std::uint64_t least_trunk = request.trunk.value_or(trunk.all) < trunk.all
                                          ? trunk.stays + least_ring
                                          : std::min(trunk.all, trunk.stays + least_ring);
    const std::size_t least_slots =
        request.cache ? std::max(facts.least_slots, detail::slots_within(facts, *request.cache)) : facts.least_slots;
    const std::uint64_t least_parts = least_trunk + detail::cache_bytes(facts, least_slots);
    const std::size_t longest = std::max<std::size_t>(1, facts.positions);
    const StepMemory one = facts.step_memory(facts.fixed_chunk != 0 ? std::min(facts.fixed_chunk, longest) : 1);
    plan.least = plan.held + plan.reserve + one.state + one.workspace + least_parts;

    const std::uint64_t budget = plan.ceiling > plan.held + plan.reserve ? plan.ceiling - plan.held - plan.reserve : 0;
    std::size_t chunk = facts.fixed_chunk != 0 ? facts.fixed_chunk : detail::kLargestChunk;
    chunk = std::min(chunk, longest);
    for (;; chunk = (chunk + 1) / 2) {
        const StepMemory step = facts.step_memory(chunk);
        plan.prefill_chunk = chunk;
        plan.state = step.state;
        plan.workspace = step.workspace;
        const std::uint64_t fixed = step.state + step.workspace;
        const bool modest = step.workspace <= budget / 4 && fixed + least_parts <= budget;
        if (modest || chunk == 1 || facts.fixed_chunk != 0) {
            const std::uint64_t room = budget > fixed ? budget - fixed : 0;
            plan.possible = detail::split(facts, request, trunk, room, plan);
            if (!plan.possible) {
                plan.pinned_matrices.assign(facts.walk.size(), false);
                plan.pinned = 0;
                plan.ring = least_trunk;
            }
            const StreamedBytes streamed = stream::streamed_bytes(facts.walk, plan.pinned_matrices);
            plan.streamed_bytes = streamed.per_step + streamed.lm_head;
            return plan;
        }
    }
}

}  // namespace k3::stream
#endif
