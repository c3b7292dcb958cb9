#ifndef K3_MODEL_BOUND_MODEL_HPP
#define K3_MODEL_BOUND_MODEL_HPP
// Binds a checkpoint to a ModelView: which tensor is which weight of which layer. Matrices stay as stored; norm
// vectors, biases and the like widen to f32; conv taps are transposed; each residual mix folds its norm into its
// projection. Binding reads nothing big: bringing the matrices is the job of stream::Trunk.
#include <cstring>
#include <deque>
#include <span>
#include <string>
#include <vector>

#include "k3/checkpoint/tensor_reader.hpp"
#include "k3/core/checksum.hpp"
#include "k3/core/parallel.hpp"
#include "k3/model/config_reader.hpp"
#include "k3/model/model_view.hpp"
#include "k3/model/schema.hpp"
#include "k3/simd/fence.hpp"

namespace k3::model {

class BoundModel {
  public:
    /// Checks that the checkpoint has every tensor the first `layers` layers need, and binds them. Both arguments must
    /// outlive the result. Errors: Code::tensor listing all that is missing or wrong; Code::read.
    BoundModel(const ModelConfig& config, const checkpoint::ShardIndex& index, std::size_t layers)
        : index_(index), layers_(layers) {
        check(make_schema(config, layers), index);
        view_ = {config.shape, nullptr, layers, {}, {}, nullptr, nullptr};
        view_.embedding = describe(names::kEmbedTokens);
        std::size_t kda = 0, mla = 0;
        for (std::size_t n = 0; n < layers; ++n)
            bind_layer(n, config.kinds[n], config.kinds[n] == LayerKind::kda ? kda++ : mla++);
        view_.output_fold = fold(std::string(names::kOutputAttnResNorm), std::string(names::kOutputAttnResProj));
        view_.final_norm = vector(std::string(names::kNorm));
        matrix(std::string(names::kLmHead), view_.lm_head);
        view_.layers = layers_.data();
    }
    BoundModel(const BoundModel&) = delete;
    BoundModel& operator=(const BoundModel&) = delete;

    const ModelView& view() const noexcept { return view_; }
    /// Bytes of the vectors, which are held.
    std::uint64_t vector_bytes() const noexcept { return vector_bytes_; }
    /// Of the values of the vectors, in the order of binding: tells checkpoints of one shape apart, without reading
    /// their matrices.
    std::uint64_t vector_checksum() const noexcept {
        core::Checksum checksum;
        for (const std::vector<float>& values : vectors_) checksum.add(std::as_bytes(std::span(values)));
        return checksum.value();
    }

    /// A matrix of the trunk and the weight that shows it.
    struct Matrix {
        std::string name;
        checkpoint::TensorInfo info;
        layers::Weight* weight;
    };
    /// All matrices but the embedding table, in the order in which a step uses them: layer by layer, lm_head last.
    /// weight->id counts them.
    const std::vector<Matrix>& matrices() const noexcept { return matrices_; }
    /// Their weights, in the same order.
    std::vector<layers::Weight*> weights() const {
        std::vector<layers::Weight*> list;
        for (const Matrix& matrix : matrices_) list.push_back(matrix.weight);
        return list;
    }

    /// Where the embedding table is: its rows are read one at a time.
    checkpoint::TensorInfo embedding_info() const { return *index_.find(names::kEmbedTokens); }

  private:
    static layers::Format format_of(checkpoint::Dtype dtype) {
        return dtype == checkpoint::Dtype::f32 ? layers::Format::f32 : layers::Format::bf16;  // check() allows no other
    }
    layers::Weight describe(std::string_view name) const {
        const checkpoint::TensorInfo info = *index_.find(name);
        layers::Weight w;
        w.format = format_of(info.dtype);
        w.rows = info.shape[0];
        w.cols = info.shape.rank() > 1 ? info.shape[1] : 1;
        return w;
    }
    void matrix(const std::string& name, layers::Weight& weight) {
        const checkpoint::TensorInfo info = *index_.find(name);
        weight = describe(name);
        weight.id = static_cast<std::uint32_t>(matrices_.size());
        matrices_.push_back({name, info, &weight});
    }
    std::vector<float> widened(const std::string& name) const {
        const checkpoint::TensorInfo info = *index_.find(name);
        const std::vector<std::byte> bytes = checkpoint::read_tensor(index_, info);
        std::vector<float> values(*checkpoint::element_count(info.shape));
        for (std::size_t i = 0; i < values.size(); ++i) {
            if (info.dtype == checkpoint::Dtype::f32)
                std::memcpy(&values[i], bytes.data() + 4 * i, 4);
            else
                values[i] = formats::bf16::widen(bytes.data() + 2 * i);
        }
        return values;
    }
    const float* keep(std::vector<float> values) {
        vector_bytes_ += values.size() * sizeof(float);
        return vectors_.emplace_back(std::move(values)).data();
    }
    const float* vector(const std::string& name) { return keep(widened(name)); }
    const float* fold(const std::string& norm, const std::string& projection) {
        std::vector<float> values = widened(norm);
        const std::vector<float> proj = widened(projection);
        core::parallel(core::Exec{}, values.size(), 1, [&](std::size_t begin, std::size_t end, unsigned) noexcept {
            for (std::size_t i = begin; i < end; ++i) values[i] = simd::mul(values[i], proj[i]);
        });
        return keep(std::move(values));
    }
    /// [channels][1][taps] as stored to [taps][channels], so that channels are lanes.
    const float* taps(const std::string& name) {
        const std::vector<float> stored = widened(name);
        const std::size_t taps = view_.config.conv_kernel, channels = stored.size() / taps;
        std::vector<float> values(stored.size());
        for (std::size_t c = 0; c < channels; ++c)
            for (std::size_t j = 0; j < taps; ++j) values[j * channels + c] = stored[c * taps + j];
        return keep(std::move(values));
    }

