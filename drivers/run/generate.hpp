#ifndef K3_DRIVERS_RUN_GENERATE_HPP
#define K3_DRIVERS_RUN_GENERATE_HPP
// The loop: feed, choose, write, repeat. Step 0 feeds the prompt; a later step feeds the token chosen last (or, with
// --recompute, everything again). The last token is chosen and not fed: nothing would be asked of it.
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "drivers/run/interrupt.hpp"
#include "drivers/run/options.hpp"
#include "drivers/run/output.hpp"
#include "drivers/run/prompt.hpp"
#include "k3/core/digest.hpp"
#include "k3/core/error.hpp"
#include "k3/engine/session.hpp"
#include "k3/text/stream_decoder.hpp"
#include "k3/text/tokenizer.hpp"

namespace k3::run {

struct Step {
    std::int32_t token;
    double seconds;
    std::uint64_t bytes_read;  // of weights that were used
    double wait_seconds;       // of `seconds`, standing still for the disk
    stream::CacheCounters experts;
};

/// Told what happens while it happens, on the calling thread.
class Watcher {
  public:
    virtual ~Watcher() = default;
    virtual void feeding(std::size_t step, std::size_t done, std::size_t tokens, std::size_t chunk, std::size_t layer,
                         std::size_t layers) = 0;
    virtual void step_done(std::size_t number, const Step& step) = 0;
};

struct Request {
    Ids prompt{};
    std::vector<std::int64_t> end_ids{};  // empty: nothing ends the run but its length
    std::size_t gen = 0, chunk = 1;
    Decoding decoding = Decoding::incremental;
    std::function<void(std::span<const float>)> first_logits{};  // called once, if set
};

struct Outcome {
    Ids ids{};                  // generated, the end id included; all of them sound
    std::vector<Step> steps{};  // one for each id
    double disk_ceiling = 0;    // bytes a second of the probe after the run; 0: not measured
    std::size_t steps_fed = 0;  // forward passes that were completed
    double prefill_seconds = 0, decode_seconds = 0;
    engine::Traffic loaded{}, prefill{}, total{};   // after load(), after the first step, at the end
    std::uint64_t digest = core::Digest{}.value();  // of the logits each id was chosen from
    std::string text{};                             // as written to stdout, if there is a tokenizer
    std::int32_t stopped_at = -1;                   // the end id, -1 if none
    bool interrupted = false;
    std::optional<Error> failure{};  // what ended the run early; the ids before it are sound
};

/// Writes tokens to stdout: as text in whole characters, or as numbers separated by commas on one line.
class TokenWriter {
  public:
    TokenWriter(const text::Tokenizer* tokenizer, Stdout& out) : tokenizer_(tokenizer), out_(out) {}

    void put(std::int32_t id) {
        if (tokenizer_ != nullptr) {
            add(decoder_.push(tokenizer_->bytes(id)));
        } else {
            out_.write((any_ ? "," : "") + std::to_string(id));
        }
        any_ = true;
    }
    void finish() {
        if (tokenizer_ != nullptr) {
            add(decoder_.flush());
        } else if (any_) {
            out_.write("\n");
        }
    }
    const std::string& text() const noexcept { return text_; }

  private:
    void add(const std::string& piece) {
        out_.write(piece);
        text_ += piece;
    }
    const text::Tokenizer* tokenizer_;
    Stdout& out_;
    text::StreamDecoder decoder_{};
    std::string text_{};
    bool any_ = false;
};

/// Errors: those of Session::feed and argmax before the first id. Later ones, a failed expert and an interrupt end the
/// run with what came before them.
inline Outcome generate(engine::Session& session, const Request& request, const text::Tokenizer* tokenizer, Stdout& out,
                        Watcher& watcher) {
    using Clock = std::chrono::steady_clock;
    Outcome outcome;
    outcome.loaded = outcome.total = session.traffic();
    Ids all = request.prompt;
    core::Digest digest;
    TokenWriter writer(tokenizer, out);
    try {
        for (std::size_t step = 0; step < std::max<std::size_t>(1, request.gen); ++step) {
            const Clock::time_point start = Clock::now();
            const engine::Traffic before = outcome.total;
            const bool more = step + 1 < request.gen;
            const engine::FeedProgress progress =
                [&](std::size_t done, std::size_t tokens, std::size_t layer, std::size_t layers) {
                watcher.feeding(step, done, tokens, request.chunk, layer, layers);
                return step != 0 || !interrupted();  // a prompt may take hours; a later step is completed
            };
            const bool again = request.decoding == Decoding::recompute;
            const std::span<const float> logits =
                again ? session.recompute(all, progress, more)
                      : session.feed(step == 0 ? std::span<const std::int32_t>(all) : std::span(all).last(1), progress,
                                     more);
            const std::chrono::duration<double> spent = Clock::now() - start;
            (step == 0 ? outcome.prefill_seconds : outcome.decode_seconds) += spent.count();
            ++outcome.steps_fed;
            outcome.total = session.traffic();
            if (step == 0) outcome.prefill = outcome.total;
            if (step == 0 && request.first_logits) request.first_logits(logits);
            if (request.gen == 0) break;

            const std::int32_t id = session.argmax(logits, step);
            digest.add(logits.data(), logits.size());
            all.push_back(id);
            outcome.ids.push_back(id);
            outcome.steps.push_back({id, spent.count(), outcome.total.bytes() - before.bytes(),
                                     outcome.total.wait_seconds() - before.wait_seconds(),
                                     outcome.total.experts - before.experts});
            watcher.step_done(step, outcome.steps.back());
            if (std::find(request.end_ids.begin(), request.end_ids.end(), id) != request.end_ids.end()) {
                outcome.stopped_at = id;
                break;
            }
            writer.put(id);
            if (step + 1 == request.gen) break;
            if (interrupted()) {
                outcome.interrupted = true;
                break;
            }
            if (out.failed()) break;  // nobody reads on
        }
    } catch (const Error& error) {
        if (error.code() == Code::interrupted)
            outcome.interrupted = true;
        else if (error.code() == Code::expert || !outcome.ids.empty())
            outcome.failure = error;
        else
            throw;  // nothing to keep
    }
    outcome.total = session.traffic();
    writer.finish();
    outcome.text = writer.text();
    outcome.digest = digest.value();
    return outcome;
}

}  // namespace k3::run
#endif
