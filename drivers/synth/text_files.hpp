#ifndef K3_DRIVERS_SYNTH_TEXT_FILES_HPP
#define K3_DRIVERS_SYNTH_TEXT_FILES_HPP
// The small files of a checkpoint: config.json in the nested shape of the release, generation_config.json,
// tokenizer_config.json, and a rank file whose tokens byte-level BPE can really reach.
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "drivers/synth/shape.hpp"

namespace k3::synth {

/// A named special token: its slot among 256, and whether the release flags it special.
struct NamedSlot {
    std::size_t slot;
    const char* name;
    bool special;
};
inline constexpr std::array<NamedSlot, 16> kNamedSlots{{
    {0, "[BOS]", true},
    {1, "[EOS]", true},
    {2, "<|end_of_msg|>", true},
    {3, "<|open|>", false},
    {4, "<|close|>", false},
    {5, "<|sep|>", false},
    {6, "[start_header_id]", true},
    {7, "[end_header_id]", true},
    {9, "[EOT]", true},
    {18, "<|media_begin|>", true},
    {19, "<|media_content|>", true},
    {20, "<|media_end|>", true},
    {21, "<|media_pad|>", true},
    {65, "<osagent_mode>", true},
    {254, "[UNK]", true},
    {255, "[PAD]", true},
}};

/// The id of entry `i` of kNamedSlots: at its released slot, or one after the other where there are only 16 slots.
inline std::size_t named_id(std::size_t vocab, std::size_t i) noexcept {
    const std::size_t slots = special_slots(vocab);
    return vocab - slots + (slots == 256 ? kNamedSlots[i].slot : i);
}

namespace detail {
using Json = nlohmann::ordered_json;

inline Json quantization() {
    const Json weights = {{"actorder", nullptr},
                          {"block_structure", nullptr},
                          {"dynamic", false},
                          {"group_size", 32},
                          {"num_bits", 4},
                          {"observer", "minmax"},
                          {"observer_kwargs", Json::object()},
                          {"scale_dtype", "torch.uint8"},
                          {"strategy", "group"},
                          {"symmetric", true},
                          {"type", "float"},
                          {"zp_dtype", nullptr}};
    const Json group = {{"format", "mxfp4-pack-quantized"},
                        {"input_activations", nullptr},
                        {"output_activations", nullptr},
                        {"targets", Json::array({"Linear"})},
                        {"weights", weights}};
    return {
        {"config_groups", {{"group_0", group}}},
        {"format", "mxfp4-pack-quantized"},
        {"global_compression_ratio", nullptr},
        {"ignore", Json::array({"re:.*self_attn.*", "re:.*shared_experts.*", "re:.*mlp\\.(gate|up|gate_up|down)_proj.*",
                                "re:.*lm_head.*", "re:.*vision_tower.*", "re:.*mm_projector.*"})},
        {"kv_cache_scheme", nullptr},
        {"quant_method", "compressed-tensors"},
        {"quantization_status", "compressed"}};
}
}  // namespace detail

namespace detail {
inline Json vision_config(std::size_t hidden) {
    return {{"_attn_implementation", "flash_attention_2"},
            {"activation_func", "gelu_pytorch_tanh"},
            {"attn_bias", false},
            {"init_pos_emb_height", vision::kGrid},
            {"init_pos_emb_time", vision::kFrames},
            {"init_pos_emb_width", vision::kGrid},
            {"linear_bias", false},
            {"merge_kernel_size", {2, 2}},
            {"merge_type", "sd2_tpool"},
            {"mlp_type", "mlp2"},
            {"mm_hidden_size", vision::kWidth},
            {"mm_projector_type", "patchmergerv2"},
            {"norm_type", "rmsnorm"},
            {"patch_embed_proj_bias", false},
            {"patch_size", vision::kPatch},
            {"pos_emb_interpolation_mode", "bilinear"},
            {"pos_emb_type", "divided_fixed"},
            {"projector_hidden_act", "gelu"},
            {"projector_ln_eps", 1e-5},
            {"qkv_hidden_size", vision::kAttention},
            {"text_hidden_size", hidden},
            {"vt_hidden_size", vision::kWidth},
            {"vt_intermediate_size", vision::kInner},
            {"vt_num_attention_heads", vision::kHeads},
            {"vt_num_hidden_layers", vision::kBlocks}};
}
}  // namespace detail

inline std::string config_json(const ModelShape& shape) {
    using detail::Json;
    const model::Config& c = shape.config;
    const std::size_t bos = named_id(c.vocab, 0), eos = named_id(c.vocab, 2), pad = named_id(c.vocab, 15);
    std::vector<std::size_t> kda;
    for (std::size_t layer = 0; layer < c.layers; ++layer) {
        if (!shape.is_mla(layer)) kda.push_back(layer + 1);
    }
    Json text = {{"activation_situ_beta", c.situ_beta},
                 {"activation_situ_linear_beta", c.situ_linear_beta},
                 {"architectures", Json::array({"KimiLinearForCausalLM"})},
                 {"attn_res_block_size", c.attn_res_block},
                 {"bos_token_id", bos},
                 {"dtype", "bfloat16"},
                 {"eos_token_id", eos},
                 {"first_k_dense_replace", c.first_dense},
                 {"hidden_act", "situ"},
                 {"hidden_size", c.hidden},
                 {"initializer_range", 0.02},
                 {"intermediate_size", c.dense_width},
                 {"kv_lora_rank", c.kv_lora},
                 {"latent_moe_use_norm", c.latent_norm}};
    text["linear_attn_config"] = {{"full_attn_layers", shape.mla_layers},
                                  {"gate_lower_bound", c.gate_lower_bound},
                                  {"head_dim", c.kda_head_dim},
                                  {"kda_layers", kda},
                                  {"num_heads", c.kda_heads},
                                  {"short_conv_kernel_size", c.conv_kernel},
                                  {"use_full_rank_gate", true}};
    text.update(Json{{"max_position_embeddings", c.max_positions},
                     {"mla_use_nope", true},
                     {"mla_use_output_gate", c.mla_output_gate},
                     {"model_type", "kimi_linear"},
                     {"moe_intermediate_size", c.expert_width},
                     {"moe_layer_freq", 1},
                     {"moe_renormalize", c.renormalize},
                     {"moe_router_activation_func", "sigmoid"},
                     {"num_attention_heads", c.heads},
                     {"num_expert_group", 1},
                     {"num_experts", c.experts},
                     {"num_experts_per_token", c.experts_per_token},
                     {"num_hidden_layers", c.layers},
                     {"num_key_value_heads", c.heads},
                     {"num_nextn_predict_layers", 0},
                     {"num_shared_experts", c.shared_experts},
                     {"pad_token_id", pad},
                     {"q_lora_rank", c.q_lora},
                     {"qk_nope_head_dim", c.qk_nope},
                     {"qk_rope_head_dim", c.qk_rope}});
    text["quantization_config"] = detail::quantization();
    text.update(Json{{"rms_norm_eps", c.rms_norm_eps},
                     {"routed_expert_hidden_size", c.latent},
                     {"routed_scaling_factor", c.routed_scale},
                     {"tie_word_embeddings", false},
                     {"topk_group", 1},
                     {"topk_method", "noaux_tc"},
                     {"use_cache", true},
                     {"use_grouped_topk", true},
                     {"v_head_dim", c.v_head},
                     {"vocab_size", c.vocab}});
    Json root = {{"architectures", Json::array({"KimiK3ForConditionalGeneration"})},
                 {"bos_token_id", bos},
                 {"dtype", "bfloat16"},
                 {"eos_token_id", eos},
                 {"ignore_index", -100},
                 {"media_placeholder_token_id", named_id(c.vocab, 12)},
                 {"model_type", "kimi_k3"},
                 {"pad_token_id", pad},
                 {"text_config", text},
                 {"tie_word_embeddings", false}};
    if (shape.images) root["vision_config"] = detail::vision_config(c.hidden);
    return root.dump(2) + "\n";
}

inline std::string generation_config_json(const ModelShape& shape) {
    const detail::Json root = {{"max_length", shape.config.max_positions},
                               {"eos_token_id", named_id(shape.config.vocab, 2)}};
    return root.dump(2) + "\n";
}

inline std::string tokenizer_config_json(std::size_t vocab) {
    using detail::Json;
    Json tokens = Json::object(), additional = Json::array();
    for (std::size_t i = 0; i < kNamedSlots.size(); ++i) {
        const NamedSlot& named = kNamedSlots[i];
        tokens[std::to_string(named_id(vocab, i))] = {{"content", named.name}, {"lstrip", false},
                                                      {"normalized", false},   {"rstrip", false},
                                                      {"single_word", false},  {"special", named.special}};
        const bool listed = named.special && (named.slot == 2 || (named.slot > 5 && named.slot < 254));
        if (listed) additional.push_back(named.name);
    }
    Json root = {{"added_tokens_decoder", tokens},
                 {"additional_special_tokens", additional},
                 {"bos_token", "[BOS]"},
                 {"clean_up_tokenization_spaces", false},
                 {"eos_token", "[EOS]"},
                 {"extra_special_tokens", Json::object()},
                 {"model_max_length", 1e30},
                 {"pad_token", "[PAD]"},
                 {"tokenizer_class", "TikTokenTokenizer"},
                 {"unk_token", "[UNK]"}};
    return root.dump(2) + "\n";
}

namespace detail {
inline std::string base64(std::string_view bytes) {
    constexpr char kDigits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    std::string text;
    for (std::size_t i = 0; i < bytes.size(); i += 3) {
        std::uint32_t group = 0;
        for (std::size_t k = 0; k < 3; ++k) {
            group = group << 8 | (i + k < bytes.size() ? static_cast<unsigned char>(bytes[i + k]) : 0U);
        }
        for (std::size_t k = 0; k < 4; ++k) {
            text += i + k > bytes.size() ? '=' : kDigits[(group >> (18 - 6 * k)) & 63U];
        }
    }
    return text;
}

/// The multi-byte tokens in rank order, at most `count` of them. Letters come by frequency in English. Every token is
/// two earlier ones side by side however it is cut into "all but the last letter" and "the last letter", so a BPE that
/// merges any adjacent pair found in the file always arrives at it.
inline std::vector<std::string> merges(std::size_t count) {
    constexpr std::string_view kLetters = "etaoinshrdlucmfwypvbgkjqxz", kNumerals = "0123456789";
    std::vector<std::string> tokens;
    const auto add = [&](std::string token) {
        if (tokens.size() < count) tokens.push_back(std::move(token));
    };
    std::vector<std::string> words(1);
    for (std::size_t length = 1; tokens.size() < count; ++length) {
        std::vector<std::string> longer;
        for (const std::string& word : words) {
            for (const char letter : kLetters) longer.push_back(word + letter);
            if (longer.size() >= count) break;  // more than enough words of this length
        }
        if (length > 1) {
            for (const std::string& word : longer) add(word);
        }
        for (const std::string& word : longer) add(" " + word);
        if (length == 2) {
            for (const char tens : kNumerals) {
                for (const char ones : kNumerals) add({tens, ones});
            }
        }
        words = std::move(longer);
    }
    return tokens;
}
}  // namespace detail

/// tiktoken.model: "base64(token) rank" a line, ranks from 0; 256 single bytes, then the merges.
inline std::string rank_file(std::size_t vocab) {
    const std::size_t ranks = vocab - special_slots(vocab);
    std::string text;
    std::size_t rank = 0;
    const auto line = [&](std::string_view token) {
        text += detail::base64(token) + ' ' + std::to_string(rank++) + '\n';
    };
    for (int byte = 0; byte < 256; ++byte) {
        const char one = static_cast<char>(byte);
        line({&one, 1});
    }
    for (const std::string& token : detail::merges(ranks - 256)) line(token);
    return text;
}

}  // namespace k3::synth
#endif
