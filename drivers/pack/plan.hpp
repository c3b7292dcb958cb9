#ifndef K3_DRIVERS_PACK_PLAN_HPP
#define K3_DRIVERS_PACK_PLAN_HPP
// What a packed trunk will be: which tensors, where they are now, where they go. One run a layer, on multiples of 4096;
// in it the layer's tensors in the order of the shards. Neighbours there are neighbours here, so a layer whose trunk is
// one run in its shard is copied as it is; anything else starts on 64 bytes.
// Not in the trunk: routed experts, embedding, lm_head, the norms outside the layers, images.
#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "k3/checkpoint/shard_index.hpp"
#include "k3/core/error.hpp"
#include "k3/model/schema.hpp"

namespace k3::pack {

inline constexpr std::uint64_t kAlign = 4096;

struct Tensor {
    std::string name;
    checkpoint::TensorInfo info;
    std::uint64_t offset;  // from the start of its run
};

struct Run {
    std::uint64_t offset = 0, bytes = 0;  // in trunk.bin; both multiples of kAlign
    std::vector<Tensor> tensors{};
    bool verbatim = true;  // one gapless piece of one shard
};

/// Bytes that move together.
struct Span {
    std::uint64_t to, from, bytes;
    std::uint32_t shard;
    std::uint32_t layer;
};

struct Plan {
    std::vector<Run> runs;    // by layer
    std::vector<Span> spans;  // ascending in `to`
    std::uint64_t bytes = 0;  // of trunk.bin
    std::size_t tensors = 0, verbatim_layers = 0;
};

namespace detail {
constexpr std::string_view kPrefix = "language_model.model.layers.";

/// The layer of a trunk tensor; nothing for any other name.
inline std::optional<std::size_t> trunk_layer(std::string_view name) {
    if (!name.starts_with(kPrefix)) return std::nullopt;
    name.remove_prefix(kPrefix.size());
    std::size_t layer = 0;
    const auto [end, failure] = std::from_chars(name.data(), name.data() + name.size(), layer);
    if (failure != std::errc{}) return std::nullopt;
    name.remove_prefix(static_cast<std::size_t>(end - name.data()));
    if (!name.starts_with('.') || name.starts_with(".block_sparse_moe.experts.")) return std::nullopt;
    return layer;
}

inline std::uint64_t round_up(std::uint64_t value, std::uint64_t step) { return (value + step - 1) / step * step; }

inline void require_all(const model::ModelConfig& model, const checkpoint::ShardIndex& index) {
    std::string missing;
    std::size_t count = 0;
    for (const model::TensorRule& rule : model::make_schema(model, model.shape.layers).trunk) {
        if (!trunk_layer(rule.name) || index.find(rule.name)) continue;
        if (++count <= 20) missing += (count == 1 ? "" : ", ") + rule.name;
    }
    if (count == 0) return;
    throw Error(Code::tensor,
                std::to_string(count) + (count == 1 ? " tensor is" : " tensors are") + " missing: " + missing +
                    (count > 20 ? " and " + std::to_string(count - 20) + " more" : ""),
                "check that config.json and the shards belong together", {.path = index.directory()});
}

inline void lay_out(Run& run, std::uint32_t layer, std::vector<Span>& spans) {
    std::uint64_t at = 0;
    const checkpoint::TensorInfo* before = nullptr;
    for (Tensor& tensor : run.tensors) {
        const checkpoint::TensorInfo& info = tensor.info;
        const bool neighbour =
            before != nullptr && before->shard == info.shard && before->offset + before->bytes == info.offset;
        if (before != nullptr && !neighbour) {
            run.verbatim = false;
            at = round_up(at, 64);
        }
        tensor.offset = at;
        at += info.bytes;
        if (neighbour) {
            spans.back().bytes += info.bytes;
        } else {
            spans.push_back({run.offset + tensor.offset, info.offset, info.bytes, info.shard, layer});
        }
        before = &info;
    }
    run.bytes = round_up(at, kAlign);
}
}  // namespace detail

/// Every trunk tensor of the config's layers, those it has no name for included. Errors: Code::tensor with all missing
/// names. (A name that is there twice was refused by ShardIndex::open.)
inline Plan make_plan(const model::ModelConfig& model, const checkpoint::ShardIndex& index) {
    detail::require_all(model, index);
    Plan plan;
    plan.runs.resize(model.shape.layers);
    index.for_each([&](std::string_view name, const checkpoint::TensorInfo& info) {
        const auto layer = detail::trunk_layer(name);
        if (!layer || *layer >= plan.runs.size()) return;
        plan.runs[*layer].tensors.push_back({std::string(name), info, 0});  // in the order of the shards already
        ++plan.tensors;
    });
    for (std::size_t layer = 0; layer < plan.runs.size(); ++layer) {
        Run& run = plan.runs[layer];
        run.offset = plan.bytes;
        detail::lay_out(run, static_cast<std::uint32_t>(layer), plan.spans);
        plan.bytes += run.bytes;
        plan.verbatim_layers += run.verbatim ? 1U : 0U;
    }
    std::erase_if(plan.spans, [](const Span& span) { return span.bytes == 0; });
    return plan;
}

inline std::string trunk_json(const Plan& plan) {
    using Json = nlohmann::ordered_json;
    Json layers = Json::array();
    for (std::size_t n = 0; n < plan.runs.size(); ++n) {
        Json tensors = Json::object();
        for (const Tensor& tensor : plan.runs[n].tensors) {
            tensors[tensor.name] = {{"off", tensor.offset},
                                    {"nbytes", tensor.info.bytes},
                                    {"dtype", checkpoint::name(tensor.info.dtype)},
                                    {"shape", tensor.info.shape.dims()}};
        }
        layers.push_back({{"layer", n},
                          {"file_off", plan.runs[n].offset},
                          {"nbytes", plan.runs[n].bytes},
                          {"tensors", std::move(tensors)}});
    }
    const Json root = {{"n_layers", plan.runs.size()}, {"align", kAlign}, {"layers", std::move(layers)}};
    return root.dump(1) + "\n";
}

}  // namespace k3::pack
#endif