    void bind_layer(std::size_t n, LayerKind kind, std::size_t kind_index) {
        DecoderLayer& layer = layers_[n];
        layer.kind = kind;
        layer.kind_index = kind_index;
        layer.dense = n < view_.config.first_dense;
        const auto name = [n](std::string_view suffix) { return names::layer(n, suffix); };
        layer.input_norm = vector(name(names::kInputNorm));
        layer.post_attention_norm = vector(name(names::kPostAttentionNorm));
        layer.attention_fold = fold(name(names::kAttnResNorm), name(names::kAttnResProj));
        layer.mlp_fold = fold(name(names::kMlpResNorm), name(names::kMlpResProj));
        if (kind == LayerKind::kda)
            bind_kda(layer.kda, name);
        else
            bind_mla(layer.mla, name);
        if (layer.dense) {
            matrix(name(names::mlp::kGate), layer.mlp.gate);
            matrix(name(names::mlp::kUp), layer.mlp.up);
            matrix(name(names::mlp::kDown), layer.mlp.down);
        } else {
            bind_moe(layer.moe, name);
        }
    }
    template <class Name>
    void bind_kda(layers::KdaWeights& w, const Name& name) {
        matrix(name(names::kda::kQ), w.q);
        matrix(name(names::kda::kK), w.k);
        matrix(name(names::kda::kV), w.v);
        matrix(name(names::kda::kBeta), w.b);
        matrix(name(names::kda::kDecayDown), w.f_a);
        matrix(name(names::kda::kDecayUp), w.f_b);
        matrix(name(names::kda::kGate), w.g);
        matrix(name(names::kda::kOut), w.o);
        w.conv[0] = taps(name(names::kda::kQConv));
        w.conv[1] = taps(name(names::kda::kKConv));
        w.conv[2] = taps(name(names::kda::kVConv));
        w.a_log = vector(name(names::kda::kALog));
        w.dt_bias = vector(name(names::kda::kDtBias));
        w.o_norm = vector(name(names::kda::kOutNorm));
    }
    template <class Name>
    void bind_mla(layers::MlaWeights& w, const Name& name) {
        matrix(name(names::mla::kQDown), w.q_a);
        matrix(name(names::mla::kQUp), w.q_b);
        matrix(name(names::mla::kKvDown), w.kv_a);
        if (view_.config.mla_output_gate) matrix(name(names::mla::kGate), w.g);
        matrix(name(names::mla::kKvUp), w.kv_b);
        matrix(name(names::mla::kOut), w.o);
        w.q_a_norm = vector(name(names::mla::kQNorm));
        w.kv_a_norm = vector(name(names::mla::kKvNorm));
    }
    template <class Name>
    void bind_moe(layers::MoeWeights& w, const Name& name) {
        matrix(name(names::moe::kRouter), w.gate);
        matrix(name(names::moe::kLatentDown), w.down);
        matrix(name(names::moe::kLatentUp), w.up);
        matrix(name(names::moe::kSharedGate), w.shared.gate);
        matrix(name(names::moe::kSharedUp), w.shared.up);
        matrix(name(names::moe::kSharedDown), w.shared.down);
        w.bias = vector(name(names::moe::kRouterBias));
        w.norm = view_.config.latent_norm ? vector(name(names::moe::kLatentNorm)) : nullptr;
    }

    const checkpoint::ShardIndex& index_;
    std::vector<DecoderLayer> layers_;
    ModelView view_;
    std::vector<Matrix> matrices_;
    std::deque<std::vector<float>> vectors_;  // a deque: addresses stay
    std::uint64_t vector_bytes_ = 0;
};

}  // namespace k3::model
#endif
