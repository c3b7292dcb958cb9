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
    const Ids& before;  // the ids of a saved state
    const Ids& prompt;
    bool draws_go_on;         // with the random numbers of the saved state
    bool saved;               // the state, as asked for
    const std::string* text;  // as written, or null where there is no tokenizer
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
    return {{"held_bytes", p.held},
            {"reserve_bytes", p.reserve},
            {"state_bytes", p.state},
            {"workspace_bytes", p.workspace},
            {"trunk_pinned_bytes", p.pinned},
            {"trunk_ring_bytes", p.ring},
            {"trunk_bytes", p.trunk_bytes},
            {"trunk_streamed_bytes_per_token", p.streamed_bytes},
            {"experts_bytes", p.experts},
            {"expert_slots", p.expert_slots},
            {"experts", p.all_experts},
            {"total_bytes", p.total()},
            {"ceiling_bytes", p.ceiling},
            {"available_bytes", p.available},
            {"limited_by", p.limited_by},
            {"positions", p.positions},
            {"prefill_chunk", p.prefill_chunk}};
}

inline OrderedJson experts_json(const stream::CacheCounters& c) {
    OrderedJson json;
    stream::CacheCounters::for_each([&](const char* name, auto member) { json[name] = c.*member; });
    return json;
}

inline OrderedJson sampling_json(const std::optional<engine::SamplerOptions>& sampling, bool goes_on) {
    if (!sampling) return nullptr;  // greedy
    return {{"temperature", sampling->temperature},
            {"top_p", sampling->top_p},
            {"top_k", sampling->top_k},
            {"seed", goes_on ? OrderedJson(nullptr) : OrderedJson(sampling->seed)}};
}

inline OrderedJson path_json(const std::string& path) {
    return path.empty() ? OrderedJson(nullptr) : OrderedJson(path);
}

constexpr const char* reader_name(io::ReaderKind kind) noexcept {
    switch (kind) {
        case io::ReaderKind::uring: return "uring";
        case io::ReaderKind::threads: return "threads";
        case io::ReaderKind::buffered: return "buffered";
        case io::ReaderKind::automatic: break;
    }
    return "automatic";
}

}  // namespace detail

inline std::string result_json(const RunFacts& run) {
    using Json = detail::OrderedJson;
    const Outcome& o = run.outcome;
    const double seconds = o.prefill_seconds + o.decode_seconds;
    const engine::Traffic& t = o.total;
    Json steps = Json::array();
    for (const Step& step : o.steps) {
        steps.push_back({{"token", step.token},
                         {"seconds", step.seconds},
                         {"bytes_read", step.bytes_read},
                         {"wait_seconds", step.wait_seconds},
                         {"cache_hits", step.experts.requests - step.experts.misses},
                         {"resident_hits", step.experts.resident_hits},
                         {"misses", step.experts.misses},
                         {"evictions", step.experts.evictions}});
    }
    Ids full = run.before;
    full.insert(full.end(), run.prompt.begin(), run.prompt.end());
    full.insert(full.end(), o.ids.begin(), o.ids.end());
    const std::size_t layers = run.session.layers();

    Json json;
    json["version"] = K3_VERSION;
    json["model"] = run.options.model_dir;
    json["arch"] = engine::name(run.options.arch);
    json["threads"] = run.options.threads;
    json["decoding"] = run.options.decoding == Decoding::recompute ? "recompute" : "incremental";
    json["config"] = detail::config_json(run.session.config().shape);
    json["sampling"] = detail::sampling_json(run.options.sampling, run.draws_go_on);
    json["plan"] = detail::plan_json(run.plan);
    json["prompt_ids"] = run.prompt;
    json["generated_ids"] = o.ids;
    json["sound_ids"] = o.ids.size();  // how many of them: a step that fails adds none
    json["text"] = run.text == nullptr ? "" : *run.text;
    json["logits_digest"] = hex(o.digest.value());
    json["loaded_state"] = detail::path_json(run.options.load_state);
    json["loaded_ids"] = run.before.size();
    json["saved_state"] = detail::path_json(run.saved ? run.options.save_state : "");
    json["steps"] = std::move(steps);
    json["totals"] = {{"seconds", seconds},
                      {"prefill_seconds", o.prefill_seconds},
                      {"decode_seconds", o.decode_seconds},
                      {"bytes_read", t.bytes()},
                      {"io_seconds", t.reader.busy_seconds},
                      {"wait_seconds", t.wait_seconds()},
                      {"peak_rss_bytes", run.peak_rss}};
    json["experts"] = detail::experts_json(t.experts);
    json["reader"] = {{"kind", detail::reader_name(run.session.reader().kind())},
                      {"direct", run.session.files().why_buffered().empty() && t.reader.lost_direct == 0},
                      {"bytes", t.reader.bytes},
                      {"pieces", t.reader.pieces},
                      {"busy_seconds", t.reader.busy_seconds},
                      {"mean_depth", t.reader.mean_depth},
                      {"starved_seconds", t.reader.starved_seconds},
                      {"retries", t.reader.retries},
                      {"lost_direct", t.reader.lost_direct},
                      {"loading_bytes", o.loaded.reader.bytes},
                      {"loading_busy_seconds", o.loaded.reader.busy_seconds},
                      {"disk_ceiling_bytes_per_second", o.disk_ceiling}};
    json["exit_code"] = run.exit_code;
    json["error"] = o.failure ? Json(o.failure->what()) : Json(nullptr);

    json["full_ids"] = std::move(full);
    json["layers"] = run.session.config().shape.layers;
    json["layers_requested"] = run.options.layers == 0 ? layers : run.options.layers;
    json["layers_completed"] = o.steps_fed > 0 ? layers : 0;
    json["expert_drops"] = t.experts.drops;
    json["peak_rss_bytes"] = run.peak_rss;
    json["wall_seconds"] = seconds;
    json["seconds_per_token"] = o.ids.empty() ? 0.0 : seconds / static_cast<double>(o.ids.size());
    json["expert_bytes_read"] = t.expert_bytes.bytes;
    json["trunk_bytes_read"] = t.trunk.pinned_bytes + t.trunk.streamed_bytes;  // lm_head included
    json["embedding_bytes_read"] = t.embedding_bytes;
    json["lm_head_bytes_read"] = t.trunk.lm_head_bytes;  // streamed
    json["ultra_low_memory"] = false;
    json["stopped_at"] = o.stopped_at;
    json["interrupted"] = o.interrupted;
    json["generated_text"] = run.text == nullptr ? Json(nullptr) : Json(*run.text);
    return json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace k3::run
#endif
