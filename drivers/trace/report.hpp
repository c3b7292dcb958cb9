#ifndef K3_DRIVERS_TRACE_REPORT_HPP
#define K3_DRIVERS_TRACE_REPORT_HPP
// The sweep as text or JSON, and the check of a recorded run against its own replay.
#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "drivers/sizes.hpp"
#include "drivers/trace/sweep.hpp"
#include "k3/core/error.hpp"
#include "k3/stream/replay.hpp"

namespace k3::trace {

/// What turns loads into bytes and bytes into time; 0: not known.
struct Scale {
    std::uint64_t expert_bytes;
    double disk_bytes_per_second;
};

namespace detail {
inline double bytes_per_token(const Row& row, const Scale& scale) {
    return row.loads_per_token() * static_cast<double>(scale.expert_bytes);
}
inline std::string number(const char* form, double value, bool known) {
    if (!known) return "-";
    char text[40];
    std::snprintf(text, sizeof text, form, value);
    return text;
}
}  // namespace detail

inline void print_text(const stream::Trace& trace, const Facts& facts, const std::vector<Row>& rows,
                       const Scale& scale) {
    std::printf("%" PRIu64 " layers of %u experts, top %u; %zu requests for %" PRIu64 " distinct experts", facts.layers,
                trace.shape.experts, trace.shape.top_k, trace.requests.size(), facts.distinct);
    for (const stream::StepMode mode : kModes)
        if (facts.has(mode))
            std::printf("; %s %" PRIu64 " tokens in %" PRIu64 " steps", name_of(mode), facts.of(mode).tokens,
                        facts.of(mode).steps);
    if (trace.truncated) std::printf("; the recorder reached its limit, later steps are missing");
    if (trace.run)
        std::printf("; recorded with %" PRIu64 " slots, %s", trace.run->slots,
                    std::string(name(trace.run->policy)).c_str());
    std::printf("\n\n%8s %9s  %-10s %-7s %9s %9s %10s %9s %9s %9s\n", "slots", "memory", "policy", "mode", "hit rate",
                "loads", "look-ahead", "wasted", "GB/token", "s/token");
    const bool sized = scale.expert_bytes != 0;
    std::uint64_t latest = 0;
    for (const Row& row : rows) {
        if (row.slots != latest && latest != 0) std::printf("\n");
        latest = row.slots;
        const double bytes = detail::bytes_per_token(row, scale);
        const bool compulsory = row.policy == "compulsory";
        std::printf(
            "%8s %9s  %-10s %-7s %8.2f%% %9" PRIu64 " %10s %9s %9s %9s\n",
            compulsory ? "any" : std::to_string(row.slots).c_str(),
            compulsory || !sized ? "-" : drivers::show_bytes(row.slots * scale.expert_bytes).c_str(),
            row.policy.c_str(), name_of(row.mode), 100 * row.hit_rate(), row.loads,
            row.counters ? std::to_string(row.counters->lookahead_loads).c_str() : "-",
            row.counters ? std::to_string(row.counters->lookahead_wasted).c_str() : "-",
            detail::number("%.4g", bytes / 1e9, sized).c_str(),
            detail::number("%.4g", bytes / scale.disk_bytes_per_second, sized && scale.disk_bytes_per_second > 0)
                .c_str());
    }
}

inline nlohmann::ordered_json counters_json(const stream::CacheCounters& counters) {
    nlohmann::ordered_json result = nlohmann::ordered_json::object();
    stream::CacheCounters::for_each([&](const char* name, auto member) { result[name] = counters.*member; });
    return result;
}

inline void print_json(const stream::Trace& trace, const Facts& facts, const std::vector<Row>& rows,
                       const Scale& scale) {
    using Json = nlohmann::ordered_json;
    Json root = {{"layers", trace.shape.layers},  {"experts", trace.shape.experts},
                 {"top_k", trace.shape.top_k},    {"expert_bytes", scale.expert_bytes},
                 {"truncated", trace.truncated},  {"distinct_experts", facts.distinct},
                 {"lookaheads", facts.lookaheads}};
    for (const stream::StepMode mode : kModes)
        root[name_of(mode)] = {
            {"steps", facts.of(mode).steps}, {"tokens", facts.of(mode).tokens}, {"requests", facts.of(mode).requests}};
    root["rows"] = Json::array();
    for (const Row& row : rows) {
        Json line = {{"slots", row.slots},         {"policy", row.policy}, {"mode", name_of(row.mode)},
                     {"hit_rate", row.hit_rate()}, {"loads", row.loads},   {"loads_per_token", row.loads_per_token()}};
        if (scale.expert_bytes != 0) {
            line["bytes_per_token"] = detail::bytes_per_token(row, scale);
            if (scale.disk_bytes_per_second > 0)
                line["seconds_per_token"] = detail::bytes_per_token(row, scale) / scale.disk_bytes_per_second;
        }
        if (row.counters) line["counters"] = counters_json(*row.counters);
        root["rows"].push_back(std::move(line));
    }
    std::printf("%s\n", root.dump().c_str());
}

/// Whether the replay of a recorded run has the counters of the run. Prints each counter with both numbers.
/// Errors: Code::usage where there is nothing to compare.
inline bool check(const stream::Trace& trace, bool json) {
    if (!trace.run)
        throw Error(Code::usage, "--check: the trace does not say what run it is of",
                    "record it with k3 --dump-cache-trace");
    if (trace.truncated)
        throw Error(Code::usage, "--check: the recorder reached its limit, so the counters are of more than the trace",
                    "record a shorter run");
    if (trace.run->counters.drops != 0)
        throw Error(Code::usage,
                    "--check: " + std::to_string(trace.run->counters.drops) +
                        " experts failed to load in this run, which a replay cannot know",
                    "check the disk and record the run again");
    const stream::CacheCounters replayed = stream::replay(trace, trace.run->slots, trace.run->policy).all();
    const bool same = replayed == trace.run->counters;
    if (json) {
        const nlohmann::ordered_json root = {{"slots", trace.run->slots},
                                             {"policy", std::string(name(trace.run->policy))},
                                             {"same", same},
                                             {"run", counters_json(trace.run->counters)},
                                             {"replay", counters_json(replayed)}};
        std::printf("%s\n", root.dump().c_str());
        return same;
    }
    std::printf("%" PRIu64 " slots, %s\n%-18s %14s %14s\n", trace.run->slots,
                std::string(name(trace.run->policy)).c_str(), "", "run", "replay");
    stream::CacheCounters::for_each([&](const char* name, auto member) {
        const std::uint64_t run = trace.run->counters.*member, mine = replayed.*member;
        std::printf("%-18s %14" PRIu64 " %14" PRIu64 "%s\n", name, run, mine, run == mine ? "" : "  DIFFERENT");
    });
    std::printf("%s\n", same ? "every counter is the same" : "the replay differs from the run");
    return same;
}

}  // namespace k3::trace
#endif
