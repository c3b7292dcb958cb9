#ifndef K3_TESTS_ENGINE_RIG_HPP
#define K3_TESTS_ENGINE_RIG_HPP
// A checkpoint in memory and one arch over it, below the Session: tests see logits of every position, build steps of
// several segments, and put services of their own between the model and its weights.
#include <cmath>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "k3/engine/arches.hpp"
#include "k3/model/bound_model.hpp"
#include "k3/model/state.hpp"
#include "k3/stream/embedding_rows.hpp"
#include "k3/stream/expert_cache.hpp"
#include "k3/stream/trunk.hpp"

namespace k3::tests {

using Ids = std::vector<std::int32_t>;
using Floats = std::vector<float>;

inline std::string tests_dir() { return std::string(K3_SOURCE_DIR) + "/tests/"; }
inline std::string golden_dir(const std::string& name) { return tests_dir() + "golden/" + name + "/model"; }

inline bool same_bits(std::span<const float> a, std::span<const float> b) {
    return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size_bytes()) == 0);
}
inline bool all_finite(std::span<const float> values) {
    for (const float v : values)
        if (!std::isfinite(v)) return false;
    return true;
}
inline Floats part(const Floats& values, std::size_t first, std::size_t count) {
    return {values.begin() + static_cast<std::ptrdiff_t>(first),
            values.begin() + static_cast<std::ptrdiff_t>(first + count)};
}
inline Ids part(const Ids& values, std::size_t first, std::size_t count) {
    return {values.begin() + static_cast<std::ptrdiff_t>(first),
            values.begin() + static_cast<std::ptrdiff_t>(first + count)};
}
/// Ids in [0, vocab), the same on every machine.
inline Ids some_ids(std::size_t count, std::size_t vocab, std::uint64_t seed) {
    Ids ids;
    for (std::size_t i = 0; i < count; ++i) {
        seed = seed * 6364136223846793005U + 1442695040888963407U;
        ids.push_back(static_cast<std::int32_t>((seed >> 33) % vocab));
    }
    return ids;
}

/// All weights of a checkpoint's first `layers` layers (0: of all) in memory; experts come as they are asked for.
struct Loaded {
    explicit Loaded(const std::string& dir, std::size_t layers = 0)
        : config(model::read_config(dir + "/config.json")),
          index(checkpoint::ShardIndex::open(dir, 1)),
          bound(config, index, layers == 0 ? config.shape.layers : layers),
          files(index, io::Access::direct, ""),
          walk(stream::make_walk(bound, files)),
          places(config.shape, files, bound.view().layer_count),
          embedding(index, bound.embedding_info()),
          reader(io::ReaderOptions{}),
          trunk(walk, bound.weights(), embedding, reader, {.pinned = std::vector<bool>(walk.size(), true)}),
          experts(places, stream::situ_of(config.shape), reader, {.slots = places.count()}) {
        trunk.load();
    }
    std::size_t vocab() const { return config.shape.vocab; }

    model::ModelConfig config;
    checkpoint::ShardIndex index;
    model::BoundModel bound;
    stream::StreamFiles files;
    std::vector<stream::TrunkMatrix> walk;
    stream::ExpertPlaces places;
    stream::EmbeddingRows embedding;
    io::Reader reader;
    stream::Trunk trunk;
    stream::ExpertCache experts;
};

/// Forward of one arch with the scratch for steps of up to `tokens` tokens in `segments` segments.
class Runner {
  public:
    Runner(Loaded& model, engine::ArchName arch, unsigned threads, std::size_t tokens = 64, std::size_t segments = 4,
           std::size_t positions = 640)
        : Runner(model, model.bound.view(), arch, threads, tokens, segments, positions) {}
    /// `view`: the model, or a changed copy of it.
    Runner(Loaded& model, const model::ModelView& view, engine::ArchName arch, unsigned threads,
           std::size_t tokens = 64, std::size_t segments = 4, std::size_t positions = 640)
        : services{&model.embedding, &model.experts, {}},
          model_(model),
          view_(view),
          forward_(engine::make_forward(arch, view)) {
        need = forward_->step_bytes(tokens, segments, positions);
        local_ = core::Buffer(threads * need.local);
        shared_ = core::Buffer(need.shared);
        workspace_ = core::Buffer(need.workspace);
        exec = {threads, local_.data(), need.local, shared_.data(), need.shared, 0};  // 0: splits even tiny work
    }

