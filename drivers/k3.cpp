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

#include "drivers/exit_code.hpp"
#include "drivers/run/chat.hpp"
#include "drivers/run/disk_probe.hpp"
#include "drivers/run/generate.hpp"
#include "drivers/run/open_session.hpp"
#include "drivers/run/options.hpp"
#include "drivers/run/output.hpp"
#include "drivers/run/prompt.hpp"
#include "drivers/run/report.hpp"
#include "drivers/run/result.hpp"
#include "drivers/run/resume.hpp"
#include "drivers/run/score.hpp"
#include "drivers/run/token_sink.hpp"
#include "drivers/run/waiting_threads.hpp"
#include "k3/core/error.hpp"
#include "k3/engine/sampler.hpp"
#include "k3/engine/session.hpp"
#include "k3/engine/state_file.hpp"
#include "k3/io/atomic_file.hpp"
#include "k3/io/memory_limits.hpp"
#include "k3/model/config_reader.hpp"
#include "k3/stream/trace_writer.hpp"

namespace {

using k3::Code;
using k3::Error;
namespace run = k3::run;
namespace drivers = k3::drivers;

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
    const k3::model::ModelConfig config = run::read_checked_config(options);
    const auto tokenizer = run::open_tokenizer(options, config.shape.vocab);
    if (options.chat) return run::Chat(options, config, *tokenizer).run();
    const std::uint64_t tokenizer_digest = tokenizer ? tokenizer->checksum() : 0;
    run::Start start{.prompt = run::read_prompt(options, tokenizer, config.shape.vocab)};
    if (options.score) run::check_scorable(start.prompt);

    run::refuse_same_file(options);
    const run::OutputFile result = run::OutputFile::open(options.out_path);
    std::optional<run::OutputFile> logits_file;
    run::Request request{.stop_ids = {options.stop_ids.begin(), options.stop_ids.end()},
                         .gen = options.gen,
                         .decoding = options.decoding,
                         .resumable = !options.save_state.empty()};
    if (!options.logits_path.empty()) {
        logits_file.emplace(run::OutputFile::open(options.logits_path));
        request.first_logits = [&](std::span<const float> row) {
            const auto bytes = std::as_bytes(row);
            logits_file->write({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
        };
    }
    std::optional<run::OutputFile> state_file;
    if (!options.save_state.empty()) {
        (void)k3::io::PendingFile::create(options.save_state);  // refuses what is no regular file: it is renamed onto
        state_file.emplace(run::OutputFile::open(options.save_state));
    }
    if (!options.trace_dir.empty()) make_trace_dir(options.trace_dir);

    auto session = run::open_session(options);
    if (!options.load_state.empty()) {
        start.state.emplace(session.open_state(options.load_state, tokenizer_digest));
        start.before = start.state->run().ids;
        request.digest = k3::core::Digest(start.state->run().digest);
    }
    request.ids = start.all();
    if (request.ids.empty()) throw Error(Code::usage, "the state has no tokens and there is no prompt", "give one");
    request.end_ids = run::end_ids(options, config, tokenizer ? &*tokenizer : nullptr, start);
    std::optional<k3::engine::Sampler> sampler = run::make_sampler(options, start);
    request.choose = run::chooser(session, sampler ? &*sampler : nullptr);
    // The last token is not fed.
    const std::size_t positions = request.ids.size() + options.gen - (options.gen > 0 || options.score ? 1 : 0);
    if (state_file)
        k3::io::require_free_space(std::filesystem::path(state_file->path()).parent_path().string(),
                                   session.state_file_bytes(positions + 1), "free some space or choose another disk");
    const k3::engine::Plan plan = session.plan(positions);
    request.chunk = plan.prefill_chunk;
    run::Report report(options.quiet);
    // A plan that does not fit is refused by load(), in one line and without this header.
    if (plan.fits() && positions <= config.shape.max_positions) {
        const std::string after =
            start.state ? " after " + std::to_string(start.before.size()) + " of " + options.load_state : "";
        report.header(options, session, plan,
                      std::to_string(start.prompt.size()) + (start.prompt.size() == 1 ? " token" : " tokens") + after +
                          (options.score ? ", judged"
                                         : ", then up to " + std::to_string(options.gen) + ", " +
                                               run::how_chosen(options.sampling, start.draws_go_on(options))));
    }
    run::load_weights(options, session, plan, report);
    if (start.state) session.load_state(*start.state);

    run::Stdout out;
    if (options.score) return run::score_prompt({options, session, plan, start.prompt}, result, out, report);
    run::TokenWriter writer(tokenizer ? &*tokenizer : nullptr, out);
    std::optional<run::Outcome> outcome;
    try {
        outcome = run::generate(session, request, writer, report);
    } catch (...) {
        report.end_of_text(out.inside_line());
        throw;
    }
    report.end_of_text(out.inside_line());
    if (outcome->stopped_at >= 0 && tokenizer && tokenizer->is_special(outcome->stopped_at))
        outcome->stopped_name = " (" + std::string(tokenizer->bytes(outcome->stopped_at)) + ")";
    const std::uint64_t peak_rss = k3::io::peak_rss_bytes();
    // Only where the disk had a say (a second of probing after a short run would be all of it), and within the budget.
    constexpr std::uint64_t kMuch = 4000000000;
    if (!options.quiet && peak_rss + run::kProbeBytes <= plan.ceiling && !session.files().packed() &&
        !outcome->interrupted && !outcome->failure &&
        outcome->total.reader.bytes - outcome->loaded.reader.bytes > kMuch) {
        outcome->disk_ceiling = run::probe_disk(session.index(), 1.0);
    }
    report.totals(*outcome, request.ids.size() - (start.state ? start.state->fed() : 0), peak_rss);
    std::optional<Error> unwritten;
    if (state_file)
        unwritten = run::write_state(state_file->path(), session, start, options, *outcome, sampler, tokenizer_digest);
    const bool saved = state_file && !unwritten;
    if (const auto trace = write_trace(options, session, plan, *outcome); trace && !unwritten) unwritten = trace;
    const Ending ending = ending_of(*outcome, out, unwritten, result.path());
    result.write(run::result_json({.options = options,
                                   .session = session,
                                   .plan = plan,
                                   .outcome = *outcome,
                                   .before = start.before,
                                   .prompt = start.prompt,
                                   .draws_go_on = start.draws_go_on(options),
                                   .saved = saved,
                                   .text = tokenizer ? &writer.text() : nullptr,
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
