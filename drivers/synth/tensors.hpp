#ifndef K3_DRIVERS_SYNTH_TENSORS_HPP
#define K3_DRIVERS_SYNTH_TENSORS_HPP
// The tensors of a checkpoint in the released layout: names, dtypes, shapes, order, and what each is filled with.
// Written out here, not taken from model/schema.hpp: the files then also test the reader.
//
// The spreads keep the model healthy at any depth. Every matrix maps unit variance to about unit variance (columns in,
// 1/columns variance), norms are near one, the AttnRes scores and router logits have unit spread, the logits three.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>

#include "drivers/synth/shape.hpp"
#include "drivers/synth/shard_builder.hpp"
#include "drivers/synth/values.hpp"
#include "k3/checkpoint/expert_name.hpp"

namespace k3::synth {

namespace detail {

inline void add_kda(ShardBuilder& shard, const model::Config& c) {
    const std::uint64_t width = c.kda_width();
    for (const char* letter : {"q", "k", "v"}) {
        shard.matrix("self_attn." + std::string(letter) + "_proj.weight", width, c.hidden);
        shard.add("self_attn." + std::string(letter) + "_conv1d.weight", Dtype::f32, {width, 1, c.conv_kernel},
                  {Rule::Kind::normal, 0.6});
    }
    shard.matrix("self_attn.g_proj.weight", width, c.hidden);
    shard.matrix("self_attn.o_proj.weight", c.hidden, width);
    shard.matrix("self_attn.f_a_proj.weight", c.kda_head_dim, c.hidden);
    shard.matrix("self_attn.f_b_proj.weight", width, c.kda_head_dim, kNarrowWindow);
    shard.matrix("self_attn.b_proj.weight", c.kda_heads, c.hidden);
    // The release stores head_dim entries and reads the first kda_heads of them. With more heads than that there is no
    // released example, and every head needs its own.
    const std::uint64_t slots = std::max(c.kda_head_dim, c.kda_heads);
    shard.add("self_attn.A_log", Dtype::f32, {slots}, {Rule::Kind::ramp, -2.0, 1.5, c.kda_heads});
    // Mostly negative: memory lengths from one token to hundreds.
    shard.add("self_attn.dt_bias", Dtype::f32, {width}, {Rule::Kind::uniform, -4.0, 2.0});
    shard.add("self_attn.o_norm.weight", Dtype::f32, {c.kda_head_dim}, {Rule::Kind::near_one, 0.1});
}

inline void add_mla(ShardBuilder& shard, const model::Config& c) {
    shard.matrix("self_attn.q_a_proj.weight", c.q_lora, c.hidden, kNarrowWindow);
    shard.norm("self_attn.q_a_layernorm.weight", c.q_lora);
    shard.matrix("self_attn.q_b_proj.weight", c.heads * c.qk_head(), c.q_lora, kNarrowWindow);
    shard.matrix("self_attn.kv_a_proj_with_mqa.weight", c.cache_width(), c.hidden, kNarrowWindow);
    shard.norm("self_attn.kv_a_layernorm.weight", c.kv_lora);
    shard.matrix("self_attn.kv_b_proj.weight", c.heads * (c.qk_nope + c.v_head), c.kv_lora, kNarrowWindow);
    shard.matrix("self_attn.g_proj.weight", c.heads * c.v_head, c.hidden);
    shard.matrix("self_attn.o_proj.weight", c.hidden, c.heads * c.v_head);
}

inline void add_moe(ShardBuilder& shard, const model::Config& c, std::size_t layer) {
    const std::string moe = "block_sparse_moe.";
    shard.whole_matrix(moe + "gate.weight", c.experts, c.hidden);
    shard.add(moe + "gate.e_score_correction_bias", Dtype::f32, {c.experts}, {Rule::Kind::normal, 0.02});
    shard.matrix(moe + "routed_expert_down_proj.weight", c.latent, c.hidden);
    shard.matrix(moe + "routed_expert_up_proj.weight", c.hidden, c.latent);
    shard.norm(moe + "routed_expert_norm.weight", c.latent);
    shard.matrix(moe + "shared_experts.gate_proj.weight", c.shared_width(), c.hidden);
    shard.matrix(moe + "shared_experts.up_proj.weight", c.shared_width(), c.hidden);
    shard.matrix(moe + "shared_experts.down_proj.weight", c.hidden, c.shared_width());
    using checkpoint::ExpertMatrix;
    for (std::size_t e = 0; e < c.experts; ++e) {
        for (const ExpertMatrix matrix : {ExpertMatrix::gate, ExpertMatrix::down, ExpertMatrix::up}) {
            const bool down = matrix == ExpertMatrix::down;
            shard.packed({static_cast<std::uint32_t>(layer), static_cast<std::uint32_t>(e), matrix, {}},
                         down ? c.latent : c.expert_width, down ? c.expert_width : c.latent);
        }
    }
}

inline Shard layer_shard(const ModelShape& shape, std::size_t layer) {
    const model::Config& c = shape.config;
    ShardBuilder shard("language_model.model.layers." + std::to_string(layer) + ".", shape.sparse);
    shard.norm("input_layernorm.weight", c.hidden);
    shard.norm("post_attention_layernorm.weight", c.hidden);
    shard.norm("self_attention_res_norm.weight", c.hidden);
    shard.norm("mlp_res_norm.weight", c.hidden);
    shard.matrix("self_attention_res_proj.weight", 1, c.hidden);
    shard.matrix("mlp_res_proj.weight", 1, c.hidden);
    if (shape.is_mla(layer)) {
        add_mla(shard, c);
    } else {
        add_kda(shard, c);
    }
    if (layer < c.first_dense) {
        shard.matrix("mlp.gate_proj.weight", c.dense_width, c.hidden);
        shard.matrix("mlp.up_proj.weight", c.dense_width, c.hidden);
        shard.matrix("mlp.down_proj.weight", c.hidden, c.dense_width);
    } else {
        add_moe(shard, c, layer);
    }
    return shard.finish();
}

inline Shard root_shard(const ModelShape& shape) {
    const model::Config& c = shape.config;
    ShardBuilder shard("language_model.", shape.sparse);
    shard.add("model.embed_tokens.weight", Dtype::bf16, {c.vocab, c.hidden}, {Rule::Kind::normal, 1.0});
    shard.whole_matrix("lm_head.weight", c.vocab, c.hidden, 3.0);
    shard.norm("model.norm.weight", c.hidden);
    shard.norm("model.output_attn_res_norm.weight", c.hidden);
    shard.matrix("model.output_attn_res_proj.weight", 1, c.hidden);
    return shard.finish();
}

inline Shard projector_shard(const ModelShape& shape) {
    ShardBuilder shard("mm_projector.", shape.sparse);
    shard.matrix("proj.0.weight", 4 * vision::kWidth, 4 * vision::kWidth);
    shard.matrix("proj.2.weight", shape.config.hidden, 4 * vision::kWidth);
    shard.norm("post_norm.weight", shape.config.hidden);
    return shard.finish();
}

inline Shard vision_shard(const ModelShape& shape) {
    ShardBuilder shard("vision_tower.", shape.sparse);
    constexpr std::uint64_t kPatch = vision::kPatch, kGrid = vision::kGrid, kWidth = vision::kWidth;
    shard.add("patch_embed.proj.weight", Dtype::bf16, {kWidth, 3, kPatch, kPatch}, {Rule::Kind::normal, 0.04});
    shard.add("patch_embed.pos_emb.weight", Dtype::bf16, {kGrid, kGrid, kWidth}, {Rule::Kind::normal, 0.1});
    for (std::size_t block = 0; block < vision::kBlocks; ++block) {
        const std::string name = "encoder.blocks." + std::to_string(block) + ".";
        shard.norm(name + "norm0.weight", kWidth);
        shard.matrix(name + "wqkv.weight", 3 * vision::kAttention, kWidth);
        shard.matrix(name + "wo.weight", kWidth, vision::kAttention);
        shard.norm(name + "norm1.weight", kWidth);
        shard.matrix(name + "mlp.fc0.weight", vision::kInner, kWidth);
        shard.matrix(name + "mlp.fc1.weight", kWidth, vision::kInner);
    }
    shard.norm("encoder.final_layernorm.weight", kWidth);
    return shard.finish();
}

}  // namespace detail

/// One shard a layer, then one for the root tensors; with images two more, for the projector and the vision tower.
inline std::size_t shard_count(const ModelShape& shape) noexcept {
    return shape.config.layers + 1 + (shape.images ? 2 : 0);
}

inline Shard make_shard(const ModelShape& shape, std::size_t number) {
    const std::size_t layers = shape.config.layers;
    if (number < layers) return detail::layer_shard(shape, number);
    if (number == layers) return detail::root_shard(shape);
    return number == layers + 1 ? detail::projector_shard(shape) : detail::vision_shard(shape);
}

/// "model-00001-of-000096.safetensors": five digits, then six, as in the release.
inline std::string shard_name(std::size_t number, std::size_t count) {
    const auto padded = [](std::size_t value, std::size_t digits) {
        const std::string text = std::to_string(value);
        return std::string(digits > text.size() ? digits - text.size() : 0, '0') + text;
    };
    return "model-" + padded(number + 1, 5) + "-of-" + padded(count, 6) + ".safetensors";
}

}  // namespace k3::synth
#endif
