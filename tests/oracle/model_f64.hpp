#ifndef K3_TESTS_ORACLE_MODEL_F64_HPP
#define K3_TESTS_ORACLE_MODEL_F64_HPP
// The whole model in float64 from a checkpoint directory: config.json read here, weights by weights_f64.hpp, no line
// shared with k3/. A forward always starts from an empty state and sees all ids at once (full recompute); there is no
// cache to get wrong.
#include "oracle/layers_f64.hpp"

namespace k3::oracle {

struct Config {
    Index hidden = 0, layers = 0, vocab = 0;
    double eps = 0, mla_eps = 1e-6;
    Index kda_heads = 0, kda_dim = 0, conv_taps = 0;
    double lower_bound = 0;
    std::vector<bool> is_mla;  ///< by zero-based layer
    Index heads = 0, q_lora = 0, kv_lora = 0, nope = 0, rope = 0, v_dim = 0;
    bool mla_gate = true;
    Index experts = 0, top_k = 0, shared = 0, inter = 0, latent = 0, first_dense = 0, dense_inter = 0, block = 0;
    bool latent_norm = true, renormalize = true;
    double route_scale = 1;
    Situ situ;
};

/// Nested (text_config, text_config.linear_attn_config) or flat; the flat spellings are kda_num_heads, kda_head_dim,
/// situ_beta, situ_linear_beta.
inline Config read_config(const std::filesystem::path& file) {
    std::ifstream in(file);
    if (!in) throw std::runtime_error("oracle: cannot read " + file.string());
    const auto root = nlohmann::json::parse(in);
    const auto& text = root.contains("text_config") ? root["text_config"] : root;
    const auto& linear = text.contains("linear_attn_config") ? text["linear_attn_config"] : text;
    const auto either = [](const nlohmann::json& j, const char* name, const char* flat) -> const nlohmann::json& {
        return j.contains(name) ? j.at(name) : j.at(flat);
    };
    const bool nested = text.contains("linear_attn_config");
    Config c;
    c.hidden = text.at("hidden_size");
    c.layers = text.at("num_hidden_layers");
    c.vocab = text.at("vocab_size");
    c.eps = text.at("rms_norm_eps");
    c.mla_eps = text.value("mla_norm_eps", root.value("mla_norm_eps", 1e-6));
    c.kda_heads = linear.at(nested ? "num_heads" : "kda_num_heads");
    c.kda_dim = linear.at(nested ? "head_dim" : "kda_head_dim");
    c.conv_taps = linear.at("short_conv_kernel_size");
    c.lower_bound = linear.at("gate_lower_bound");
    c.is_mla.assign(static_cast<std::size_t>(c.layers), false);
    for (const auto& one_based : linear.at("full_attn_layers")) c.is_mla.at(one_based.get<std::size_t>() - 1) = true;
    c.heads = text.at("num_attention_heads");
    c.q_lora = text.at("q_lora_rank");
    c.kv_lora = text.at("kv_lora_rank");
    c.nope = text.at("qk_nope_head_dim");
    c.rope = text.at("qk_rope_head_dim");
    c.v_dim = text.at("v_head_dim");
    c.mla_gate = text.value("mla_use_output_gate", true);
    c.experts = text.at("num_experts");
    c.top_k = text.at("num_experts_per_token");
    c.shared = text.at("num_shared_experts");
    c.inter = text.at("moe_intermediate_size");
    c.latent = text.at("routed_expert_hidden_size");
    c.latent_norm = text.value("latent_moe_use_norm", true);
    c.renormalize = text.value("moe_renormalize", true);
    c.route_scale = text.at("routed_scaling_factor");
    c.first_dense = text.at("first_k_dense_replace");
    c.dense_inter = text.at("intermediate_size");
    c.block = text.at("attn_res_block_size");
    c.situ = {either(text, "activation_situ_beta", "situ_beta"),
              either(text, "activation_situ_linear_beta", "situ_linear_beta")};
    return c;
}

/// What one forward pass found. Positions are rows.
struct ModelResult {
    Mat logits;                ///< [positions][vocab]
    std::vector<Mat> prefix;   ///< per layer: the running sum it returns [positions][hidden]
    std::vector<Picks> picks;  ///< per layer: [position][rank]; empty for dense layers
    std::vector<Vec> margins;  ///< per layer: router margin per position; empty for dense layers
};

class Model {
  public:
    explicit Model(const std::filesystem::path& dir) : config_(read_config(dir / "config.json")), files_(dir) {}

