// route and argmax: bits on every arch against the plain loops, and one fixture per wrong variant.
#include "support/doctest.hpp"
#include "support/kernel_table.hpp"
#include "support/kernel_table_data.hpp"
#include "support/kernel_table_twin.hpp"

using namespace k3;
using namespace k3::tests;

namespace {

struct Choice {
    bool good = false;
    std::vector<std::int32_t> ids;
    std::vector<float> weights;
};
Choice choose(const KernelTable& table, const std::vector<float>& logits, const std::vector<float>& bias, Router rule) {
    const std::size_t n = logits.size();
    Choice c{false, std::vector<std::int32_t>(rule.top_k + 1, -9), std::vector<float>(rule.top_k + 1, -9.0F)};
    std::vector<float> scratch(n + 1, -9.0F);
    c.good = table.route(logits.data(), bias.data(), n, rule, c.ids.data(), c.weights.data(), scratch.data());
    CHECK(c.ids[rule.top_k] == -9);
    CHECK(c.weights[rule.top_k] == -9.0F);
    CHECK(scratch[n] == -9.0F);
    c.ids.resize(rule.top_k);
    c.weights.resize(rule.top_k);
    return c;
}
using Ids = std::vector<std::int32_t>;

}  // namespace

TEST_CASE("kernels/top_k: route is repeated maximum on every arch: ids and weights, ties included") {
    for (const KernelTable* table : tables_of_this_cpu()) {
        std::uint64_t seed = 0;
        for (const std::size_t experts : {1U, 2U, 7U, 8U, 9U, 31U, 64U, 257U})
            for (const std::size_t k : {1U, 2U, 3U, 8U, 16U})
                for (int form = 0; form < 6; ++form) {
                    if (k > experts) continue;
                    ++seed;
                    std::vector<float> logits(experts), bias(experts);
                    for (std::size_t e = 0; e < experts; ++e) {
                        // coarse: many exact ties; saturated: scores 0 and 1
                        const float u = uniform(seed, e);
                        logits[e] = form % 3 == 0 ? 4 * u : (form % 3 == 1 ? std::floor(3 * u) : 300 * u);
                        bias[e] = form < 3 ? 0.0F : std::floor(4 * uniform(seed + 1, e)) / 8;
                    }
                    const Router rule{k, form % 2 == 0, form < 3 ? 1.0 : 2.827};
                    const Choice got = choose(*table, logits, bias, rule);
                    Ids ids(k);
                    std::vector<float> weights(k);
                    REQUIRE(got.good);
                    REQUIRE(twin::route(logits.data(), bias.data(), experts, rule, ids.data(), weights.data()));
                    CAPTURE(std::string(table->name));
                    CAPTURE(experts);
                    CAPTURE(k);
                    REQUIRE(got.ids == ids);
                    REQUIRE(difference(got.weights, weights) == "");
                }
    }
}

TEST_CASE("kernels/top_k: trap 25, equal keys go to the lower id, also at the edge of the choice") {
    for (const KernelTable* table : tables_of_this_cpu()) {
        const std::vector<float> same_logits(20, 0.5F), zero(20, 0.0F);
        CHECK(choose(*table, same_logits, zero, {4, true, 1.0}).ids == Ids{0, 1, 2, 3});
        std::vector<float> logits(20, 0.5F);
        logits[13] = 2.0F;
        logits[3] = -1.0F;
        CHECK(choose(*table, logits, zero, {4, true, 1.0}).ids == Ids{13, 0, 1, 2});
        // Different logits, equal keys: sigmoid(100) = sigmoid(200) = 1.
        logits[17] = 100.0F;
        logits[5] = 200.0F;
        CHECK(choose(*table, logits, zero, {3, true, 1.0}).ids == Ids{5, 17, 13});
        const std::vector<float> signs{-0.0F, 0.0F, -0.0F};  // -0 and +0 are one key
        CHECK(choose(*table, {-300, -300, -300}, signs, {2, false, 1.0}).ids == Ids{0, 1});
    }
}

TEST_CASE("kernels/top_k: traps 21 and 22, the bias chooses and nothing else: weights come from the unbiased scores") {
    for (const KernelTable* table : tables_of_this_cpu()) {
        const std::vector<float> logits{2, 1, 0, -1}, bias{-5, 0, 0, 5};
        const Choice c = choose(*table, logits, bias, {2, true, 1.0});
        CHECK(c.ids == Ids{3, 1});  // without the bias: 0, 1
        const double a = 1 / (1 + std::exp(1.0)), b = 1 / (1 + std::exp(-1.0));
        CHECK(c.weights[0] == doctest::Approx(a / (a + b)).epsilon(1e-6));  // from keys: 0.88
        CHECK(c.weights[1] == doctest::Approx(b / (a + b)).epsilon(1e-6));
    }
}

