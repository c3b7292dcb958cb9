#ifndef K3_DRIVERS_TRACE_SWEEP_HPP
#define K3_DRIVERS_TRACE_SWEEP_HPP
// One trace at several capacities: every policy, Belady's bound and the compulsory bound, prefill and decode apart.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "drivers/sizes.hpp"
#include "k3/core/error.hpp"
#include "k3/stream/replay.hpp"

namespace k3::trace {

inline constexpr std::array<stream::StepMode, 2> kModes{stream::StepMode::prefill, stream::StepMode::decode};
inline const char* name_of(stream::StepMode mode) { return mode == stream::StepMode::prefill ? "prefill" : "decode"; }

/// What a mode of a trace asks for, whatever the cache.
struct Demand {
    std::uint64_t steps = 0, tokens = 0, requests = 0;
};

struct Facts {
    std::array<Demand, 2> demand{};  // by StepMode
    std::uint64_t layers = 0;        // with requests
    std::uint64_t distinct = 0;      // experts
    std::uint64_t lookaheads = 0;
    const Demand& of(stream::StepMode mode) const { return demand[static_cast<std::size_t>(mode)]; }
    bool has(stream::StepMode mode) const { return of(mode).requests != 0; }
};

inline Facts facts_of(const stream::Trace& trace) {
    Facts facts;
    trace.for_each(
        [&](const stream::TraceStep& step) {
        Demand& demand = facts.demand[static_cast<std::size_t>(step.mode)];
        ++demand.steps;
        demand.tokens += step.tokens;
        },
        [&](const stream::TraceStep& step, auto requests, auto) {
        facts.demand[static_cast<std::size_t>(step.mode)].requests += requests.size();
    });
    std::vector<bool> layers(trace.shape.layers), keys(trace.shape.keys());
    for (const std::uint32_t key : trace.requests) layers[key / trace.shape.experts] = keys[key] = true;
    facts.layers = static_cast<std::uint64_t>(std::count(layers.begin(), layers.end(), true));
    facts.distinct = static_cast<std::uint64_t>(std::count(keys.begin(), keys.end(), true));
    facts.lookaheads = trace.lookaheads.size();
    return facts;
}

/// One line of the table.
struct Row {
    std::uint64_t slots;
    std::string policy;  // or "belady", "compulsory"
    stream::StepMode mode;
    std::uint64_t requests, tokens, loads, hits;
    std::optional<stream::CacheCounters> counters{};  // of a policy

    double hit_rate() const { return static_cast<double>(hits) / static_cast<double>(requests); }
    double loads_per_token() const {
        return static_cast<double>(loads) / static_cast<double>(std::max<std::uint64_t>(tokens, 1));
    }
};

/// Slots from a list like "2052,8G,10%": slots, memory, or a share of all experts. Errors: Code::usage.
inline std::vector<std::size_t> parse_capacities(std::string_view list, const stream::Trace& trace, const Facts& facts,
                                                 std::uint64_t expert_bytes) {
    const std::uint64_t least = trace.shape.top_k + 1, all = std::max(facts.layers * trace.shape.experts, least);
    std::vector<std::size_t> slots;
    for (std::size_t at = 0; at <= list.size();) {
        const std::size_t end = std::min(list.find(',', at), list.size());
        const std::string_view word = list.substr(at, end - at);
        at = end + 1;
        std::uint64_t count = 0;
        if (word.ends_with('%')) {
            count = all * drivers::parse_count("--capacity", word.substr(0, word.size() - 1), 1, 100) / 100;
        } else if (word.find_first_not_of("0123456789") == std::string_view::npos) {
            count = drivers::parse_count("--capacity", word, 1, std::uint64_t{1} << 40);
        } else {
            const std::uint64_t bytes = drivers::parse_size("--capacity", word, 0);
            if (expert_bytes == 0)
                throw Error(Code::usage, "--capacity: " + drivers::in_quotes(word) + " needs the size of an expert",
                            "give --expert-bytes, or slots without a unit");
            count = bytes / expert_bytes;
        }
        if (count < least)
            throw Error(Code::usage,
                        "--capacity: " + drivers::in_quotes(word) + " is " + std::to_string(count) +
                            " slots; a cache has at least top_k + 1 = " + std::to_string(least),
                        "give a larger capacity");
        slots.push_back(static_cast<std::size_t>(std::min(count, all)));
    }
    std::sort(slots.begin(), slots.end());
    slots.erase(std::unique(slots.begin(), slots.end()), slots.end());
    return slots;
}

/// Shares of all experts, and the recorded run's own capacity.
inline std::vector<std::size_t> usual_capacities(const stream::Trace& trace, const Facts& facts) {
    const std::uint64_t least = trace.shape.top_k + 1, all = std::max(facts.layers * trace.shape.experts, least);
    std::vector<std::size_t> slots;
    for (const std::uint64_t share : {20, 50, 100, 150, 200, 300, 400, 500, 750})
        slots.push_back(static_cast<std::size_t>(std::max(least, all * share / 1000)));
    if (trace.run) slots.push_back(static_cast<std::size_t>(std::clamp(trace.run->slots, least, all)));
    std::sort(slots.begin(), slots.end());
    slots.erase(std::unique(slots.begin(), slots.end()), slots.end());
    return slots;
}

/// progress(done, all) after each replay.
inline std::vector<Row> sweep(const stream::Trace& trace, const Facts& facts,
                              const std::vector<std::size_t>& capacities, const std::vector<stream::Policy>& policies,
                              stream::Lookahead lookahead,
                              const std::function<void(std::size_t, std::size_t)>& progress) {
    std::vector<Row> rows;
    const std::size_t all = capacities.size() * (policies.size() + 1) + 1;
    std::size_t done = 0;
    const auto bound_rows = [&](const stream::TraceBound& bound, std::size_t slots, const char* what) {
        const std::array<std::uint64_t, 2> loads = bound.loads(slots);
        for (const stream::StepMode mode : kModes) {
            if (!facts.has(mode)) continue;
            const Demand& demand = facts.of(mode);
            const std::uint64_t mine = loads[static_cast<std::size_t>(mode)];
            rows.push_back({slots, what, mode, demand.requests, demand.tokens, mine, demand.requests - mine});
        }
        progress(++done, all);
    };
    const stream::TraceBound bound(trace);
    for (const std::size_t slots : capacities) {
        for (const stream::Policy policy : policies) {
            const stream::ReplayTotals totals = stream::replay(trace, slots, policy, lookahead);
            for (const stream::StepMode mode : kModes) {
                if (!facts.has(mode)) continue;
                const stream::CacheCounters& c = totals.of(mode);
                rows.push_back({slots, std::string(name(policy)), mode, c.requests, facts.of(mode).tokens, c.loads(),
                                c.requests - c.misses, c});
            }
            progress(++done, all);
        }
        bound_rows(bound, slots, "belady");
    }
    bound_rows(bound, trace.shape.keys(), "compulsory");
    return rows;
}

}  // namespace k3::trace
#endif