    core::Fault run(std::span<model::Segment> segments) {
        model_.experts.use(forward_->expert_kernel());
        return forward_->run(exec, services, segments.data(), segments.size(), {workspace_.data(), workspace_.size()});
    }
    const engine::AnyForward& forward() const { return *forward_; }
    const model::ModelView& view() const { return view_; }
    std::size_t vocab() const { return view_.config.vocab; }
    std::byte* workspace() const { return workspace_.data(); }

    model::Services services;
    core::Exec exec;
    model::StepBytes need;

  private:
    Loaded& model_;
    model::ModelView view_;
    std::unique_ptr<engine::AnyForward> forward_;
    core::Buffer local_, shared_, workspace_;
};

/// One sequence and the logits its last step wanted.
struct Sequence {
    explicit Sequence(const Runner& runner) : state(runner.view()) {}
    explicit Sequence(model::State from) : state(std::move(from)) {}

    /// The segment of a step; logits has room for what is wanted. begin() has been called.
    model::Segment segment(const Runner& runner, const Ids& ids, std::size_t wanted) {
        state.begin(ids.size());
        logits.assign(wanted * runner.vocab(), -77.0F);
        model::Segment s{};
        s.state = state.view();
        s.ids = ids.data();
        s.tokens = ids.size();
        s.wanted = wanted;
        s.logits = logits.data();
        return s;
    }
    /// Commits the first `tokens` tokens of the step.
    void commit(const Runner& runner, std::size_t tokens) {
        runner.forward().commit(runner.exec, state.view(), tokens);
        state.advance(tokens);
    }
    /// A whole step of this sequence alone; logits of the last `wanted` tokens. A fault abandons.
    core::Fault feed(Runner& runner, const Ids& ids, std::size_t wanted) {
        model::Segment s = segment(runner, ids, wanted);
        core::Fault fault = runner.run({&s, 1});
        if (!fault) fault = s.fault;
        if (fault)
            state.abandon();
        else
            commit(runner, ids.size());
        return fault;
    }
    /// All ids in chunks; logits of every position. Empty after a fault.
    Floats feed_all(Runner& runner, const Ids& ids, std::size_t chunk) {
        Floats all;
        for (std::size_t at = 0; at < ids.size(); at += chunk) {
            const std::size_t count = std::min(chunk, ids.size() - at);
            if (feed(runner, part(ids, at, count), count)) return {};
            all.insert(all.end(), logits.begin(), logits.end());
        }
        return all;
    }

    /// Everything of the state that a later step can read: recurrent matrices, histories, latents.
    std::vector<float> snapshot(const Runner& runner) {
        const model::Config& c = runner.view().config;
        std::vector<float> all;
        const model::StateView v = state.view();
        std::size_t kda = 0, mla = 0;
        const std::size_t row = kernels::LatentCache::pad(c.kv_lora) + kernels::LatentCache::pad(c.qk_rope);
        const auto add = [&all](const float* at, std::size_t n) { all.insert(all.end(), at, at + n); };
        for (std::size_t i = 0; i < runner.view().layer_count; ++i) {
            if (runner.view().layers[i].kind == model::LayerKind::kda) {
                const layers::KdaState& s = v.kda[kda++];
                add(s.recurrent, c.kda_heads * c.kda_head_dim * c.kda_head_dim);
                for (const float* history : s.conv) add(history, (c.conv_kernel - 1) * c.kda_width());
            } else {
                for (std::size_t p = 0; p < state.position(); ++p)
                    add(v.pages[mla][p / v.page_positions] + p % v.page_positions * row, row);
                ++mla;
            }
        }
        return all;
    }

    model::State state;
    Floats logits;
};

}  // namespace k3::tests
#endif
