#ifndef K3_STREAM_TRACE_WRITER_HPP
#define K3_STREAM_TRACE_WRITER_HPP
// Writes a trace as the files of docs/FORMATS.md#expert-traces.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "k3/io/atomic_file.hpp"
#include "k3/stream/trace.hpp"

namespace k3::stream {

inline constexpr std::uint64_t kTraceVersion = 1;

namespace trace_files {
inline constexpr const char* kRequests = "/expert_trace.bin";
inline constexpr const char* kHistogram = "/expert_hist.json";
inline constexpr const char* kLookaheads = "/expert_lookahead.bin";
inline constexpr const char* kSidecar = "/expert_trace.json";
}  // namespace trace_files

namespace detail {

/// int32 (layer, expert) pairs.
inline void write_pairs(const std::string& path, std::span<const std::uint32_t> keys, std::uint32_t experts) {
    io::PendingFile file = io::PendingFile::create(path);
    std::vector<std::uint32_t> block;
    constexpr std::size_t kBlock = std::size_t{1} << 17;
    for (std::size_t at = 0; at < keys.size(); at += kBlock) {
        block.clear();
        for (const std::uint32_t key : keys.subspan(at, std::min(kBlock, keys.size() - at))) {
            block.push_back(key / experts);
            block.push_back(key % experts);
        }
        file.write(at * 2 * sizeof(std::uint32_t), std::as_bytes(std::span(block)));
    }
    file.commit();
}

inline std::string histogram_text(const Trace& trace) {
    std::vector<std::uint64_t> counts(trace.shape.keys());
    for (const std::uint32_t key : trace.requests) ++counts[key];
    std::string text = "{\"n_layers\":" + std::to_string(trace.shape.layers) +
                       ",\"n_experts\":" + std::to_string(trace.shape.experts) + ",\"counts\":{";
    bool first = true;
    for (std::size_t key = 0; key < counts.size(); ++key) {
        if (counts[key] == 0) continue;
        text += std::string(first ? "" : ",") + "\"" + std::to_string(key / trace.shape.experts) + "," +
                std::to_string(key % trace.shape.experts) + "\":" + std::to_string(counts[key]);
        first = false;
    }
    return text + "}}\n";
}

inline nlohmann::ordered_json sidecar_of(const Trace& trace, const TraceRun& run) {
    using Json = nlohmann::ordered_json;
    Json counters = Json::object();
    CacheCounters::for_each([&](const char* name, auto member) { counters[name] = run.counters.*member; });
    Json steps = Json::array();
    std::size_t at = 0;
    for (const TraceStep& step : trace.steps) {
        const auto batches = std::span(trace.batches).subspan(at, step.batches);
        at += step.batches;
        std::uint64_t requests = 0, lookaheads = 0;
        bool usual = true;
        Json counts = Json::array(), ahead = Json::array();
        for (const TraceBatch& batch : batches) {
            requests += batch.requests;
            lookaheads += batch.lookaheads;
            usual = usual && batch.requests == std::uint64_t{step.tokens} * trace.shape.top_k;
            counts.push_back(batch.requests);
            ahead.push_back(batch.lookaheads);
        }
        Json row = {{"mode", step.mode == StepMode::prefill ? "prefill" : "decode"},
                    {"tokens", step.tokens},
                    {"batches", step.batches},
                    {"requests", requests}};
        if (!usual) row["counts"] = std::move(counts);
        if (lookaheads != 0) row["lookaheads"] = std::move(ahead);
        steps.push_back(std::move(row));
    }
    return {{"version", kTraceVersion},
            {"layers", trace.shape.layers},
            {"experts", trace.shape.experts},
            {"top_k", trace.shape.top_k},
            {"expert_bytes", trace.shape.expert_bytes},
            {"truncated", trace.truncated},
            {"run", {{"slots", run.slots}, {"policy", std::string(name(run.policy))}, {"counters", counters}}},
            {"steps", std::move(steps)}};
}

}  // namespace detail

/// Writes the four files into `folder`, which exists, replacing those of an earlier run. Each appears whole; the
/// sidecar comes last, so that it never describes files that are not there. Errors: Code::write.
inline void write_trace(const Trace& trace, const TraceRun& run, const std::string& folder) {
    detail::write_pairs(folder + trace_files::kRequests, trace.requests, trace.shape.experts);
    detail::write_pairs(folder + trace_files::kLookaheads, trace.lookaheads, trace.shape.experts);
    io::write_small_file(folder + trace_files::kHistogram, detail::histogram_text(trace));
    io::write_small_file(folder + trace_files::kSidecar, detail::sidecar_of(trace, run).dump() + "\n");
}

}  // namespace k3::stream
#endif
