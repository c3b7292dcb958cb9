// k3-conform: checks the engine layer by layer against an independent float64 computation of the same checkpoint, or
// two logit dumps against each other. This file is the order of things; drivers/conform/ has them.
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "drivers/conform/logits.hpp"
#include "drivers/conform/options.hpp"
#include "drivers/conform/report.hpp"
#include "drivers/conform/walk.hpp"
#include "drivers/exit_code.hpp"
#include "drivers/run/waiting_threads.hpp"
#include "k3/io/memory_limits.hpp"

namespace {

using k3::Code;
using k3::Error;
namespace conform = k3::conform;

/// The reference multiplies what its config says; an engine of another shape cannot be compared at all.
void require_same_shape(const k3::model::ModelConfig& a, const k3::model::ModelConfig& b) {
    const auto sizes = [](const k3::model::Config& c) {
        return std::vector<std::size_t>{
            c.hidden,         c.layers,        c.vocab,           c.kda_heads,   c.kda_head_dim,
            c.conv_kernel,    c.heads,         c.q_lora,          c.kv_lora,     c.qk_nope,
            c.qk_rope,        c.v_head,        c.mla_output_gate, c.experts,     c.experts_per_token,
            c.shared_experts, c.expert_width,  c.latent,          c.latent_norm, c.first_dense,
            c.dense_width,    c.attn_res_block};
    };
    if (sizes(a.shape) != sizes(b.shape) || a.kinds != b.kinds)
        throw Error(Code::config, "the engine's config has other sizes or layer kinds than the reference's",
                    "give two forms of the same model");
}

void require_memory(const conform::Engine& engine, const conform::Options& o, std::size_t end, bool pass) {
    std::uint64_t layer = 0, attention = 0;
    const k3::model::Config& c = engine.c();
    for (std::size_t n = o.first; n < end; ++n) {
        layer = std::max(layer, engine.layer_bytes(n));
        // Scores, softmax, errors and what Eigen holds meanwhile: seven squares of float64 for each thread's head.
        if (engine.view().layers[n].kind == k3::model::LayerKind::mla)
            attention = std::min<std::uint64_t>(o.threads, c.heads) * 7 * o.tokens * o.tokens * 8;
    }
    // Beside the layer: decoded blocks, one state of one KDA layer, what the pass keeps for all layers, and rows.
    const std::uint64_t rows = o.tokens *
                               (c.dense_width + c.experts_per_token * (c.latent + c.expert_width) + 12 * c.kda_width() +
                                3 * c.vocab + 64 * c.hidden) *
                               16;
    const std::uint64_t state =
        c.kda_width() * c.kda_head_dim * 24 + (pass ? k3::model::State::bytes(engine.view(), o.tokens, o.tokens) : 0);
    const std::uint64_t need = layer + 2 * conform::kBlockBytes + engine.scratch_bytes() + attention + rows + state;
    const k3::io::MemoryLimit limit = k3::io::memory_limit();
    if (need <= limit.bytes) return;
    throw Error(Code::plan,
                "the largest layer and its scratch need " + k3::drivers::show_bytes(need) + ", there are " +
                    k3::drivers::show_bytes(limit.bytes) + " (" + limit.source + ")",
                "use fewer --tokens" + std::string(pass ? ", or --no-pass" : ""));
}

int check_model(const conform::Options& o) {
    const k3::model::ModelConfig config = k3::model::read_config(o.config_path);
    if (o.end > config.shape.layers)
        throw Error(Code::usage, "--layers goes beyond the model's " + std::to_string(config.shape.layers) + " layers",
                    "give 1 to " + std::to_string(config.shape.layers) + ", or a range below it");
    const std::size_t end = o.end == 0 ? config.shape.layers : o.end;
    conform::Progress progress(o.quiet);
    conform::Engine engine({o.engine_dir, o.engine_config, end, o.tokens, o.arch, o.threads});
    require_same_shape(config, engine.config());
    const bool pass = o.from_start && o.pass;
    require_memory(engine, o, end, pass);
    engine.allocate();
    const k3::checkpoint::ShardIndex index = k3::checkpoint::ShardIndex::open(o.model_dir, o.threads);
    k3::model::check(k3::model::make_schema(config, end), index);
    const conform::Reference reference{index, config.shape, o.threads};

    conform::Walk walk(engine, reference, o.seed, o.tokens);
    std::vector<conform::LayerResult> results;
    double before = progress.seconds();
    const auto keep = [&](conform::LayerResult result) {
        progress.clear();
        result.seconds = progress.seconds() - std::exchange(before, progress.seconds());
        if (!o.json) conform::print_layer(result);
        results.push_back(std::move(result));
    };
    // Time to go: a layer's work goes with its weights and the experts its tokens choose; the pass is two fifths of it.
    std::vector<double> work;
    double all = 0, done = 0;
    for (std::size_t n = o.first; n < end; ++n) {
        const double experts = n < config.shape.first_dense
                                   ? 0
                                   : static_cast<double>(o.tokens * config.shape.experts_per_token) * 6 *
                                         static_cast<double>(config.shape.latent * config.shape.expert_width);
        work.push_back(static_cast<double>(engine.layer_bytes(n)) + experts);
        all += work.back();
    }
    const double head = 2 * static_cast<double>(config.shape.vocab * config.shape.hidden), layers = all;
    if (o.from_start) all += head + (pass ? 2 * layers / 5 : 0);
    const auto show = [&](const std::string& what) { progress.show(what, done / all); };

    keep(walk.begin(o.first));
    for (std::size_t n = o.first; n < end && !walk.broken(); ++n) {
        show("layer " + std::to_string(n) + " of " + std::to_string(o.first) + " to " + std::to_string(end - 1));
        keep(walk.layer(n));
        done += work[n - o.first];
    }
    if (o.from_start && !walk.broken()) {
        show("head");
        keep(walk.head());
        done += head;
    }
    if (pass && !walk.broken()) {
        const double start = done;
        keep(walk.pass([&](std::size_t layer, std::size_t count) {
            done = start + 2 * layers / 5 * static_cast<double>(layer) / static_cast<double>(count);
            show("whole pass, layer " + std::to_string(layer) + " of " + std::to_string(count) + " in two steps");
        }));
    }
    if (walk.broken())
        std::fprintf(stderr, "k3-conform: stopped after %s: the engine has nothing finite to go on with\n",
                     results.back().label.c_str());
    const conform::Summary summary = conform::summarise(results);
    if (o.json) {
        const auto root = conform::to_json(o, walk.ids(), results, progress.seconds());
        std::printf("%s\n", root.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace).c_str());
    } else {
        conform::print_verdict(o, summary);
    }
    return summary.failed == 0 ? k3::drivers::kSuccess : k3::drivers::kFailed;
}

int run(int argc, char** argv) {
    const auto options = conform::parse_options(argc, argv);
    int code = k3::drivers::kSuccess;
    if (options)
        code = options->logits.empty()            ? check_model(*options)
               : conform::report_logits(*options) ? k3::drivers::kSuccess
                                                  : k3::drivers::kFailed;
    if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0)
        throw Error(Code::write, "standard output could not be written", "check where it goes");
    return code;
}

}  // namespace

int main(int argc, char** argv) {
    k3::run::limit_spinning(argv);  // the engine's waiting threads would hold the cores the reference needs
    return k3::drivers::guarded_main("k3-conform", [&] { return run(argc, argv); });
}
