#ifndef K3_ENGINE_SESSION_HPP
#define K3_ENGINE_SESSION_HPP
// One model, one sequence: open a checkpoint, plan its memory, load it, feed tokens, get logits. Errors leave as
// k3::Error; a step that fails leaves the
// sequence as it was before that step.
#include <algorithm>
#include <functional>
#include <latch>
#include <memory>
#include <span>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "k3/checkpoint/shard_index.hpp"
#include "k3/engine/arches.hpp"
#include "k3/engine/embedding_rows.hpp"
#include "k3/io/memory_limits.hpp"
#include "k3/model/bound_model.hpp"
#include "k3/model/state.hpp"
#include "k3/stream/resident_experts.hpp"

namespace k3::engine {

struct Options {
    std::string model_dir{};
    std::string config_path{};  // empty: config.json in model_dir
    std::size_t layers = 0;     // 0: all of them
    ArchName arch = ArchName::scalar;
    unsigned threads = 1;
    std::size_t prefill_chunk = 0;                     // 0: up to 512, as memory allows
    std::size_t least_work = core::Exec{}.least_work;  // see core::Exec; tests set 0 to split everything
};

/// What a run will hold, in bytes, before it holds it.
struct Plan {
    std::uint64_t weights = 0, experts = 0, state = 0, workspace = 0, index = 0;
    std::uint64_t available = 0;
    std::string limited_by{};
    std::size_t positions = 0, prefill_chunk = 0;
    std::uint64_t total() const noexcept { return weights + experts + state + workspace + index; }
};

/// progress(tokens done, tokens, layer done, layers), on the calling thread: false ends the feeding there, with
/// Code::interrupted and the current step taken back. It must not throw: it runs inside the step.
using FeedProgress = std::function<bool(std::size_t, std::size_t, std::size_t, std::size_t)>;
/// progress(bytes done, bytes)
using LoadProgress = std::function<void(std::uint64_t, std::uint64_t)>;

class Session {
  public:
    /// Reads the config, indexes the shards, binds every tensor the config asks for. No big weight is read yet.
    /// Errors: Code::config, checkpoint, tensor, read, usage.
    static Session open(const Options& options) { return Session(options); }

    const model::ModelConfig& config() const noexcept { return parts_->config; }
    const checkpoint::ShardIndex& index() const noexcept { return parts_->index; }
    std::size_t layers() const noexcept { return parts_->bound.view().layer_count; }
    std::size_t position() const noexcept { return state_ ? state_->position() : 0; }
    std::uint64_t embedding_bytes_read() const noexcept { return parts_->embedding.bytes_read(); }

    /// What load(positions) will hold. The chunk is the first of 512, 256, 128, ... that fits, unless the options fix
    /// it.
    Plan plan(std::size_t positions) const {
        Plan plan;
        const io::MemoryLimit limit = io::memory_limit();
        plan.available =
            limit.bytes - limit.bytes / 32;  // head-room for what no plan sees: stacks, libraries, the heap
        plan.limited_by = limit.source;
        plan.weights = parts_->bound.matrix_bytes() + parts_->bound.vector_bytes();
        plan.experts = parts_->experts.bytes();
        plan.index = parts_->index.memory_bytes();
        plan.positions = positions;
        std::size_t chunk = options_.prefill_chunk != 0 ? options_.prefill_chunk : kLargestChunk;
        for (chunk = std::min(chunk, std::max<std::size_t>(1, positions));; chunk = (chunk + 1) / 2) {
            const model::StepBytes step = forward_->step_bytes(chunk, 1, positions);
            plan.prefill_chunk = chunk;
            plan.workspace = step.workspace + step.shared + options_.threads * step.local +
                             parts_->config.shape.vocab * sizeof(float);
            plan.state = model::State::bytes(parts_->bound.view(), positions, chunk);
            if (plan.total() <= plan.available || chunk == 1 || options_.prefill_chunk != 0) return plan;
        }
    }

