#ifndef K3_ENGINE_SAMPLER_HPP
#define K3_ENGINE_SAMPLER_HPP
// Draws the next token: softmax at a temperature, cut to the top k and to the top p, then one random number. The same
// seed gives the same ids on every machine: weights are integers, so no sum has an order, and everything after the
// softmax is integer arithmetic (docs/NUMERICS.md, "sampling", is the definition).
//
// The definition sorts all candidates. Here nothing but one bucket is ever sorted: a first pass adds up weights by the
// leading bits of the logit, and the candidate at which a running sum passes a limit is looked for in the bucket where
// that happens.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "k3/core/error.hpp"
#include "k3/core/parallel.hpp"
#include "k3/engine/pcg32.hpp"
#include "k3/kernels/softmax.hpp"
#include "k3/simd/canary.hpp"

namespace k3::engine {

struct SamplerOptions {
    double temperature = 1.0;  // above 0, finite
    double top_p = 1.0;        // in (0, 1]; 1: off
    std::size_t top_k = 0;     // 0: off
    std::uint64_t seed = 0;
};

/// Copyable: a copy draws the same ids. One thread at a time.
class Sampler {
  public:
    /// Errors: Code::usage for options out of range; Code::internal if this build does not round as written.
    explicit Sampler(const SamplerOptions& options);

    /// Seeds the generator anew from the seed and the turn, so that a turn does not depend on the length of those
    /// before it. Turns count from 1, which is where a new Sampler is.
    void start_turn(std::uint64_t turn) noexcept;

    /// Draws an id; takes 53 bits from the generator, always. -inf excludes an id, and so does a probability below
    /// 2^-40 of the largest.
    /// Errors: Code::numeric for NaN, +inf or no finite logit at all; Code::usage for no logits, or more than 2^24. The
    /// generator then has not moved.
    std::int32_t choose(std::span<const float> logits);

    const SamplerOptions& options() const noexcept { return options_; }
    /// What a saved state needs to go on with the same numbers.
    const Pcg32::State& generator() const noexcept { return generator_.state(); }
    /// Errors: Code::state for what is not a state of the generator.
    void set_generator(const Pcg32::State& state);

  private:
    /// Candidates from the best one on, and their weights.
    struct Sums {
        std::uint64_t mass = 0, count = 0;
        Sums operator+(const Sums& more) const noexcept { return {mass + more.mass, count + more.count}; }
    };
    struct Place {
        std::int32_t id;
        Sums sums;  // it included
    };
    void rank(std::span<const float> logits);
    std::uint64_t weigh(std::span<const float> logits);
    template <class Reached>
    Place first(Reached reached);

    static constexpr unsigned kBucketBits = 14;  // sign, exponent and 5 bits of the mantissa
    static constexpr std::size_t bucket(std::uint32_t rank) noexcept { return rank >> (32 - kBucketBits); }

