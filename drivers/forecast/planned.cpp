// See planned.hpp.
#include "drivers/forecast/planned.hpp"

#include <algorithm>
#include <string_view>
#include <utility>
#include <vector>

#include "drivers/release_size.hpp"
#include "drivers/synth/shape.hpp"
#include "k3/engine/plan_refusal.hpp"
#include "k3/engine/session.hpp"
#include "k3/model/schema.hpp"
#include "k3/stream/plan.hpp"

namespace k3::forecast {
namespace {

Planned from_plan(stream::Plan plan, Room room) {
    if (room == Room::any) plan.available = io::kUnlimited;
    Planned planned;
    planned.split = {.held = plan.held,
                     .reserve = plan.reserve,
                     .state = plan.state,
                     .workspace = plan.workspace,
                     .pinned = plan.pinned,
                     .ring = plan.ring,
                     .experts = plan.experts,
                     .total = plan.total(),
                     .ceiling = plan.ceiling,
                     .available = plan.available,
                     .least = plan.least,
                     .limited_by = plan.asked_ceiling ? "asked for" : plan.limited_by,
                     .prefill_chunk = plan.prefill_chunk,
                     .positions = plan.positions};
    if (!plan.fits()) planned.refusal = engine::plan_refusal(plan, 0, 0);
    planned.work.trunk = plan.trunk_bytes;
    planned.work.streamed = plan.streamed_bytes;
    planned.work.slots = plan.expert_slots;
    planned.work.experts = plan.all_experts;
    return planned;
}

/// What the program holds with the release's index and vectors before it plans, as it was found on a sparse release.
constexpr std::uint64_t kReleaseHeld = 92'000'000;

/// The release as far as a plan looks at it: kinds of layers and the widths that scratch depends on.
struct ReleaseView {
    ReleaseView() {
        synth::Options options;
        options.release = true;
        const synth::ModelShape shape = synth::make_shape(options);
        config.shape = shape.config;
        const model::Config& c = config.shape;
        std::size_t seen[2] = {0, 0};
        layers.resize(c.layers);
        for (std::size_t n = 0; n < c.layers; ++n) {
            const auto kind = shape.is_mla(n) ? model::LayerKind::mla : model::LayerKind::kda;
            config.kinds.push_back(kind);
            model::DecoderLayer& layer = layers[n];
            layer.kind = kind;
            layer.dense = n < c.first_dense;
            layer.kind_index = seen[static_cast<std::size_t>(kind)]++;
            layer.kda.f_a.rows = c.kda_head_dim;
            layer.mlp.gate.rows = layer.mlp.down.cols = c.dense_width;
        }
        view = {c, layers.data(), c.layers, {}, {}, nullptr, nullptr};
    }

    /// The trunk's matrices; all are BF16 there.
    std::vector<stream::TrunkMatrix> walk() const {
        std::vector<stream::TrunkMatrix> walk;
        for (const model::TensorRule& rule : model::make_schema(config, config.shape.layers).trunk) {
            const std::string_view name = rule.name;
            if (rule.shape.rank() != 2 || rule.shape[0] == 1 || name == model::names::kEmbedTokens) continue;
            stream::TrunkMatrix matrix;
            matrix.rows = rule.shape[0];
            matrix.row_bytes = 2 * rule.shape[1];
            matrix.place.bytes = matrix.rows * matrix.row_bytes;
            matrix.router = name.ends_with(model::names::moe::kRouter);
            matrix.lm_head = name == model::names::kLmHead;
            matrix.undivided = name.ends_with(model::names::mla::kKvUp);
            walk.push_back(matrix);
        }
        return walk;
    }

    model::ModelConfig config{};
    std::vector<model::DecoderLayer> layers{};
    model::ModelView view{};
};

void finish(Planned& planned, const model::Config& shape, std::size_t layers, std::uint64_t expert) {
    planned.shape = shape;
    planned.layers = layers;
    planned.work.expert = expert;
    planned.work.wanted = shape.experts_per_token * (layers - std::min(layers, shape.first_dense));
}

}  // namespace

Planned plan_model(const Request& request) {
    const auto session = engine::Session::open({.model_dir = request.model_dir,
                                                .arch = request.arch,
                                                .threads = request.threads,
                                                .memory = {.ceiling = request.ceiling}});
    const model::Config& shape = session.config().shape;
    const std::size_t positions = std::min(request.positions, shape.max_positions);
    Planned planned = from_plan(session.plan(positions), request.room);
    finish(planned, shape, session.layers(), session.experts().expert_bytes());
    const auto embedding = session.index().find(model::names::kEmbedTokens);  // bound, so it is there
    planned.work.row = embedding->bytes / shape.vocab;
    planned.shards = session.index().shards().size();
    planned.tensors = session.index().size();
    planned.all_bytes = session.index().payload_bytes();
    planned.why_buffered = session.files().why_buffered();
    return planned;
}

Planned plan_release(const Request& request) {
    const ReleaseView release;
    const model::Config& c = release.config.shape;
    const auto forward = engine::make_forward(request.arch, release.view);
    const std::vector<stream::TrunkMatrix> walk = release.walk();
    const std::uint64_t expert = 3 * c.expert_width * c.latent * 17 / 32;  // 4 bits a weight and 8 for each 32
    const std::size_t experts = (c.layers - c.first_dense) * c.experts;
    const auto step_memory = [&](std::size_t chunk) {
        const model::StepBytes step = forward->step_bytes(chunk, 1, request.positions);
        const auto held = [](std::size_t bytes) { return core::Buffer::most_resident(bytes); };
        return stream::StepMemory{.state = model::State::bytes(release.view, request.positions, chunk),
                                  .workspace = held(step.workspace) + held(step.shared) +
                                               held(request.threads * step.local) + c.vocab * sizeof(float)};
    };
    Planned planned = from_plan(stream::make_plan({.walk = walk,
                                                   .experts = experts,
                                                   .least_slots = stream::least_slots(c.experts_per_token, experts),
                                                   .slot_bytes = expert + io::kBlock,
                                                   .keys = c.layers * c.experts,
                                                   .most_distinct = c.experts,
                                                   .held = kReleaseHeld,
                                                   .limit = io::memory_limit(),
                                                   .positions = request.positions,
                                                   .step_memory = step_memory},
                                                  {.ceiling = request.ceiling}),
                                request.room);
    finish(planned, c, c.layers, expert);
    planned.work.row = 2 * c.hidden;
    planned.all_bytes = drivers::kReleaseBytes;
    return planned;
}

}  // namespace k3::forecast
