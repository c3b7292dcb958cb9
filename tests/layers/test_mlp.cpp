#include "k3/layers/mlp.hpp"

#include "engine/panels.hpp"
#include "layers/data.hpp"

using namespace k3;
using namespace k3::tests;
using core::FaultCode;

namespace {
constexpr layers::Situ kSitu{3.5F, 21.0F};  // not the release's: trap 29
constexpr oracle::Situ kSitu64{3.5, 21};

struct Fixture {
    Fixture(Weights& made, Format format, std::size_t in, std::size_t width, std::size_t out, double sd = -1)
        : gate(made.make(format, width, in, sd)),
          up(made.make(format, width, in, sd)),
          down(made.make(format, out, width)) {}
    layers::MlpWeights engine() const { return {gate.weight, up.weight, down.weight}; }
    oracle::Mlp f64() const { return {gate.f64, up.f64, down.f64}; }
    Pair gate, up, down;
};

Floats run(const LayerTable* table, const layers::MlpWeights& w, layers::Situ situ, const Floats& x, std::size_t tokens,
           unsigned threads = 2) {
    const std::size_t in = w.gate.cols, out = w.down.rows;
    const Bench bench(threads, layers::mlp_bytes(tokens, w.gate.rows));
    Floats y(tokens * out, -9.0F);
    REQUIRE_FALSE(table->mlp({bench.exec, nullptr, nullptr}, w, situ, {x.data(), tokens, in}, {y.data(), tokens, out},
                             bench.arena()));
    CHECK(bench.guard_is_clean());
    return y;
}
}  // namespace

TEST_CASE("layers/mlp: the dense MLP within its budget on random shapes and golden weights, the same bits everywhere") {
    Ratios ratios("layers/mlp");
    Weights made(1);
    for (const Format format : {Format::bf16, Format::f32, Format::mxfp4}) {
        const std::size_t in = 45, width = 77, out = 51, tokens = 40;
        const Fixture f(made, format, in, width, out, 0.4);
        const Floats x = made.rng.normals(tokens * in);
        const Bounded want = oracle::dense_mlp(oracle::exact(mat(x, tokens, in)), f.f64(), kSitu64);
        Floats first;
        for (const LayerTable* table : tables())
            for (const unsigned threads : {1U, 2U, 3U}) {
                const Floats y = run(table, f.engine(), kSitu, x, tokens, threads);
                if (first.empty()) {
                    CHECK(ratios.add("random", mat(y, tokens, out), want) <= 1.0);
                    first = y;
                }
                CHECK(same_bits(y, first));
                CHECK(same_bits(run(table, f.engine(), kSitu, part(x, 0, in), 1, threads), part(first, 0, out)));
            }
    }
    for (const char* name : {"A", "B", "F"}) {
        const Loaded model(golden_dir(name));
        const oracle::Model f64(golden_dir(name));
        const std::size_t hidden = model.config.shape.hidden, tokens = 20;
        const Floats x = made.rng.normals(tokens * hidden);
        const Bounded want = oracle::dense_mlp(oracle::exact(mat(x, tokens, hidden)), f64.dense(0), f64.config().situ);
        for (const LayerTable* table : tables())
            CHECK(ratios.add(name,
                             mat(run(table, model.bound.view().layers[0].mlp, {4, 25}, x, tokens), tokens, hidden),
                             want) <= 1.0);
    }
}

TEST_CASE("layers/mlp: trap 28, the sigmoid takes the raw gate, both caps hold, gate and up are not exchanged") {
    // W = identity, so the inputs reach SiTU as they are: from 0.1 to 1000, both signs; below 1 all variants agree.
    Weights made(2);
    const Floats inputs{0.1F, 1, 3, 10, 30, 100, 1000, -0.1F, -1, -3, -10, -30, -1000};
    const std::size_t n = inputs.size();
    const layers::MlpWeights w{made.pick(n, 2 * n, 0).weight, made.pick(n, 2 * n, n).weight, made.pick(n, n, 0).weight};
    for (const LayerTable* table : tables()) {
        double largest = 0;
        for (const float u : inputs) {
            Floats x(2 * n, u);
            std::copy(inputs.begin(), inputs.end(), x.begin());
            const Floats y = run(table, w, kSitu, x, 1);
            for (std::size_t i = 0; i < n; ++i) {
                const double g = static_cast<double>(inputs[i]), v = static_cast<double>(u),
                             capped = 3.5 * std::tanh(g / 3.5);
                const auto sigmoid = [](double z) { return 1 / (1 + std::exp(-z)); };
                const double right = capped * sigmoid(g) * 21 * std::tanh(v / 21);
                CHECK(std::fabs(static_cast<double>(y[i]) - right) <= 1e-6 * std::fabs(right) + 1e-30);
                largest = std::max(largest, std::fabs(static_cast<double>(y[i])));
                if (std::fabs(g) < 3 || std::fabs(v) < 3) continue;
                for (const double wrong : {capped * sigmoid(capped) * 21 * std::tanh(v / 21), g * sigmoid(g) * v,
                                           g * sigmoid(g) * 21 * std::tanh(v / 21), capped * sigmoid(g) * v,
                                           21 * std::tanh(g / 21) * sigmoid(g) * 3.5 * std::tanh(v / 3.5)})
                    if (std::fabs(wrong - right) > 1e-3 * std::fabs(right))
                        CHECK(std::fabs(static_cast<double>(y[i]) - wrong) > 1e-4 * std::fabs(right));
            }
        }
        CHECK(largest == 3.5 * 21);  // the bound is reached exactly
    }
}

TEST_CASE(
    "layers/mlp: streamed in panels of 1, 3 or all rows: the same bits; a failing panel is a fault, nothing is kept") {
    Weights made(3);
    const std::size_t in = 45, width = 31, out = 51, tokens = 6;
    const Fixture f(made, Format::bf16, in, width, out);
    const Floats x = made.rng.normals(tokens * in);
    for (const LayerTable* table : tables()) {
        const Floats want = run(table, f.engine(), kSitu, x, tokens);
        for (const std::size_t rows : {std::size_t{1}, std::size_t{3}, PanelSource::kAll}) {
            std::size_t panels = 0;
            for (std::size_t fail_at = PanelSource::kAll;; fail_at = fail_at == PanelSource::kAll ? 0 : fail_at + 1) {
                PanelSource source(rows, fail_at);
                layers::MlpWeights w = f.engine();
                for (layers::Weight* m : {&w.gate, &w.up, &w.down}) source.take(*m);
                const Bench bench(2, layers::mlp_bytes(tokens, width));
                Floats y(tokens * out);
                const core::Fault fault = table->mlp({bench.exec, &source, nullptr}, w, kSitu, {x.data(), tokens, in},
                                                     {y.data(), tokens, out}, bench.arena());
                CHECK(source.outstanding == 0);
                CHECK(source.mistakes == 0);
                if (fail_at == PanelSource::kAll) {
                    panels = source.acquired;
                    CHECK_FALSE(fault);
                    CHECK(same_bits(y, want));
                } else {
                    CHECK(fault.code == FaultCode::weight_failed);
                    if (fail_at + 1 == panels) break;
                }
            }
        }
    }
}
