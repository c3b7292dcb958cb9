#ifndef K3_ENGINE_SESSION_HPP
#define K3_ENGINE_SESSION_HPP
// One model, one sequence: open a checkpoint, plan its memory, load it, feed tokens, get logits. Errors leave as
// k3::Error; a step that fails leaves the sequence as it was before that step.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <latch>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "k3/core/buffer.hpp"
#include "k3/core/error.hpp"
#include "k3/engine/arches.hpp"
#include "k3/engine/detail/session_parts.hpp"
#include "k3/engine/plan_refusal.hpp"
#include "k3/engine/session_options.hpp"
#include "k3/engine/state_file.hpp"
#include "k3/io/memory_limits.hpp"
#include "k3/model/state.hpp"

namespace k3::engine {

class Session {
  public:
    Session(Session&&) = default;
    Session& operator=(Session&&) = delete;  // reads under way must end before the files they read from close

    /// Reads the config, indexes the shards, binds every tensor the config asks for. No big weight is read yet.
    /// Errors: Code::config, checkpoint, tensor, read, usage.
    static Session open(const Options& options) { return Session(options); }

    const model::ModelConfig& config() const noexcept { return parts_->config; }
    const checkpoint::ShardIndex& index() const noexcept { return parts_->index; }
    std::size_t layers() const noexcept { return parts_->bound.view().layer_count; }
    std::size_t position() const noexcept { return state_ ? state_->position() : 0; }

    /// What load() would hold for sequences of up to `positions` tokens. Errors: Code::plan if a part that was asked
    /// for is too small to run with.
    Plan plan(std::size_t positions) const {
        const Parts& p = *parts_;
        io::MemoryLimit limit = io::memory_limit();
        if (loaded()) {  // load() gives back what it holds before it takes anything
            const std::uint64_t now = io::rss_bytes();
            if (limit.bytes != io::kUnlimited && now > held_) limit.bytes += now - held_;
        }
        return stream::make_plan({.walk = p.walk,
                                  .experts = p.places.count(),
                                  .least_slots = stream::least_slots(p.places.top_k(), p.places.count()),
                                  .slot_bytes = p.places.slot_bytes(),
                                  .keys = p.places.keys(),
                                  .most_distinct = p.places.experts(),
                                  .trace = trace_bytes(positions),
                                  .policy = options_.policy,
                                  .held = loaded() ? held_ : io::rss_bytes(),
                                  .limit = std::move(limit),
                                  .positions = positions,
                                  .fixed_chunk = options_.prefill_chunk,
                                  .step_memory = [&](std::size_t chunk) { return step_memory(chunk, positions); }},
                                 options_.memory);
    }

    /// Takes the memory of a plan and reads what stays in it. Errors: Code::plan (with what is needed, what there is
    /// and what would fit), Code::read. May be called again, also after it failed: all is given back first, the
    /// sequence starts over. progress must not throw.
    void load(std::size_t positions, const LoadProgress& progress = {}) { load(plan(positions), progress); }
    void load(const Plan& plan, const LoadProgress& progress = {}) {
        if (plan.positions > parts_->config.shape.max_positions)
            throw Error(Code::plan,
                        std::to_string(plan.positions) + " positions are more than the model's " +
                            std::to_string(parts_->config.shape.max_positions),
                        "shorten the prompt or ask for fewer tokens");
        if (!plan.fits()) refuse(plan);
        require_threads(options_.threads);
        unload();
        held_ = plan.held;
        const model::StepBytes step = forward_->step_bytes(plan.prefill_chunk, 1, plan.positions);
        local_ = core::Buffer(options_.threads * step.local);
        shared_ = core::Buffer(step.shared);
        workspace_ = core::Buffer(step.workspace);
        exec_ = {options_.threads, local_.data(), step.local, shared_.data(), step.shared, options_.least_work};
        logits_.assign(logit_rows(plan.prefill_chunk) * parts_->config.shape.vocab, 0.0F);
        auto streaming = std::make_unique<Streaming>(*parts_, options_, plan, trace_bytes(plan.positions));
        streaming->trunk.load(progress);
        forward_ = make_forward(options_.arch, parts_->bound.view());  // the view now points at the weights
        streaming->experts.use(forward_->expert_kernel());
        state_ = std::make_unique<model::State>(parts_->bound.view());
        streaming_ = std::move(streaming);
        chunk_ = plan.prefill_chunk;
        positions_ = plan.positions;  // last: until here, feed() refuses
    }
    bool loaded() const noexcept { return streaming_ != nullptr; }

