#ifndef K3_DRIVERS_BENCH_KDA_BENCH_HPP
#define K3_DRIVERS_BENCH_KDA_BENCH_HPP
// The delta rule of one token, on states in place: one layer (96 heads of 128 x 128 f32) a call, the states of 69
// layers in turn. 434 MB: unless the last-level cache is of that size, what one layer leaves there is gone when its
// turn comes again. Decoding does more than this kernel: a step runs it on a copy of each state and its commit runs it
// again in place (k3/layers/kda.hpp). Beside it: the same without fences (what the contract costs), the seed's four
// passes, and the read+write limit.
#include <string>
#include <vector>

#include "drivers/bench/digest.hpp"
#include "drivers/bench/limits.hpp"
#include "drivers/bench/seed.hpp"

namespace k3::bench {
namespace detail {

/// The seed's step with the arguments of k3's.
inline auto seed_step(seed::DeltaFn step) {
    return [step](float* state, std::size_t keys, std::size_t values, const kernel_table::Delta& in, float* out) {
        step(state, keys, values, in.q, in.k, in.v, in.alpha, in.beta, out);
    };
}

}  // namespace detail

class KdaGroup {
  public:
    static constexpr std::size_t kHeads = 96, kDim = 128, kLayers = 69;
    static constexpr std::size_t kHeadFloats = kDim * kDim, kLayerBytes = kHeads * kHeadFloats * sizeof(float);
    static std::string name() { return "delta_rule f32 96x128x128"; }

    KdaGroup(const Options& options, unsigned threads)
        : options_(options),
          threads_(threads),
          states_(kLayers * kLayerBytes, threads),
          q_(numbers(kHeads * kDim, 201, 0x1p-5F)),
          k_(numbers(kHeads * kDim, 202, 0x1p-5F)),
          v_(numbers(kHeads * kDim, 203)),
          alpha_(decays(kHeads * kDim, 204)),
          out_(kHeads * kDim) {}

    void run(Results& results, std::size_t cache_bytes) {
        std::vector<Candidate> candidates;
        add_write_probes(candidates, states_, threads_);
        std::vector<std::string> digests;
        for (const KernelTable* table : options_.tables) {
            add(candidates, digests, table->name, table->delta_rule);
            add(candidates, digests, std::string("unfenced ") + table->name, arch_of(table->name).delta_rule_unfenced);
        }
        for (const KernelTable* table : options_.tables)
            add(candidates, digests, std::string("seed auto ") + table->name,
                detail::seed_step(seed::auto_loops(table->name).delta_rule));
        add(candidates, digests, "seed scalar", detail::seed_step(seed::kScalar.delta_rule));
        take_turns(candidates, options_.repeats);

        const Limits limits(candidates, threads_, results);
        std::vector<Row> rows;
        for (const Candidate& candidate : candidates) {
            if (candidate.role != Role::kernel) continue;
            Row row = row_of(candidate);
            row.kernel = "delta_rule";
            row.format = "f32";
            row.shape = "96x128x128";
            row.threads = threads_;
            row.bytes = 2.0 * kLayerBytes;  // read and written
            row.flops = 8.0 * static_cast<double>(kHeads * kHeadFloats);
            row.digest = digests[rows.size()];
            row.cached = fits_cache(static_cast<double>(kLayers * kLayerBytes), cache_bytes);
            limits.judge(row, limits.read_write(), "read+write", 0, "-");
            if (row.digest != digests[0]) {  // the seed's four passes do the same operations in the same order
                results.differences.push_back(name() + ": " + row.who + " gives " + row.digest + ", " +
                                              candidates[2].name + " gives " + digests[0]);
            }
            rows.push_back(row);
        }
        for (Row& row : rows) {
            row.of_seed = rows.back().seconds / row.seconds;
            const std::string arch = row.who.substr(row.who.rfind(' ') + 1);  // "avx2", "unfenced avx2", ...
            for (const Row& other : rows)
                if (other.who == "seed auto " + arch) row.of_auto = other.seconds / row.seconds;
            results.rows.push_back(row);
        }
    }

  private:
    kernel_table::Delta input(std::size_t head) const {
        const std::size_t at = head * kDim;
        return {q_.data() + at, k_.data() + at, v_.data() + at, alpha_.data() + at, 0.625F};
    }
    template <class Step>
    void add(std::vector<Candidate>& candidates, std::vector<std::string>& digests, const std::string& name,
             Step step) {
        std::vector<float> state = numbers(kHeadFloats, 205);
        core::Digest digest;
        for (std::size_t t = 0; t < 4; ++t) {
            step(state.data(), kDim, kDim, input(t), out_.data());
            digest.add(out_.data(), kDim);
        }
        digest.add(state.data(), state.size());
        digests.push_back(hex(digest.value()));
        const auto layer_step = [this, step] {
            auto* const layer = reinterpret_cast<float*>(states_.next(kLayerBytes));
            core::parallel(threads_only(threads_), kHeads, 1,
                           [&](std::size_t begin, std::size_t end, unsigned) noexcept {
                for (std::size_t head = begin; head < end; ++head)
                    step(layer + head * kHeadFloats, kDim, kDim, input(head), out_.data() + head * kDim);
            });
        };
        candidates.push_back({name, layer_step});
    }

    const Options& options_;
    unsigned threads_;
    Pool states_;
    std::vector<float> q_, k_, v_, alpha_, out_;
};

}  // namespace k3::bench
#endif
