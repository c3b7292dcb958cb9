#ifndef K3_ENGINE_DETAIL_STATE_HEADER_HPP
#define K3_ENGINE_DETAIL_STATE_HEADER_HPP
// The first bytes of a state file as 64-bit words, and what of them must agree with the model at hand
// (docs/FORMATS.md#state-file).
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <span>
#include <string>

#include "k3/core/checksum.hpp"
#include "k3/core/error.hpp"
#include "k3/model/bound_model.hpp"
#include "k3/model/config.hpp"

namespace k3::engine::detail {

inline constexpr std::uint64_t kStateMagic =
    std::bit_cast<std::uint64_t>(std::array{'k', '3', '-', 's', 't', 'a', 't', 'e'});
inline constexpr std::uint64_t kStateVersion = 1;

/// A number of the config that a bit of the output, or the size of the state, depends on.
struct ConfigNumber {
    const char* name;
    std::uint64_t bits;  // of an integer or of a binary64
    bool real = false;
};

/// All of them but max_position_embeddings, which only limits. In the order of the file.
inline auto config_numbers(const model::Config& config) {
    // Names every field, so that a new one does not compile until it is thought of here.
    const auto& [hidden, layers, vocab, rms_norm_eps, mla_norm_eps, kda_heads, kda_head_dim, conv_kernel,
                 gate_lower_bound, heads, q_lora, kv_lora, qk_nope, qk_rope, v_head, mla_output_gate, experts,
                 experts_per_token, shared_experts, expert_width, latent, latent_norm, routed_scale, renormalize,
                 first_dense, dense_width, attn_res_block, situ_beta, situ_linear_beta, max_positions] = config;
    (void)max_positions;
    const auto real = [](const char* name, double value) {
        return ConfigNumber{name, std::bit_cast<std::uint64_t>(value), true};
    };
    return std::array{ConfigNumber{"hidden_size", hidden},
                      ConfigNumber{"num_hidden_layers", layers},
                      ConfigNumber{"vocab_size", vocab},
                      real("rms_norm_eps", rms_norm_eps),
                      real("mla_norm_eps", mla_norm_eps),
                      ConfigNumber{"KDA heads", kda_heads},
                      ConfigNumber{"KDA head_dim", kda_head_dim},
                      ConfigNumber{"short_conv_kernel_size", conv_kernel},
                      real("gate_lower_bound", gate_lower_bound),
                      ConfigNumber{"num_attention_heads", heads},
                      ConfigNumber{"q_lora_rank", q_lora},
                      ConfigNumber{"kv_lora_rank", kv_lora},
                      ConfigNumber{"qk_nope_head_dim", qk_nope},
                      ConfigNumber{"qk_rope_head_dim", qk_rope},
                      ConfigNumber{"v_head_dim", v_head},
                      ConfigNumber{"mla_use_output_gate", mla_output_gate},
                      ConfigNumber{"num_experts", experts},
                      ConfigNumber{"num_experts_per_token", experts_per_token},
                      ConfigNumber{"num_shared_experts", shared_experts},
                      ConfigNumber{"moe_intermediate_size", expert_width},
                      ConfigNumber{"routed_expert_hidden_size", latent},
                      ConfigNumber{"latent_moe_use_norm", latent_norm},
                      real("routed_scaling_factor", routed_scale),
                      ConfigNumber{"moe_renormalize", renormalize},
                      ConfigNumber{"first_k_dense_replace", first_dense},
                      ConfigNumber{"intermediate_size", dense_width},
                      ConfigNumber{"attn_res_block_size", attn_res_block},
                      real("activation_situ_beta", situ_beta),
                      real("activation_situ_linear_beta", situ_linear_beta)};
}
inline constexpr std::size_t kConfigNumbers = std::tuple_size_v<decltype(config_numbers(model::Config{}))>;

/// Every member is a word of the file, in this order; a checksum of them follows.
struct StateHeader {
    static constexpr std::uint64_t kLogits = 1, kSampler = 2, kRaw = 4;  // of flags

    std::uint64_t magic = kStateMagic, version = kStateVersion;
    std::uint64_t flags = 0, ids = 0, fed = 0;
    std::uint64_t digest = 0, generator[2] = {}, turn = 0;
    std::uint64_t config[kConfigNumbers] = {};
    std::uint64_t layers = 0, kinds = 0;                  // bound layers; checksum of which of them are KDA
    std::uint64_t index = 0, vectors = 0, tokenizer = 0;  // checksums; tokenizer 0: the run had none

    std::uint64_t checksum() const noexcept {
        core::Checksum sum;
        sum.add_value(*this);
        return sum.value();
    }
};
inline constexpr std::size_t kStateHeaderBytes = sizeof(StateHeader) + sizeof(std::uint64_t);

/// The words that bind a state to its model; the others are 0.
inline StateHeader binding_of(const model::BoundModel& bound, const checkpoint::ShardIndex& index,
                              std::uint64_t tokenizer) {
    const model::ModelView& view = bound.view();
    StateHeader header;
    std::size_t i = 0;
    for (const ConfigNumber& number : config_numbers(view.config)) header.config[i++] = number.bits;
    header.layers = view.layer_count;
    core::Checksum kinds;
    for (std::size_t n = 0; n < view.layer_count; ++n) kinds.add_value(view.layers[n].kind);
    header.kinds = kinds.value();
    header.index = index.checksum();
    header.vectors = bound.vector_checksum();
    header.tokenizer = tokenizer;
    return header;
}

[[noreturn]] inline void refuse_state(const std::string& path, const std::string& what, const std::string& next) {
    throw Error(Code::state, what, next, {.path = path});
}

/// Errors: Code::state naming the first thing that differs.
inline void check_binding(const std::string& path, const StateHeader& file, const StateHeader& mine,
                          const model::Config& config) {
    const auto shown = [](const ConfigNumber& number, std::uint64_t bits) {
        if (!number.real) return std::to_string(bits);
        char text[32];
        std::snprintf(text, sizeof text, "%.17g", std::bit_cast<double>(bits));
        return std::string(text);
    };
    const std::string right = "give the model the state was saved with, or start without a state";
    std::size_t i = 0;
    for (const ConfigNumber& number : config_numbers(config)) {
        const std::uint64_t there = file.config[i++];
        if (there != number.bits)
            refuse_state(path,
                         "the state is of another model: its " + std::string(number.name) + " is " +
                             shown(number, there) + ", here it is " + shown(number, number.bits),
                         right);
    }
    if (file.layers != mine.layers)
        refuse_state(path,
                     "the state is of the first " + std::to_string(file.layers) + " layers, here " +
                         std::to_string(mine.layers) + " are run",
                     "ask for the same number with --layers");
    if (file.kinds != mine.kinds)
        refuse_state(path, "the state is of another model: other layers of it are KDA layers", right);
    if (file.index != mine.index)
        refuse_state(path, "the state is of another checkpoint: names, types or shapes of its tensors differ", right);
    if (file.vectors != mine.vectors)
        refuse_state(path, "the state is of another checkpoint of this shape: its norm weights differ", right);
    if (file.tokenizer != 0 && mine.tokenizer != 0 && file.tokenizer != mine.tokenizer)
        refuse_state(path, "the state was made with another tokenizer", "name the folder of its files with --tok");
}

}  // namespace k3::engine::detail
#endif