    Traffic traffic() const {
        Traffic t;
        t.embedding_bytes = parts_->embedding.bytes_read();
        if (!loaded()) return t;
        t.trunk = streaming_->trunk.counters();
        t.experts = streaming_->experts.counters();
        t.expert_bytes = streaming_->experts.traffic();
        t.reader = streaming_->reader.stats();
        t.look_ahead = streaming_->experts.look_ahead();
        return t;
    }
    const stream::ExpertPlaces& experts() const noexcept { return parts_->places; }
    const stream::StreamFiles& files() const noexcept { return parts_->files; }
    /// What was asked of the expert cache since load(), if Options::trace; else null.
    const stream::Trace* trace() const noexcept { return loaded() ? streaming_->experts.trace() : nullptr; }
    /// How the weights are read. After load().
    const io::Reader& reader() const noexcept { return streaming_->reader; }

    /// Feeds ids after what the state holds; the logits of the last one, valid until the next call. If a chunk fails,
    /// the chunks before it stay (position() tells). Errors: Code::usage (an id out of range), plan (more positions
    /// than load() was given), numeric, expert, read.
    /// `more`: another feed is sure to follow, so weights are read ahead into it. Moves no bit.
    std::span<const float> feed(std::span<const std::int32_t> ids, const FeedProgress& progress = {},
                                bool more = false) {
        sweep(ids, nullptr, progress, more);
        return std::span(logits_).first(std::min(logits_.size(), parts_->config.shape.vocab));
    }

    /// As feed(), and hands out the logits of every id, chunk by chunk. One sweep: weights are read as for feed(), but
    /// for lm_head, which now every chunk needs. Errors: also Code::usage without Options::all_logits.
    void feed_all(std::span<const std::int32_t> ids, const LogitRows& rows, const FeedProgress& progress = {}) {
        if (!options_.all_logits)
            throw Error(Code::usage, "the logits of every position were asked for without room for them",
                        "open the session with Options::all_logits");
        sweep(ids, &rows, progress, false);
    }

    /// Forgets the state and feeds the whole sequence again.
    std::span<const float> recompute(std::span<const std::int32_t> ids, const FeedProgress& progress = {},
                                     bool more = false) {
        reset();
        return feed(ids, progress, more);
    }

    /// The greedy choice. Errors: Code::numeric naming the position and the step.
    std::int32_t argmax(std::span<const float> logits, std::size_t step) const {
        const std::int64_t best = forward_->argmax(logits.data(), logits.size());
        if (best < 0) {
            throw Error(Code::numeric,
                        "a logit is NaN at position " + std::to_string(position()) + ", step " + std::to_string(step),
                        "check the checkpoint with k3-inspect; no token can be chosen");
        }
        return static_cast<std::int32_t>(best);
    }

    void reset() noexcept {
        logits_of_ = 0;
        if (state_) state_->reset();
    }
    unsigned threads() const noexcept { return options_.threads; }

    /// The logits of the last token of the sequence, until the next call; empty if there are none: nothing is fed, or
    /// the last feed was not completed.
    std::span<const float> logits() const noexcept {
        if (logits_of_ == 0 || logits_of_ != position()) return {};
        return std::span<const float>(logits_).first(parts_->config.shape.vocab);
    }

