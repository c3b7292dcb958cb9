// The oracle against answers that others made: golden A, B and F (an independent float64 pass), the demo model's stored
// answers, and the two forms of the delta rule against each other. Paths come from K3_TEST_DATA (the tests/ folder),
// set by meson.
#include <random>

#include "oracle/model_f64.hpp"
#include "support/doctest.hpp"

using namespace k3::oracle;

namespace {

const std::filesystem::path kData = K3_TEST_DATA;

nlohmann::json read_json(const std::filesystem::path& file) {
    std::ifstream in(file);
    return nlohmann::json::parse(in);
}

Mat read_logits(const std::filesystem::path& file,
                Index vocab) {  // little-endian float64; so is every host of this project
    std::ifstream in(file, std::ios::binary);
    const auto positions = static_cast<Index>(std::filesystem::file_size(file) / 8) / vocab;
    Mat m(positions, vocab);
    in.read(reinterpret_cast<char*>(m.data()), m.size() * 8);
    REQUIRE(in);
    return m;
}

Mat random(std::mt19937_64& rng, Index rows, Index cols, double low, double high) {
    std::uniform_real_distribution<double> d(low, high);
    Mat m(rows, cols);
    for (Index i = 0; i < m.size(); ++i) m.data()[i] = d(rng);
    return m;
}

}  // namespace

TEST_CASE("oracle/model_f64: golden A, B, F: every id and every logit within 1e-12 of the largest") {
    for (const std::string name : {"A", "B", "F"}) {
        CAPTURE(name);
        const auto expected = read_json(kData / "golden" / name / "expected.json");
        const Model model(kData / "golden" / name / "model");
        const auto ids = expected["full_ids"].get<std::vector<Index>>();
        const Mat want = read_logits(kData / "golden" / name / "logits.f64", model.config().vocab);
        for (const auto form : {KdaForm::sequential, KdaForm::chunked}) {
            const auto got = model.forward(ids, form);
            REQUIRE(got.logits.rows() == want.rows());
            double worst = 0;
            std::vector<Index> chosen;
            for (Index t = 0; t < want.rows(); ++t) {
                worst = std::max(worst, relative_max(got.logits.row(t), want.row(t)));
                chosen.push_back(argmax(got.logits, t));
            }
            const std::string which = name + (form == KdaForm::chunked ? " chunked" : " sequential");
            MESSAGE(which << ": max|d|/max|reference| = " << worst);
            CHECK(worst < 1e-12);
            CHECK(chosen == expected["teacher_forced_argmax"].get<std::vector<Index>>());
            CHECK(chosen.back() == expected["next_after_full"].get<Index>());
        }
    }
}

TEST_CASE("oracle/model_f64: demo: greedy ids, margins and stored logits to their printed precision") {
    const auto expected = read_json(kData / "demo" / "expected.json");
    const Model model(kData / "demo" / "model");
    double worst_logit = 0, worst_margin = 0, worst_pick = 0;
    for (const auto& p : expected["prompts"]) {
        auto ids = p["prompt_ids"].get<std::vector<Index>>();
        const auto generated = p["generated_ids"].get<std::vector<Index>>();
        const auto last = static_cast<Index>(ids.size()) - 1;
        ids.insert(ids.end(), generated.begin(), generated.end() - 1);  // teacher-forced: the same ids as step by step
        const auto r = model.forward(ids);
        for (std::size_t g = 0; g < generated.size(); ++g) {
            const Index row = last + static_cast<Index>(g);
            CHECK(argmax(r.logits, row) == generated[g]);
            Mat others = r.logits.row(row);
            others(0, generated[g]) = -1e300;
            worst_margin = std::max(worst_margin, std::fabs(r.logits(row, generated[g]) - others.maxCoeff() -
                                                            p["top1_margins"][g].get<double>()));
        }
        const auto stored = p["last_prompt_logits_every_64th"].get<std::vector<double>>();
        for (std::size_t i = 0; i < stored.size(); ++i)
            worst_logit = std::max(worst_logit, std::fabs(r.logits(last, static_cast<Index>(64 * i)) - stored[i]));
        double pick = 1e300;
        for (const auto& margin : r.margins)
            if (margin.size() > 0) pick = std::min(pick, margin.minCoeff());
        worst_pick = std::max(worst_pick, std::fabs(pick - p["min_expert_pick_margin"].get<double>()));
    }
    MESSAGE("demo: logits off by " << worst_logit << ", margins by " << worst_margin << ", pick margins by "
                                   << worst_pick);
    CHECK(worst_pick < 1e-13);
    CHECK(worst_logit <= 0.5001e-5);  // stored with five decimals
    CHECK(worst_margin <= 0.5001e-5);
}