    const Config& config() const { return config_; }
    const Checkpoint& checkpoint() const { return files_; }

    Vec norm(Index layer, const char* which) const {
        return files_.vector(at(layer) + which + ".weight", config_.hidden);
    }

    KdaWeights kda(Index layer) const {
        const Config& c = config_;
        const std::string p = at(layer) + "self_attn.";
        const Index width = c.kda_heads * c.kda_dim, e = c.hidden;
        const auto conv = [&](const char* n) { return files_.matrix(p + n, width, c.conv_taps).all(); };
        return {c.kda_heads,
                c.kda_dim,
                c.lower_bound,
                c.eps,
                files_.matrix(p + "q_proj.weight", width, e),
                files_.matrix(p + "k_proj.weight", width, e),
                files_.matrix(p + "v_proj.weight", width, e),
                files_.matrix(p + "g_proj.weight", width, e),
                files_.matrix(p + "o_proj.weight", e, width),
                files_.matrix(p + "f_a_proj.weight", c.kda_dim, e),
                files_.matrix(p + "f_b_proj.weight", width, c.kda_dim),
                files_.matrix(p + "b_proj.weight", c.kda_heads, e),
                conv("q_conv1d.weight"),
                conv("k_conv1d.weight"),
                conv("v_conv1d.weight"),
                files_.vector(p + "A_log", c.kda_heads),  // stored [dim]: one value a head, the rest is padding
                files_.vector(p + "dt_bias", width),
                files_.vector(p + "o_norm.weight", c.kda_dim)};
    }
    MlaWeights mla(Index layer) const {
        const Config& c = config_;
        const std::string p = at(layer) + "self_attn.";
        return {{c.heads, c.nope, c.rope, c.v_dim, c.kv_lora},
                c.mla_eps,
                c.mla_gate,
                files_.matrix(p + "q_a_proj.weight", c.q_lora, c.hidden),
                files_.matrix(p + "q_b_proj.weight", c.heads * (c.nope + c.rope), c.q_lora),
                files_.matrix(p + "kv_a_proj_with_mqa.weight", c.kv_lora + c.rope, c.hidden),
                files_.matrix(p + "kv_b_proj.weight", c.heads * (c.nope + c.v_dim), c.kv_lora),
                c.mla_gate ? files_.matrix(p + "g_proj.weight", c.heads * c.v_dim, c.hidden) : Weight(),
                files_.matrix(p + "o_proj.weight", c.hidden, c.heads * c.v_dim),
                files_.vector(p + "q_a_layernorm.weight", c.q_lora),
                files_.vector(p + "kv_a_layernorm.weight", c.kv_lora)};
    }
    Mlp dense(Index layer) const { return mlp(at(layer) + "mlp.", config_.dense_inter); }
    Moe moe(Index layer) const {
        const Config& c = config_;
        const std::string p = at(layer) + "block_sparse_moe.";
        Moe m;
        m.gate = files_.matrix(p + "gate.weight", c.experts, c.hidden);
        m.down = files_.matrix(p + "routed_expert_down_proj.weight", c.latent, c.hidden);
        m.up = files_.matrix(p + "routed_expert_up_proj.weight", c.hidden, c.latent);
        m.bias = files_.vector(p + "gate.e_score_correction_bias", c.experts);
        m.latent_norm = c.latent_norm;
        if (c.latent_norm) m.norm = files_.vector(p + "routed_expert_norm.weight", c.latent);
        m.shared = mlp(p + "shared_experts.", c.shared * c.inter);
        m.routing = {c.top_k, c.renormalize, c.route_scale};
        m.expert = [this, p, &c](Index e) {
            const std::string stem = p + "experts." + std::to_string(e) + ".";
            return Mlp{expert_matrix(stem + "w1", c.inter, c.latent), expert_matrix(stem + "w3", c.inter, c.latent),
                       expert_matrix(stem + "w2", c.latent, c.inter)};
        };
        return m;
    }

    bool is_mla(Index layer) const { return config_.is_mla[static_cast<std::size_t>(layer)]; }
    bool is_dense(Index layer) const { return layer < config_.first_dense; }
    /// A block boundary: the incoming prefix is pushed and cleared.
    bool is_boundary(Index layer) const { return layer % config_.block == 0; }