    /// Opens and checks a saved state: before load(), whose plan needs the number of its tokens. `tokenizer`: its
    /// checksum(), or 0. Errors: as StateFile::open.
    StateFile open_state(const std::string& path, std::uint64_t tokenizer = 0) const {
        return StateFile::open(path, owner(), tokenizer);
    }
    /// The sequence becomes that of the file. Errors: Code::plan (it has more positions than load() was given), and
    /// those of StateFile::read.
    void load_state(const StateFile& file) {
        if (!loaded() || file.fed() > positions_)
            throw Error(Code::plan,
                        "the state holds " + std::to_string(file.fed()) + " positions, this run was planned for " +
                            std::to_string(positions_),
                        "plan for more positions", {.path = file.path()});
        logits_of_ = 0;
        file.read(owner(), *state_, std::span(logits_).first(parts_->config.shape.vocab));
        if (file.has_logits()) logits_of_ = position();
    }
    /// Writes the state after the last completed step; run.ids begin with the position() ids that were fed. After
    /// load(), not from a progress callback. Errors: as write_state_file.
    void save_state(const std::string& path, const SavedRun& run, std::uint64_t tokenizer = 0) const {
        write_state_file(path, owner(), tokenizer, run, *state_, logits());
    }
    /// Of a saved state of `ids` tokens, at most.
    std::uint64_t state_file_bytes(std::size_t ids) const {
        return engine::state_file_bytes(parts_->bound.view(), ids, ids, true);
    }

  private:
    using Parts = detail::SessionParts;
    using Streaming = detail::SessionStreaming;

    /// For a request and a guess of every expert of every token; what asks for more (--recompute) is cut, and says so.
    std::uint64_t trace_bytes(std::size_t positions) const {
        if (!options_.trace) return 0;
        constexpr std::uint64_t kLeast = std::uint64_t{1} << 20;
        const std::uint64_t each = 2 * parts_->places.top_k() * sizeof(std::uint32_t) + sizeof(stream::TraceBatch);
        return detail::kGrowth * (kLeast + positions * layers() * each);
    }
    StateOwner owner() const noexcept { return {parts_->bound, parts_->index}; }
    void unload() noexcept {
        positions_ = logits_of_ = 0;
        state_.reset();
        streaming_.reset();
        for (core::Buffer* buffer : {&local_, &shared_, &workspace_}) *buffer = core::Buffer();
    }
    stream::StepMemory step_memory(std::size_t chunk, std::size_t positions) const {
        const model::StepBytes step = forward_->step_bytes(chunk, 1, positions);
        const auto held = [](std::size_t bytes) { return core::Buffer::most_resident(bytes); };
        return {.state = model::State::bytes(parts_->bound.view(), positions, chunk),
                .workspace = held(step.workspace) + held(step.shared) + held(options_.threads * step.local) +
                             logit_rows(chunk) * parts_->config.shape.vocab * sizeof(float)};
    }
    std::size_t logit_rows(std::size_t chunk) const noexcept { return options_.all_logits ? chunk : 1; }

    explicit Session(const Options& options)
        : options_(at_least_one_thread(options)),
          parts_(std::make_unique<Parts>(options)),
          forward_(make_forward(options.arch, parts_->bound.view())) {}

    static Options at_least_one_thread(Options options) {
        options.threads = std::max(1U, options.threads);
        return options;
    }

    /// OpenMP ends the process if it cannot start its threads; this finds out first, and says so.
    static void require_threads(unsigned count) {
        std::latch all_started(1);  // outlives the threads that wait for it
        std::vector<std::jthread> threads;
        try {
            for (unsigned i = 1; i < count; ++i) threads.emplace_back([&all_started] { all_started.wait(); });
        } catch (const std::system_error& error) {
            all_started.count_down();
            throw Error(Code::plan,
                        "only " + std::to_string(threads.size() + 1) + " of " + std::to_string(count) +
                            " threads can be started: " + error.what(),
                        "ask for fewer with --threads");
        }
        all_started.count_down();
    }

    [[noreturn]] void refuse(const Plan& plan) const {
        std::size_t fits = 0;
        for (std::size_t step = plan.positions; step > 0; step /= 2)  // the largest number of positions that would fit
            while (fits + step < plan.positions && this->plan(fits + step).fits()) fits += step;
        throw plan_refusal(plan, fits, options_.prefill_chunk);
    }

    void check_ids(std::span<const std::int32_t> ids) const {
        const auto vocab = static_cast<std::int64_t>(parts_->config.shape.vocab);
        for (std::size_t i = 0; i < ids.size(); ++i)
            if (ids[i] < 0 || ids[i] >= vocab)
                throw Error(Code::usage,
                            "id " + std::to_string(ids[i]) + " (number " + std::to_string(i) +
                                ") is outside the vocabulary of " + std::to_string(vocab),
                            "give ids from 0 to " + std::to_string(vocab - 1));
        if (position() + ids.size() > positions_)
            throw Error(Code::plan,
                        std::to_string(position() + ids.size()) + " positions are more than the " +
                            std::to_string(positions_) + " this run was planned for",
                        "plan for more positions");
    }

