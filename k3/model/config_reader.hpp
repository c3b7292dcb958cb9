#ifndef K3_MODEL_CONFIG_READER_HPP
#define K3_MODEL_CONFIG_READER_HPP
// config.json to model::Config, refusing to guess: every field that is missing, of the wrong type, contradictory or not
// supported is collected and reported in one Error, each by its path. There are no built-in sizes and no defaults but
// two that carry no number of the model: mla_norm_eps (1e-6, the released code's) and max_position_embeddings.
//
// Two shapes of the file (docs/FORMATS):
//   nested   text_config holds the model, text_config.linear_attn_config the KDA numbers. A field that is not in
//            text_config may stand at the root. Without text_config, a root that has linear_attn_config is read alike.
//   flat     no text_config, no linear_attn_config: all at the root, kda_num_heads and kda_head_dim spelled out. Has
//   only
//            the numbers; fields that merely confirm what the code does are checked if they are there.
// num_heads and head_dim are taken from linear_attn_config alone: libraries that normalise configs invent a head_dim
// elsewhere. Unknown keys and rope_* are ignored for the same reason; what rules RoPE out is mla_use_nope.
//
// Integers must be JSON integers (93.0 and "93" are refused); reals may be written as integers.
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "k3/core/error.hpp"
#include "k3/core/fp_env.hpp"
#include "k3/io/file.hpp"
#include "k3/io/json_text.hpp"
#include "k3/model/config.hpp"
#include "k3/model/detail/config_checks.hpp"
#include "k3/model/detail/config_fields.hpp"
#include "k3/model/detail/layer_kinds.hpp"

