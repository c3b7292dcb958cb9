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

class Report final : public Watcher {
  public:
    explicit Report(bool quiet) : quiet_(quiet), terminal_(::isatty(STDERR_FILENO) != 0), shared_(same_place()) {}

    void header(const Options& options, const engine::Session& session, const engine::Plan& plan, std::size_t prompt) {
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
        line("memory", show_bytes(plan.weights) + " weights + " + show_bytes(plan.experts) + " experts + " +
                           show_bytes(plan.state) + " state + " + show_bytes(plan.workspace) + " scratch + " +
                           show_bytes(plan.index) + " index = " + show_bytes(plan.total()) + " of " +
                           show_bytes(plan.available) + " (" + plan.limited_by + ")");
        line("prompt", std::to_string(prompt) + (prompt == 1 ? " token" : " tokens") + ", then up to " +
                           std::to_string(options.gen));
        if (options.without_effect.empty()) return;
        std::string names;
        for (const std::string& name : options.without_effect) names += (names.empty() ? "" : ", ") + name;
        line("note", names + ": no effect yet, all weights are held in memory");
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
        if (quiet_ || shared_) return;
        if (number == 0) std::fprintf(stderr, "%6s %8s %10s %10s\n", "STEP", "TOKEN", "SECONDS", "TOK/S");
        std::fprintf(stderr, "%6zu %8d %10.4f %10.2f\n", number, step.token, step.seconds,
                     step.seconds > 0 ? 1 / step.seconds : 0.0);
    }

    /// Ends the progress line, and the text's last line where the two share a terminal.
    void end_of_text(bool inside_line) {
        clear();
        if (shared_ && !quiet_ && inside_line) std::fputc('\n', stderr);
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
        if (outcome.stopped_at >= 0) std::fprintf(stderr, "%-9send id %d\n", "stop", outcome.stopped_at);
        std::fprintf(stderr, "PEAK RSS for the whole run: %.3f GB\n", static_cast<double>(peak_rss) / 1e9);
        std::fprintf(stderr, "logits digest %s\n", hex(outcome.digest).c_str());
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
    bool line_open_ = false;
    const char* label_ = nullptr;
    Clock::time_point began_{}, shown_{};
};

}  // namespace k3::run
#endif
