#ifndef K3_DRIVERS_CONFORM_OPTIONS_HPP
#define K3_DRIVERS_CONFORM_OPTIONS_HPP
// The command line of k3-conform as a plain struct; values are read as text and checked as a whole.
#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "drivers/command_line.hpp"
#include "drivers/sizes.hpp"
#include "k3/engine/arches.hpp"
#include "k3/io/cpu_limits.hpp"

namespace k3::conform {

struct Options {
    std::string model_dir{}, config_path{}, engine_dir{}, engine_config{};
    std::vector<std::string> logits{};  // two files: compare them, no model
    std::size_t first = 0, end = 0;     // layers [first, end); end 0: all
    bool from_start = true;             // the walk starts at the embedding, so head and pass are part of it
    std::size_t tokens = 8;
    std::uint64_t seed = 1;
    engine::ArchName arch{};
    unsigned threads = 1;
    bool json = false, quiet = false, pass = true;
};

/// Parses argv. Empty: --help or --version was asked for and printed. Errors: Code::usage.
inline std::optional<Options> parse_options(int argc, char** argv) {
    using drivers::in_quotes, drivers::parse_count;
    CLI::App app("Checks the engine, layer by layer, against an independent float64 computation of the same model.",
                 "k3-conform");
    Options o;
    std::string layers, tokens, seed, arch, threads;
    bool no_pass = false;
    app.set_version_flag("--version", std::string("k3-conform " K3_VERSION));
    app.add_option("model_dir", o.model_dir, "the checkpoint: config.json and its shards")->type_name("DIR");
    auto* logits =
        app.add_option("--logits", o.logits, "compare two logit dumps instead: raw float32, or JSON (*.json) [none]")
            ->type_name("FILE")
            ->expected(2);
    const auto word = [&](const char* name, std::string& text, const char* type, const char* help) {
        auto* const option = app.add_option(name, text, help)->type_name(type);
        option->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
        logits->excludes(option);
    };
    word("--layers", layers, "N or A-B", "the first N layers, or layers A to B from seeded inputs [all]");
    word("--tokens", tokens, "N", "length of the sequence [8]");
    word("--seed", seed, "N", "token ids follow from it [1]");
    word("--config", o.config_path, "PATH", "another config [model_dir/config.json]");
    word("--engine-model", o.engine_dir, "DIR",
         "the engine's weights come from here, the reference's from model_dir [model_dir]");
    word("--engine-config", o.engine_config, "PATH", "the engine's config [that of its weights]");
    word("--arch", arch, "NAME", "instruction set of the engine [the widest]");
    word("--threads", threads, "N", "threads of both sides [physical cores this process may use]");
    logits->excludes(app.add_flag(
        "--no-pass", no_pass, "skip the last check, two steps of the whole engine: it reads all weights again, twice"));
    app.add_flag("--json", o.json, "print the result as JSON");
    app.add_flag("--quiet", o.quiet, "no progress on stderr");
    app.footer(
        "Judges every stage on inputs both sides share, against a rounding budget derived in docs/NUMERICS.md; what\n"
        "accumulates through the stack is reported (chained), not judged. One layer is in memory at a time.\n"
        "Exit codes: 0 all within budget; 1 a stage failed, dumps differ, or a damaged checkpoint; 2 usage, config or\n"
        "memory; 3 the result could not be written.\n"
        "Example: k3-conform tests/demo/model");
    if (!drivers::parse_command_line(app, argc, argv)) return std::nullopt;
    o.pass = !no_pass;
    if (logits->count() != 0) {
        if (!o.model_dir.empty())
            throw Error(Code::usage, "--logits compares two files and takes no model",
                        "leave out " + in_quotes(o.model_dir));
        return o;
    }
    if (o.model_dir.empty())
        throw Error(Code::usage, "there is no model directory", "run k3-conform MODEL_DIR, or see k3-conform --help");
    constexpr std::uint64_t kMostLayers = 1 << 12;
    if (const std::size_t dash = layers.find('-'); dash != std::string::npos) {
        o.first = parse_count("--layers", layers.substr(0, dash), 0, kMostLayers);
        o.end = parse_count("--layers", layers.substr(dash + 1), o.first, kMostLayers) + 1;
        o.from_start = false;
    } else if (!layers.empty()) {
        o.end = parse_count("--layers", layers, 1, kMostLayers);
    }
    if (!tokens.empty()) o.tokens = parse_count("--tokens", tokens, 1, 4096);
    if (!seed.empty()) o.seed = parse_count("--seed", seed, 0, std::uint64_t{0} - 1);
    o.threads =
        threads.empty() ? io::usable_cores() : static_cast<unsigned>(parse_count("--threads", threads, 1, 1024));
    if (o.config_path.empty()) o.config_path = o.model_dir + "/config.json";
    if (o.engine_config.empty()) o.engine_config = o.engine_dir.empty() ? o.config_path : o.engine_dir + "/config.json";
    if (o.engine_dir.empty()) o.engine_dir = o.model_dir;
    const auto here = engine::arches_of_this_cpu();
    o.arch = here.back();
    if (!arch.empty()) {
        const auto named = engine::arch_named(arch);
        if (!named || std::find(here.begin(), here.end(), *named) == here.end()) {
            std::string names;
            for (const engine::ArchName a : here) names += (names.empty() ? "" : ", ") + std::string(engine::name(a));
            throw Error(Code::usage,
                        "--arch: " + in_quotes(arch) +
                            (named ? " is not supported on this CPU" : " is not an instruction set of k3"),
                        "this CPU has " + names);
        }
        o.arch = *named;
    }
    return o;
}

}  // namespace k3::conform
#endif
