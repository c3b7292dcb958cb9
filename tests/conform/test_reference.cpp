// The two float64 references against each other: k3-conform's (chunked KDA, expanded MLA, weights read by block) and
// tests/oracle's (its own readers; here the token-by-token delta rule). They share the arithmetic of budgets
// (drivers/conform/rounding.hpp) and no formula of a value.
#include <random>

#include "drivers/conform/check_mlp.hpp"
#include "oracle/model_f64.hpp"
#include "support/doctest.hpp"

namespace conform = k3::conform;
namespace oracle = k3::oracle;
using conform::Index, conform::Mat;

namespace {

const std::string kGolden = K3_SOURCE_DIR "/tests/golden/";
constexpr std::size_t kTokens = 70;  // beyond one chunk of the UT transform

/// A checkpoint read by both.
struct Both {
    explicit Both(const std::string& name)
        : dir(kGolden + name + "/model"),
          config(k3::model::read_config(dir + "/config.json")),
          index(k3::checkpoint::ShardIndex::open(dir, 1)),
          model(dir) {}
    conform::Reference reference() const { return {index, config.shape, 2}; }
    std::string dir;
    k3::model::ModelConfig config;
    k3::checkpoint::ShardIndex index;
    oracle::Model model;
};

Mat random(std::uint64_t seed, Index rows, Index cols) {
    std::mt19937_64 rng(seed);
    std::normal_distribution<double> d;
    Mat m(rows, cols);
    for (Index i = 0; i < m.size(); ++i) m.data()[i] = d(rng);
    return m;
}

/// The chained rows of the reference depend on nothing the engine computed but its choice of experts.
Mat chained(const Mat& x) {
    Mat both = Mat::Zero(2 * x.rows(), x.cols());
    both.bottomRows(x.rows()) = x;
    return both;
}
Mat chained_out(const Mat& both) { return both.bottomRows(both.rows() / 2); }

conform::Rows none(std::size_t cols) { return {kTokens, cols}; }

Mat attention(const Both& b, std::size_t n, const Mat& x) {
    const k3::model::Config& c = b.config.shape;
    conform::LayerResult result;
    conform::Judge judge(result);
    if (b.config.kinds[n] == k3::model::LayerKind::kda) {
        const std::size_t w = c.kda_width();
        conform::KdaRun run{{none(w), none(w), none(w)}, none(w), none(w), none(w),        none(c.kda_heads),
                            none(c.kda_head_dim),        none(w), none(w), none(c.hidden), {}};
        run.state.assign(w * c.kda_head_dim, 0.0F);
        return chained_out(check_kda(judge, b.reference(), n, chained(x), run));
    }
    const std::size_t w = c.heads * c.v_head;
    const conform::MlaRun run{none(c.q_lora),  none(c.q_lora),  none(c.heads * c.qk_head()),
                              none(c.kv_lora), none(c.qk_rope), none(w),
                              none(w),         none(c.hidden)};
    return chained_out(check_mla(judge, b.reference(), n, chained(x), run));
}

Mat mlp(const Both& b, std::size_t n, const Mat& x, const oracle::Picks& picks) {
    const k3::model::Config& c = b.config.shape;
    conform::LayerResult result;
    conform::Judge judge(result);
    if (n < c.first_dense)
        return chained_out(check_dense(judge, b.reference(), n, chained(x), {none(c.dense_width), none(c.hidden)}));
    const std::size_t slots = kTokens * c.experts_per_token;
    conform::MoeRun run{
        none(c.experts), none(c.latent), none(c.latent), none(c.hidden), {none(c.shared_width()), none(c.hidden)}, {}};
    run.experts = {{}, none(c.latent), {slots, c.expert_width}, {slots, c.latent}};
    for (const auto& token : picks)
        for (const Index id : token) run.experts.ids.push_back(static_cast<std::int32_t>(id));
    return chained_out(check_moe(judge, b.reference(), n, chained(x), run));
}

}  // namespace

TEST_CASE("conform/check: every sublayer of golden A and F as in the oracle, to 1e-11 of the largest value") {
    for (const std::string name : {"A", "F"}) {
        const Both b(name);
        double worst_attention = 0, worst_mlp = 0;
        for (std::size_t n = 0; n < b.config.shape.layers; ++n) {
            const auto layer = static_cast<Index>(n);
            const Mat x = random(100 + n, static_cast<Index>(kTokens), static_cast<Index>(b.config.shape.hidden));
            const Mat want = b.model.attention(layer, x, oracle::KdaForm::sequential);
            worst_attention = std::max(worst_attention, oracle::relative_max(attention(b, n, x), want));
            if (b.model.is_dense(layer)) {
                const Mat dense = oracle::dense_mlp(x, b.model.dense(layer), b.model.config().situ);
                worst_mlp = std::max(worst_mlp, oracle::relative_max(mlp(b, n, x, {}), dense));
            } else {
                const auto moe = oracle::latent_moe(x, b.model.moe(layer), b.model.config().situ, b.model.config().eps);
                worst_mlp = std::max(worst_mlp, oracle::relative_max(mlp(b, n, x, moe.routing.picks), moe.out));
            }
        }
        MESSAGE(name << ": attention " << worst_attention << ", mlp " << worst_mlp);
        CHECK(worst_attention < 1e-11);
        CHECK(worst_mlp < 1e-11);
    }
}

