#ifndef K3_DRIVERS_RUN_GENERATE_HPP
#define K3_DRIVERS_RUN_GENERATE_HPP
// The loop: feed, choose, write, repeat. Step 0 feeds what the state does not hold yet (the prompt); a later step feeds
// the token chosen last (or, with --recompute, everything again). The last token is chosen and not fed: nothing would
// be asked of it.
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
#include "drivers/run/token_sink.hpp"
#include "drivers/text_input.hpp"
#include "k3/core/digest.hpp"
#include "k3/core/error.hpp"
#include "k3/engine/sampler.hpp"
#include "k3/engine/session.hpp"

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

/// The id that follows, from the logits of one step. Errors: Code::numeric.
using Choose = std::function<std::int32_t(std::span<const float> logits, std::size_t step)>;

/// Drawn by `sampler`, or the likeliest if it is null. Both must outlive the result.
inline Choose chooser(const engine::Session& session, engine::Sampler* sampler) {
    return [&session, sampler](std::span<const float> logits, std::size_t step) {
        return sampler == nullptr ? session.argmax(logits, step) : sampler->choose(logits);
    };
}

struct Request {
    Ids ids{};                             // all so far; those the session holds are not fed again
    std::vector<std::int64_t> end_ids{};   // end the run, and are no part of the text
    std::vector<std::int64_t> stop_ids{};  // end the run after they were written
    std::size_t gen = 0, chunk = 1;
    Decoding decoding = Decoding::incremental;
    Choose choose{};         // required if gen > 0
    core::Digest digest{};   // of the steps before, where a run goes on with a saved one
    bool resumable = false;  // what was fed of a prompt will be saved, so a failure in it loses nothing
    std::function<void(std::span<const float>)> first_logits{};  // called once, if set
};

struct Outcome {
    Ids ids{};                  // generated, the end id included; all of them sound
    std::vector<Step> steps{};  // one for each id
    double disk_ceiling = 0;    // bytes a second of the probe after the run; 0: not measured
    std::size_t steps_fed = 0;  // forward passes that were completed
    double prefill_seconds = 0, decode_seconds = 0;
    engine::Traffic loaded{}, prefill{}, total{};  // after load(), after the first step, at the end
    core::Digest digest{};                         // of the logits each id was chosen from
    std::int32_t stopped_at = -1;                  // the end id, -1 if none
    std::string stopped_name{};                    // " (its name)" where a tokenizer knows it
    bool interrupted = false;
    std::optional<Error> failure{};  // what ended the run early; the ids before it are sound
};

/// Errors: those of Session::feed and Request::choose before the first id. Later ones, a failed expert and an interrupt
/// end the run with what came before them.
inline Outcome generate(engine::Session& session, const Request& request, TokenSink& sink, Watcher& watcher) {
    using Clock = std::chrono::steady_clock;
    Outcome outcome;
    outcome.loaded = outcome.total = session.traffic();
    outcome.digest = request.digest;
    Ids all = request.ids;
    const std::size_t held = request.decoding == Decoding::recompute ? 0 : session.position();
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
            const auto next = step == 0 ? std::span(all).subspan(held) : std::span(all).last(1);
            // Nothing to feed: a saved state that ends with its prompt brings the logits along.
            if (next.empty() && session.logits().empty())
                throw Error(Code::state, "the state holds every token and no logits: there is nothing to choose from",
                            "give a prompt to go on with");
            const std::span<const float> logits = request.decoding == Decoding::recompute
                                                      ? session.recompute(all, progress, more)
                                                  : next.empty() ? session.logits()
                                                                 : session.feed(next, progress, more);
            const std::chrono::duration<double> spent = Clock::now() - start;
            (step == 0 ? outcome.prefill_seconds : outcome.decode_seconds) += spent.count();
            ++outcome.steps_fed;
            outcome.total = session.traffic();
            if (step == 0) outcome.prefill = outcome.total;
            if (step == 0 && request.first_logits) request.first_logits(logits);
            if (request.gen == 0) break;

            const std::int32_t id = request.choose(logits, step);
            outcome.digest.add(logits.data(), logits.size());
            all.push_back(id);
            outcome.ids.push_back(id);
            outcome.steps.push_back({id, spent.count(), outcome.total.bytes() - before.bytes(),
                                     outcome.total.wait_seconds() - before.wait_seconds(),
                                     outcome.total.experts - before.experts});
            watcher.step_done(step, outcome.steps.back());
            const auto one_of = [id](const std::vector<std::int64_t>& ids) {
                return std::find(ids.begin(), ids.end(), id) != ids.end();
            };
            const bool ends = one_of(request.end_ids), stops = ends || one_of(request.stop_ids);
            if (!ends) sink.put(id);
            if (stops) outcome.stopped_at = id;
            if (stops) break;
            if (step + 1 == request.gen) break;
            if (interrupted()) {
                outcome.interrupted = true;
                break;
            }
            if (sink.failed()) break;  // nobody reads on
        }
    } catch (const Error& error) {
        if (error.code() == Code::interrupted)
            outcome.interrupted = true;
        else if (error.code() == Code::expert || !outcome.ids.empty() ||
                 (request.resumable && session.position() > held))
            outcome.failure = error;
        else
            throw;  // nothing to keep
    }
    outcome.total = session.traffic();
    sink.finish();
    return outcome;
}

}  // namespace k3::run
#endif
