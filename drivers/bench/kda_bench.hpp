#ifndef K3_DRIVERS_BENCH_KDA_BENCH_HPP
#define K3_DRIVERS_BENCH_KDA_BENCH_HPP
// The delta rule of one token: one layer (96 heads of 128 x 128 f32) a call, the states of 69 layers in turn, as in
// decoding. 434 MB: what one layer leaves in a cache is gone when its turn comes again. Beside it: the same without
// fences (what the contract costs), the seed's four passes, and the read+write limit.
#include <string>
#include <vector>

#include "drivers/bench/digest.hpp"
#include "drivers/bench/limits.hpp"
#include "drivers/bench/seed.hpp"

namespace k3::bench {

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
            const auto unfenced = arch_of(*table).delta_rule_unfenced;
            add(candidates, digests, table->name, table->delta_rule);
            add(candidates, digests, std::string("unfenced ") + table->name, unfenced);
        }
        add(candidates, digests, "seed scalar", seed_step);
        take_turns(candidates, options_.repeats);

        const Limits limits(candidates, {}, threads_, results);
        std::vector<Row> rows;
        for (const Candidate& candidate : candidates) {
            if (Limits::is_probe(candidate)) continue;
            Row row = row_of(candidate);
            row.kernel = "delta_rule";
            row.format = "f32";
            row.shape = "96x128x128";
            row.threads = threads_;
            row.bytes = 2.0 * kLayerBytes;  // read and written
            row.flops = 8.0 * static_cast<double>(kHeads * kHeadFloats);
            row.digest = digests[rows.size()];
            row.cached = kLayers * kLayerBytes < cache_bytes;
            limits.judge(row, limits.read_write(), "read+write", 0, "-");
            if (row.digest != digests[0]) {  // the seed's four passes do the same operations in the same order
                results.differences.push_back(name() + ": " + row.who + " gives " + row.digest + ", " +
                                              candidates[2].name + " gives " + digests[0]);
            }
            rows.push_back(row);
        }
        for (Row& row : rows) {
            row.of_seed = rows.back().seconds / row.seconds;
            results.rows.push_back(row);
        }
    }

  private:
    using StepFn = void (*)(float*, std::size_t, std::size_t, const kernel_table::Delta&, float*);
    static void seed_step(float* state, std::size_t keys, std::size_t values, const kernel_table::Delta& in,
                          float* out) {
        seed::delta_rule(state, keys, values, in.q, in.k, in.v, in.alpha, in.beta, out);
    }
    kernel_table::Delta input(std::size_t head) const {
        const std::size_t at = head * kDim;
        return {q_.data() + at, k_.data() + at, v_.data() + at, alpha_.data() + at, 0.625F};
    }
    void add(std::vector<Candidate>& candidates, std::vector<std::string>& digests, const std::string& name,
             StepFn step) {
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
            core::parallel(detail::threads_only(threads_), kHeads, 1,
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
