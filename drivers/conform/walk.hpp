#ifndef K3_DRIVERS_CONFORM_WALK_HPP
#define K3_DRIVERS_CONFORM_WALK_HPP
// The walk down the stack: engine and reference take every step on the same inputs, and the engine's own outputs are
// the inputs of the next step. Below them the reference carries its own float64 chain from the embedding on. At the end
// the head, and model::Forward over the same ids, in two steps, which must give the bits of this walk: so what was
// judged layer by layer is what the engine does when it runs. Which sums are snapshots and what is mixed when is
// written once here, for both sides; Forward has its own, and the comparison with it is what checks this one.
#include <cmath>
#include <cstdio>
#include <cstring>
#include <functional>
#include <utility>
#include <vector>

#include "drivers/conform/check_mlp.hpp"
#include "drivers/synth/values.hpp"
#include "k3/model/state.hpp"

namespace k3::conform {

/// Seeded token ids, the same everywhere.
class SeededIds {
  public:
    SeededIds(std::uint64_t seed, std::size_t vocab) : seed_(seed), vocab_(vocab) {}
    std::vector<std::int32_t> next(std::size_t count) {
        std::vector<std::int32_t> ids(count);
        for (std::int32_t& id : ids) id = static_cast<std::int32_t>(synth::word(seed_, at_++) % vocab_);
        return ids;
    }

  private:
    std::uint64_t seed_, vocab_, at_ = 0;
};

class Walk {
  public:
    Walk(Engine& engine, const Reference& reference, std::uint64_t seed, std::size_t tokens)
        : e_(engine), ref_(reference), tokens_(tokens), seeded_(seed, reference.c.vocab) {}

    /// Embedding rows of seeded ids as the state before layer `first`: the running sum, and as many snapshots as the
    /// layers before it would have left.
    LayerResult begin(std::size_t first) {
        LayerResult result{"embed", "IN"};
        Judge judge(result);
        ids_ = seeded_.next(tokens_);
        prefix_ = embed(judge, ids_, prefix_both_);
        const std::size_t block = e_.c().attn_res_block;
        for (std::size_t i = 0; i < (first + block - 1) / block; ++i)
            blocks_.push_back(embed(judge, seeded_.next(tokens_), blocks_both_.emplace_back()));
        return result;
    }

    LayerResult layer(std::size_t n) {
        const model::Config& c = ref_.c;
        char label[24];
        std::snprintf(label, sizeof label, "L%02zu", n);
        const bool kda = e_.view().layers[n].kind == model::LayerKind::kda;
        LayerResult result{label, kda ? "KDA" : "MLA"};
        Judge judge(result);
        e_.load(n);
        const model::DecoderLayer& layer = e_.layer();
        namespace names = model::names;

        Rows h = prefix_;
        Mat both = prefix_both_;
        if (!blocks_.empty()) {  // the first mix of layer 0 has nothing to mix
            h = e_.mix(blocks_, prefix_, layer.attention_fold);
            both = judge(
                "attention mix", h,
                mix(ref_.vector(n, names::kAttnResNorm, c.hidden), ref_.vector(n, names::kAttnResProj, c.hidden)));
        }
        Rows x = e_.rmsnorm(h, layer.input_norm, e_.c().rms_norm_eps);
        both = judge("attention norm", x, norm(both, ref_.vector(n, names::kInputNorm, c.hidden)));
        const bool boundary = n % e_.c().attn_res_block == 0;
        if (boundary) {  // the snapshot is the sum before the mix
            blocks_.push_back(prefix_);
            blocks_both_.push_back(prefix_both_);
        }
        Rows out;
        if (kda) {
            KdaRun run = run_kda(e_, n, x);
            both = check_kda(judge, ref_, n, both, run);
            out = std::move(run.out);
        } else {
            MlaRun run = run_mla(e_, n, x);
            both = check_mla(judge, ref_, n, both, run);
            out = std::move(run.out);
        }
        if (boundary) {
            prefix_ = std::move(out);
            prefix_both_ = std::move(both);
        } else {
            add(judge, "sum after attention", out, both);
        }

        h = e_.mix(blocks_, prefix_, layer.mlp_fold);
        both = judge("mlp mix", h,
                     mix(ref_.vector(n, names::kMlpResNorm, c.hidden), ref_.vector(n, names::kMlpResProj, c.hidden)));
        x = e_.rmsnorm(h, layer.post_attention_norm, e_.c().rms_norm_eps);
        both = judge("mlp norm", x, norm(both, ref_.vector(n, names::kPostAttentionNorm, c.hidden)));
        if (layer.dense) {
            MlpRun run = run_mlp(e_, n, layer.mlp, x);
            both = check_dense(judge, ref_, n, both, run);
            out = std::move(run.out);
        } else {
            MoeRun run = run_moe(e_, n, x);
            both = check_moe(judge, ref_, n, both, run);
            out = std::move(run.out);
            broken_ = !run.failure.empty();
        }
        add(judge, "sum after mlp", out, both);
        for (const float v : prefix_.data) broken_ = broken_ || !std::isfinite(v);
        result.chained = drift(prefix_both_);
        return result;
    }

