// The budgets against engine32.hpp, binary32 arithmetic written from docs/NUMERICS.md. Each must hold (ratio <= 1)
// and must not be vacuous (the worst ratio seen is above a stated floor).
#include <random>

#include "oracle/engine32.hpp"
#include "oracle/model_f64.hpp"
#include "support/doctest.hpp"

using namespace k3::oracle;
using namespace k3::oracle::engine32;

namespace {

/// Random binary32 values as double.
Mat random(std::mt19937_64& rng, Index rows, Index cols, double low = -1, double high = 1) {
    std::uniform_real_distribution<double> d(low, high);
    Mat m(rows, cols);
    for (Index i = 0; i < m.size(); ++i) m.data()[i] = f64(rn(d(rng)));
    return m;
}
void judge(const std::string& name, const Mat& engine, const Bounded& want, double floor) {
    const double ratio = worst_ratio(engine, want);
    const double relative = want.budget.maxCoeff() / want.value.cwiseAbs().maxCoeff();
    MESSAGE(name << ": worst " << ratio << " x budget; largest budget / largest value " << relative);
    CHECK(ratio <= 1);
    CHECK(ratio >= floor);
}

}  // namespace

TEST_CASE("oracle/kernels_f64: budgets of dot, matmul and the norms hold and are within 4x of what binary32 does") {
    std::mt19937_64 rng(1);
    const Mat x = random(rng, 16, 300), w = random(rng, 40, 300);
    judge("matmul", matmul32(x, w), matmul(exact(x), Weight::dense(w)), 0.5);
    double worst = 0;
    for (Index r = 0; r < 40; ++r) {
        const double y = dot64(row(x, 0), row(w, r));
        const Vec a = x.row(0).transpose(), b = w.row(r).transpose();
        CHECK(std::fabs(y - dot(a, b)) <= dot64_budget(a, b));
        worst = std::max(worst, std::fabs(f64(rn(y)) - dot(a, b)) / dot_budget(a, b));
    }
    CHECK(worst <= 1);
    CHECK(worst > 0.5);
    const Vec gain = random(rng, 1, 300).row(0).transpose();
    judge("rmsnorm", rmsnorm32(x, gain, 1e-5), rmsnorm(exact(x), gain, 1e-5), 0.3);
    judge("rmsnorm, tiny input", rmsnorm32(x * 0x1p-12, gain, 1e-6), rmsnorm(exact(x * 0x1p-12), gain, 1e-6), 0.3);
    judge("l2norm", l2norm32(x, 1), l2norm(exact(x)), 0.3);
    const double scale = 1 / std::sqrt(300.0);
    judge("l2norm, scaled", l2norm32(x, scale), l2norm(exact(x), scale), 0.3);
    CHECK(worst_ratio(rmsnorm32(x * 0x1p-8, gain, 1e-5), rmsnorm(exact(x * 0x1p-8), gain, 1e-6)) >
          1000);  // trap 43: another epsilon
}

TEST_CASE("oracle/kernels_f64: budgets of SiTU-GLU, short_conv and decay hold over their whole range") {
    std::mt19937_64 rng(2);
    for (const double range : {0.1, 10.0, 1000.0}) {
        const Mat g = random(rng, 20, 200, -range, range), u = random(rng, 20, 200, -range, range);
        judge("situ_glu", each32(g, u, situ32), situ_glu(exact(g), exact(u), {4, 25}), 0.1);
    }
    const Mat u = random(rng, 7, 500, -3, 3), w = random(rng, 500, 4);
    judge("short_conv", conv32(u, w), short_conv(exact(u), w), 0.2);
    const Vec dt = random(rng, 1, 500).row(0).transpose();
    judge("decay", decay32(u * 4, -0.5f, dt, -5), decay(exact(u * 4), -0.5, dt, -5), 0.1);
}

