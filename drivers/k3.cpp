// k3: reads a prompt and continues it with a Kimi K3 checkpoint. This file is the order of things; drivers/run/ has
// them. Whatever can be refused is refused before the weights are read: options, config, prompt, outputs, shards,
// memory.
#include <signal.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "drivers/exit_code.hpp"
#include "drivers/run/disk_probe.hpp"
#include "drivers/run/generate.hpp"
#include "drivers/run/interrupt.hpp"
#include "drivers/run/options.hpp"
#include "drivers/run/output.hpp"
#include "drivers/run/prompt.hpp"
#include "drivers/run/report.hpp"
#include "drivers/run/result.hpp"
#include "drivers/run/waiting_threads.hpp"
#include "k3/core/error.hpp"
#include "k3/engine/session.hpp"
#include "k3/io/memory_limits.hpp"
#include "k3/model/config_reader.hpp"
#include "k3/stream/trace_writer.hpp"

namespace {

using k3::Code;
using k3::Error;
namespace run = k3::run;
namespace drivers = k3::drivers;

void check_model_dir(const std::string& path) {
    std::error_code ignored;
    if (std::filesystem::is_directory(path, ignored)) return;
    throw Error(Code::usage,
                std::filesystem::exists(path, ignored) ? "is not a directory" : "there is no such directory",
                "give the directory with config.json and the shards", {.path = path});
}

void check_layers(const run::Options& options, std::size_t layers) {
    if (options.layers <= layers) return;
    throw Error(Code::usage,
                "--layers: " + std::to_string(options.layers) + " is more than the model's " + std::to_string(layers),
                "give 1 to " + std::to_string(layers));
}

/// Text stops at the ids the tokenizer or a config names as ends. A list of ids is taken as it is: the caller knows.
std::vector<std::int64_t> end_ids(const run::Options& options, const k3::model::ModelConfig& config,
                                  const std::optional<k3::text::Tokenizer>& tokenizer) {
    if (options.ignore_eos || options.prompt_kind == run::PromptKind::ids || !tokenizer) return {};
    std::vector<std::int64_t> ids = config.end_ids;
    ids.insert(ids.end(), tokenizer->end_ids().begin(), tokenizer->end_ids().end());
    return ids;
}

/// Before the run: after hours is late to find that it cannot be written.
void make_trace_dir(const std::string& path) {
    std::error_code failed;
    std::filesystem::create_directories(path, failed);
    if (failed || ::access(path.c_str(), W_OK) != 0) {
        throw Error(Code::usage, "--dump-cache-trace: the folder cannot be made or written",
                    "name a folder that can be written", {.path = path});
    }
}

/// What kept the trace from being written, if it was asked for: the result comes first, then this.
std::optional<Error> write_trace(const run::Options& options, const k3::engine::Session& session,
                                 const k3::engine::Plan& plan, const run::Outcome& outcome) {
    const k3::stream::Trace* const trace = session.trace();
    if (trace == nullptr) return std::nullopt;
    try {
        k3::stream::write_trace(
            *trace, {.slots = plan.expert_slots, .policy = options.cache_policy, .counters = outcome.total.experts},
            options.trace_dir);
    } catch (const Error& error) {
        return error;
    }
    return std::nullopt;
}

/// How a run ended: the exit code, and the last line on stderr if the end is not the one that was asked for.
struct Ending {
    int code = drivers::kSuccess;
    std::string line{};
};

Ending ending_of(const run::Outcome& outcome, const run::Stdout& out, const std::optional<Error>& unwritten,
                 const std::string& result) {
    const std::string kept = "the " + std::to_string(outcome.ids.size()) + " tokens are in " + result;
    if (outcome.failure) return {drivers::exit_code(outcome.failure->code()), outcome.failure->what() + ("; " + kept)};
    if (out.failed())
        return {drivers::kNotWritten, std::string("standard output could not be written: ") +
                                          std::strerror(out.reason()) + "; check where it goes, " + kept};
    if (unwritten) return {drivers::exit_code(unwritten->code()), unwritten->what()};
    if (outcome.interrupted) return {drivers::kInterrupted, "interrupted; " + kept};
    return {};
}

int run_model(const run::Options& options) {
    check_model_dir(options.model_dir);
    const k3::model::ModelConfig config = k3::model::read_config(options.config_path);
    check_layers(options, config.shape.layers);
    const auto tokenizer = run::open_tokenizer(options, config.shape.vocab);
    run::Request request{.prompt = run::read_prompt(options, tokenizer, config.shape.vocab),
                         .end_ids = end_ids(options, config, tokenizer),
                         .gen = options.gen,
                         .decoding = options.decoding};
    // The last token is not fed.
    const std::size_t positions = request.prompt.size() + (options.gen > 0 ? options.gen - 1 : 0);

    const run::OutputFile result = run::OutputFile::open(options.out_path);
    std::optional<run::OutputFile> logits_file;
    if (!options.logits_path.empty()) {
        logits_file.emplace(run::OutputFile::open(options.logits_path));
        if (logits_file->path() == result.path()) {
            throw Error(Code::usage, "--out and --dump-logits name the same file", "give each its own");
        }
        request.first_logits = [&](std::span<const float> row) {
            const auto bytes = std::as_bytes(row);
            logits_file->write({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
        };
    }

    if (!options.trace_dir.empty()) make_trace_dir(options.trace_dir);
    auto session =
        k3::engine::Session::open({.model_dir = options.model_dir,
                                   .config_path = options.config_path,
                                   .trunk_dir = options.trunk_dir,
                                   .layers = options.layers,
                                   .arch = options.arch,
                                   .threads = options.threads,
                                   .prefill_chunk = options.prefill_chunk,
                                   .memory = options.memory,
                                   .reader = options.reader,
                                   .policy = options.cache_policy,
                                   .pages = options.hugepages ? k3::core::Pages::huge : k3::core::Pages::ordinary,
                                   .read_ahead = options.prefetch,
                                   .look_ahead = options.look_ahead,
                                   .trace = !options.trace_dir.empty()});
    const k3::engine::Plan plan = session.plan(positions);
    request.chunk = plan.prefill_chunk;
    run::Report report(options.quiet);
    // A plan that does not fit is refused by load(), in one line and without this header.
    if (plan.fits() && positions <= config.shape.max_positions) {
        report.header(options, session, plan, request.prompt.size());
    }
    session.load(plan, [&](std::uint64_t done, std::uint64_t total) { report.loading(done, total); });
    report.clear();
    report.reading(session);
    run::catch_interrupts(options.quiet);  // not earlier: until here there is nothing to finish or to keep

    run::Stdout out;
    std::optional<run::Outcome> outcome;
    try {
        outcome = run::generate(session, request, tokenizer ? &*tokenizer : nullptr, out, report);
    } catch (...) {
        report.end_of_text(out.inside_line());
        throw;
    }
    report.end_of_text(out.inside_line());
    const std::uint64_t peak_rss = k3::io::peak_rss_bytes();
    // Only where the disk had a say (a second of probing after a short run would be all of it), and within the budget.
    constexpr std::uint64_t kMuch = 4000000000;
    if (!options.quiet && peak_rss + run::kProbeBytes <= plan.ceiling && !session.files().packed() &&
        !outcome->interrupted && !outcome->failure &&
        outcome->total.reader.bytes - outcome->loaded.reader.bytes > kMuch) {
        outcome->disk_ceiling = run::probe_disk(session.index(), 1.0);
    }
    report.totals(*outcome, request.prompt.size(), peak_rss);
    const std::optional<Error> unwritten = write_trace(options, session, plan, *outcome);
    const Ending ending = ending_of(*outcome, out, unwritten, result.path());
    result.write(run::result_json({.options = options,
                                   .session = session,
                                   .plan = plan,
                                   .outcome = *outcome,
                                   .prompt = request.prompt,
                                   .has_text = tokenizer.has_value(),
                                   .peak_rss = peak_rss,
                                   .exit_code = ending.code}));
    // Only now, so that the line tells the truth about the result.
    if (!ending.line.empty()) std::fprintf(stderr, "k3: %s\n", ending.line.c_str());
    return ending.code;
}

int main_body(int argc, char** argv) {
    ::signal(SIGPIPE, SIG_IGN);  // a reader that goes away is an error of write(), see run::Stdout
    const std::optional<run::Options> options = run::parse_options(argc, argv);
    if (options && options->task == run::Task::run) return run_model(*options);
    if (options && options->task == run::Task::list_presets) run::print_presets();
    if (options && options->task == run::Task::list_arches) {
        for (const auto arch : k3::engine::arches_of_this_cpu()) std::printf("%s\n", k3::engine::name(arch));
    }
    if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) {
        throw Error(Code::write, "standard output could not be written", "check where it goes");
    }
    return drivers::kSuccess;
}

}  // namespace

int main(int argc, char** argv) {
    run::limit_spinning(argv);
    return drivers::guarded_main("k3", [&] { return main_body(argc, argv); });
}
