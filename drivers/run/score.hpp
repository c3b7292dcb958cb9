#ifndef K3_DRIVERS_RUN_SCORE_HPP
#define K3_DRIVERS_RUN_SCORE_HPP
// --score and --tf-check: the prompt is judged, not continued. A few lines to stdout, everything to --out.
#include <chrono>
#include <cinttypes>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <optional>
#include <span>
#include <string>

#include "drivers/exit_code.hpp"
#include "drivers/run/interrupt.hpp"
#include "drivers/run/options.hpp"
#include "drivers/run/output.hpp"
#include "drivers/run/report.hpp"
#include "drivers/run/result.hpp"
#include "k3/core/error.hpp"
#include "k3/engine/score.hpp"
#include "k3/engine/session.hpp"
#include "k3/io/memory_limits.hpp"

namespace k3::run {

struct ScoreFacts {
    const Options& options;
    engine::Session& session;
    const engine::Plan& plan;
    const Ids& ids;
};

/// Errors: Code::usage if nothing can be judged.
inline void check_scorable(const Ids& ids) {
    if (ids.size() < 2)
        throw Error(Code::usage, "the prompt is one token: nothing of it can be foreseen", "give at least two tokens");
}

namespace detail {

inline std::string score_json(const ScoreFacts& run, const engine::Score& score, double seconds, int exit_code,
                              const std::optional<Error>& failure) {
    OrderedJson json;
    json["tf_positions"] = score.positions();
    json["tf_matches"] = score.matches;
    json["tf_agreement"] = score.agreement();
    const bool any = score.positions() > 0;
    json["nll"] = any ? OrderedJson(score.nll) : OrderedJson(nullptr);  // null where it is infinite, too
    json["perplexity"] = any ? OrderedJson(score.perplexity) : OrderedJson(nullptr);
    json["score_digest"] = hex(score.digest);
    json["ids"] = run.ids;
    json["log_probs"] = score.log_probs;
    json["greedy_ids"] = score.greedy;
    json["version"] = K3_VERSION;
    json["model"] = run.options.model_dir;
    json["arch"] = engine::name(run.options.arch);
    json["threads"] = run.options.threads;
    json["layers"] = run.session.layers();
    json["plan"] = plan_json(run.plan);
    json["seconds"] = seconds;
    json["bytes_read"] = run.session.traffic().bytes();
    json["peak_rss_bytes"] = io::peak_rss_bytes();
    json["interrupted"] = failure && failure->code() == Code::interrupted;
    json["exit_code"] = exit_code;
    json["error"] = failure ? OrderedJson(failure->what()) : OrderedJson(nullptr);
    return json.dump(-1, ' ', false, OrderedJson::error_handler_t::replace) + "\n";
}

inline std::string summary(const engine::Score& score) {
    char text[256];
    std::snprintf(text, sizeof text,
                  "perplexity   %.6g over %zu tokens, nll %.6f\n"
                  "agreement    %.4f, %zu of %zu are the greedy choice\n"
                  "score digest %016" PRIx64 "\n",
                  score.perplexity, score.positions(), score.nll, score.agreement(), score.matches, score.positions(),
                  score.digest);
    return text;
}

}  // namespace detail

/// The exit code. What was judged before an interrupt or a failure is written too. Errors: those of engine::score if
/// there is nothing to write; Code::write.
inline int score_prompt(const ScoreFacts& run, const OutputFile& result, Stdout& out, Report& report) {
    const auto start = std::chrono::steady_clock::now();
    engine::Score score;
    std::optional<Error> failure;
    try {
        engine::score(run.session, run.ids, score,
                      [&](std::size_t done, std::size_t tokens, std::size_t layer, std::size_t layers) {
            report.feeding(0, done, tokens, run.plan.prefill_chunk, layer, layers);
            return !interrupted();
        });
    } catch (const Error& error) {
        if (score.positions() == 0 && error.code() != Code::interrupted) throw;
        failure = error;
    }
    const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - start;
    report.clear();
    if (score.positions() > 0) out.write(detail::summary(score));
    const int code = failure        ? drivers::exit_code(failure->code())
                     : out.failed() ? static_cast<int>(drivers::kNotWritten)
                                    : static_cast<int>(drivers::kSuccess);
    result.write(detail::score_json(run, score, spent.count(), code, failure));
    if (!run.options.quiet)
        std::fprintf(stderr, "%zu tokens judged in %.3f s, %.4f s/token\n", score.positions(), spent.count(),
                     score.positions() == 0 ? 0.0 : spent.count() / static_cast<double>(score.positions()));
    const std::string kept = "; the " + std::to_string(score.positions()) + " tokens judged are in " + result.path();
    if (failure)
        std::fprintf(stderr, "k3: %s%s\n", failure->what(), kept.c_str());
    else if (out.failed())
        std::fprintf(stderr, "k3: standard output could not be written: %s%s\n", std::strerror(out.reason()),
                     kept.c_str());
    return code;
}

}  // namespace k3::run
#endif
