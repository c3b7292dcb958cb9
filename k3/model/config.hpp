#ifndef K3_MODEL_CONFIG_HPP
#define K3_MODEL_CONFIG_HPP
// The model's numbers as read from config.json: plain values, no strings, no containers, so arch units may include it.
// Reading and checking is model/config_reader.hpp. There are no default values on purpose: a Config is whole or absent.
#include <cstddef>
#include <cstdint>

#include "k3/core/check.hpp"

namespace k3::model {

/// What mixes tokens in a layer: the gated delta rule (KDA) or gated latent attention without positions (MLA).
enum class LayerKind : std::uint8_t { kda, mla };

/// Field names follow config.json where it has a good one; the comment gives the key (below text_config, or flat).
struct Config {
    std::size_t hidden;             // hidden_size
    std::size_t layers;             // num_hidden_layers
    std::size_t vocab;              // vocab_size
    double rms_norm_eps;            // rms_norm_eps
    double mla_norm_eps;            // mla_norm_eps if present, else 1e-6: the released code's class default (NUMERICS)
    std::size_t kda_heads;          // linear_attn_config.num_heads     (flat: kda_num_heads)
    std::size_t kda_head_dim;       // linear_attn_config.head_dim      (flat: kda_head_dim); key and value dim alike
    std::size_t conv_kernel;        // linear_attn_config.short_conv_kernel_size
    double gate_lower_bound;        // linear_attn_config.gate_lower_bound
    std::size_t heads;              // num_attention_heads
    std::size_t q_lora;             // q_lora_rank
    std::size_t kv_lora;            // kv_lora_rank
    std::size_t qk_nope;            // qk_nope_head_dim
    std::size_t qk_rope;            // qk_rope_head_dim; the slots exist and are never rotated
    std::size_t v_head;             // v_head_dim
    bool mla_output_gate;           // mla_use_output_gate
    std::size_t experts;            // num_experts
    std::size_t experts_per_token;  // num_experts_per_token
    std::size_t shared_experts;     // num_shared_experts: a width multiplier of one shared MLP
    std::size_t expert_width;       // moe_intermediate_size
    std::size_t latent;             // routed_expert_hidden_size
    bool latent_norm;               // latent_moe_use_norm
    double routed_scale;            // routed_scaling_factor
    bool renormalize;               // moe_renormalize
    std::size_t first_dense;        // first_k_dense_replace: layers below it have a dense MLP
    std::size_t dense_width;        // intermediate_size
    std::size_t attn_res_block;     // attn_res_block_size
    double situ_beta;               // activation_situ_beta             (flat: situ_beta)
    double situ_linear_beta;        // activation_situ_linear_beta      (flat: situ_linear_beta)
    std::size_t max_positions;      // max_position_embeddings

    K3_INLINE std::size_t kda_width() const noexcept { return kda_heads * kda_head_dim; }
    K3_INLINE std::size_t qk_head() const noexcept { return qk_nope + qk_rope; }
    K3_INLINE std::size_t cache_width() const noexcept {
        return kv_lora + qk_rope;
    }  // floats per position and MLA layer
    K3_INLINE std::size_t shared_width() const noexcept { return shared_experts * expert_width; }
};

}  // namespace k3::model
#endif