TEST_CASE(
    "oracle/kda_f64: the budget of 300 steps of delta_rule holds, stays below 1 % of the output, and catches a decay "
    "one step late") {
    std::mt19937_64 rng(3);
    const Index dk = 32, dv = 24, tokens = 300;
    const Mat q = l2norm32(random(rng, tokens, dk), 1 / std::sqrt(32.0)), k = l2norm32(random(rng, tokens, dk), 1);
    const Mat v = random(rng, tokens, dv), beta = random(rng, tokens, 1, 0, 1);
    for (const double slowest : {0.0, 0.999}) {
        const Mat alpha = random(rng, tokens, dk, slowest, 1);
        Mat state = Mat::Zero(dk, dv);
        const Mat got = delta32(q, k, v, alpha, beta, state);
        const auto want = delta_rule(exact(q), exact(k), exact(v), exact(alpha), exact(beta), zeros<Bounded>(dk, dv));
        judge("delta_rule, out", got, want.out, 0.002);
        judge("delta_rule, state", state, want.state, 0.0005);
        CHECK(want.out.budget.maxCoeff() < 1e-2 * want.out.value.cwiseAbs().maxCoeff());
        // trap 6: decay after the read and the write instead of before
        Mat late = alpha;
        late.row(0).setOnes();
        late.bottomRows(tokens - 1) = alpha.topRows(tokens - 1);
        CHECK(worst_ratio(delta_rule(q, k, v, late, beta, Mat::Zero(dk, dv)).out, want.out) > 10);
    }
}

TEST_CASE("oracle/attention_f64: the absorbed binary32 form stays in the budget of the expanded float64 one") {
    std::mt19937_64 rng(4);
    const AttentionShape a{3, 12, 6, 10, 28};
    const Mat q = random(rng, 20, 3 * 18, -4, 4), latent = random(rng, 33, 28, -2, 2), key = random(rng, 33, 6, -2, 2);
    const Mat kv_b = random(rng, 3 * 22, 28);
    const auto want = latent_attention(exact(q), exact(latent), exact(key), Weight::dense(kv_b), a);
    judge("latent_attention", attention32(q, latent, key, kv_b, a), want, 0.01);
    const AttentionShape swapped{3, 10, 8, 12, 28};  // trap 16 and 17: other strides; must be far outside
    CHECK(worst_ratio(latent_attention(q, latent, random(rng, 33, 8), Weight::dense(kv_b), swapped).leftCols(30),
                      want) > 1000);
}

TEST_CASE(
    "oracle/kernels_f64: the budget of attention_residual holds for 1 to 9 sources; one source comes back unchanged") {
    std::mt19937_64 rng(5);
    const Vec norm = random(rng, 1, 100).row(0).transpose(), proj = random(rng, 1, 100).row(0).transpose();
    std::vector<Mat> sources;
    std::vector<Bounded> bounded;
    for (int m = 1; m <= 9; ++m) {
        sources.push_back(random(rng, 6, 100, -m, m));
        bounded.push_back(exact(sources.back()));
        judge("attention_residual", residual32(sources, norm, proj, 1e-5),
              attention_residual(bounded, norm, proj, 1e-5), m == 1 ? 0 : 0.01);
    }
    CHECK(attention_residual({sources[0]}, norm, proj, 1e-5) == sources[0]);
}

TEST_CASE(
    "oracle/kernels_f64: router: budgets, ties to the lower id, unbiased weights, choices inside the budget only") {
    std::mt19937_64 rng(6);
    const Mat x = random(rng, 8, 64), gate = random(rng, 12, 64);
    const Vec bias = random(rng, 1, 12).row(0).transpose();
    const RouterSettings set{3, true, 1.5};
    const auto r = router(exact(x), Weight::dense(gate), bias, set);
    const Mat logit = matmul32(x, gate);
    Mat s(8, 12), key(8, 12), w(8, 3);
    for (Index t = 0; t < 8; ++t) {
        for (Index e = 0; e < 12; ++e) {
            s(t, e) = f64(sigmoid32(rn(logit(t, e))));
            key(t, e) = f64(rn(s(t, e)) + rn(bias(e)));
        }
        double sum = 0;
        const auto& picks = r.picks[static_cast<std::size_t>(t)];
        for (const Index e : picks) sum += s(t, e);
        for (Index j = 0; j < 3; ++j) w(t, j) = f64(rn(s(t, picks[static_cast<std::size_t>(j)]) / (sum + 1e-20) * 1.5));
        CHECK(choice_allowed(r, t, picks));
        CHECK_FALSE(choice_allowed(r, t, {picks[1], picks[0], picks[2]}));
        CHECK_FALSE(choice_allowed(r, t, {picks[0], picks[1], picks[1]}));
        CHECK(r.weights.value.row(t).sum() == doctest::Approx(1.5));
    }
    judge("router scores", s, r.scores, 0.1);
    judge("router keys", key, r.keys, 0.1);
    judge("router weights", w, r.weights, 0.1);
    const auto tie = router(Mat(Mat::Zero(1, 64)), Weight::dense(gate), Vec::Zero(12), set);
    CHECK(tie.picks[0] == std::vector<Index>{0, 1, 2});
}