TEST_CASE("conform/formulas: the residual mix as in the oracle, one to five sources") {
    for (Index m = 1; m <= 5; ++m) {
        std::vector<Mat> sources, both;
        for (Index s = 0; s < m; ++s) {
            sources.push_back(random(static_cast<std::uint64_t>(10 * m + s), 6, 40));
            both.push_back(chained(sources.back()));
        }
        const conform::Vec norm = random(7, 40, 1).col(0), proj = random(8, 40, 1).col(0);
        const Mat got = chained_out(conform::attention_residual(both, norm, proj, 1e-5).value);
        CHECK(oracle::relative_max(got, oracle::attention_residual(sources, norm, proj, 1e-5)) < 1e-13);
    }
}

TEST_CASE("conform/delta_rule: invariants 2 and 3: Akk without a diagonal, Aqk with one, the inverse of I + Akk") {
    // Two tokens, one key, by hand: S1 = b k v1; u2 = a k S1; S2 = a S1 + b k (v2 - u2); o = q S.
    const double k = 0.8, a = 0.5, b = 0.75, q = 0.6, v1 = 2, v2 = -1;
    conform::DeltaHead head{Mat::Constant(2, 1, q), Mat::Constant(2, 1, k), Mat(2, 1), Mat::Constant(2, 1, a),
                            conform::Vec::Constant(2, b)};
    head.v << v1, v2;
    const double s1 = b * k * v1, s2 = a * s1 + b * k * (v2 - a * k * s1);
    Mat state;
    const Mat out = delta_rule_by_chunks(head, state);
    CHECK(out(0, 0) == doctest::Approx(q * s1).epsilon(1e-15));
    CHECK(out(1, 0) == doctest::Approx(q * s2).epsilon(1e-15));
    CHECK(state(0, 0) == doctest::Approx(s2).epsilon(1e-15));
}

TEST_CASE("conform/delta_rule: chunks of 1, 7 and 64 agree, and an alpha of 0 forgets") {
    const Index n = 130, dim = 12;
    conform::DeltaHead head{random(1, n, dim) / 12, random(2, n, dim), random(3, n, dim), random(4, n, dim),
                            random(5, n, 1).col(0)};
    for (Index t = 0; t < n; ++t) head.k.row(t).normalize();
    head.alpha = head.alpha.unaryExpr([](double v) { return conform::sigmoid(v); });
    head.beta = head.beta.unaryExpr([](double v) { return conform::sigmoid(v); });
    head.alpha.row(99).setZero();
    Mat state, other;
    const Mat want = delta_rule_by_chunks(head, state, 1);
    for (const Index chunk : {7, 64}) {
        CHECK(oracle::relative_max(delta_rule_by_chunks(head, other, chunk), want) < 1e-13);
        CHECK(oracle::relative_max(other, state) < 1e-13);
    }
}

TEST_CASE("conform/delta_rule: the budget covers a binary32 recurrence, and not one a thousand times worse") {
    const Index n = 40, dim = 16;
    const auto floats = [](Mat m) { return Mat(m.cast<float>().cast<double>()); };
    conform::DeltaHead head{floats(random(1, n, dim) / 16), random(2, n, dim), floats(random(3, n, dim)),
                            random(4, n, dim), conform::Vec::Constant(n, 0.625)};
    for (Index t = 0; t < n; ++t) head.k.row(t).normalize();
    head.k = floats(head.k);
    head.alpha = floats(head.alpha.unaryExpr([](double v) { return conform::sigmoid(v + 2); }));
    Mat state;
    const Mat want = delta_rule_by_chunks(head, state);
    const conform::DeltaBudget budget = delta_rule_budget(head, Mat::Zero(n, dim));
    Eigen::MatrixXf s = Eigen::MatrixXf::Zero(dim, dim);
    double worst = 0;
    for (Index t = 0; t < n; ++t) {
        const auto at = [&](const Mat& m, Index i) { return static_cast<float>(m(t, i)); };
        for (Index j = 0; j < dim; ++j) {
            float u = 0, o = 0;
            for (Index i = 0; i < dim; ++i) u += at(head.k, i) * (s(i, j) * at(head.alpha, i));
            for (Index i = 0; i < dim; ++i) {
                s(i, j) = s(i, j) * at(head.alpha, i) + at(head.k, i) * 0.625F * (at(head.v, j) - u);
                o += at(head.q, i) * s(i, j);
            }
            worst = std::max(worst, std::fabs(static_cast<double>(o) - want(t, j)) / budget.out(t, j));
        }
    }
    CHECK(worst <= 1);
    CHECK(worst > 1e-3);
}

