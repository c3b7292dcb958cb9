// The residual stream of specification 3.3 in float64, with one thing wrong at a time: the engine must be close to the
// right one and far from every wrong one. Golden A has block 3 over 13 layers: five snapshots.
#include <functional>

#include "engine/rig.hpp"
#include "oracle/model_f64.hpp"
#include "support/doctest.hpp"

using namespace k3;
using namespace k3::tests;
using oracle::Index;
using oracle::Mat;
using oracle::Vec;

namespace {

enum class Wrong {
    nothing,
    mixes_normalised_rows,    // trap 33
    snapshot_of_the_mixed_h,  // trap 34
    prefix_not_cleared,       // trap 35
    cleared_before_snapshot,  // trap 35
    boundary_one_later,       // trap 36
    second_mix_of_layer_0,    // trap 37: skipped
    adds_to_the_mixed_h,      // trap 38
    no_output_mix,            // trap 39
    sides_exchanged,          // trap 40
};

Mat logits_of(const oracle::Model& model, const std::vector<Index>& ids, Wrong wrong) {
    const oracle::Config& c = model.config();
    const auto vector = [&](Index n, const std::string& which) {
        return model.checkpoint().vector("language_model.model.layers." + std::to_string(n) + "." + which + ".weight",
                                         c.hidden);
    };
    std::vector<Mat> blocks;
    Mat prefix = model.embed(ids);
    const auto mix = [&](const Vec& norm, const Vec& proj) {
        auto sources = blocks;
        sources.push_back(prefix);
        Mat score(prefix.rows(), static_cast<Index>(sources.size()));
        for (std::size_t s = 0; s < sources.size(); ++s) {
            const Mat key = oracle::rmsnorm(sources[s], norm, c.eps);
            score.col(static_cast<Index>(s)) = key * proj;
            if (wrong == Wrong::mixes_normalised_rows) sources[s] = key;
        }
        const Mat p = oracle::softmax(score);
        Mat out = Mat::Zero(prefix.rows(), prefix.cols());
        for (std::size_t s = 0; s < sources.size(); ++s) out += p.col(static_cast<Index>(s)).asDiagonal() * sources[s];
        return out;
    };
    for (Index n = 0; n < c.layers; ++n) {
        const std::string first = wrong == Wrong::sides_exchanged ? "mlp_res" : "self_attention_res";
        const std::string second = wrong == Wrong::sides_exchanged ? "self_attention_res" : "mlp_res";
        const Mat h = blocks.empty() ? prefix : mix(vector(n, first + "_norm"), vector(n, first + "_proj"));
        const Mat a = model.attention(n, oracle::rmsnorm(h, model.norm(n, "input_layernorm"), c.eps));
        if ((wrong == Wrong::boundary_one_later ? n + 1 : n) % c.block == 0) {
            blocks.push_back(wrong == Wrong::snapshot_of_the_mixed_h   ? h
                             : wrong == Wrong::cleared_before_snapshot ? a
                                                                       : prefix);
            prefix = wrong == Wrong::prefix_not_cleared ? Mat(prefix + a) : a;
        } else {
            prefix = (wrong == Wrong::adds_to_the_mixed_h ? h : prefix) + a;
        }
        const Mat g = wrong == Wrong::second_mix_of_layer_0 && n == 0
                          ? prefix
                          : mix(vector(n, second + "_norm"), vector(n, second + "_proj"));
        const Mat x = oracle::rmsnorm(g, model.norm(n, "post_attention_layernorm"), c.eps);
        const Mat& base = wrong == Wrong::adds_to_the_mixed_h ? g : prefix;
        prefix = base + (model.is_dense(n) ? oracle::dense_mlp(x, model.dense(n), c.situ)
                                           : oracle::latent_moe(x, model.moe(n), c.situ, c.eps).out);
    }
    if (wrong != Wrong::no_output_mix) {
        blocks.push_back(prefix);
        return model.head(blocks);
    }
    const std::string p = "language_model.model.";
    return oracle::matmul(oracle::rmsnorm(prefix, model.checkpoint().vector(p + "norm.weight", c.hidden), c.eps),
                          model.checkpoint().matrix("language_model.lm_head.weight", c.vocab, c.hidden));
}

}  // namespace

TEST_CASE("model/forward: traps 33 to 40, the residual stream with one thing wrong is far away, the right one close") {
    Loaded model(golden_dir("A"));
    const oracle::Model f64(golden_dir("A"));
    const Ids ids = some_ids(8, model.vocab(), 3);
    const std::vector<Index> wide(ids.begin(), ids.end());
    std::vector<Mat> got;
    for (const engine::ArchName arch : engine::arches_of_this_cpu()) {
        Runner runner(model, arch, 2);
        Sequence sequence(runner);
        REQUIRE_FALSE(sequence.feed(runner, ids, ids.size()));
        got.push_back(Eigen::Map<const Eigen::Matrix<float, -1, -1, Eigen::RowMajor>>(sequence.logits.data(), 8,
                                                                                      static_cast<Index>(model.vocab()))
                          .cast<double>());
    }
    const auto distance = [&](Wrong wrong) {
        const Mat want = logits_of(f64, wide, wrong);
        double least = std::numeric_limits<double>::infinity(), most = 0;
        for (const Mat& y : got) {
            least = std::min(least, oracle::relative_max(y, want));
            most = std::max(most, oracle::relative_max(y, want));
        }
        return std::pair{least, most};
    };
    CHECK(distance(Wrong::nothing).second < 1e-4);
    CHECK_MESSAGE(distance(Wrong::mixes_normalised_rows).first > 1e-2, "trap 33: the mixture takes the raw rows");
    CHECK_MESSAGE(distance(Wrong::snapshot_of_the_mixed_h).first > 1e-2, "trap 34: the snapshot is the running sum");
    CHECK_MESSAGE(distance(Wrong::prefix_not_cleared).first > 1e-2, "trap 35: the sum starts again at a boundary");
    CHECK_MESSAGE(distance(Wrong::cleared_before_snapshot).first > 1e-2, "trap 35: after the snapshot");
    CHECK_MESSAGE(distance(Wrong::boundary_one_later).first > 1e-2, "trap 36: boundaries at N % block == 0, in layers");
    CHECK_MESSAGE(distance(Wrong::second_mix_of_layer_0).first > 1e-2,
                  "trap 37: only the first mix of layer 0 is trivial");
    CHECK_MESSAGE(distance(Wrong::adds_to_the_mixed_h).first > 1e-2, "trap 38: outputs are added to the running sum");
    CHECK_MESSAGE(distance(Wrong::no_output_mix).first > 1e-2, "trap 39: the output mix is not skipped");
    CHECK_MESSAGE(distance(Wrong::sides_exchanged).first > 1e-2, "trap 40: each side has its own vectors");
}