    /// Without `rows`, logits of the last id only.
    void sweep(std::span<const std::int32_t> ids, const LogitRows* rows, const FeedProgress& progress, bool more) {
        check_ids(ids);
        for (std::size_t done = 0; done < ids.size();) {
            const std::size_t count = std::min(chunk_, ids.size() - done);
            const bool last = done + count == ids.size();
            const std::size_t wanted = rows != nullptr ? count : last ? 1 : 0;
            streaming_->trunk.begin_step(wanted != 0, more || !last);
            streaming_->experts.begin_step(
                ids.size() == 1 && position() > 0 ? stream::StepMode::decode : stream::StepMode::prefill, count);
            step(ids.subspan(done, count), wanted, done, ids.size(), progress);
            if (rows != nullptr) (*rows)(done, std::span(logits_).first(count * parts_->config.shape.vocab));
            done += count;
        }
    }

    void step(std::span<const std::int32_t> ids, std::size_t wanted, std::size_t done, std::size_t total,
              const FeedProgress& progress) {
        state_->begin(ids.size());
        if (wanted != 0) logits_of_ = 0;
        struct Report {
            const FeedProgress* progress;
            std::size_t done, total;
        } report{&progress, done, total};
        model::Services services{&streaming_->trunk, &streaming_->experts, {}};
        if (progress)
            services.progress = {[](void* user, std::size_t layer, std::size_t layers) noexcept {
                const auto& r = *static_cast<const Report*>(user);
                return (*r.progress)(r.done, r.total, layer, layers);
                                 },
                                 &report};
        model::Segment segment{};
        segment.state = state_->view();
        segment.ids = ids.data();
        segment.tokens = ids.size();
        segment.wanted = wanted;
        segment.logits = logits_.data();
        core::Fault fault = forward_->run(exec_, services, &segment, 1, {workspace_.data(), workspace_.size()});
        if (!fault) fault = segment.fault;
        if (fault) {
            const std::size_t position = state_->position() + static_cast<std::size_t>(std::max(0, fault.token));
            state_->abandon();
            raise(fault, position);
        }
        forward_->commit(exec_, segment.state, ids.size());
        state_->advance(ids.size());
        if (wanted == 1) logits_of_ = position();
    }

    [[noreturn]] void raise(const core::Fault& fault, std::size_t position) const {
        const std::string at = "layer " + std::to_string(fault.layer) + ", position " + std::to_string(position);
        switch (fault.code) {
            case core::FaultCode::router_nan:
                throw Error(Code::numeric, "a router score is NaN at " + at,
                            "check the checkpoint: no expert can be chosen");
            case core::FaultCode::interrupted:
                throw Error(Code::interrupted, "stopped at " + at, "nothing of that step is kept: feed it again");
            case core::FaultCode::expert_failed:
                throw streaming_->experts.failure().value_or(
                    Error(Code::expert, "expert " + std::to_string(fault.expert) + " could not be loaded at " + at,
                          "check the disk; ids from this step on are unsound"));
            case core::FaultCode::weight_failed:
                throw streaming_->trunk.failure().value_or(
                    Error(Code::read, "a weight could not be read at " + at, "check the disk"));
            default: throw Error(Code::internal, "a step was refused at " + at, "please report this");
        }
    }

    Options options_;
    std::unique_ptr<Parts> parts_;
    std::unique_ptr<Streaming> streaming_;
    std::unique_ptr<AnyForward> forward_;
    std::unique_ptr<model::State> state_;
    core::Buffer local_, shared_, workspace_;
    core::Exec exec_{};
    std::vector<float> logits_;
    std::size_t chunk_ = 1, positions_ = 0, logits_of_ = 0;  // logits_of_: the position() they belong to, 0: none
    std::uint64_t held_ = 0;                                 // resident before load()
};

}  // namespace k3::engine
#endif
