#ifndef K3_MODEL_SCHEMA_HPP
#define K3_MODEL_SCHEMA_HPP
// Which tensors a configuration asks for, with their shapes, and the check of a checkpoint against that list before
// anything is bound. Trunk tensors may be BF16 or F32, as each header says. Experts are MXFP4 (packed and scale, both
// U8) or plain BF16 or F32, matrix by matrix: what is there decides, both at once is refused.
// Tensors nobody asks for (vision, layers beyond --layers) are not looked at.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "k3/checkpoint/shard_index.hpp"
#include "k3/core/error.hpp"
#include "k3/model/config_reader.hpp"
#include "k3/model/tensor_names.hpp"

namespace k3::model {

struct TensorRule {
    std::string name;
    checkpoint::Shape shape;
    bool may_be_longer = false;  // A_log: the first dimension may be padded; only its head is used
};

struct Schema {
    std::vector<TensorRule> trunk;  // in the order of the walk: embedding, layers, head
    std::vector<std::uint32_t> moe_layers;
    std::uint32_t experts = 0;
    std::uint64_t expert_width = 0, latent = 0;

    /// Rows and columns of a routed expert's matrix, in numbers (not bytes).
    checkpoint::Shape expert_shape(checkpoint::ExpertMatrix matrix) const noexcept {
        const bool down = matrix == checkpoint::ExpertMatrix::down;
        return down ? checkpoint::Shape{latent, expert_width} : checkpoint::Shape{expert_width, latent};
    }
};

/// What the first `layers` layers (1..config.layers), the embedding and the head need.
/// Errors: Code::usage if `layers` is out of range.
Schema make_schema(const ModelConfig& model, std::size_t layers);

/// Errors: one Error(Code::tensor) with every missing or wrong tensor, all named.
void check(const Schema& schema, const checkpoint::ShardIndex& index);

// ---------------------------------------------------------------------------------------------------------------------

namespace detail {

class SchemaBuilder {
  public:
    SchemaBuilder(const Config& config, Schema& schema) : c_(config), schema_(schema) {}

    void root_before() { add(names::kEmbedTokens, {c_.vocab, c_.hidden}); }
    void root_after() {
        add(names::kOutputAttnResNorm, {c_.hidden});
        add(names::kOutputAttnResProj, {1, c_.hidden});
        add(names::kNorm, {c_.hidden});
        add(names::kLmHead, {c_.vocab, c_.hidden});
    }
    void layer(std::size_t n, LayerKind kind) {
        n_ = n;
        // Layer 0 has the two attention-residual tensors too; its first mix has no sources, so they go unused.
        in_layer(names::kAttnResNorm, {c_.hidden});
        in_layer(names::kAttnResProj, {1, c_.hidden});
        in_layer(names::kInputNorm, {c_.hidden});
        kind == LayerKind::kda ? kda() : mla();
        in_layer(names::kMlpResNorm, {c_.hidden});
        in_layer(names::kMlpResProj, {1, c_.hidden});
        in_layer(names::kPostAttentionNorm, {c_.hidden});
        n < c_.first_dense ? dense() : moe();
    }

