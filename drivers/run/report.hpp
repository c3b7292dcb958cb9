#ifndef K3_DRIVERS_RUN_REPORT_HPP
#define K3_DRIVERS_RUN_REPORT_HPP
// What the user sees on stderr while k3 works. Standard output belongs to the text, so where both end in the same place
// (a terminal, 2>&1) nothing is printed between the first and the last token.
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cinttypes>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>

#include "drivers/run/generate.hpp"
#include "drivers/run/options.hpp"
#include "drivers/sizes.hpp"
#include "k3/engine/session.hpp"

namespace k3::run {

inline std::string hex(std::uint64_t value) {
    char text[17];
    std::snprintf(text, sizeof text, "%016" PRIx64, value);
    return text;
}

/// "greedily", or what a run that is to draw the same tokens must be given.
/// `goes_on`: with the random numbers of a saved state instead of a seed.
inline std::string how_chosen(const std::optional<engine::SamplerOptions>& sampling, bool goes_on = false) {
    if (!sampling) return "greedily";
    char text[128];
    std::snprintf(text, sizeof text, "drawn with --temperature %g --top-p %g", sampling->temperature, sampling->top_p);
    return text + (sampling->top_k == 0 ? "" : " --top-k " + std::to_string(sampling->top_k)) +
           (goes_on ? " and the random numbers of the saved state" : " --seed " + std::to_string(sampling->seed));
}

class Report final : public Watcher {
  public:
    enum class Steps : std::uint8_t { listed, unlisted };
    explicit Report(bool quiet, Steps steps = Steps::listed)
        : quiet_(quiet), terminal_(::isatty(STDERR_FILENO) != 0), shared_(same_place()), steps_(steps) {}

    /// `task`: what is to be done, for the last line.
    void header(const Options& options, const engine::Session& session, const engine::Plan& plan,
                const std::string& task) {
        if (quiet_) return;
        const model::Config& shape = session.config().shape;
        const auto line = [](const char* label, const std::string& text) {
            std::fprintf(stderr, "%-9s%s\n", label, text.c_str());
        };
        line("model", options.model_dir + ": " + std::to_string(session.layers()) +
                          (session.layers() == shape.layers ? "" : " of " + std::to_string(shape.layers)) +
                          " layers, hidden " + std::to_string(shape.hidden) + ", " + std::to_string(shape.experts) +
                          " experts top-" + std::to_string(shape.experts_per_token) + ", vocabulary " +
                          std::to_string(shape.vocab));
        line("engine", std::string("k3 " K3_VERSION ", ") + engine::name(options.arch) + ", " +
                           std::to_string(options.threads) + (options.threads == 1 ? " thread" : " threads") +
                           (options.decoding == Decoding::recompute ? ", recompute" : ", incremental") +
                           ", prefill chunk " + std::to_string(plan.prefill_chunk));
        line("memory", show_bytes(plan.pinned) + " trunk + " +
                           (plan.ring == 0 ? "" : show_bytes(plan.ring) + " ring + ") + show_bytes(plan.experts) +
                           " experts + " + show_bytes(plan.state) + " state + " + show_bytes(plan.workspace) +
                           " scratch + " + show_bytes(plan.held) + " program and index + " + show_bytes(plan.reserve) +
                           " reserve = " + show_bytes(plan.total()) + " of " + show_bytes(plan.ceiling) + " (" +
                           (plan.asked_ceiling ? std::string("asked for") : plan.limited_by) + ")");
        line("", plan.streamed_bytes == 0
                     ? "all of the trunk stays (" + show_bytes(plan.trunk_bytes) + ")"
                     : show_bytes(plan.trunk_bytes - plan.streamed_bytes) + " of the trunk stays, " +
                           show_bytes(plan.streamed_bytes) + " is read for each token" +
                           (session.files().packed() ? ", from the packed trunk" : ""));
        line("", std::to_string(plan.expert_slots) + " of " + std::to_string(plan.all_experts) +
                     " experts at a time, " + std::string(stream::name(options.cache_policy)) +
                     "; a token uses up to " +
                     std::to_string(shape.experts_per_token *
                                    (session.layers() - std::min(session.layers(), shape.first_dense))));
        line(options.chat ? "chat" : "prompt", task);
    }

    /// How the disk is read, once it is known.
    void reading(const Options& options, const engine::Session& session) {
        if (quiet_) return;
        static constexpr const char* kNames[] = {"automatic", "io_uring", "threads", "threads"};
        const io::Reader& reader = session.reader();
        std::string text = kNames[static_cast<std::size_t>(reader.kind())];
        text += ", up to " + std::to_string(reader.depth()) + " at a time";
        const std::string buffered = session.files().why_buffered();
        text += buffered.empty() ? ", past the page cache" : ", through the page cache: " + buffered;
        if (reader.kind() == io::ReaderKind::threads && !reader.why().empty()) text += "; io_uring: " + reader.why();
        std::fprintf(stderr, "%-9s%s\n", "disk", text.c_str());
        const std::size_t asked = options.look_ahead.value_or(0), guesses = session.traffic().look_ahead;
        if (guesses >= asked) return;
        const std::size_t top_k = session.experts().top_k();
        std::fprintf(stderr, "%-9s--lookahead %zu: %s\n", "note", asked,
                     guesses == 0 ? ("none: a guess needs a slot of its own, so give the expert cache at least " +
                                     std::to_string(top_k + 1 + std::min(asked, top_k)) + " slots")
                                        .c_str()
                                  : ("only " + std::to_string(guesses) + ", as many as a token uses").c_str());
    }