TEST_CASE(
    "kernels/top_k: trap 23, sigmoid scores renormalised to the scaling factor, applied once; not when asked not to") {
    for (const KernelTable* table : tables_of_this_cpu()) {
        const std::vector<float> logits{3, 2, 1, -4}, zero(4, 0.0F);
        const Choice on = choose(*table, logits, zero, {3, true, 2.5}),
                     off = choose(*table, logits, zero, {3, false, 2.5});
        CHECK(on.weights[0] + on.weights[1] + on.weights[2] == doctest::Approx(2.5).epsilon(1e-6));
        for (std::size_t j = 0; j < 3; ++j)
            CHECK(off.weights[j] == doctest::Approx(2.5 / (1 + std::exp(-twin::f64(logits[j])))).epsilon(1e-6));
        const double softmax = std::exp(3.0) / (std::exp(3.0) + std::exp(2.0) + std::exp(1.0));
        CHECK(std::fabs(on.weights[0] / 2.5 - softmax) > 0.1);
    }
}

TEST_CASE("kernels/top_k: a single chosen expert is not renormalised: its weight is score * scale") {
    for (const KernelTable* table : tables_of_this_cpu()) {
        const Choice c = choose(*table, {-2, 0, -1}, {0, 0, 0}, {1, true, 3.0});
        CHECK(c.ids == Ids{1});
        CHECK(same(c.weights[0], 1.5F));  // renormalised it would be 3
    }
}

TEST_CASE("kernels/top_k: all chosen scores zero: the 1e-20 keeps the weights zero instead of NaN") {
    for (const KernelTable* table : tables_of_this_cpu()) {
        const Choice c = choose(*table, {-300, -300, -300}, {0, 0, 0}, {2, true, 1.0});
        CHECK(c.good);
        CHECK(same(c.weights[0], 0.0F));
        CHECK(same(c.weights[1], 0.0F));
    }
}

TEST_CASE("kernels/top_k: a NaN key anywhere is an error, an infinite one is ordinary") {
    for (const KernelTable* table : tables_of_this_cpu())
        for (const std::size_t n : {1U, 8U, 9U, 33U})
            for (std::size_t bad = 0; bad < n; ++bad) {
                std::vector<float> logits(n, 0.25F), bias(n, 0.0F);
                logits[bad] = kNaN;
                CHECK_FALSE(choose(*table, logits, bias, {1, true, 1.0}).good);
                logits[bad] = 0.0F;
                bias[bad] = kNaN;
                CHECK_FALSE(choose(*table, logits, bias, {1, true, 1.0}).good);
                bias[bad] = kInf;
                const Choice c = choose(*table, logits, bias, {1, true, 1.0});
                CHECK(c.good);
                CHECK(c.ids[0] == static_cast<std::int32_t>(bad));
                CHECK(same(c.weights[0], 0.5F));
                bias[bad] = 0.0F;
                logits[bad] = kInf;
                CHECK(choose(*table, logits, bias, {1, true, 1.0}).ids[0] == static_cast<std::int32_t>(bad));
            }
}

TEST_CASE(
    "kernels/top_k: argmax is the lowest index on ties, -1 with a NaN anywhere or no values; infinities are ordinary") {
    for (const KernelTable* table : tables_of_this_cpu()) {
        CHECK(table->argmax(nullptr, 0) == -1);
        for (const std::size_t n : lengths()) {
            if (n == 0) continue;
            Floats x(n, Kind::plain, n);
            for (std::size_t at = 0; at < n; at += 1 + n / 17) {
                Floats y = x;
                y[at] = 9.0F;
                if (at + 3 < n) y[at + 3] = 9.0F;
                CHECK(table->argmax(y, n) == static_cast<std::int64_t>(at));
                y[n - 1] = kNaN;
                CHECK(table->argmax(y, n) == -1);
                y[n - 1] = kInf;
                CHECK(table->argmax(y, n) == static_cast<std::int64_t>(n - 1));
                y.fill(-kInf);
                CHECK(table->argmax(y, n) == 0);
                y[at] = kNaN;
                CHECK(table->argmax(y, n) == -1);
            }
        }
        const float zeros[3] = {-0.0F, 0.0F, -0.0F};
        CHECK(table->argmax(zeros, 3) == 0);
    }
}