  private:
    void add(std::string_view name, checkpoint::Shape shape) { schema_.trunk.push_back({std::string(name), shape}); }
    void in_layer(std::string_view suffix, checkpoint::Shape shape, bool may_be_longer = false) {
        schema_.trunk.push_back({names::layer(n_, suffix), shape, may_be_longer});
    }
    void kda() {
        const std::size_t width = c_.kda_width();
        for (const std::string_view suffix : {names::kda::kQ, names::kda::kK, names::kda::kV, names::kda::kGate}) {
            in_layer(suffix, {width, c_.hidden});
        }
        for (const std::string_view suffix : {names::kda::kQConv, names::kda::kKConv, names::kda::kVConv}) {
            in_layer(suffix, {width, 1, c_.conv_kernel});
        }
        in_layer(names::kda::kDecayDown, {c_.kda_head_dim, c_.hidden});
        in_layer(names::kda::kDecayUp, {width, c_.kda_head_dim});
        in_layer(names::kda::kBeta, {c_.kda_heads, c_.hidden});
        in_layer(names::kda::kALog, {c_.kda_heads}, true);
        in_layer(names::kda::kDtBias, {width});
        in_layer(names::kda::kOutNorm, {c_.kda_head_dim});
        in_layer(names::kda::kOut, {c_.hidden, width});
    }
    void mla() {
        in_layer(names::mla::kQDown, {c_.q_lora, c_.hidden});
        in_layer(names::mla::kQNorm, {c_.q_lora});
        in_layer(names::mla::kQUp, {c_.heads * c_.qk_head(), c_.q_lora});
        in_layer(names::mla::kKvDown, {c_.cache_width(), c_.hidden});
        in_layer(names::mla::kKvNorm, {c_.kv_lora});
        in_layer(names::mla::kKvUp, {c_.heads * (c_.qk_nope + c_.v_head), c_.kv_lora});
        if (c_.mla_output_gate) in_layer(names::mla::kGate, {c_.heads * c_.v_head, c_.hidden});
        in_layer(names::mla::kOut, {c_.hidden, c_.heads * c_.v_head});
    }
    void dense() {
        in_layer(names::mlp::kGate, {c_.dense_width, c_.hidden});
        in_layer(names::mlp::kUp, {c_.dense_width, c_.hidden});
        in_layer(names::mlp::kDown, {c_.hidden, c_.dense_width});
    }
    void moe() {
        in_layer(names::moe::kRouter, {c_.experts, c_.hidden});
        in_layer(names::moe::kRouterBias, {c_.experts});
        in_layer(names::moe::kLatentDown, {c_.latent, c_.hidden});
        in_layer(names::moe::kLatentUp, {c_.hidden, c_.latent});
        if (c_.latent_norm) in_layer(names::moe::kLatentNorm, {c_.latent});
        in_layer(names::moe::kSharedGate, {c_.shared_width(), c_.hidden});
        in_layer(names::moe::kSharedUp, {c_.shared_width(), c_.hidden});
        in_layer(names::moe::kSharedDown, {c_.hidden, c_.shared_width()});
        schema_.moe_layers.push_back(static_cast<std::uint32_t>(n_));
    }

    const Config& c_;
    Schema& schema_;
    std::size_t n_ = 0;
};

/// Every fault, all of them named; neighbouring experts with the same fault are one entry: "...experts.[0-47].w1...".
class TensorFaults {
  public:
    void add(const std::string& name, const std::string& what) {
        ++count_;
        append(name + " " + what);
    }
    void add(const checkpoint::ExpertName& at, const std::string& what) {
        ++count_;
        const std::string key =
            std::to_string(static_cast<int>(at.matrix)) + std::to_string(static_cast<int>(at.part)) + what;
        if (at.layer != layer_) flush();
        layer_ = at.layer;
        auto& runs = runs_[key];
        if (!runs.empty() && runs.back().last.expert + 1 == at.expert)
            runs.back().last = at;
        else
            runs.push_back({at, at, what});
    }
    void throw_if_any(const std::string& path) {
        flush();
        if (count_ == 0) return;
        throw Error(
            Code::tensor,
            std::to_string(count_) + (count_ == 1 ? " tensor does" : " tensors do") + " not fit the config: " + text_,
            "check that config.json and the shards belong together", {.path = path});
    }

