#ifndef K3_DRIVERS_RUN_RESULT_HPP
#define K3_DRIVERS_RUN_RESULT_HPP
// The run as JSON (--out): one line, valid UTF-8. Keys of this project first, then those of the engine it follows, so
// that scripts written for either keep working.
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include <nlohmann/json.hpp>

#include "drivers/run/generate.hpp"
#include "drivers/run/options.hpp"
#include "drivers/run/report.hpp"
#include "k3/engine/session.hpp"
#include "k3/model/config.hpp"

namespace k3::run {

struct RunFacts {
    const Options& options;
    const engine::Session& session;
    const engine::Plan& plan;
    const Outcome& outcome;
    const Ids& prompt;
    bool has_text;
    std::uint64_t peak_rss;
    int exit_code;
};

namespace detail {

using OrderedJson = nlohmann::ordered_json;

inline OrderedJson config_json(const model::Config& c) {
    return {{"num_hidden_layers", c.layers},
            {"hidden_size", c.hidden},
            {"vocab_size", c.vocab},
            {"num_experts", c.experts},
            {"num_experts_per_token", c.experts_per_token},
            {"num_shared_experts", c.shared_experts},
            {"moe_intermediate_size", c.expert_width},
            {"routed_expert_hidden_size", c.latent},
            {"intermediate_size", c.dense_width},
            {"kda_heads", c.kda_heads},
            {"kda_head_dim", c.kda_head_dim},
            {"num_attention_heads", c.heads},
            {"q_lora_rank", c.q_lora},
            {"kv_lora_rank", c.kv_lora},
            {"qk_nope_head_dim", c.qk_nope},
            {"qk_rope_head_dim", c.qk_rope},
            {"v_head_dim", c.v_head},
            {"attn_res_block_size", c.attn_res_block},
            {"rms_norm_eps", c.rms_norm_eps},
            {"mla_norm_eps", c.mla_norm_eps},
            {"max_position_embeddings", c.max_positions}};
}

inline OrderedJson plan_json(const engine::Plan& p) {
    return {{"weights_bytes", p.weights},      {"experts_bytes", p.experts}, {"state_bytes", p.state},
            {"workspace_bytes", p.workspace},  {"index_bytes", p.index},     {"total_bytes", p.total()},
            {"available_bytes", p.available},  {"limited_by", p.limited_by}, {"positions", p.positions},
            {"prefill_chunk", p.prefill_chunk}};
}

}  // namespace detail

inline std::string result_json(const RunFacts& run) {
    using Json = detail::OrderedJson;
    const Outcome& o = run.outcome;
    const double seconds = o.prefill_seconds + o.decode_seconds;
    const std::uint64_t embedding = run.session.embedding_bytes_read();
    const std::uint64_t read = run.plan.weights + run.plan.experts + embedding;
    Json steps = Json::array();
    for (const Step& step : o.steps) {
        steps.push_back({{"token", step.token},
                         {"seconds", step.seconds},
                         {"bytes_read", step.bytes_read},
                         {"cache_hits", 0},
                         {"resident_hits", 0},
                         {"evictions", 0}});
    }
    Ids full = run.prompt;
    full.insert(full.end(), o.ids.begin(), o.ids.end());
    const std::size_t layers = run.session.layers();

    Json json;
    json["version"] = K3_VERSION;
    json["model"] = run.options.model_dir;
    json["arch"] = engine::name(run.options.arch);
    json["threads"] = run.options.threads;
    json["decoding"] = run.options.decoding == Decoding::recompute ? "recompute" : "incremental";
    json["config"] = detail::config_json(run.session.config().shape);
    json["plan"] = detail::plan_json(run.plan);
    json["prompt_ids"] = run.prompt;
    json["generated_ids"] = o.ids;
    json["sound_ids"] = o.ids.size();  // how many of them: a step that fails adds none
    json["text"] = o.text;
    json["logits_digest"] = hex(o.digest);
    json["steps"] = std::move(steps);
    json["totals"] = {{"seconds", seconds},
                      {"prefill_seconds", o.prefill_seconds},
                      {"decode_seconds", o.decode_seconds},
                      {"bytes_read", read},
                      {"io_seconds", 0.0},
                      {"peak_rss_bytes", run.peak_rss}};
    json["exit_code"] = run.exit_code;
    json["error"] = o.failure ? Json(o.failure->what()) : Json(nullptr);

    json["full_ids"] = std::move(full);
    json["layers"] = run.session.config().shape.layers;
    json["layers_requested"] = run.options.layers == 0 ? layers : run.options.layers;
    json["layers_completed"] = o.steps_fed > 0 ? layers : 0;
    json["expert_drops"] = o.failure && o.failure->code() == Code::expert ? 1 : 0;
    json["peak_rss_bytes"] = run.peak_rss;
    json["wall_seconds"] = seconds;
    json["seconds_per_token"] = o.ids.empty() ? 0.0 : seconds / static_cast<double>(o.ids.size());
    json["expert_bytes_read"] = run.plan.experts;
    json["trunk_bytes_read"] = run.plan.weights;  // lm_head included
    json["embedding_bytes_read"] = embedding;
    json["lm_head_bytes_read"] = 0;
    json["ultra_low_memory"] = false;
    json["stopped_at"] = o.stopped_at;
    json["interrupted"] = o.interrupted;
    json["generated_text"] = run.has_text ? Json(o.text) : Json(nullptr);
    return json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace k3::run
#endif