TEST_CASE(
    "oracle/layers_f64: whole sublayers in binary32 stay in the budget carried from exact inputs: golden A, B, demo") {
    std::mt19937_64 rng(7);
    for (const std::string name : {"golden/A/model", "golden/B/model", "demo/model"}) {
        const Model model(std::filesystem::path(K3_TEST_DATA) / name);
        const Config& c = model.config();
        Index kda = 1, mla = 1;  // the first of each kind behind the dense layer
        while (model.is_mla(kda)) ++kda;
        while (!model.is_mla(mla)) ++mla;
        const Mat x = random(rng, 24, c.hidden, -2, 2);
        const KdaWeights kw = model.kda(kda);
        const MlaWeights mw = model.mla(mla);
        const auto ke = kda32(x, kw);
        const auto me = mla32(x, mw);
        judge(name + " KDA, whole", ke.out, kda_layer(exact(x), kw).out, 1e-3);
        judge(name + " MLA, whole", me.out, mla_layer(exact(x), mw).out, 1e-4);
        // the same by stage, each from the engine's own inputs
        const auto kp = kda_project(exact(x), kw);
        judge(name + " KDA q", ke.q, kp.q, 0.02);
        judge(name + " KDA alpha", ke.alpha, kp.alpha, 0.005);
        const KdaStages<Bounded> shared{exact(ke.q),    exact(ke.k), exact(ke.v), exact(ke.alpha),
                                        exact(ke.beta), {},          {},          {}};
        judge(name + " KDA mixed", ke.mixed, kda_mix(shared, kw), 0.005);
        judge(name + " KDA gated", ke.gated, kda_gate(exact(x), exact(ke.mixed), kw), 0.1);
        judge(name + " KDA out", ke.out, matmul(exact(ke.gated), kw.out), 0.1);
        const auto mp = mla_project(exact(x), mw);
        judge(name + " MLA q", me.q, mp.q, 0.01);
        judge(name + " MLA latent", me.latent, mp.latent, 0.05);
        judge(name + " MLA key", me.key, mp.key, 0.1);
        judge(name + " MLA mixed", me.mixed,
              latent_attention(exact(me.q), exact(me.latent), exact(me.key), mw.kv_b, mw.shape), 0.005);
        judge(name + " MLA gated", me.gated, mla_gate(exact(x), exact(me.mixed), mw), 0.1);
        judge(name + " dense", mlp32(x, model.dense(0)), dense_mlp(exact(x), model.dense(0), c.situ), 5e-3);
        const Moe moe = model.moe(kda);
        const auto want = latent_moe(exact(x), moe, c.situ, c.eps);
        judge(name + " MoE", moe32(x, moe, c.eps, want.routing.picks), want.out, 2e-3);
        // a forced choice reaches the output: the two best experts exchanged moves nothing but roundings, another
        // expert does
        Picks other = want.routing.picks;
        for (auto& p : other) std::swap(p[0], p[1]);
        CHECK(worst_ratio(latent_moe(x, moe, c.situ, c.eps, &other).out, want.out) < 1);
        for (auto& p : other)
            for (p[0] = 0; std::find(p.begin() + 1, p.end(), p[0]) != p.end(); ++p[0]) {
            }
        CHECK(worst_ratio(latent_moe(x, moe, c.situ, c.eps, &other).out, want.out) > 100);
    }
}