  private:
    struct Run {
        checkpoint::ExpertName first, last;
        std::string what;
    };
    void append(const std::string& entry) {
        if (!text_.empty()) text_ += "; ";
        text_ += entry;
    }
    void flush() {
        for (const auto& [key, runs] : runs_)
            for (const Run& run : runs) {
                std::string name = to_string(run.first);
                if (run.first.expert != run.last.expert) {
                    const std::string one = "experts." + std::to_string(run.first.expert) + ".";
                    name.replace(
                        name.find(one), one.size(),
                        "experts.[" + std::to_string(run.first.expert) + "-" + std::to_string(run.last.expert) + "].");
                }
                append(name + " " + run.what);
            }
        runs_.clear();
    }
    std::size_t count_ = 0;
    std::string text_;
    std::uint32_t layer_ = 0;
    std::map<std::string, std::vector<Run>> runs_;  // of one layer
};

inline bool is_float(checkpoint::Dtype dtype) noexcept {
    return dtype == checkpoint::Dtype::bf16 || dtype == checkpoint::Dtype::f32;
}

template <class Name>
void check_tensor(TensorFaults& faults, const Name& name, const checkpoint::TensorInfo& info,
                  const checkpoint::Shape& shape, bool packed, bool may_be_longer = false) {
    const bool dtype_fits = packed ? info.dtype == checkpoint::Dtype::u8 : is_float(info.dtype);
    if (!dtype_fits) {
        faults.add(name,
                   "is " + std::string(checkpoint::name(info.dtype)) + (packed ? ", not U8" : ", not BF16 or F32"));
    }
    const bool longer = may_be_longer && info.shape.rank() == 1 && info.shape[0] >= shape[0];
    if (!longer && info.shape != shape) {
        faults.add(name, "has shape " + to_string(info.shape) + ", not " + to_string(shape) +
                             (may_be_longer ? " or longer" : ""));
    }
}

inline void check_expert_matrix(TensorFaults& faults, const checkpoint::ShardIndex& index,
                                const checkpoint::ExpertName& at, const checkpoint::Shape& shape) {
    using checkpoint::ExpertPart;
    const auto name_of = [&](ExpertPart part) { return checkpoint::ExpertName{at.layer, at.expert, at.matrix, part}; };
    const auto get = [&](ExpertPart part) { return index.expert(at.layer, at.expert, at.matrix, part); };
    const auto packed = get(ExpertPart::packed), scale = get(ExpertPart::scale);
    const auto plain = packed && scale ? std::nullopt : get(ExpertPart::plain);
    if (plain) {
        if (packed || scale) faults.add(name_of(ExpertPart::plain), "is there beside packed weights");
        return check_tensor(faults, name_of(ExpertPart::plain), *plain, shape, false);
    }
    const checkpoint::Shape packed_shape{shape[0], (shape[1] + 1) / 2};  // the last high nibble of an odd row is unused
    const checkpoint::Shape scale_shape{shape[0], (shape[1] + 31) / 32};  // the last group of a row may be partial
    if (!packed) faults.add(name_of(ExpertPart::packed), "is missing");
    if (!scale) faults.add(name_of(ExpertPart::scale), "is missing");
    if (packed) check_tensor(faults, name_of(ExpertPart::packed), *packed, packed_shape, true);
    if (scale) check_tensor(faults, name_of(ExpertPart::scale), *scale, scale_shape, true);
}

}  // namespace detail

inline Schema make_schema(const ModelConfig& model, std::size_t layers) {
    if (layers < 1 || layers > model.shape.layers) {
        throw Error(
            Code::usage,
            "cannot use " + std::to_string(layers) + " layers of a model with " + std::to_string(model.shape.layers),
            "give a number from 1 to " + std::to_string(model.shape.layers));
    }
    Schema schema;
    schema.experts = static_cast<std::uint32_t>(model.shape.experts);
    schema.expert_width = model.shape.expert_width;
    schema.latent = model.shape.latent;
    detail::SchemaBuilder builder(model.shape, schema);
    builder.root_before();
    for (std::size_t n = 0; n < layers; ++n) builder.layer(n, model.kinds[n]);
    builder.root_after();
    return schema;
}

inline void check(const Schema& schema, const checkpoint::ShardIndex& index) {
    detail::TensorFaults faults;
    for (const TensorRule& rule : schema.trunk) {
        const std::string& name = rule.name;
        const auto info = index.find(rule.name);
        if (!info) {
            faults.add(name, "is missing");
        } else {
            detail::check_tensor(faults, name, *info, rule.shape, false, rule.may_be_longer);
        }
    }
    using checkpoint::ExpertMatrix;
    for (const std::uint32_t layer : schema.moe_layers) {
        for (std::uint32_t expert = 0; expert < schema.experts; ++expert) {
            for (const ExpertMatrix matrix : {ExpertMatrix::gate, ExpertMatrix::down, ExpertMatrix::up}) {
                detail::check_expert_matrix(faults, index, {layer, expert, matrix, checkpoint::ExpertPart::packed},
                                            schema.expert_shape(matrix));
            }
        }
    }
    faults.throw_if_any(index.directory());
}

}  // namespace k3::model
#endif
