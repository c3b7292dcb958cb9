#ifndef K3_ENGINE_PLAN_REFUSAL_HPP
#define K3_ENGINE_PLAN_REFUSAL_HPP
// A plan that does not fit, in one line: what it needs, what there is, and what would fit, as options take it.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>

#include "k3/core/error.hpp"
#include "k3/stream/plan.hpp"

namespace k3::engine {

/// `fits`: the most positions that would fit, 0 if none. `fixed_chunk`: the prefill chunk that was asked for, 0 if
/// none.
inline Error plan_refusal(const stream::Plan& plan, std::size_t fits, std::size_t fixed_chunk) {
    const bool too_high = plan.asked_ceiling && plan.total() <= plan.ceiling && plan.ceiling > plan.available;
    const std::uint64_t there = too_high ? plan.available : std::min(plan.ceiling, plan.available);
    const std::string who = plan.asked_ceiling && plan.ceiling <= plan.available ? "as asked for" : plan.limited_by;
    const auto mb = [](std::uint64_t bytes) { return std::to_string((bytes + 999999) / 1000000) + " MB"; };
    // As an option takes it, and a little more: what the program itself holds differs from run to run.
    const auto option = [](std::uint64_t bytes) { return "--memory " + std::to_string(bytes / 1000000 + 2) + "M"; };
    if (too_high)
        return Error(
            Code::plan,
            "a ceiling of " + mb(plan.ceiling) + " is more than the " + mb(there) + " there are (" + who + ")",
            plan.least <= plan.available
                ? "ask for at most --memory " + std::to_string((plan.available - plan.available / 32) / 1000000) + "M"
                : "no ceiling would do here: " + mb(plan.least) + " are needed");
    std::string next;
    if (fits > 0)
        next =
            "at most " + std::to_string(fits) + " positions fit: shorten the prompt or --gen, or use fewer --threads";
    if (plan.least <= plan.available)
        next += (next.empty() ? "allow at least " : "; or allow at least ") + option(plan.least);
    if (fixed_chunk > 1) next += (next.empty() ? "" : "; or ") + std::string("use a smaller --prefill-chunk");
    if (next.empty()) next = "use a machine with more memory or bind fewer layers with --layers";
    return Error(Code::plan,
                 std::to_string(plan.positions) + " positions need " + mb(plan.least) + " (program and index " +
                     mb(plan.held) + ", state and scratch " + mb(plan.state + plan.workspace) +
                     ", the least of trunk and experts " + mb(plan.ring + plan.experts) + ", reserve " +
                     mb(plan.reserve) + "), there are " + mb(there) + " (" + who + ")",
                 next);
}

}  // namespace k3::engine
#endif
