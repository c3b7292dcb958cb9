#ifndef K3_MODEL_TENSOR_NAMES_HPP
#define K3_MODEL_TENSOR_NAMES_HPP
// Every tensor name of the text model, in one place. A layer's tensor is layer(n, suffix). Routed experts have
// coordinates instead (checkpoint/expert_name.hpp). g_proj and o_proj have one name in both kinds of layer and
// different roles: go by the layer's kind, never by the name.
#include <cstddef>
#include <string>
#include <string_view>

namespace k3::model::names {

// Outside the layers. Note that lm_head has no ".model.".
inline constexpr std::string_view kEmbedTokens = "language_model.model.embed_tokens.weight";  // [vocab, hidden]
inline constexpr std::string_view kLmHead = "language_model.lm_head.weight";                  // [vocab, hidden]
inline constexpr std::string_view kNorm = "language_model.model.norm.weight";                 // [hidden]
inline constexpr std::string_view kOutputAttnResNorm = "language_model.model.output_attn_res_norm.weight";  // [hidden]
inline constexpr std::string_view kOutputAttnResProj =
    "language_model.model.output_attn_res_proj.weight";  // [1, hidden]

/// "language_model.model.layers.N.SUFFIX"
inline std::string layer(std::size_t n, std::string_view suffix) {
    return "language_model.model.layers." + std::to_string(n) + "." + std::string(suffix);
}

// Every layer.
inline constexpr std::string_view kInputNorm = "input_layernorm.weight";                   // [hidden]
inline constexpr std::string_view kPostAttentionNorm = "post_attention_layernorm.weight";  // [hidden]
inline constexpr std::string_view kAttnResNorm = "self_attention_res_norm.weight";         // [hidden]
inline constexpr std::string_view kAttnResProj = "self_attention_res_proj.weight";         // [1, hidden]
inline constexpr std::string_view kMlpResNorm = "mlp_res_norm.weight";                     // [hidden]
inline constexpr std::string_view kMlpResProj = "mlp_res_proj.weight";                     // [1, hidden]

namespace kda {                                                              // P = heads * head_dim
inline constexpr std::string_view kQ = "self_attn.q_proj.weight";            // [P, hidden]
inline constexpr std::string_view kK = "self_attn.k_proj.weight";            // [P, hidden]
inline constexpr std::string_view kV = "self_attn.v_proj.weight";            // [P, hidden]
inline constexpr std::string_view kGate = "self_attn.g_proj.weight";         // [P, hidden], output gate
inline constexpr std::string_view kOut = "self_attn.o_proj.weight";          // [hidden, P]
inline constexpr std::string_view kQConv = "self_attn.q_conv1d.weight";      // [P, 1, taps], oldest tap first
inline constexpr std::string_view kKConv = "self_attn.k_conv1d.weight";      // [P, 1, taps]
inline constexpr std::string_view kVConv = "self_attn.v_conv1d.weight";      // [P, 1, taps]
inline constexpr std::string_view kDecayDown = "self_attn.f_a_proj.weight";  // [head_dim, hidden]
inline constexpr std::string_view kDecayUp = "self_attn.f_b_proj.weight";    // [P, head_dim]
inline constexpr std::string_view kBeta = "self_attn.b_proj.weight";         // [heads, hidden]
inline constexpr std::string_view kALog = "self_attn.A_log";                 // [>= heads]: the release pads 96 to 128
inline constexpr std::string_view kDtBias = "self_attn.dt_bias";             // [P]
inline constexpr std::string_view kOutNorm = "self_attn.o_norm.weight";      // [head_dim]
}  // namespace kda

namespace mla {
inline constexpr std::string_view kQDown = "self_attn.q_a_proj.weight";             // [q_lora, hidden]
inline constexpr std::string_view kQNorm = "self_attn.q_a_layernorm.weight";        // [q_lora]
inline constexpr std::string_view kQUp = "self_attn.q_b_proj.weight";               // [heads * (nope + rope), q_lora]
inline constexpr std::string_view kKvDown = "self_attn.kv_a_proj_with_mqa.weight";  // [kv_lora + rope, hidden]
inline constexpr std::string_view kKvNorm = "self_attn.kv_a_layernorm.weight";      // [kv_lora]
inline constexpr std::string_view kKvUp = "self_attn.kv_b_proj.weight";             // [heads * (nope + v), kv_lora]
inline constexpr std::string_view kGate = "self_attn.g_proj.weight";                // [heads * v, hidden], output gate
inline constexpr std::string_view kOut = "self_attn.o_proj.weight";                 // [hidden, heads * v]
}  // namespace mla

namespace mlp {                                                    // the dense layers
inline constexpr std::string_view kGate = "mlp.gate_proj.weight";  // [dense, hidden]
inline constexpr std::string_view kUp = "mlp.up_proj.weight";      // [dense, hidden]
inline constexpr std::string_view kDown = "mlp.down_proj.weight";  // [hidden, dense]
}  // namespace mlp

namespace moe {
inline constexpr std::string_view kRouter = "block_sparse_moe.gate.weight";                         // [experts, hidden]
inline constexpr std::string_view kRouterBias = "block_sparse_moe.gate.e_score_correction_bias";    // [experts]
inline constexpr std::string_view kLatentDown = "block_sparse_moe.routed_expert_down_proj.weight";  // [latent, hidden]
inline constexpr std::string_view kLatentUp = "block_sparse_moe.routed_expert_up_proj.weight";      // [hidden, latent]
inline constexpr std::string_view kLatentNorm = "block_sparse_moe.routed_expert_norm.weight";       // [latent]
inline constexpr std::string_view kSharedGate = "block_sparse_moe.shared_experts.gate_proj.weight";  // [shared, hidden]
inline constexpr std::string_view kSharedUp = "block_sparse_moe.shared_experts.up_proj.weight";      // [shared, hidden]
inline constexpr std::string_view kSharedDown = "block_sparse_moe.shared_experts.down_proj.weight";  // [hidden, shared]
}  // namespace moe

}  // namespace k3::model::names
#endif
