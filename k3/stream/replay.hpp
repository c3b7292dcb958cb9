#ifndef K3_STREAM_REPLAY_HPP
#define K3_STREAM_REPLAY_HPP
// The offline simulator: a trace played through the ExpertSlots the engine uses, at any number of slots and any policy.
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "k3/stream/belady.hpp"
#include "k3/stream/expert_slots.hpp"
#include "k3/stream/trace.hpp"

namespace k3::stream {

/// Counters of the prefill and the decode steps.
struct ReplayTotals {
    std::array<CacheCounters, 2> by_mode{};  // indexed by StepMode
    const CacheCounters& of(StepMode mode) const noexcept { return by_mode[static_cast<std::size_t>(mode)]; }
    CacheCounters all() const noexcept {
        CacheCounters sum = by_mode[0];
        return sum += by_mode[1];
    }
};

enum class Lookahead : std::uint8_t { as_recorded, none };

/// Every load succeeds. Requires slots >= 1. Errors: std::bad_alloc.
inline ReplayTotals replay(const Trace& trace, std::size_t slots, Policy policy,
                           Lookahead lookahead = Lookahead::as_recorded) {
    ExpertSlots cache(slots, trace.shape.keys(), policy, trace.shape.experts);
    ReplayTotals totals;
    CacheCounters before;
    std::optional<StepMode> mode;
    const auto close = [&] {
        if (mode) totals.by_mode[static_cast<std::size_t>(*mode)] += cache.counters() - before;
        before = cache.counters();
    };
    trace.for_each(
        [&](const TraceStep& step) {
        close();
        mode = step.mode;
        },
        [&](const TraceStep&, std::span<const std::uint32_t> requests, std::span<const std::uint32_t> ahead) {
        cache.batch(
            requests, [](std::size_t, std::uint32_t, std::uint32_t, Outcome) noexcept {},
            [](std::size_t, std::uint32_t, std::uint32_t) noexcept { return true; });
        if (lookahead == Lookahead::none) return;
        for (const std::uint32_t key : ahead) cache.prefetch(key);
    });
    close();
    return totals;
}

/// The bound of belady.hpp for a trace, prepared once for any number of capacities.
class TraceBound {
  public:
    explicit TraceBound(const Trace& trace) : belady_(trace.shape.keys()) {
        trace.for_each([](const TraceStep&) {},
                       [&](const TraceStep& step, std::span<const std::uint32_t> requests, auto) {
            belady_.add_batch(requests);
            modes_.push_back(step.mode);
        });
    }
    /// Loads by StepMode. With as many slots as keys this is the compulsory bound: every expert once.
    std::array<std::uint64_t, 2> loads(std::size_t slots) const {
        std::array<std::uint64_t, 2> sum{};
        belady_.replay(slots, [&](std::size_t batch, std::uint64_t loads) {
            sum[static_cast<std::size_t>(modes_[batch])] += loads;
        });
        return sum;
    }

  private:
    Belady belady_;
    std::vector<StepMode> modes_{};  // by batch
};

}  // namespace k3::stream
#endif