TEST_CASE("conform/check_mlp: choices within the budgets pass, any other has an excess above 1") {
    conform::Value keys{Mat(2, 4), Mat::Constant(1, 4, 0.01)};
    keys.value.row(0) << 0.5, 0.515, 0.2, 0.9;
    keys.value.row(1) = keys.value.row(0);
    std::string what;
    CHECK(conform::detail::choice_excess(keys, 0, {3, 1}, what) == 0);
    CHECK(conform::detail::choice_excess(keys, 0, {3, 0}, what) <= 1);  // 0.015 apart, within 0.01 + 0.01
    CHECK(conform::detail::choice_excess(keys, 0, {1, 3}, what) > 1);
    CHECK(conform::detail::choice_excess(keys, 0, {3, 2}, what) > 1);
    CHECK(what.find("expert 2 before expert 1") != std::string::npos);
    CHECK(std::isinf(conform::detail::choice_excess(keys, 0, {3, 3}, what)));
    CHECK(std::isinf(conform::detail::choice_excess(keys, 0, {-1, 3}, what)));
}

TEST_CASE("conform/check_mlp: an expert switched off by a bias of -inf is left out, and a NaN among the keys fails") {
    const double infinity = std::numeric_limits<double>::infinity(), nan = std::numeric_limits<double>::quiet_NaN();
    const auto excess = [](const std::vector<double>& row, const std::vector<std::int32_t>& ids) {
        const auto n = static_cast<Index>(row.size());
        const Mat off = Mat::Zero(2, n);
        Mat bias(2, n);
        for (Index i = 0; i < n; ++i) bias(0, i) = bias(1, i) = row[static_cast<std::size_t>(i)];
        std::string what;  // the budgets are those check_moe would have: infinite where the key is
        const double ratio =
            conform::detail::choice_excess(sum(conform::exact(off), conform::exact(bias)), 0, ids, what);
        CHECK(what.empty() == (ratio == 0));
        return ratio;
    };
    CHECK(excess({0.9, -infinity, 0.1, 0.05}, {0, 2}) == 0);
    CHECK(excess({0.9, -infinity, 0.1, 0.05}, {0, 3}) > 1);
    CHECK(std::isinf(excess({0.9, -infinity, 0.1, 0.05}, {0, 1})));  // though its budget is infinite
    CHECK(std::isinf(excess({0.9, -infinity, 0.1, 0.05}, {1, 0})));
    CHECK(excess({0.9, -infinity, -infinity, -infinity}, {0, 2}) == 0);
    CHECK(excess({0.9, infinity, 0.1}, {1, 0}) == 0);
    CHECK(std::isinf(excess({0.9, infinity, 0.1}, {0, 1})));
    CHECK(std::isinf(excess({0.9, 0.1, nan, 0.05}, {1})));
    CHECK(std::isinf(excess({0.9, 0.1, nan, 0.05}, {0})));  // nothing can be said of it
    CHECK(std::isinf(excess({0.9, 0.1, nan, 0.05}, {2})));
}

TEST_CASE("conform/judge: ratio and place are of one part, a wide budget shows, a row of NaN has no column") {
    conform::LayerResult layer;
    conform::Judge judge(layer);
    conform::Rows engine(1, 2);
    engine.data = {1.5F, 4};
    conform::Value want{Mat(2, 2), Mat::Constant(1, 2, 0.01)};
    want.value << 1, 4, 1, 4;
    judge("a stage", engine, want, "one ");
    engine.data[0] = 3;
    judge("a stage", engine, want, "two ");
    engine.data[0] = 2;
    judge("a stage", engine, want, "three ");
    const conform::Stage& stage = layer.stages.at(0);
    CHECK(stage.worst == doctest::Approx(200));
    CHECK(stage.failure.find("two token 0, column 0: engine 3,") == 0);
    CHECK(stage.relative_budget == doctest::Approx(0.01 / 4));
    CHECK_FALSE(stage.wide());
    want.budget(0, 1) = 0.1;
    judge("a stage", engine, want, "four ");
    CHECK(stage.wide());
    judge("router choice", 0, "");
    CHECK_FALSE(layer.stages.at(1).wide());
    engine.data = {std::nanf(""), std::nanf("")};
    judge("probed", engine, want);
    CHECK(layer.stages.at(2).failure.find("token 0, column unknown (the whole row is NaN)") == 0);
    engine.data = {1, std::nanf("")};
    judge("shown", engine, want);
    CHECK(layer.stages.at(3).failure.find("token 0, column 1: ") == 0);
}