    void loading(std::uint64_t done, std::uint64_t total) {
        progress(total == 0 ? 1 : static_cast<double>(done) / static_cast<double>(total), "loading  ",
                 [&] { return show_bytes(done) + " of " + show_bytes(total); });
    }

    void feeding(std::size_t step, std::size_t done, std::size_t tokens, std::size_t chunk, std::size_t layer,
                 std::size_t layers) override {
        if (step > 0 && (shared_ || !terminal_)) return;  // the text is being written
        const double part = layers == 0 ? 0 : static_cast<double>(layer) / static_cast<double>(layers);
        const double fed = static_cast<double>(done) + part * static_cast<double>(std::min(chunk, tokens - done));
        progress(fed / static_cast<double>(tokens), step == 0 ? "prefill  " : "decode   ", [&] {
            return "token " + std::to_string(done) + " of " + std::to_string(tokens) + ", layer " +
                   std::to_string(layer) + " of " + std::to_string(layers);
        });
    }

    void step_done(std::size_t number, const Step& step) override {
        clear();
        if (quiet_ || shared_ || steps_ == Steps::unlisted) return;
        if (number == 0)
            std::fprintf(stderr, "%6s %8s %10s %9s %9s %9s %8s\n", "STEP", "TOKEN", "SECONDS", "CACHE HIT", "READ GB",
                         "WAIT S", "TOK/S");
        const auto& e = step.experts;
        const double hits = e.requests == 0 ? 100.0
                                            : 100.0 * static_cast<double>(e.resident_hits + e.lookahead_hits) /
                                                  static_cast<double>(e.requests);
        std::fprintf(stderr, "%6zu %8d %10.4f %8.1f%% %9.3f %9.4f %8.2f\n", number, step.token, step.seconds, hits,
                     static_cast<double>(step.bytes_read) / 1e9, step.wait_seconds,
                     step.seconds > 0 ? 1 / step.seconds : 0.0);
    }

    /// Ends the progress line, and the text's last line where the two share a terminal.
    void end_of_text(bool inside_line) {
        clear();
        if (shared_ && !quiet_ && inside_line) std::fputc('\n', stderr);
    }

    void stop(const Outcome& outcome) {
        if (outcome.stopped_at >= 0)
            std::fprintf(stderr, "%-9sid %d%s\n", "stop", outcome.stopped_at, outcome.stopped_name.c_str());
    }

    /// One answer of a chat: `reused` tokens were in the state already.
    void turn(const Outcome& outcome, std::size_t reused, std::size_t fed, std::size_t context) {
        if (quiet_) return;
        const double seconds = outcome.prefill_seconds + outcome.decode_seconds;
        std::fprintf(
            stderr, "%-9s%zu tokens in %s; %zu of %zu positions used, %zu of them kept from before; logits digest %s\n",
            "answer", outcome.ids.size(), show_seconds(seconds).c_str(), fed, context, reused,
            hex(outcome.digest.value()).c_str());
        stop(outcome);
    }

    void totals(const Outcome& outcome, std::size_t prompt, std::uint64_t peak_rss) {
        if (quiet_) return;
        const auto rate = [](const char* label, std::size_t tokens, double seconds) {
            if (tokens == 0) return;
            const double each = seconds / static_cast<double>(tokens);
            std::fprintf(stderr, "%-9s%zu tokens in %.3f s, %.4f s/token, %.2f tokens/s\n", label, tokens, seconds,
                         each, each > 0 ? 1 / each : 0.0);
        };
        rate("prefill", outcome.steps_fed > 0 ? prompt : 0, outcome.prefill_seconds);
        // The first token comes out of the prefill, so decode is one token shorter than the text.
        rate("decode", outcome.steps_fed > 0 ? outcome.steps_fed - 1 : 0, outcome.decode_seconds);
        const double seconds = outcome.prefill_seconds + outcome.decode_seconds;
        const std::size_t tokens = outcome.ids.size();
        std::fprintf(stderr, "%zu tokens in %.3f s, %.4f s/token average\n", tokens, seconds,
                     tokens == 0 ? 0.0 : seconds / static_cast<double>(tokens));
        traffic(outcome);
        stop(outcome);
        std::fprintf(stderr, "PEAK RSS for the whole run: %.3f GB\n", static_cast<double>(peak_rss) / 1e9);
        std::fprintf(stderr, "logits digest %s\n", hex(outcome.digest.value()).c_str());
    }