    /// Loads all weights, for sequences of up to `positions` tokens. Errors: Code::plan (with what is needed, what
    /// there is and what would fit), Code::read. May be called again for another number of positions: the sequence
    /// starts over.
    void load(std::size_t positions, const LoadProgress& progress = {}) {
        const Plan plan = this->plan(positions);
        if (positions > parts_->config.shape.max_positions)
            throw Error(Code::plan,
                        std::to_string(positions) + " positions are more than the model's " +
                            std::to_string(parts_->config.shape.max_positions),
                        "shorten the prompt or ask for fewer tokens");
        if (plan.total() > plan.available) refuse(plan);
        require_threads(options_.threads);
        const model::StepBytes step = forward_->step_bytes(plan.prefill_chunk, 1, positions);
        local_ = core::Buffer(options_.threads * step.local);
        shared_ = core::Buffer(step.shared);
        workspace_ = core::Buffer(step.workspace);
        exec_ = {options_.threads, local_.data(), step.local, shared_.data(), step.shared, options_.least_work};
        logits_.assign(parts_->config.shape.vocab, 0.0F);
        chunk_ = plan.prefill_chunk;
        positions_ = positions;
        const std::uint64_t trunk = parts_->bound.matrix_bytes(), total = trunk + parts_->experts.bytes();
        const auto report = [&](std::uint64_t before) {
            return [&progress, before, total](std::uint64_t done, std::uint64_t) {
                if (progress) progress(before + done, total);
            };
        };
        const unsigned readers = std::max(4U, options_.threads);
        parts_->bound.load(readers, report(0));
        parts_->experts.load(readers, report(trunk));
        if (progress) progress(total, total);  // what was read is a little less: the arenas are padded
        forward_ = make_forward(options_.arch, parts_->bound.view());  // the view now points at the weights
        parts_->experts.use(forward_->expert_kernel());
        state_ = std::make_unique<model::State>(parts_->bound.view());
    }

    /// Feeds ids after what the state holds; the logits of the last one, valid until the next call. If a chunk fails,
    /// the chunks before it stay (position() tells). Errors: Code::usage (an id out of range), plan (more positions
    /// than load() was given), numeric, expert, read.
    std::span<const float> feed(std::span<const std::int32_t> ids, const FeedProgress& progress = {}) {
        check_ids(ids);
        for (std::size_t done = 0; done < ids.size();) {
            const std::size_t count = std::min(chunk_, ids.size() - done);
            step(ids.subspan(done, count), done + count == ids.size(), done, ids.size(), progress);
            done += count;
        }
        return logits_;
    }

    /// Forgets the state and feeds the whole sequence again.
    std::span<const float> recompute(std::span<const std::int32_t> ids, const FeedProgress& progress = {}) {
        reset();
        return feed(ids, progress);
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
        if (state_) state_->reset();
    }

  private:
    static constexpr std::size_t kLargestChunk = 512;

    /// What others point into: it stays where it is when the Session moves.
    struct Parts {
        explicit Parts(const Options& o)
            : config(model::read_config(o.config_path.empty() ? o.model_dir + "/config.json" : o.config_path)),
              index(checkpoint::ShardIndex::open(o.model_dir, std::max(1U, o.threads))),
              bound(config, index, o.layers == 0 ? config.shape.layers : o.layers),
              experts(config, index, bound.view().layer_count),
              embedding(index, bound.embedding_info()) {}
        model::ModelConfig config;
        checkpoint::ShardIndex index;
        model::BoundModel bound;
        stream::ResidentExperts experts;
        EmbeddingRows embedding;
    };

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
        const std::uint64_t fixed = plan.weights + plan.experts + plan.index;
        std::size_t fits = 0;
        for (std::size_t step = plan.positions; step > 0; step /= 2)  // the largest number of positions that would fit
            while (fits + step < plan.positions && this->plan(fits + step).total() <= plan.available) fits += step;
        throw Error(Code::plan,
                    std::to_string(plan.positions) + " positions need " + std::to_string(plan.total()) +
                        " bytes (weights and index " + std::to_string(fixed) + ", state and scratch " +
                        std::to_string(plan.state + plan.workspace) + "), there are " + std::to_string(plan.available) +
                        " (" + plan.limited_by + ")",
                    fits > 0 ? "at most " + std::to_string(fits) +
                                   " positions fit: shorten the prompt or --gen, or use fewer --threads"
                             : "use a machine with more memory or bind fewer layers with --layers");
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

    void step(std::span<const std::int32_t> ids, bool last, std::size_t done, std::size_t total,
              const FeedProgress& progress) {
        state_->begin(ids.size());
        struct Report {
            const FeedProgress* progress;
            std::size_t done, total;
        } report{&progress, done, total};
        model::Services services{&parts_->embedding, &parts_->experts, {}};
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
        segment.wanted = last ? 1 : 0;
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
                throw Error(Code::expert, "expert " + std::to_string(fault.expert) + " could not be loaded at " + at,
                            "check the disk; ids from this step on are unsound");
            case core::FaultCode::weight_failed:
                throw Error(Code::read,
                            parts_->embedding.failure().empty() ? "a weight could not be read at " + at
                                                                : parts_->embedding.failure(),
                            "check the disk");
            default: throw Error(Code::internal, "a step was refused at " + at, "please report this");
        }
    }

    Options options_;
    std::unique_ptr<Parts> parts_;
    std::unique_ptr<AnyForward> forward_;
    std::unique_ptr<model::State> state_;
    core::Buffer local_, shared_, workspace_;
    core::Exec exec_{};
    std::vector<float> logits_;
    std::size_t chunk_ = 1, positions_ = 0;
};

}  // namespace k3::engine
#endif