    /// The attention sublayer on its normalised input.
    template <class V>
    V attention(Index layer, const V& x, KdaForm form = KdaForm::chunked) const {
        return is_mla(layer) ? mla_layer(x, mla(layer)).out : kda_layer(x, kda(layer), form).out;
    }
    /// One of the layer's two mixes: which = "self_attention_res" or "mlp_res"; sources = blocks, then the prefix if
    /// there is one.
    template <class V>
    V mix(Index layer, const char* which, const std::vector<V>& sources) const {
        const std::string p = at(layer) + which;
        return attention_residual(sources, files_.vector(p + "_norm.weight", config_.hidden),
                                  files_.vector(p + "_proj.weight", config_.hidden), config_.eps);
    }

    /// Rows of the embedding.
    Mat embed(const std::vector<Index>& ids) const {
        const Weight table = files_.matrix("language_model.model.embed_tokens.weight", config_.vocab, config_.hidden);
        Mat x(static_cast<Index>(ids.size()), config_.hidden);
        for (Index t = 0; t < x.rows(); ++t) {
            const Index id = ids[static_cast<std::size_t>(t)];
            if (id < 0 || id >= config_.vocab) throw std::runtime_error("oracle: id out of range");
            x.row(t) = table.row(id).transpose();
        }
        return x;
    }
    /// Output mix over blocks and prefix, final norm, lm_head.
    template <class V>
    V head(const std::vector<V>& sources) const {
        const std::string p = "language_model.model.";
        const V x = attention_residual(sources, files_.vector(p + "output_attn_res_norm.weight", config_.hidden),
                                       files_.vector(p + "output_attn_res_proj.weight", config_.hidden), config_.eps);
        return matmul(rmsnorm(x, files_.vector(p + "norm.weight", config_.hidden), config_.eps),
                      files_.matrix("language_model.lm_head.weight", config_.vocab, config_.hidden));
    }

    /// Specification 3.1 and 3.3.
    ModelResult forward(const std::vector<Index>& ids, KdaForm form = KdaForm::chunked) const {
        ModelResult r;
        std::vector<Mat> blocks;
        Mat prefix = embed(ids);
        const auto with = [&blocks](const Mat& last) {
            auto sources = blocks;
            sources.push_back(last);
            return sources;
        };
        for (Index n = 0; n < config_.layers; ++n) {
            const Mat h = blocks.empty() ? prefix : mix(n, "self_attention_res", with(prefix));
            const Mat a = attention(n, rmsnorm(h, norm(n, "input_layernorm"), config_.eps), form);
            if (is_boundary(n)) {
                blocks.push_back(prefix);  // the sum before the mix, not h
                prefix = a;
            } else {
                prefix += a;
            }
            const Mat g = mix(n, "mlp_res", with(prefix));
            const Mat x = rmsnorm(g, norm(n, "post_attention_layernorm"), config_.eps);
            r.picks.emplace_back();
            r.margins.emplace_back();
            if (is_dense(n)) {
                prefix += dense_mlp(x, dense(n), config_.situ);
            } else {
                auto m = latent_moe(x, moe(n), config_.situ, config_.eps);
                prefix += m.out;
                r.picks.back() = std::move(m.routing.picks);
                r.margins.back() = std::move(m.routing.margin);
            }
            r.prefix.push_back(prefix);
        }
        r.logits = head(with(prefix));
        return r;
    }

  private:
    static std::string at(Index layer) { return "language_model.model.layers." + std::to_string(layer) + "."; }
    Mlp mlp(const std::string& p, Index width) const {
        return {files_.matrix(p + "gate_proj.weight", width, config_.hidden),
                files_.matrix(p + "up_proj.weight", width, config_.hidden),
                files_.matrix(p + "down_proj.weight", config_.hidden, width)};
    }
    Weight expert_matrix(const std::string& stem, Index rows, Index cols) const {
        return files_.has(stem + ".weight") ? files_.matrix(stem + ".weight", rows, cols)  // unquantised fixtures
                                            : files_.mxfp4(stem, rows, cols);
    }

    Config config_;
    Checkpoint files_;
};

/// Greedy choice: the lowest index of the largest value.
inline Index argmax(const Mat& logits, Index row) {
    Index best = 0;
    for (Index i = 1; i < logits.cols(); ++i)
        if (logits(row, i) > logits(row, best)) best = i;
    return best;
}

}  // namespace k3::oracle
#endif
