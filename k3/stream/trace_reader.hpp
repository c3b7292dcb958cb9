#ifndef K3_STREAM_TRACE_READER_HPP
#define K3_STREAM_TRACE_READER_HPP
// Reads traces: the files of docs/FORMATS.md#expert-traces, the two older ones without a sidecar, and JSON lines (one
// object a token, "layers": for each layer the list of its expert ids). Everything is checked; nothing is repaired.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <sys/stat.h>

#include "k3/core/error.hpp"
#include "k3/io/file.hpp"
#include "k3/io/json_text.hpp"
#include "k3/stream/trace.hpp"
#include "k3/stream/trace_writer.hpp"

namespace k3::stream {

/// What a trace may leave open.
struct TraceHints {
    std::optional<std::uint32_t> top_k{};    // needed without a sidecar; not used by JSON lines
    std::optional<std::uint32_t> experts{};  // of a layer, for JSON lines; default: the largest id + 1
};

namespace detail {

inline constexpr std::uint64_t kMostTraceKeys = std::uint64_t{1} << 26;

[[noreturn]] inline void refuse_trace(const std::string& path, std::string what,
                                      std::optional<std::uint64_t> offset = {},
                                      std::string next = "record the trace again") {
    throw Error(Code::read, std::move(what), std::move(next), {.path = path, .offset = offset});
}

inline io::Json parse_trace_json(std::string_view text, const std::string& path,
                                 std::optional<std::uint64_t> offset = {}) {
    try {
        return io::parse_json(text, Code::read, path);
    } catch (const Error& error) {
        refuse_trace(path, error.message(), offset);
    }
}

/// object[key], a whole number in [least, most]. `place` is "" or "steps[3].".
inline std::uint64_t number_in(const io::Json& object, const std::string& path, const std::string& place,
                               const char* key, std::uint64_t least, std::uint64_t most) {
    const auto found = object.find(key);
    if (found == object.end()) refuse_trace(path, place + key + " is missing");
    if (!found->is_number_unsigned() || found->get<std::uint64_t>() < least || found->get<std::uint64_t>() > most)
        refuse_trace(path, place + key + " is " + io::shown(*found) + ", not a whole number from " +
                               std::to_string(least) + " to " + std::to_string(most));
    return found->get<std::uint64_t>();
}
inline std::uint32_t small_in(const io::Json& object, const std::string& path, const std::string& place,
                              const char* key, std::uint64_t least, std::uint64_t most) {
    return static_cast<std::uint32_t>(number_in(object, path, place, key, least, most));
}

inline void check_keys(const TraceShape& shape, const std::string& path) {
    if (shape.keys() > kMostTraceKeys)
        refuse_trace(path, std::to_string(shape.layers) + " layers of " + std::to_string(shape.experts) +
                               " experts are more than any model has");
}

/// Keys of int32 (layer, expert) pairs.
inline std::vector<std::uint32_t> read_pairs(const std::string& path, const TraceShape& shape) {
    const io::File file = io::File::open(path);
    constexpr std::uint64_t kPair = 8;
    if (file.size() % kPair != 0)
        refuse_trace(path, "ends in the middle of a (layer, expert) pair", file.size() / kPair * kPair);
    std::vector<std::uint32_t> keys, block;
    keys.reserve(file.size() / kPair);
    for (std::uint64_t at = 0; at < file.size(); at += block.size() * sizeof(std::uint32_t)) {
        block.resize(std::min<std::uint64_t>(file.size() - at, std::uint64_t{1} << 20) / sizeof(std::uint32_t));
        file.read(at, std::as_writable_bytes(std::span(block)));
        for (std::size_t i = 0; i < block.size(); i += 2) {
            const auto check = [&](const char* what, std::uint32_t value, std::uint32_t count) {
                if (value < count) return;
                refuse_trace(path,
                             std::string(what) + " " + std::to_string(static_cast<std::int32_t>(value)) + " of " +
                                 std::to_string(count),
                             at + i * sizeof(std::uint32_t));
            };
            check("layer", block[i], shape.layers);
            check("expert", block[i + 1], shape.experts);
            keys.push_back(block[i] * shape.experts + block[i + 1]);
        }
    }
    return keys;
}

/// The histogram must count exactly the requests.
inline void check_histogram(const io::Json& root, const std::string& path, const Trace& trace) {
    std::vector<std::uint64_t> counts(trace.shape.keys());
    for (const std::uint32_t key : trace.requests) ++counts[key];
    const auto table = root.find("counts");
    if (table == root.end() || !table->is_object()) refuse_trace(path, "counts is missing or not an object");
    std::size_t distinct = 0;
    for (std::size_t key = 0; key < counts.size(); ++key) {
        if (counts[key] == 0) continue;
        ++distinct;
        const std::string name =
            std::to_string(key / trace.shape.experts) + "," + std::to_string(key % trace.shape.experts);
        const auto found = table->find(name);
        if (found == table->end() || *found != counts[key])
            refuse_trace(path, "counts " + (found == table->end() ? "nothing" : io::shown(*found)) + " for expert " +
                                   name + ", which has " + std::to_string(counts[key]) +
                                   " requests in expert_trace.bin");
    }
    if (table->size() != distinct)
        refuse_trace(path, "counts " + std::to_string(table->size()) + " experts, expert_trace.bin has " +
                               std::to_string(distinct));
}

inline TraceRun run_of(const io::Json& root, const std::string& path) {
    const auto run = root.find("run");
    if (run == root.end() || !run->is_object()) refuse_trace(path, "run is missing or not an object");
    TraceRun result{.slots = number_in(*run, path, "run.", "slots", 1, kMostTraceKeys), .policy = {}, .counters = {}};
    const auto policy = run->find("policy");
    const auto parsed = policy != run->end() && policy->is_string() ? parse_policy(policy->get<std::string>())
                                                                    : std::optional<Policy>();
    if (!parsed) refuse_trace(path, "run.policy is not lru, lfru or s3fifo");
    result.policy = *parsed;
    const auto counters = run->find("counters");
    if (counters == run->end() || !counters->is_object()) refuse_trace(path, "run.counters is missing");
    CacheCounters::for_each([&](const char* name, auto member) {
        result.counters.*member = number_in(*counters, path, "run.counters.", name, 0, ~std::uint64_t{0});
    });
    return result;
}

/// row[key]: one count for each batch, or nothing.
inline std::vector<std::uint32_t> counts_in(const io::Json& row, const std::string& path, const std::string& place,
                                            const char* key, std::size_t batches, std::uint64_t most) {
    std::vector<std::uint32_t> counts;
    const auto found = row.find(key);
    if (found == row.end()) return counts;
    if (!found->is_array() || found->size() != batches)
        refuse_trace(path, place + key + " is not a list of " + std::to_string(batches) + " counts");
    for (const io::Json& value : *found) {
        if (!value.is_number_unsigned() || value.get<std::uint64_t>() > most)
            refuse_trace(path,
                         place + key + " has " + io::shown(value) + ", not a count up to " + std::to_string(most));
        counts.push_back(value.get<std::uint32_t>());
    }
    return counts;
}

inline void read_steps(const io::Json& root, const std::string& path, Trace& trace) {
    const auto steps = root.find("steps");
    if (steps == root.end() || !steps->is_array()) refuse_trace(path, "steps is missing or not a list");
    for (std::size_t i = 0; i < steps->size(); ++i) {
        const io::Json& row = (*steps)[i];
        const std::string place = "steps[" + std::to_string(i) + "].";
        if (!row.is_object()) refuse_trace(path, place + " is not an object");
        const auto mode = row.find("mode");
        if (mode == row.end() || (*mode != "prefill" && *mode != "decode"))
            refuse_trace(path, place + "mode is not prefill or decode");
        TraceStep step{*mode == "prefill" ? StepMode::prefill : StepMode::decode, 0, 0};
        step.tokens = small_in(row, path, place, "tokens", 0, std::uint64_t{1} << 24);
        step.batches = small_in(row, path, place, "batches", 0, trace.shape.layers);
        const std::uint64_t usual = std::uint64_t{step.tokens} * trace.shape.top_k;
        auto counts = counts_in(row, path, place, "counts", step.batches, usual);
        auto ahead = counts_in(row, path, place, "lookaheads", step.batches, trace.shape.keys());
        if (!row.contains("counts")) counts.assign(step.batches, static_cast<std::uint32_t>(usual));
        ahead.resize(step.batches);
        std::uint64_t sum = 0;
        for (std::size_t b = 0; b < counts.size(); ++b) {
            sum += counts[b];
            trace.batches.push_back({counts[b], ahead[b]});
        }
        if (number_in(row, path, place, "requests", 0, ~std::uint64_t{0}) != sum)
            refuse_trace(path, place + "requests is " + io::shown(row["requests"]) + ", its batches have " +
                                   std::to_string(sum));
        trace.steps.push_back(step);
    }
}

/// The counts add up to the files; the requests of a batch are of one layer, and a step's layers ascend.
inline void check_batches(const Trace& trace, const std::string& folder) {
    std::uint64_t requests = 0, lookaheads = 0;
    for (const TraceBatch& batch : trace.batches) {
        requests += batch.requests;
        lookaheads += batch.lookaheads;
    }
    const auto check = [&](const char* file, std::uint64_t want, std::size_t have) {
        if (want == have) return;
        refuse_trace(
            folder + file,
            "has " + std::to_string(have) + " pairs, the steps of expert_trace.json have " + std::to_string(want),
            std::min<std::uint64_t>(want, have) * 8);
    };
    check(trace_files::kRequests, requests, trace.requests.size());
    check(trace_files::kLookaheads, lookaheads, trace.lookaheads.size());
    std::int64_t latest = -1;
    trace.for_each([&](const TraceStep&) { latest = -1; },
                   [&](const TraceStep&, std::span<const std::uint32_t> keys, auto) {
        const auto offset = [&](std::size_t i) {
            return static_cast<std::uint64_t>(keys.data() + i - trace.requests.data()) * 8;
        };
        if (keys.empty()) return;
        const std::int64_t layer = keys[0] / trace.shape.experts;
        if (layer <= latest)
            refuse_trace(
                folder + trace_files::kRequests,
                "layer " + std::to_string(layer) + " follows layer " + std::to_string(latest) + " in the same step",
                offset(0));
        latest = layer;
        for (std::size_t i = 1; i < keys.size(); ++i)
            if (keys[i] / trace.shape.experts != layer)
                refuse_trace(folder + trace_files::kRequests,
                             "a batch of layer " + std::to_string(layer) + " has a request of layer " +
                                 std::to_string(keys[i] / trace.shape.experts),
                             offset(i));
    });
}

/// Without a sidecar: a batch is a run of requests of one layer, cut after top_k; a step is one token, and ends where
/// the layers start again.
inline void guess_batches(Trace& trace) {
    std::int64_t latest = -1;
    for (std::size_t at = 0; at < trace.requests.size();) {
        const std::uint32_t layer = trace.requests[at] / trace.shape.experts;
        std::uint32_t count = 1;
        while (count < trace.shape.top_k && at + count < trace.requests.size() &&
               trace.requests[at + count] / trace.shape.experts == layer)
            ++count;
        if (trace.steps.empty() || layer <= latest) trace.steps.push_back({StepMode::decode, 1, 0});
        latest = layer;
        ++trace.steps.back().batches;
        trace.batches.push_back({count, 0});
        at += count;
    }
}

}  // namespace detail

/// The trace in `folder`. Errors: Code::read with file and offset for what is damaged; Code::usage if a hint is
/// missing.
inline Trace read_trace_folder(const std::string& folder, const TraceHints& hints = {}) {
    constexpr std::uint64_t kMost = std::uint64_t{1} << 20;
    const std::string hist_path = folder + trace_files::kHistogram, side_path = folder + trace_files::kSidecar;
    const io::Json hist = detail::parse_trace_json(io::File::read_text(hist_path), hist_path);
    Trace trace;
    trace.shape.layers = detail::small_in(hist, hist_path, "", "n_layers", 1, kMost);
    trace.shape.experts = detail::small_in(hist, hist_path, "", "n_experts", 1, kMost);
    detail::check_keys(trace.shape, hist_path);
    struct stat info {};
    const bool bare = ::stat(side_path.c_str(), &info) != 0;
    if (bare) {
        if (!hints.top_k)
            throw Error(Code::usage, "has no expert_trace.json, which says where batches end",
                        "give --top-k, the experts of a token in a layer", {.path = folder});
        trace.shape.top_k = *hints.top_k;
        trace.requests = detail::read_pairs(folder + trace_files::kRequests, trace.shape);
        detail::guess_batches(trace);
    } else {
        const io::Json side = detail::parse_trace_json(io::File::read_text(side_path), side_path);
        if (detail::number_in(side, side_path, "", "version", 1, ~std::uint64_t{0}) != kTraceVersion)
            detail::refuse_trace(side_path, "has version " + io::shown(side["version"]) + ", this program reads 1", {},
                                 "use the version of k3 that recorded it");
        for (const auto& [key, value] : {std::pair("layers", trace.shape.layers), {"experts", trace.shape.experts}})
            if (detail::number_in(side, side_path, "", key, 1, kMost) != value)
                detail::refuse_trace(side_path, std::string(key) + " is " + io::shown(side[key]) +
                                                    ", expert_hist.json says " + std::to_string(value));
        trace.shape.top_k = detail::small_in(side, side_path, "", "top_k", 1, trace.shape.experts);
        trace.shape.expert_bytes = detail::number_in(side, side_path, "", "expert_bytes", 0, std::uint64_t{1} << 40);
        const auto truncated = side.find("truncated");
        if (truncated == side.end() || !truncated->is_boolean())
            detail::refuse_trace(side_path, "truncated is missing, or not true or false");
        trace.truncated = truncated->get<bool>();
        trace.run = detail::run_of(side, side_path);
        detail::read_steps(side, side_path, trace);
        trace.requests = detail::read_pairs(folder + trace_files::kRequests, trace.shape);
        trace.lookaheads = detail::read_pairs(folder + trace_files::kLookaheads, trace.shape);
        detail::check_batches(trace, folder);
    }
    detail::check_histogram(hist, hist_path, trace);
    return trace;
}

/// JSON lines; every token is a decode step. Errors: Code::read with the offset of the line.
inline Trace read_trace_lines(const std::string& path, const TraceHints& hints = {}) {
    const std::string text = io::File::read_text(path);
    Trace trace;
    std::vector<std::pair<std::uint32_t, std::uint32_t>> pairs;  // (layer, expert)
    std::uint32_t most = 0;
    for (std::size_t at = 0, end = 0; at < text.size(); at = end + 1) {
        end = std::min(text.find('\n', at), text.size());
        const std::string_view line = std::string_view(text).substr(at, end - at);
        if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
        const auto refuse = [&](std::string what) {
            detail::refuse_trace(path, std::move(what), at, "give one object a line, {\"layers\": [[ids], ...]}");
        };
        const io::Json row = detail::parse_trace_json(line, path, at);
        const auto layers = row.find("layers");
        if (layers == row.end() || !layers->is_array() || layers->empty()) refuse("has no list \"layers\"");
        if (trace.steps.empty()) trace.shape.layers = static_cast<std::uint32_t>(layers->size());
        if (layers->size() != trace.shape.layers)
            refuse("has " + std::to_string(layers->size()) + " layers, the first line has " +
                   std::to_string(trace.shape.layers));
        trace.steps.push_back({StepMode::decode, 1, trace.shape.layers});
        for (std::uint32_t layer = 0; layer < trace.shape.layers; ++layer) {
            const io::Json& ids = (*layers)[layer];
            if (!ids.is_array()) refuse("layer " + std::to_string(layer) + " is not a list of expert ids");
            for (const io::Json& id : ids) {
                const std::uint64_t limit = hints.experts ? *hints.experts : std::uint64_t{1} << 20;
                if (!id.is_number_unsigned() || id.get<std::uint64_t>() >= limit)
                    refuse("layer " + std::to_string(layer) + " has " + io::shown(id) + ", not an expert id below " +
                           std::to_string(limit));
                pairs.emplace_back(layer, id.get<std::uint32_t>());
                most = std::max(most, pairs.back().second);
            }
            trace.batches.push_back({static_cast<std::uint32_t>(ids.size()), 0});
            trace.shape.top_k = std::max(trace.shape.top_k, static_cast<std::uint32_t>(ids.size()));
        }
    }
    if (pairs.empty()) detail::refuse_trace(path, "has no requests", {}, "check that this is the right file");
    trace.shape.experts = hints.experts.value_or(most + 1);
    detail::check_keys(trace.shape, path);
    for (const auto& [layer, expert] : pairs) trace.requests.push_back(layer * trace.shape.experts + expert);
    return trace;
}

}  // namespace k3::stream
#endif