    LayerResult head() {
        const model::Config& c = ref_.c;
        LayerResult result{"head", "OUT"};
        Judge judge(result);
        namespace names = model::names;
        const auto vector = [&](std::string_view name) {
            return Tensor(ref_.index, std::string(name), 1, c.hidden).vector();
        };
        const Rows h = e_.mix(blocks_, prefix_, e_.view().output_fold);
        Mat both = judge("output mix", h, mix(vector(names::kOutputAttnResNorm), vector(names::kOutputAttnResProj)));
        const Rows x = e_.rmsnorm(h, e_.view().final_norm, e_.c().rms_norm_eps);
        both = judge("final norm", x, norm(both, vector(names::kNorm)));
        logits_ = e_.linear(e_.view().lm_head, x, e_.view().layer_count);
        both = judge("logits", logits_,
                     Tensor(ref_.index, std::string(names::kLmHead), c.vocab, c.hidden).times(both, ref_.threads));
        result.chained = drift(both);
        return result;
    }

    /// model::Forward over the same ids, weights streamed by panels: all but the last token from an empty state, a
    /// commit, then the last token alone. So the step of one token, which has loops of its own, and a state that is not
    /// empty (histories, matrices, latents) must give the bits that the walk has from one pass over all tokens.
    /// `progress(done, all)`.
    LayerResult pass(const std::function<void(std::size_t, std::size_t)>& progress) {
        LayerResult result{"pass", "ALL"};
        Judge judge(result);
        model::State state(e_.view());
        Rows logits(tokens_, e_.c().vocab);
        const std::size_t layers = e_.view().layer_count, before = tokens_ - 1;
        if (before != 0) {
            step(state, 0, before, logits, [&](std::size_t done) { progress(done, 2 * layers); });
            step(state, before, 1, logits, [&](std::size_t done) { progress(layers + done, 2 * layers); });
        } else {
            step(state, 0, 1, logits, [&](std::size_t done) { progress(done, layers); });
        }
        std::size_t different = 0, at = 0;
        for (std::size_t i = 0; i < logits.data.size(); ++i)
            if (std::memcmp(&logits.data[i], &logits_.data[i], sizeof(float)) != 0 && different++ == 0) at = i;
        judge("same bits as Forward", different == 0 ? 0 : std::numeric_limits<double>::infinity(),
              std::to_string(different) + " of " + std::to_string(logits.data.size()) +
                  " logits of model::Forward differ from those of this walk, the first at token " +
                  std::to_string(at / logits.cols) + ", id " + std::to_string(at % logits.cols));
        return result;
    }