namespace k3::model {

/// Upper limit of max_position_embeddings, and its value where the config states none.
inline constexpr std::size_t kMaxPositions = std::size_t{1} << 24;

struct ModelConfig {
    Config shape;
    std::vector<LayerKind> kinds;       // one per layer
    std::vector<std::int64_t> end_ids;  // union over config and generation_config, in the order found; may be empty
    bool quantized;                     // has the MXFP4 quantization_config
    std::string text;                   // config.json as read
};

/// Reads the text of a config. `path` and `generation_path` are for messages; an empty `generation_text` means there
/// is no such file. Errors: one Error(Code::config) with every problem of the file.
ModelConfig parse_config(std::string_view text, const std::string& path, std::string_view generation_text = {},
                         const std::string& generation_path = {});

/// Reads config.json at `path` and, if it is there, generation_config.json beside it. Errors as above, all of
/// Code::config; also if the file is absent or cannot be read.
ModelConfig read_config(const std::string& path);

// ---------------------------------------------------------------------------------------------------------------------

namespace detail {

struct ConfigScopes {
    Scopes text, linear, linear_only;
    bool flat;
};

/// Decides which shape the file has. An object of the wrong type is a problem, and is read as empty.
inline ConfigScopes config_scopes(ConfigFields& fields, const Json& root) {
    static const Json kEmpty = Json::object();
    const auto object = [&](const Json& parent, const char* name, const std::string& prefix) -> const Json* {
        const auto place = parent.find(name);
        if (place == parent.end()) return nullptr;
        if (place->is_object()) return &*place;
        fields.problem(prefix + name + " must be an object, is " + shown(*place));
        return &kEmpty;
    };
    ConfigScopes scopes{};
    const Json* text = object(root, "text_config", "");
    const std::string prefix = text != nullptr ? "text_config." : "";
    if (text != nullptr) scopes.text.push_back({text, prefix});
    scopes.text.push_back({&root, ""});

    const Json* linear = text != nullptr ? object(*text, "linear_attn_config", prefix) : nullptr;
    std::string linear_prefix = prefix + "linear_attn_config.";
    if (linear == nullptr) {
        linear = object(root, "linear_attn_config", "");
        if (linear != nullptr) linear_prefix = "linear_attn_config.";
    }
    scopes.flat = text == nullptr && linear == nullptr;
    if (scopes.flat) {
        scopes.linear = scopes.linear_only = scopes.text;
        return scopes;
    }
    scopes.linear_only.push_back({linear != nullptr ? linear : &kEmpty, linear_prefix});
    scopes.linear = scopes.linear_only;
    scopes.linear.insert(scopes.linear.end(), scopes.text.begin(), scopes.text.end());
    return scopes;
}

inline Config config_numbers(ConfigFields& fields, const ConfigScopes& in) {
    // Far above any model of this kind, and small enough that check_total can be trusted with the products.
    constexpr std::uint64_t kWidth = 1 << 20, kLayers = 1 << 12, kVocab = 1 << 24, kHeads = 1 << 14, kHeadDim = 1 << 12;
    constexpr std::uint64_t kExperts = 1 << 16, kTaps = 64, kRoutes = 64, kShared = 1 << 10;
    Config c{};
    c.hidden = fields.integer(in.text, {"hidden_size"}, 1, kWidth);
    c.layers = fields.integer(in.text, {"num_hidden_layers"}, 1, kLayers);
    c.vocab = fields.integer(in.text, {"vocab_size"}, 1, kVocab);
    c.rms_norm_eps = fields.real(in.text, {"rms_norm_eps"}, Sign::positive);
    const auto mla_norm_eps = fields.find(in.text, {"mla_norm_eps"}, Need::optional);
    c.mla_norm_eps = mla_norm_eps.value != nullptr ? fields.real(mla_norm_eps, Sign::positive) : 1e-6;
    c.kda_heads = fields.integer(in.linear_only, {in.flat ? "kda_num_heads" : "num_heads"}, 1, kHeads);
    c.kda_head_dim = fields.integer(in.linear_only, {in.flat ? "kda_head_dim" : "head_dim"}, 1, kHeadDim);
    c.conv_kernel = fields.integer(in.linear, {"short_conv_kernel_size"}, 1, kTaps);
    c.gate_lower_bound = fields.real(in.linear, {"gate_lower_bound"}, Sign::negative);
    c.heads = fields.integer(in.text, {"num_attention_heads"}, 1, kHeads);
    c.q_lora = fields.integer(in.text, {"q_lora_rank"}, 1, kWidth);
    c.kv_lora = fields.integer(in.text, {"kv_lora_rank"}, 1, kWidth);
    c.qk_nope = fields.integer(in.text, {"qk_nope_head_dim"}, 1, kHeadDim);
    c.qk_rope = fields.integer(in.text, {"qk_rope_head_dim"}, 1, kHeadDim);
    c.v_head = fields.integer(in.text, {"v_head_dim"}, 1, kHeadDim);
    c.mla_output_gate = fields.flag(in.text, {"mla_use_output_gate"});
    c.experts = fields.integer(in.text, {"num_experts"}, 1, kExperts);
    c.experts_per_token = fields.integer(in.text, {"num_experts_per_token"}, 1, kRoutes);
    c.shared_experts = fields.integer(in.text, {"num_shared_experts"}, 1, kShared);
    c.expert_width = fields.integer(in.text, {"moe_intermediate_size"}, 1, kWidth);
    c.latent = fields.integer(in.text, {"routed_expert_hidden_size"}, 1, kWidth);
    c.latent_norm = fields.flag(in.text, {"latent_moe_use_norm"});
    c.routed_scale = fields.real(in.text, {"routed_scaling_factor"}, Sign::positive);
    c.renormalize = fields.flag(in.text, {"moe_renormalize"});
    c.first_dense = fields.integer(in.text, {"first_k_dense_replace"}, 0, kLayers);
    c.dense_width = fields.integer(in.text, {"intermediate_size"}, 1, kWidth);
    c.attn_res_block = fields.integer(in.text, {"attn_res_block_size"}, 1, kLayers);
    c.situ_beta = fields.real(in.text, {"activation_situ_beta", "situ_beta"}, Sign::positive);
    c.situ_linear_beta = fields.real(in.text, {"activation_situ_linear_beta", "situ_linear_beta"}, Sign::positive);
    const auto positions = fields.find(in.text, {"max_position_embeddings"}, in.flat ? Need::optional : Need::required);
    c.max_positions = positions.value != nullptr ? fields.integer(positions, 1, kMaxPositions) : kMaxPositions;

    if (c.experts != 0 && c.experts_per_token > c.experts) {
        fields.problem("num_experts_per_token is " + std::to_string(c.experts_per_token) + ", num_experts only " +
                       std::to_string(c.experts));
    }
    if (c.layers != 0 && c.first_dense > c.layers) {
        fields.problem("first_k_dense_replace is " + std::to_string(c.first_dense) + ", num_hidden_layers only " +
                       std::to_string(c.layers));
    }
    return c;
}

}  // namespace detail

inline ModelConfig parse_config(std::string_view text, const std::string& path, std::string_view generation_text,
                                const std::string& generation_path) {
    const core::FpGuard nearest;  // config reals round to nearest whatever the caller's mode
    const detail::Json root = io::parse_json(text, Code::config, path);
    detail::ConfigFields fields;
    const detail::ConfigScopes in = detail::config_scopes(fields, root);
    const detail::Need checks = in.flat ? detail::Need::optional : detail::Need::required;
    ModelConfig model{detail::config_numbers(fields, in), {}, {}, false, std::string(text)};
    model.kinds = detail::layer_kinds(fields, in.linear, model.shape.layers, checks);
    detail::check_supported(fields, in.text, in.linear, model.shape.heads, checks);
    model.quantized = detail::check_quantization(fields, in.text, checks);
    for (auto scope = in.text.rbegin(); scope != in.text.rend(); ++scope) {  // the root first
        detail::add_end_ids(fields, *scope, model.shape.vocab, model.end_ids);
    }
    detail::check_total(fields, model.shape);
    fields.throw_if_any(path);

    if (!generation_text.empty()) {
        const detail::Json generation = io::parse_json(generation_text, Code::config, generation_path);
        detail::ConfigFields more;
        detail::add_end_ids(more, {&generation, ""}, model.shape.vocab, model.end_ids);
        more.throw_if_any(generation_path);
    }
    return model;
}

inline ModelConfig read_config(const std::string& path) {
    constexpr std::uint64_t kLimit = std::uint64_t{16} << 20;  // the released file has 7 KB
    const auto read = [&](const std::string& file) {
        try {
            return io::File::read_text(file, kLimit);
        } catch (const Error& error) {  // to whoever started the program this is a refused config
            throw Error(Code::config, error.message(), error.next(), error.where());
        }
    };
    std::error_code ignored;
    if (!std::filesystem::exists(path, ignored)) {
        throw Error(Code::config, "is not there, and there are no built-in sizes to fall back on",
                    "download config.json of the released checkpoint into the model directory", {.path = path});
    }
    const std::string text = read(path);
    const std::string generation_path = path.substr(0, path.find_last_of('/') + 1) + "generation_config.json";
    const bool has_generation = std::filesystem::exists(generation_path, ignored);
    const std::string generation = has_generation ? read(generation_path) : std::string();
    if (has_generation && generation.empty()) {
        throw Error(Code::config, "is empty", "download it again, or delete it", {.path = generation_path});
    }
    return parse_config(text, path, generation, generation_path);
}

}  // namespace k3::model
#endif
