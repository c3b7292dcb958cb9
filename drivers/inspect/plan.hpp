#ifndef K3_DRIVERS_INSPECT_PLAN_HPP
#define K3_DRIVERS_INSPECT_PLAN_HPP
// What a run with so much memory would keep, stream and cache, from the headers of a checkpoint and without its
// weights; with a disk's speed, how long a token takes.
#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <string>

#include <nlohmann/json.hpp>

#include "drivers/forecast/forecast.hpp"
#include "drivers/forecast/planned.hpp"

namespace k3::inspect {

/// GB/s; 0: not said.
struct PlanSpeeds {
    double disk = 0, cores = 0;
};

/// Cores that are not spoken of take no time: what is left is the disk's part.
inline forecast::Forecast plan_forecast(const forecast::Work& work, const PlanSpeeds& speeds) {
    const double disk = speeds.disk * 1e9;
    const double cores = speeds.cores > 0 ? speeds.cores * 1e9 : std::numeric_limits<double>::infinity();
    return forecast::forecast(work, {.in_order = disk, .at_random = disk, .trunk = cores, .experts = cores});
}

inline void print_plan_text(const forecast::Planned& planned, const PlanSpeeds& speeds) {
    const forecast::Split& s = planned.split;
    const forecast::Work& w = planned.work;
    const forecast::Forecast f = plan_forecast(w, speeds);
    const auto line = [](std::uint64_t bytes, const std::string& what) {
        std::printf("  %18" PRIu64 "  %s\n", bytes, what.c_str());
    };
    std::printf("plan for %zu positions, bytes\n", s.positions);
    line(s.pinned, "pinned: trunk matrices that stay, with the blocks around them");
    line(s.ring, "ring that the rest of the trunk passes through");
    line(s.experts, "expert cache, " + std::to_string(w.slots) + " of " + std::to_string(w.experts) + " experts");
    line(s.state, "state and latent cache");
    line(s.workspace, "scratch, prefill chunk " + std::to_string(s.prefill_chunk));
    line(s.held, "program and index");
    line(s.reserve, "reserve");
    line(s.total, "in all, of " + std::to_string(s.ceiling) + " (" + s.limited_by + ")");
    line(s.least, "would do");
    std::printf("\na decoded token, bytes\n");
    line(w.trunk, "trunk and lm_head that it multiplies with");
    line(w.streamed, "of those streamed");
    line(static_cast<std::uint64_t>(f.missed * static_cast<double>(w.expert)),
         "experts that are missed: " + std::to_string(f.missed).substr(0, std::to_string(f.missed).find('.') + 2) +
             " of the " + std::to_string(w.wanted) + " it uses, if they are chosen evenly");
    line(w.row, "embedding row");
    line(static_cast<std::uint64_t>(f.bytes), "read in all");
    if (!(speeds.disk > 0)) return;
    std::printf("\n%s\n  %.3f s a token at %g GB/s of disk%s: T %.3f s, E %.3f s", forecast::kFormula, f.seconds,
                speeds.disk, speeds.cores > 0 ? "" : ", the disk alone", f.trunk_read, f.experts_read);
    if (speeds.cores > 0) std::printf(", C %.3f s, X %.3f s", f.trunk_product, f.experts_product);
    std::printf("\n");
}

inline void print_plan_json(const forecast::Planned& planned, const PlanSpeeds& speeds) {
    const forecast::Split& s = planned.split;
    const forecast::Work& w = planned.work;
    const forecast::Forecast f = plan_forecast(w, speeds);
    nlohmann::ordered_json root = {{"positions", s.positions},
                                   {"ceiling_bytes", s.ceiling},
                                   {"total_bytes", s.total},
                                   {"least_bytes", s.least},
                                   {"trunk_pinned_bytes", s.pinned},
                                   {"trunk_ring_bytes", s.ring},
                                   {"expert_cache_bytes", s.experts},
                                   {"state_bytes", s.state},
                                   {"scratch_bytes", s.workspace},
                                   {"program_bytes", s.held},
                                   {"reserve_bytes", s.reserve},
                                   {"prefill_chunk", s.prefill_chunk},
                                   {"trunk_bytes", w.trunk},
                                   {"trunk_streamed_bytes_per_token", w.streamed},
                                   {"expert_bytes", w.expert},
                                   {"expert_slots", w.slots},
                                   {"experts", w.experts},
                                   {"experts_per_token", w.wanted},
                                   {"experts_missed_per_token", f.missed},
                                   {"embedding_row_bytes", w.row},
                                   {"bytes_per_token", f.bytes}};
    if (speeds.disk > 0) root["seconds_per_token"] = f.seconds;
    std::printf("%s\n", root.dump().c_str());
}

}  // namespace k3::inspect
#endif