    /// The engine has nothing finite to go on with: every later stage would fail for this reason and hide its own.
    bool broken() const { return broken_; }
    const std::vector<std::int32_t>& ids() const { return ids_; }

  private:
    /// One step of Forward over ids [first, first + count), committed; its logits go to their rows.
    void step(model::State& state, std::size_t first, std::size_t count, Rows& logits,
              const std::function<void(std::size_t)>& progress) {
        state.begin(count);
        model::Segment segment{};
        segment.state = state.view();
        segment.ids = ids_.data() + first;
        segment.tokens = segment.wanted = count;
        segment.logits = logits.view().row(first);
        model::Services services{&e_.source(), &e_.experts(), {}};
        services.progress = {[](void* user, std::size_t done, std::size_t) noexcept {
            (*static_cast<const std::function<void(std::size_t)>*>(user))(done);
            return true;
                             },
                             const_cast<void*>(static_cast<const void*>(&progress))};
        core::Fault fault = e_.forward().run(e_.exec(), services, &segment, 1, e_.arena());
        if (!fault) fault = segment.fault;
        e_.require(fault, fault.layer < 0 ? 0 : static_cast<std::size_t>(fault.layer));
        e_.forward().commit(e_.exec(), segment.state, count);
        state.advance(count);
    }
    Rows embed(Judge& judge, const std::vector<std::int32_t>& ids, Mat& both) {
        const layers::Weight& table = e_.view().embedding;
        const std::size_t hidden = e_.c().hidden, each = table.format == layers::Format::f32 ? 4 : 2;
        std::vector<std::byte> raw(ids.size() * hidden * each);
        if (!e_.source().read_rows(table, ids.data(), ids.size(), raw.data()))
            throw Error(Code::read, e_.source().failure(), "check the disk");
        Rows rows(ids.size(), hidden);
        for (std::size_t i = 0; i < rows.data.size(); ++i) {
            if (each == 4)
                std::memcpy(&rows.data[i], raw.data() + 4 * i, 4);
            else
                rows.data[i] = formats::bf16::widen(raw.data() + 2 * i);
        }
        const Tensor reference(ref_.index, std::string(model::names::kEmbedTokens), ref_.c.vocab, hidden);
        const auto n = static_cast<Index>(ids.size());
        both = Mat(2 * n, static_cast<Index>(hidden));
        for (Index t = 0; t < n; ++t)
            both.row(t) = both.row(n + t) = reference.block(ids[static_cast<std::size_t>(t)], 1);
        both = judge("embedding", rows, exact(both));
        return rows;
    }
    Value mix(const Vec& norm, const Vec& proj) const {
        std::vector<Mat> sources = blocks_both_;
        sources.push_back(prefix_both_);
        return attention_residual(sources, norm, proj, ref_.c.rms_norm_eps);
    }
    Value norm(const Mat& both, const Vec& weight) const {
        return rmsnorm(exact(both), both.cols(), weight, ref_.c.rms_norm_eps);
    }
    void add(Judge& judge, const char* stage, const Rows& out, const Mat& both) {
        Rows next = e_.add(prefix_, out);
        prefix_both_ = judge(stage, next, sum(exact(prefix_both_), exact(both)));
        prefix_ = std::move(next);
    }
    static double drift(const Mat& both) {
        const Index n = both.rows() / 2;
        return (both.topRows(n) - both.bottomRows(n)).cwiseAbs().maxCoeff() /
               std::max(both.bottomRows(n).cwiseAbs().maxCoeff(), 1e-300);
    }

    Engine& e_;
    const Reference& ref_;
    std::size_t tokens_;
    bool broken_ = false;
    SeededIds seeded_;
    std::vector<std::int32_t> ids_;
    Rows prefix_, logits_;  ///< the engine's
    std::vector<Rows> blocks_;
    Mat prefix_both_;  ///< the reference's: shared rows, chained rows
    std::vector<Mat> blocks_both_;
};

}  // namespace k3::conform
#endif
