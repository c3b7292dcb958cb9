#ifndef K3_ENGINE_SCORE_HPP
#define K3_ENGINE_SCORE_HPP
// How well a model foresees a given sequence (teacher forcing): the log-probability of each id after those before it,
// whether it was the greedy choice, and their sums. Bits depend on the ids and the model alone
// (docs/NUMERICS.md, "scoring").
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "k3/core/digest.hpp"
#include "k3/core/error.hpp"
#include "k3/core/parallel.hpp"
#include "k3/engine/session.hpp"
#include "k3/kernels/softmax.hpp"
#include "k3/kernels/top_k.hpp"

namespace k3::engine {

/// Of n ids the last n - 1 are foreseen: log_probs[i] belongs to id i + 1.
struct Score {
    std::vector<double> log_probs{};                // natural logarithms; -inf for an id whose logit is -inf
    std::vector<std::int32_t> greedy{};             // what argmax would have chosen instead
    std::size_t matches = 0;                        // ids that are the greedy choice
    double nll = 0;                                 // minus the sum of log_probs
    double perplexity = 1;                          // exp(nll / positions), +inf from exp(709) on
    std::uint64_t digest = core::Digest{}.value();  // of log_probs

    std::size_t positions() const noexcept { return log_probs.size(); }
    double agreement() const noexcept {
        return positions() == 0 ? 0 : static_cast<double>(matches) / static_cast<double>(positions());
    }
    bool operator==(const Score&) const = default;
};

namespace detail {

/// Adds the ids that follow `first`, of which `rows` are the logits. Errors: Code::numeric for a NaN or infinity that
/// leaves no probabilities.
inline void add_rows(std::span<const std::int32_t> ids, std::size_t first, std::span<const float> rows,
                     std::size_t vocab, unsigned threads, Score& score) {
    const std::size_t count = rows.size() / vocab;
    score.log_probs.resize(first + count);
    score.greedy.resize(first + count);
    constexpr std::size_t kWork = 64;  // of one logit, in multiply-adds
    core::parallel({.threads = threads}, count, kWork * vocab,
                   [&](std::size_t begin, std::size_t end, unsigned) noexcept {
        for (std::size_t i = begin; i < end; ++i) {
            const float* const row = rows.data() + i * vocab;
            const std::int64_t best = kernels::argmax<simd::scalar>(row, vocab);
            const bool sound = best >= 0 && std::isfinite(row[best]);
            score.greedy[first + i] = sound ? static_cast<std::int32_t>(best) : -1;
            if (!sound) continue;
            const auto id = static_cast<std::size_t>(ids[first + i + 1]);
            score.log_probs[first + i] = kernels::log_softmax<simd::scalar>(row, vocab, row[best], id);
        }
    });
    std::size_t sound = first;
    while (sound < first + count && score.greedy[sound] >= 0) ++sound;
    score.log_probs.resize(sound);
    score.greedy.resize(sound);
    core::parallel(core::Exec{}, 1, 1, [&](std::size_t, std::size_t, unsigned) noexcept {
        core::Digest digest(score.digest);
        for (std::size_t i = first; i < sound; ++i) {
            score.matches += score.greedy[i] == ids[i + 1];
            score.nll -= score.log_probs[i];
            digest.add(score.log_probs[i]);
        }
        score.digest = digest.value();
        if (sound == 0) return;
        const double mean = score.nll / static_cast<double>(sound);
        score.perplexity = simd::exp<simd::scalar>(simd::broadcast<simd::f64x8, simd::scalar>(mean)).r[0];
    });
    if (sound < first + count)
        throw Error(Code::numeric, "the logits of position " + std::to_string(sound) + " give no probabilities",
                    "a NaN or an infinity is among them: check the checkpoint with k3-inspect");
}

}  // namespace detail

/// Scores ids as a sequence of their own, in one sweep; the last id is not fed. `score` is begun anew and grows chunk
/// by chunk: after an error, an interrupt above all, it holds the positions before it. Requires Options::all_logits.
/// Errors: Code::usage for fewer than two ids, numeric, and those of Session::feed_all.
inline void score(Session& session, std::span<const std::int32_t> ids, Score& score,
                  const FeedProgress& progress = {}) {
    score = {};
    if (ids.size() < 2)
        throw Error(Code::usage, std::to_string(ids.size()) + " ids leave nothing to foresee", "give at least two");
    const std::size_t vocab = session.config().shape.vocab;
    if (ids.back() < 0 || static_cast<std::size_t>(ids.back()) >= vocab)
        throw Error(
            Code::usage,
            "id " + std::to_string(ids.back()) + ", the last, is outside the vocabulary of " + std::to_string(vocab),
            "give ids from 0 to " + std::to_string(vocab - 1));
    session.reset();
    session.feed_all(
        ids.first(ids.size() - 1),
        [&](std::size_t first, std::span<const float> rows) {
        detail::add_rows(ids, first, rows, vocab, session.threads(), score);
        },
        progress);
}

}  // namespace k3::engine
#endif