TEST_CASE("oracle/kda_f64: the token-by-token and the chunked UT form agree to 1e-13, T = 1..130, chunks 1, 7, 64") {
    std::mt19937_64 rng(11);
    const Index dk = 12, dv = 9;
    double worst = 0;
    for (Index tokens = 1; tokens <= 130; ++tokens) {
        const Mat q = l2norm(random(rng, tokens, dk, -1, 1), 1 / std::sqrt(12.0)),
                  k = l2norm(random(rng, tokens, dk, -1, 1));
        const Mat v = random(rng, tokens, dv, -1, 1), beta = random(rng, tokens, 1, 0, 1);
        // strong and slow decay in turn: alpha in [e^-5, 1], or within 1e-3 of 1
        const Mat alpha =
            tokens % 2 == 0 ? exp(random(rng, tokens, dk, -5, 0)) : exp(random(rng, tokens, dk, -1e-3, 0));
        const Mat start = random(rng, dk, dv, -1, 1);
        const auto want = delta_rule(q, k, v, alpha, beta, start);
        for (const Index chunk : {1, 7, 64}) {
            const auto got = delta_rule_chunked(q, k, v, alpha, beta, start, chunk);
            worst = std::max({worst, relative_max(got.out, want.out), relative_max(got.state, want.state)});
        }
    }
    MESSAGE("two forms: max|d|/max = " << worst);
    CHECK(worst < 1e-13);
}

TEST_CASE("oracle/kda_f64: beta = 0 decays the state and nothing else; alpha = 0 forgets it, in both forms") {
    std::mt19937_64 rng(12);
    const Mat q = random(rng, 9, 5, -1, 1), k = random(rng, 9, 5, -1, 1), v = random(rng, 9, 4, -1, 1);
    const Mat start = random(rng, 5, 4, -1, 1), half = Mat::Constant(9, 5, 0.5), none = Mat::Zero(9, 5);
    const Mat beta0 = Mat::Zero(9, 1), beta1 = Mat::Ones(9, 1);
    CHECK(delta_rule(q, k, v, half, beta0, start).state == start / 512);
    CHECK(delta_rule_chunked(q, k, v, half, beta0, start, 4).state == start / 512);
    const Mat last = k.row(8).transpose() * v.row(8);
    CHECK(relative_max(delta_rule(q, k, v, none, beta1, start).state, last) < 1e-15);
    CHECK(relative_max(delta_rule_chunked(q, k, v, none, beta1, start, 4).state, last) < 1e-15);
}

TEST_CASE(
    "oracle/weights_f64: MXFP4 from the specification's text: codes, nibble order, scales 0, 254, 255, partial "
    "groups") {
    const double codes[16] = {0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6};
    for (unsigned i = 0; i < 16; ++i) CHECK(e2m1_to_f64(i) == codes[i]);
    CHECK(std::signbit(e2m1_to_f64(8)));
    CHECK(e8m0_to_f64(0) == 0x1p-127);
    CHECK(e8m0_to_f64(254) == 0x1p127);
    std::vector<std::uint8_t> packed(18, 0x10);  // element 0 = 0, element 1 = 0.5; 35 columns: 18 bytes, two groups
    const std::vector<std::uint8_t> scales = {128, 255};
    packed[17] = 0x77;
    const Mat w = Weight::mxfp4(packed, scales, 1, 35).all();
    CHECK(w(0, 0) == 0);
    CHECK(w(0, 1) == 1);
    CHECK(w(0, 34) == 0);
    CHECK_FALSE(std::signbit(w(0, 34)));
}

TEST_CASE("oracle/weights_f64: the padding of A_log is never read into a layer") {
    const Model model(kData / "golden" / "A" / "model");
    CHECK(model.kda(0).a_log.size() == model.config().kda_heads);
    CHECK(model.checkpoint().entry("language_model.model.layers.0.self_attn.A_log").shape[0] >
          model.config().kda_heads);
}
