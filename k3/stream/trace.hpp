#ifndef K3_STREAM_TRACE_HPP
#define K3_STREAM_TRACE_HPP
// What a run asked of its expert cache, in order: recorded by the engine, replayed by k3-trace (replay.hpp), stored as
// the files of docs/FORMATS.md#expert-traces (trace_writer.hpp, trace_reader.hpp). No bytes of experts.
//
// A step runs its layers in order. For each layer: one batch of requests; after the batch has ended, the look-aheads
// issued for a later layer, each call of ExpertSlots::prefetch, also those that had nothing to load.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "k3/stream/expert_slots.hpp"

namespace k3::stream {

enum class StepMode : std::uint8_t { prefill, decode };

struct TraceShape {
    std::uint32_t layers;        // of the model, dense ones included: keys are layer * experts + expert
    std::uint32_t experts;       // of a layer
    std::uint32_t top_k;         // most requests of a token in a layer
    std::uint64_t expert_bytes;  // 0: not known
    std::size_t keys() const noexcept { return std::size_t{layers} * experts; }
    friend bool operator==(const TraceShape&, const TraceShape&) noexcept = default;
};

/// The run a trace was recorded in.
struct TraceRun {
    std::uint64_t slots;
    Policy policy;
    CacheCounters counters;
    friend bool operator==(const TraceRun&, const TraceRun&) noexcept = default;
};

struct TraceBatch {
    std::uint32_t requests, lookaheads;
    friend bool operator==(const TraceBatch&, const TraceBatch&) noexcept = default;
};

struct TraceStep {
    StepMode mode;
    std::uint32_t tokens;
    std::uint32_t batches;
    friend bool operator==(const TraceStep&, const TraceStep&) noexcept = default;
};

/// Steps own their batches in order, batches their requests and look-aheads in order.
struct Trace {
    TraceShape shape{};
    std::vector<TraceStep> steps{};
    std::vector<TraceBatch> batches{};
    std::vector<std::uint32_t> requests{}, lookaheads{};  // keys
    bool truncated = false;                               // the recorder reached its limit: later steps are missing
    std::optional<TraceRun> run{};                        // as stored; a bare trace has none

    /// Calls on_step(step), then for each of its batches on_batch(step, requests, lookaheads).
    template <class Step, class Batch>
    void for_each(Step&& on_step, Batch&& on_batch) const {
        std::size_t batch = 0, request = 0, lookahead = 0;
        for (const TraceStep& step : steps) {
            on_step(step);
            for (const std::size_t end = batch + step.batches; batch < end; ++batch) {
                const TraceBatch& b = batches[batch];
                on_batch(step, std::span(requests).subspan(request, b.requests),
                         std::span(lookaheads).subspan(lookahead, b.lookaheads));
                request += b.requests;
                lookahead += b.lookaheads;
            }
        }
    }
};

/// Collects a Trace while the engine runs. Not thread-safe.
class TraceRecorder {
  public:
    /// Records whole steps until `most_bytes` are used, then no more: the trace is then marked truncated.
    explicit TraceRecorder(TraceShape shape, std::uint64_t most_bytes = std::uint64_t{1} << 30)
        : most_bytes_(most_bytes) {
        trace_.shape = shape;
    }

    /// A step begins. Makes room for all its batches, so that batch() allocates nothing: amortised growth happens here.
    /// `most_lookaheads` is per batch. Errors: std::bad_alloc, and then nothing has changed.
    void begin_step(StepMode mode, std::size_t tokens, std::size_t most_lookaheads = 0) {
        const std::size_t layers = trace_.shape.layers, requests = layers * tokens * trace_.shape.top_k;
        open_ = !trace_.truncated && used_bytes() + requests * sizeof(std::uint32_t) <= most_bytes_;
        trace_.truncated = !open_;
        if (!open_) return;
        make_room(trace_.batches, layers);
        make_room(trace_.requests, requests);
        make_room(trace_.lookaheads, layers * most_lookaheads);
        trace_.steps.push_back({mode, static_cast<std::uint32_t>(tokens), 0});
    }

    /// The next layer's requests, as given to ExpertSlots::batch, before they are served. None is a batch too.
    void batch(std::span<const std::uint32_t> keys) {
        if (!open_) return;
        trace_.requests.insert(trace_.requests.end(), keys.begin(), keys.end());
        trace_.batches.push_back({static_cast<std::uint32_t>(keys.size()), 0});
        ++trace_.steps.back().batches;
    }

    /// A call of ExpertSlots::prefetch, after the latest batch has ended.
    void lookahead(std::uint32_t key) {
        if (!open_ || trace_.steps.back().batches == 0) return;
        trace_.lookaheads.push_back(key);
        ++trace_.batches.back().lookaheads;
    }

    const Trace& trace() const noexcept { return trace_; }

    /// Memory held.
    std::uint64_t bytes() const noexcept {
        return trace_.steps.capacity() * sizeof(TraceStep) + trace_.batches.capacity() * sizeof(TraceBatch) +
               (trace_.requests.capacity() + trace_.lookaheads.capacity()) * sizeof(std::uint32_t);
    }

  private:
    std::uint64_t used_bytes() const noexcept {
        return trace_.steps.size() * sizeof(TraceStep) + trace_.batches.size() * sizeof(TraceBatch) +
               (trace_.requests.size() + trace_.lookaheads.size()) * sizeof(std::uint32_t);
    }
    template <class T>
    static void make_room(std::vector<T>& list, std::size_t more) {
        if (list.capacity() - list.size() < more) list.reserve(std::max(list.size() + more, 2 * list.capacity()));
    }

    Trace trace_{};
    std::uint64_t most_bytes_;
    bool open_ = false;
};

}  // namespace k3::stream
#endif