    SamplerOptions options_;
    std::uint64_t top_p_ = 0;  // in units of 2^-53
    Pcg32 generator_{0, 0};
    std::uint32_t best_ = 0;              // rank of the largest logit
    std::vector<std::uint32_t> ranks_{};  // of all ids
    std::vector<std::uint64_t> weights_{};
    std::vector<Sums> buckets_{};
    std::vector<std::uint64_t> members_{};  // of one bucket: rank, then id
};

// ---------------------------------------------------------------------------------------------------------------------

namespace detail {

__extension__ typedef unsigned __int128 Wide;
constexpr Wide kParts = Wide{1} << 53;  // 53 random bits, or a share, count parts of the whole

/// Orders floats from the largest to the smallest as integers, in any floating-point environment; -0 is +0. Without
/// branches: signs of logits are as good as random.
constexpr std::uint32_t rank_of(float value) noexcept {
    const auto bits = std::bit_cast<std::uint32_t>(value);
    const std::uint32_t flipped = bits ^ (((bits >> 31) - 1) & 0x7fffffffU);  // all but the sign, if it is positive
    return flipped - (flipped == 0x80000000U);
}
constexpr float logit_of(std::uint32_t rank) noexcept {
    return std::bit_cast<float>(rank ^ (((rank >> 31) - 1) & 0x7fffffffU));
}
inline constexpr std::uint32_t kInfinite = rank_of(__builtin_inff()), kExcluded = rank_of(-__builtin_inff());

}  // namespace detail

inline Sampler::Sampler(const SamplerOptions& options) : options_(options) {
    if (!(options.temperature > 0) || !std::isfinite(options.temperature))
        throw Error(Code::usage, "the temperature " + std::to_string(options.temperature) + " cannot be sampled at",
                    "give a number above 0; for the likeliest token each time, decode greedily");
    if (!(options.top_p > 0 && options.top_p <= 1))
        throw Error(Code::usage, "top-p " + std::to_string(options.top_p) + " is not a share", "give above 0, up to 1");
    if (!simd::arithmetic_is_exact<simd::scalar>())
        throw Error(Code::internal, "this build does not round as written",
                    "rebuild without flags that change floating-point results");
    top_p_ = static_cast<std::uint64_t>(simd::mul_exact(options.top_p, 0x1p+53));
    start_turn(1);
}

inline void Sampler::start_turn(std::uint64_t turn) noexcept {
    std::uint64_t x = options_.seed ^ turn * 0x9e3779b97f4a7c15U;
    const std::uint64_t seed = splitmix64(x);
    generator_ = Pcg32(seed, splitmix64(x));
}

inline void Sampler::set_generator(const Pcg32::State& state) {
    if (state.increment % 2 == 0)
        throw Error(Code::state, "the random generator's increment is even", "the state is damaged: start over");
    generator_ = Pcg32(state);
}

/// Ranks every id, and refuses what has no probabilities.
inline void Sampler::rank(std::span<const float> logits) {
    if (logits.empty() || logits.size() > std::size_t{1} << 24)
        throw Error(Code::usage, std::to_string(logits.size()) + " logits cannot be sampled from",
                    "give those of one position, 1 to 16777216");
    std::uint32_t last = 0;
    best_ = detail::kExcluded;
    ranks_.resize(logits.size());
    for (std::size_t i = 0; i < logits.size(); ++i) {
        const std::uint32_t rank = detail::rank_of(logits[i]);
        ranks_[i] = rank;
        best_ = std::min(best_, rank);
        last = std::max(last, rank);
    }
    const char* next = "check the checkpoint with k3-inspect; no token can be drawn";
    if (best_ <= detail::kInfinite || last > detail::kExcluded)  // NaN is beyond both
        for (std::size_t i = 0; i < logits.size(); ++i)
            if (!(logits[i] < HUGE_VALF))
                throw Error(Code::numeric,
                            "the logit of id " + std::to_string(i) +
                                (logits[i] == logits[i] ? " is infinite: it has no probability" : " is NaN"),
                            next);
    if (best_ == detail::kExcluded) throw Error(Code::numeric, "all logits are -inf", next);
}

/// Weighs every candidate and fills the buckets; the sum of all weights.
inline std::uint64_t Sampler::weigh(std::span<const float> logits) {
    weights_.resize(logits.size());
    buckets_.assign(std::size_t{1} << kBucketBits, {});
    core::parallel(core::Exec{}, 1, 1, [&](std::size_t, std::size_t, unsigned) noexcept {
        kernels::softmax_weights<simd::scalar>(logits.data(), logits.size(), detail::logit_of(best_),
                                               options_.temperature, weights_.data());
    });
    std::uint64_t all = 0;
    for (std::size_t i = 0; i < logits.size(); ++i) {
        Sums& sums = buckets_[bucket(ranks_[i])];
        sums.mass += weights_[i];
        ++sums.count;
        all += weights_[i];
    }
    return all;
}

/// The first candidate at which reached(sums) holds. Requires that there is one, and that it stays true after it.
template <class Reached>
Sampler::Place Sampler::first(Reached reached) {
    Sums sums;
    std::size_t at = bucket(best_);
    for (; !reached(sums + buckets_[at]); ++at) sums = sums + buckets_[at];
    members_.clear();
    for (std::size_t i = 0; i < ranks_.size(); ++i)
        if (bucket(ranks_[i]) == at) members_.push_back(std::uint64_t{ranks_[i]} << 32 | i);
    if (!std::is_sorted(members_.begin(), members_.end()))
        std::sort(members_.begin(), members_.end());  // equal logits are
    std::size_t i = 0;
    for (;; ++i) {
        sums = sums + Sums{weights_[members_[i] & 0xffffffffU], 1};
        if (reached(sums)) break;
    }
    return {static_cast<std::int32_t>(members_[i] & 0xffffffffU), sums};
}

inline std::int32_t Sampler::choose(std::span<const float> logits) {
    rank(logits);
    std::uint64_t kept = weigh(logits);
    const bool few = options_.top_k != 0 && options_.top_k < logits.size();
    if (few || options_.top_p < 1) {
        const detail::Wide share = detail::Wide{top_p_} * kept;
        const auto enough = static_cast<std::uint64_t>((share + (detail::kParts - 1)) / detail::kParts);
        const std::uint64_t most = few ? options_.top_k : logits.size();
        kept = first([&](const Sums& s) { return s.count >= most || s.mass >= enough; }).sums.mass;
    }
    const auto drawn = static_cast<std::uint64_t>(detail::Wide{generator_.next53()} * kept / detail::kParts);
    return first([&](const Sums& s) { return s.mass > drawn; }).id;
}

}  // namespace k3::engine
#endif