    /// What was read, and what it cost.
    void traffic(const Outcome& outcome) {
        const engine::Traffic& t = outcome.total;
        const auto count = [](std::uint64_t n) { return std::to_string(n); };
        const std::uint64_t streamed = t.trunk.streamed_bytes;
        std::fprintf(stderr, "%-9s%s kept, %s streamed in %s panels (lm_head %s)%s\n", "trunk",
                     show_bytes(t.trunk.pinned_bytes).c_str(), show_bytes(streamed).c_str(),
                     count(t.trunk.panels).c_str(), show_bytes(t.trunk.lm_head_bytes).c_str(),
                     t.trunk.dropped_bytes == 0
                         ? ""
                         : (", " + show_bytes(t.trunk.dropped_bytes) + " read ahead in vain").c_str());
        const auto& e = t.experts;
        if (e.requests > 0) {
            std::fprintf(stderr,
                         "%-9s%s requests = %s resident hits (%.1f%%) + %s prefetched + %s look-ahead + %s misses; %s "
                         "evictions; %s read\n",
                         "experts", count(e.requests).c_str(), count(e.resident_hits).c_str(),
                         100.0 * static_cast<double>(e.resident_hits) / static_cast<double>(e.requests),
                         count(e.prefetched_hits).c_str(), count(e.lookahead_hits).c_str(), count(e.misses).c_str(),
                         count(e.evictions).c_str(), show_bytes(t.expert_bytes.bytes).c_str());
        }
        if (e.lookahead_loads > 0) {
            std::fprintf(stderr, "%-9s%s experts read on a guess, %s used, %s pushed out unused%s\n", "guesses",
                         count(e.lookahead_loads).c_str(), count(e.lookahead_hits).c_str(),
                         count(e.lookahead_wasted).c_str(), t.look_ahead == 0 ? "; given up" : "");
        }
        if (t.reader.lost_direct > 0) {
            std::fprintf(stderr,
                         "%-9s%s files refused direct reads during the run: read through the page cache since\n",
                         "note", count(t.reader.lost_direct).c_str());
        }
        const double wall = outcome.prefill_seconds + outcome.decode_seconds;
        const double busy = t.reader.busy_seconds - outcome.loaded.reader.busy_seconds;
        const auto moved = static_cast<double>(t.reader.bytes - outcome.loaded.reader.bytes);
        if (busy <= 0 || wall <= 0) return;
        const double rate = moved / busy;
        const auto& before = outcome.loaded.reader;
        const double depth =
            (t.reader.mean_depth * t.reader.busy_seconds - before.mean_depth * before.busy_seconds) / busy;
        std::string share;
        if (outcome.disk_ceiling > 0) {
            char text[80];
            std::snprintf(text, sizeof text, " = %.2f of the %.2f GB/s this disk gives", rate / outcome.disk_ceiling,
                          outcome.disk_ceiling / 1e9);
            share = text;
        }
        std::fprintf(stderr,
                     "%-9s%.2f GB/s while reading%s; reading %.0f%% of the time, %.1f at a time, starved %.3f s\n",
                     "disk", rate / 1e9, share.c_str(), 100 * std::min(1.0, busy / wall), depth,
                     t.reader.starved_seconds - outcome.loaded.reader.starved_seconds);
        std::fprintf(stderr, "%-9s%.3f s for the trunk and %.3f s for experts, %.0f%% of the time\n", "waited",
                     t.trunk.wait_seconds, t.expert_bytes.wait_seconds, 100 * std::min(1.0, t.wait_seconds() / wall));
    }

    void clear() {
        if (line_open_) std::fputs("\r\033[K", stderr);
        line_open_ = false;
        label_ = nullptr;
    }

  private:
    using Clock = std::chrono::steady_clock;

    static bool same_place() {
        struct stat out {
        }, err{};
        return ::fstat(STDOUT_FILENO, &out) == 0 && ::fstat(STDERR_FILENO, &err) == 0 && out.st_dev == err.st_dev &&
               out.st_ino == err.st_ino;
    }

    // On a terminal one line that is rewritten; elsewhere a line now and then, so that a log stays readable.
    template <class Text>
    void progress(double part, const char* label, Text&& text) {
        if (quiet_) return;
        const Clock::time_point now = Clock::now();
        if (label != label_) {
            clear();
            label_ = label;
            began_ = shown_ = now;
        }
        const std::chrono::duration<double> since = now - shown_, spent = now - began_;
        if (since.count() < (terminal_ ? 0.1 : 5.0)) return;
        shown_ = now;
        std::string line = label + text();
        if (part > 0) line += ", " + show_seconds(spent.count() * (1 - part) / part) + " to go";
        std::fprintf(stderr, terminal_ ? "\r%s\033[K" : "%s\n", line.c_str());
        std::fflush(stderr);
        line_open_ = terminal_;
    }

    bool quiet_, terminal_, shared_;
    Steps steps_;
    bool line_open_ = false;
    const char* label_ = nullptr;
    Clock::time_point began_{}, shown_{};
};

}  // namespace k3::run
#endif
