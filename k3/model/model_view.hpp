#ifndef K3_MODEL_MODEL_VIEW_HPP
#define K3_MODEL_MODEL_VIEW_HPP
// A bound model as Forward sees it: plain pointers, owned by model::BoundModel.
#include "k3/layers/kda.hpp"
#include "k3/layers/mla.hpp"
#include "k3/layers/moe.hpp"
#include "k3/model/config.hpp"

namespace k3::model {

/// One decoder layer: KDA or MLA, then a dense MLP or the mixture of experts.
struct DecoderLayer {
    LayerKind kind;
    bool dense;
    std::size_t kind_index;                         // how many layers of the same kind come before: the state's index
    const float *input_norm, *post_attention_norm;  // [hidden]
    const float *attention_fold, *mlp_fold;         // [hidden]: res_norm_i * res_proj_i, of the two residual mixes
    layers::KdaWeights kda;
    layers::MlaWeights mla;
    layers::MlpWeights mlp;
    layers::MoeWeights moe;
};

struct ModelView {
    Config config;
    const DecoderLayer* layers;
    std::size_t layer_count;  // bound layers; may be fewer than config.layers
    layers::Weight embedding, lm_head;
    const float *final_norm, *output_fold;  // [hidden]
};

}  // namespace k3::model
#endif
