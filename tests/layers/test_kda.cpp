#include "k3/layers/kda.hpp"

#include "engine/panels.hpp"
#include "layers/data.hpp"

using namespace k3;
using namespace k3::tests;
using core::FaultCode;

namespace {

struct Fixture {
    layers::KdaShape shape{};
    layers::KdaWeights w{};
    oracle::KdaWeights f64;
    std::size_t hidden = 0;
    std::size_t width() const { return shape.width(); }
};

/// Random weights; heads != dim, rank of the decay != dim, hidden > width so that W_o can be a selection.
Fixture random_fixture(Weights& made, Format format, bool select_out) {
    Fixture f;
    const std::size_t heads = 3, dim = 20, taps = 4, hidden = 71, rank = 13, width = heads * dim;
    f.shape = {heads, dim, taps, -5.0F, 1e-5};
    f.hidden = hidden;
    const auto pair = [&](std::size_t r, std::size_t c) { return made.make(format, r, c); };
    const Pair q = pair(width, hidden), k = pair(width, hidden), v = pair(width, hidden), g = pair(width, hidden),
               o = select_out ? made.pick(hidden, width, 0) : pair(hidden, width), f_a = pair(rank, hidden),
               f_b = pair(width, rank), b = pair(heads, hidden);
    Floats a_log(
        dim,
        std::numeric_limits<float>::quiet_NaN());  // trap 1: stored per channel, one value a head, the rest padding
    for (std::size_t h = 0; h < heads; ++h) a_log[h] = -0.8F + 0.7F * static_cast<float>(h);
    const Floats dt = made.rng.normals(width, 0.7), norm = made.rng.normals(dim, 0.5);
    Mat conv64[3];
    for (std::size_t i = 0; i < 3; ++i) {
        const Floats t = made.rng.normals(taps * width, 0.6);
        f.w.conv[i] = made.vector(t);
        conv64[i] = mat(t, taps, width).transpose();
    }
    f.w.q = q.weight, f.w.k = k.weight, f.w.v = v.weight, f.w.g = g.weight, f.w.o = o.weight;
    f.w.f_a = f_a.weight, f.w.f_b = f_b.weight, f.w.b = b.weight;
    f.w.a_log = made.vector(a_log), f.w.dt_bias = made.vector(dt), f.w.o_norm = made.vector(norm);
    f.f64 = {static_cast<Index>(heads),
             static_cast<Index>(dim),
             -5,
             1e-5,
             q.f64,
             k.f64,
             v.f64,
             g.f64,
             o.f64,
             f_a.f64,
             f_b.f64,
             b.f64,
             conv64[0],
             conv64[1],
             conv64[2],
             vec(a_log).head(static_cast<Index>(heads)),
             vec(dt),
             vec(norm)};
    return f;
}

/// A sequence's state in one layer, and the log of its last step.
struct State {
    explicit State(const Fixture& f)
        : s(f.shape), recurrent(s.heads * s.dim * s.dim), conv(3, Floats((s.taps - 1) * s.width())) {}
    layers::SegmentRows rows(std::size_t first, std::size_t tokens, bool logged) {
        layers::SegmentRows r{};
        r.first = first;
        r.tokens = tokens;
        r.kda = {recurrent.data(), {conv[0].data(), conv[1].data(), conv[2].data()}};
        if (logged) {
            for (Floats* p : {&k, &v, &alpha, &in[0], &in[1], &in[2]}) p->assign(tokens * s.width(), -3);
            beta.assign(tokens * s.heads, -3);
            r.log = {k.data(), v.data(), alpha.data(), beta.data(), {in[0].data(), in[1].data(), in[2].data()}};
        }
        return r;
    }
    Floats all() const {
        Floats out = recurrent;
        for (const Floats& c : conv) out.insert(out.end(), c.begin(), c.end());
        return out;
    }
    layers::KdaShape s;
    Floats recurrent;
    std::vector<Floats> conv;
    Floats k, v, alpha, beta, in[3];
};

Floats step(const LayerTable* table, const Fixture& f, const layers::KdaWeights& w, State& state, const Floats& x,
            bool logged = false, unsigned threads = 2) {
    const std::size_t tokens = x.size() / f.hidden;
    const Bench bench(threads, layers::kda_bytes(f.shape, w.f_a.rows, tokens));
    Floats y(tokens * w.o.rows, -9.0F);
    const layers::SegmentRows rows = state.rows(0, tokens, logged);
    REQUIRE_FALSE(table->kda({bench.exec, nullptr, nullptr}, f.shape, w, {x.data(), tokens, f.hidden}, &rows, 1,
                             {y.data(), tokens, w.o.rows}, bench.arena()));
    CHECK(bench.guard_is_clean());
    return y;
}
Floats step(const LayerTable* table, const Fixture& f, State& state, const Floats& x, bool logged = false,
            unsigned threads = 2) {
    return step(table, f, f.w, state, x, logged, threads);
}

/// Every quantity of a step straight from x: x = [q | k | v | g | b | z], conv taps that let the current token through,
/// W_o the identity; so y = gated output.
struct Direct {
    Direct(Weights& made, std::size_t heads, std::size_t dim, double eps = 1e-5) {
        const std::size_t width = heads * dim, taps = 4, hidden = 5 * width + heads;
        f.shape = {heads, dim, taps, -5.0F, eps};
        f.hidden = hidden;
        f.w.q = made.pick(width, hidden, 0).weight;
        f.w.k = made.pick(width, hidden, width).weight;
        f.w.v = made.pick(width, hidden, 2 * width).weight;
        f.w.g = made.pick(width, hidden, 3 * width).weight;
        f.w.b = made.pick(heads, hidden, 4 * width).weight;
        f.w.f_a = made.pick(width, hidden, 4 * width + heads).weight;
        f.w.f_b = made.pick(width, width, 0).weight;
        f.w.o = made.pick(width, width, 0).weight;
        Floats through(taps * width, 0.0F);
        std::fill(through.end() - static_cast<std::ptrdiff_t>(width), through.end(), 1.0F);
        for (const float*& conv : f.w.conv) conv = made.vector(through);
        a_log.assign(dim, std::numeric_limits<float>::quiet_NaN());
        std::fill_n(a_log.begin(), heads, 0.0F);
        dt.assign(width, 0.0F);
        norm.assign(dim, 1.0F);
        f.w.a_log = a_log.data(), f.w.dt_bias = dt.data(), f.w.o_norm = norm.data();
    }
    Direct(const Direct&) = delete;
    Direct& operator=(const Direct&) = delete;
    enum Input : std::size_t { q, k, v, g };
    float& at(Floats& x, Input what, std::size_t i, std::size_t token = 0) const {
        return x[token * f.hidden + what * f.width() + i];
    }
    float& beta(Floats& x, std::size_t head, std::size_t token = 0) const {
        return x[token * f.hidden + 4 * f.width() + head];
    }
    float& z(Floats& x, std::size_t i, std::size_t token = 0) const {
        return x[token * f.hidden + 4 * f.width() + f.shape.heads + i];
    }
    Floats zeros(std::size_t tokens) const { return Floats(tokens * f.hidden, 0.0F); }
    Fixture f;
    Floats a_log, dt, norm;
};

double sigmoid(double v) { return 1 / (1 + std::exp(-v)); }
double silu(double v) { return v * sigmoid(v); }
double d(float v) { return static_cast<double>(v); }

}  // namespace

TEST_CASE("layers/kda: every stage within its budget on random shapes, from the engine's own stage inputs") {
    Ratios ratios("layers/kda random");
    Weights made(1);
    for (const Format format : {Format::bf16, Format::f32}) {
        const Fixture select = random_fixture(made, format, true);
        const std::size_t tokens = 45, width = select.width();
        const Floats x = made.rng.normals(tokens * select.hidden);
        const Bounded xx = oracle::exact(mat(x, tokens, select.hidden));
        const auto want = oracle::kda_project(xx, select.f64);
        for (const LayerTable* table : tables()) {
            State state(select);
            const Floats y = step(table, select, state, x, true);
            const auto log = [&](const Floats& v) { return mat(v, tokens, width); };
            CHECK(ratios.add("conv_in", log(state.in[1]), oracle::matmul(xx, select.f64.k)) <= 1.0);
            CHECK(ratios.add("k", log(state.k), want.k) <= 1.0);
            CHECK(ratios.add("v", log(state.v), want.v) <= 1.0);
            CHECK(ratios.add("alpha", log(state.alpha), want.alpha) <= 1.0);
            CHECK(ratios.add("beta", mat(state.beta, tokens, select.shape.heads), want.beta) <= 1.0);
            oracle::KdaStages<Bounded> stages = want;
            stages.k = oracle::exact(log(state.k));
            stages.v = oracle::exact(log(state.v));
            stages.alpha = oracle::exact(log(state.alpha));
            stages.beta = oracle::exact(mat(state.beta, tokens, select.shape.heads));
            const Bounded gated =
                oracle::kda_gate(xx, oracle::kda_mix(stages, select.f64, oracle::KdaForm::sequential), select.f64);
            const Mat got = mat(y, tokens, select.hidden).leftCols(static_cast<Index>(width));
            CHECK(ratios.add("gated", got, gated) <= 1.0);
            CHECK(oracle::relative_max(got, gated.value) <= 1e-5);
            for (std::size_t t = 0; t < tokens; ++t)
                for (std::size_t i = width; i < select.hidden; ++i) CHECK(y[t * select.hidden + i] == 0.0F);
        }
        const Fixture whole = random_fixture(made, format, false);
        const auto out = oracle::kda_layer(xx, whole.f64).out;
        for (const LayerTable* table : tables()) {
            State state(whole);
            CHECK(ratios.add("layer", mat(step(table, whole, state, x), tokens, whole.hidden), out) <= 1.0);
        }
    }
}

TEST_CASE("layers/kda: golden weights within the layer's budget and within 1e-5 of the largest output") {
    Ratios ratios("layers/kda golden");
    Weights made(2);
    for (const char* name : {"A", "B", "F"}) {
        const Loaded model(golden_dir(name));
        const oracle::Model f64(golden_dir(name));
        const model::Config& c = model.config.shape;
        Fixture f;
        f.shape = {c.kda_heads, c.kda_head_dim, c.conv_kernel, -5.0F, c.rms_norm_eps};
        f.hidden = c.hidden;
        const std::size_t tokens = 40;
        const Floats x = made.rng.normals(tokens * c.hidden);
        for (const std::size_t n : {0, 1, 4}) {
            if (model.config.kinds[n] != model::LayerKind::kda) continue;
            const Bounded want = f64.attention(static_cast<Index>(n), oracle::exact(mat(x, tokens, c.hidden)));
            for (const LayerTable* table : tables()) {
                State state(f);
                const Mat y = mat(step(table, f, model.bound.view().layers[n].kda, state, x), tokens, c.hidden);
                CHECK(ratios.add(name, y, want) <= 1.0);
                CHECK(oracle::relative_max(y, want.value) <= 1e-5);
            }
        }
    }
}

TEST_CASE(
    "layers/kda: traps 8 and 9, chunks of 1, 2, 3, 7 or all tokens, threads and arches give the same bits and state") {
    Weights made(3);
    const Fixture f = random_fixture(made, Format::bf16, false);
    const std::size_t tokens = 21;
    const Floats x = made.rng.normals(tokens * f.hidden);
    Floats want, want_state;
    for (const LayerTable* table : tables())
        for (const unsigned threads : {1U, 2U, 3U})
            for (const std::size_t chunk : {std::size_t{1}, std::size_t{2}, std::size_t{3}, std::size_t{7}, tokens}) {
                State state(f);
                Floats y;
                for (std::size_t t = 0; t < tokens; t += chunk) {
                    const Floats piece = step(
                        table, f, state, part(x, t * f.hidden, std::min(chunk, tokens - t) * f.hidden), false, threads);
                    y.insert(y.end(), piece.begin(), piece.end());
                }
                if (want.empty()) want = y, want_state = state.all();
                CHECK(same_bits(y, want));
                CHECK(same_bits(state.all(), want_state));
            }
}

TEST_CASE("layers/kda: a logged step leaves the state alone; committing m of n tokens equals feeding m, bit for bit") {
    Weights made(4);
    const Fixture f = random_fixture(made, Format::bf16, false);
    const Floats before = made.rng.normals(5 * f.hidden), x = made.rng.normals(8 * f.hidden);
    for (const LayerTable* table : tables()) {
        State start(f);
        step(table, f, start, before);
        State in_place = start;
        const Floats want = step(table, f, in_place, x);
        for (std::size_t m = 0; m <= 8; ++m) {
            State logged = start, fed = start;
            CHECK(same_bits(step(table, f, logged, x, true), want));
            CHECK(same_bits(logged.all(), start.all()));
            const Bench bench(3);
            const layers::KdaState s{logged.recurrent.data(),
                                     {logged.conv[0].data(), logged.conv[1].data(), logged.conv[2].data()}};
            const layers::KdaLog log{logged.k.data(),
                                     logged.v.data(),
                                     logged.alpha.data(),
                                     logged.beta.data(),
                                     {logged.in[0].data(), logged.in[1].data(), logged.in[2].data()}};
            table->kda_commit(bench.exec, f.shape, s, log, m);
            if (m != 0) step(table, f, fed, part(x, 0, m * f.hidden));
            CHECK(same_bits(logged.all(), fed.all()));
        }
    }
}

TEST_CASE("layers/kda: segments do not see each other, whatever their order, and rows outside them are not written") {
    Weights made(5);
    const Fixture f = random_fixture(made, Format::bf16, false);
    const Floats a = made.rng.normals(6 * f.hidden), b = made.rng.normals(f.hidden);
    for (const LayerTable* table : tables()) {
        State sa(f), sb(f);
        const Floats ya = step(table, f, sa, a), yb = step(table, f, sb, b);
        for (const bool swapped : {false, true}) {
            State ta(f), tb(f);
            Floats x = swapped ? b : a;
            x.insert(x.end(), swapped ? a.begin() : b.begin(), swapped ? a.end() : b.end());
            const layers::SegmentRows rows[2] = {swapped ? tb.rows(0, 1, false) : ta.rows(0, 6, false),
                                                 swapped ? ta.rows(1, 6, false) : tb.rows(6, 1, false)};
            const Bench bench(2, layers::kda_bytes(f.shape, f.w.f_a.rows, 7));
            Floats y(7 * f.hidden);
            REQUIRE_FALSE(table->kda({bench.exec, nullptr, nullptr}, f.shape, f.w, {x.data(), 7, f.hidden}, rows, 2,
                                     {y.data(), 7, f.hidden}, bench.arena()));
            CHECK(same_bits(part(y, (swapped ? 1 : 0) * f.hidden, 6 * f.hidden), ya));
            CHECK(same_bits(part(y, (swapped ? 0 : 6) * f.hidden, f.hidden), yb));
            CHECK(same_bits(ta.all(), sa.all()));
            CHECK(same_bits(tb.all(), sb.all()));
        }
    }
}

TEST_CASE("layers/kda: streamed in panels of 1, 3 or all rows: the same bits; every failing panel is a fault") {
    Weights made(6);
    const Fixture f = random_fixture(made, Format::bf16, false);
    const Floats x = made.rng.normals(3 * f.hidden);
    for (const LayerTable* table : tables()) {
        State resident(f);
        const Floats want = step(table, f, resident, x);
        for (const std::size_t rows : {std::size_t{1}, std::size_t{3}, PanelSource::kAll}) {
            std::size_t fail_at = PanelSource::kAll, panels = 0;
            do {
                PanelSource source(rows, fail_at);
                layers::KdaWeights w = f.w;
                for (layers::Weight* m : {&w.q, &w.k, &w.v, &w.g, &w.o, &w.f_a, &w.f_b, &w.b}) source.take(*m);
                State state(f);
                const Bench bench(2, layers::kda_bytes(f.shape, w.f_a.rows, 3));
                Floats y(3 * f.hidden);
                const layers::SegmentRows r = state.rows(0, 3, false);
                const core::Fault fault =
                    table->kda({bench.exec, &source, nullptr}, f.shape, w, {x.data(), 3, f.hidden}, &r, 1,
                               {y.data(), 3, f.hidden}, bench.arena());
                CHECK(source.outstanding == 0);
                CHECK(source.mistakes == 0);
                CHECK(source.most_outstanding <= 1);
                CHECK(source.whole_acquired == 0);
                if (fail_at == PanelSource::kAll) {
                    CHECK_FALSE(fault);
                    CHECK(same_bits(y, want));
                    CHECK(same_bits(state.all(), resident.all()));
                    panels = source.acquired;
                    fail_at = 0;
                } else {
                    CHECK(fault.code == FaultCode::weight_failed);
                    fail_at += rows == 1 ? 17 : 1;
                }
            } while (fail_at < panels);
        }
    }
}

TEST_CASE("layers/kda: trap 1, A_log per channel: it is one value a head, its padding is never read") {
    Weights made(11);
    Direct fix(made, 3, 8);  // a_log is [8]: three values, five NaN
    for (std::size_t h = 0; h < 3; ++h) fix.a_log[h] = -1.5F + 1.25F * static_cast<float>(h);
    Floats x = fix.zeros(1);
    for (std::size_t i = 0; i < 24; ++i) fix.z(x, i) = 0.3F;
    for (const LayerTable* table : tables()) {
        State state(fix.f);
        step(table, fix.f, state, x, true);
        for (std::size_t i = 0; i < 24; ++i) {
            const double want = std::exp(-5 * sigmoid(std::exp(d(fix.a_log[i / 8])) * d(0.3F)));
            CHECK(std::fabs(d(state.alpha[i]) - want) <= 1e-6 * want);
        }
    }
}

TEST_CASE(
    "layers/kda: trap 2, softplus decay or a clamped sigmoid: log alpha lies in (-5, 0), falls strictly, is -2.5 at "
    "0") {
    Weights made(12);
    const Direct fix(made, 1, 81);
    Floats x = fix.zeros(1);
    for (std::size_t i = 0; i < 81; ++i) fix.z(x, i) = -10.0F + 0.25F * static_cast<float>(i);
    for (const LayerTable* table : tables()) {
        State state(fix.f);
        step(table, fix.f, state, x, true);
        for (std::size_t i = 0; i < 81; ++i) {
            const double log = std::log(d(state.alpha[i]));
            CHECK(log > -5);
            CHECK(log < 0);
            if (i != 0) CHECK(state.alpha[i] < state.alpha[i - 1]);
            CHECK(log == doctest::Approx(-5 * sigmoid(-10 + 0.25 * static_cast<double>(i))).epsilon(1e-5));
        }
        CHECK(std::log(d(state.alpha[40])) == doctest::Approx(-2.5).epsilon(1e-6));
    }
}

TEST_CASE("layers/kda: trap 3, dt_bias outside the head's scale: it is added before exp(A_log) multiplies") {
    Weights made(13);
    Direct fix(made, 2, 5);
    fix.a_log[0] = 1.0F, fix.a_log[1] = -1.0F;
    for (std::size_t i = 0; i < 10; ++i) fix.dt[i] = 0.5F - 0.1F * static_cast<float>(i);
    Floats x = fix.zeros(1);
    for (std::size_t i = 0; i < 10; ++i) fix.z(x, i) = 0.2F * static_cast<float>(i) - 0.9F;
    for (const LayerTable* table : tables()) {
        State state(fix.f);
        step(table, fix.f, state, x, true);
        for (std::size_t i = 0; i < 10; ++i) {
            const double scale = std::exp(d(fix.a_log[i / 5])), z = d(fix.z(x, i)), dt = d(fix.dt[i]);
            const double right = std::exp(-5 * sigmoid(scale * (z + dt))),
                         wrong = std::exp(-5 * sigmoid(scale * z + dt));
            CHECK(std::fabs(d(state.alpha[i]) - right) <= 2e-6 * right);
            if (std::fabs(dt) > 0.05) CHECK(std::fabs(wrong - right) > 1e-3 * right);
        }
    }
}

TEST_CASE("layers/kda: trap 4, mean square for the sum, a wrong eps form, or v normalised too") {
    Weights made(14);
    const Direct fix(made, 2, 16);
    Floats x = fix.zeros(2);
    for (std::size_t t = 0; t < 2; ++t)
        for (std::size_t i = 0; i < 32; ++i) {
            fix.at(x, Direct::k, i, t) = (t == 0 ? 1.0F : 1e-4F) * (1 + made.rng.normal(0.3));
            fix.at(x, Direct::v, i, t) = made.rng.normal(3);
        }
    for (const LayerTable* table : tables()) {
        State state(fix.f);
        step(table, fix.f, state, x, true);
        for (std::size_t t = 0; t < 2; ++t)
            for (std::size_t h = 0; h < 2; ++h) {
                double in = 0, out = 0;
                for (std::size_t i = 0; i < 16; ++i) {
                    in += std::pow(silu(d(fix.at(x, Direct::k, h * 16 + i, t))), 2);
                    out += std::pow(d(state.k[t * 32 + h * 16 + i]), 2);
                    CHECK(d(state.v[t * 32 + h * 16 + i]) ==
                          doctest::Approx(silu(d(fix.at(x, Direct::v, h * 16 + i, t)))).epsilon(1e-6));
                }
                CHECK(std::sqrt(out) == doctest::Approx(std::sqrt(in / (in + 1e-6)))
                                            .epsilon(1e-6));  // unit norm; far from it for tiny inputs
            }
    }
}

TEST_CASE("layers/kda: trap 5, q scale omitted, doubled or on k: one step from S = 0 gives beta (k.q) v / sqrt(dk)") {
    Weights made(15);
    const Direct fix(made, 2, 24, 1e8);  // an eps so large that the output norm is a constant factor of 1e-4
    Floats x = fix.zeros(1);
    for (std::size_t i = 0; i < 48; ++i) {
        fix.at(x, Direct::q, i) = 1 + made.rng.normal();
        fix.at(x, Direct::k, i) = 1 + made.rng.normal();
        fix.at(x, Direct::v, i) = made.rng.normal(2);
    }
    fix.beta(x, 0) = 0.7F, fix.beta(x, 1) = -1.1F;
    for (const LayerTable* table : tables()) {
        State state(fix.f);
        const Floats y = step(table, fix.f, state, x);
        for (std::size_t h = 0; h < 2; ++h) {
            double kq = 0, kk = 0, qq = 0;
            for (std::size_t i = h * 24; i < h * 24 + 24; ++i) {
                const double k = silu(d(fix.at(x, Direct::k, i))), q = silu(d(fix.at(x, Direct::q, i)));
                kq += k * q, kk += k * k, qq += q * q;
            }
            kq /= std::sqrt((kk + 1e-6) * (qq + 1e-6));
            for (std::size_t i = h * 24; i < h * 24 + 24; ++i) {
                const double v = silu(d(fix.at(x, Direct::v, i)));
                const double want = sigmoid(d(fix.beta(x, h))) * kq * v / std::sqrt(24.0) * 1e-4 * 0.5;
                CHECK(d(y[i]) == doctest::Approx(want).epsilon(1e-5));
            }
        }
    }
}

TEST_CASE(
    "layers/kda: trap 6, the state read before its decay, the output before the update, or decay along the values") {
    Weights made(16);
    const Direct fix(made, 1, 12, 1e8);
    const std::size_t n = 12, tokens = 3;
    Floats x = fix.zeros(tokens);
    for (std::size_t t = 0; t < tokens; ++t) {
        for (std::size_t i = 0; i < n; ++i) {
            fix.at(x, Direct::q, i, t) = made.rng.normal(2), fix.at(x, Direct::k, i, t) = made.rng.normal(2);
            fix.at(x, Direct::v, i, t) = made.rng.normal(2);
            fix.z(x, i, t) = -3 + 0.5F * static_cast<float>(i);  // a decay that differs by key index
        }
        fix.beta(x, 0, t) = 0.5F;
    }
    const Floats start = made.rng.normals(n * n);
    enum Variant { right, stale_read, stale_output, value_decay, kVariants };
    const auto reference = [&](Variant variant) {
        std::vector<double> s(start.begin(), start.end()), out;
        for (std::size_t t = 0; t < tokens; ++t) {
            std::vector<double> q(n), k(n), v(n), a(n), u(n, 0.0);
            double qq = 1e-6, kk = 1e-6;
            for (std::size_t i = 0; i < n; ++i) {
                q[i] = silu(d(fix.at(x, Direct::q, i, t))), k[i] = silu(d(fix.at(x, Direct::k, i, t))),
                v[i] = silu(d(fix.at(x, Direct::v, i, t)));
                qq += q[i] * q[i], kk += k[i] * k[i];
                a[i] = std::exp(-5 * sigmoid(d(fix.z(x, i, t))));
            }
            const auto before = s;
            for (std::size_t i = 0; i < n; ++i)
                for (std::size_t j = 0; j < n; ++j) s[i * n + j] *= variant == value_decay ? a[j] : a[i];
            const auto& read = variant == stale_read ? before : s;
            for (std::size_t i = 0; i < n; ++i)
                for (std::size_t j = 0; j < n; ++j) u[j] += k[i] / std::sqrt(kk) * read[i * n + j];
            const auto decayed = s;
            for (std::size_t i = 0; i < n; ++i)
                for (std::size_t j = 0; j < n; ++j) s[i * n + j] += k[i] / std::sqrt(kk) * sigmoid(0.5) * (v[j] - u[j]);
            const auto& shown = variant == stale_output ? decayed : s;
            for (std::size_t j = 0; j < n; ++j) {
                double o = 0;
                for (std::size_t i = 0; i < n; ++i)
                    o += q[i] / std::sqrt(qq) / std::sqrt(static_cast<double>(n)) * shown[i * n + j];
                out.push_back(o * 1e-4 * 0.5);
            }
        }
        return out;
    };
    const auto distance = [&](const Floats& y, const std::vector<double>& want) {
        double worst = 0, largest = 0;
        for (std::size_t i = 0; i < y.size(); ++i)
            worst = std::max(worst, std::fabs(d(y[i]) - want[i])), largest = std::max(largest, std::fabs(want[i]));
        return worst / largest;
    };
    for (const LayerTable* table : tables()) {
        State state(fix.f);
        state.recurrent = start;
        const Floats y = step(table, fix.f, state, x);
        CHECK(distance(y, reference(right)) < 1e-5);
        for (const Variant wrong : {stale_read, stale_output, value_decay}) CHECK(distance(y, reference(wrong)) > 1e-2);
    }
}

TEST_CASE("layers/kda: trap 7, an early exit at beta = 0 after part of the decay: the state is exactly decay * state") {
    Weights made(17);
    const Direct fix(made, 2, 9);
    Floats x = fix.zeros(1);
    for (std::size_t i = 0; i < 18; ++i)
        fix.at(x, Direct::k, i) = made.rng.normal(), fix.at(x, Direct::v, i) = made.rng.normal(),
                             fix.z(x, i) = made.rng.normal();
    fix.beta(x, 0) = -200, fix.beta(x, 1) = -200;  // sigmoid rounds to +0
    for (const LayerTable* table : tables()) {
        State state(fix.f);
        state.recurrent = made.rng.normals(2 * 81);
        const Floats before = state.recurrent;
        State logged = state;
        step(table, fix.f, logged, x, true);
        REQUIRE(logged.beta[0] == 0.0F);
        step(table, fix.f, state, x);
        for (std::size_t h = 0; h < 2; ++h)
            for (std::size_t i = 0; i < 9; ++i)
                for (std::size_t j = 0; j < 9; ++j) {
                    volatile float want = before[h * 81 + i * 9 + j] * logged.alpha[h * 9 + i];
                    CHECK(state.recurrent[h * 81 + i * 9 + j] == want);
                }
    }
}

TEST_CASE(
    "layers/kda: trap 8, taps reversed, SiLU missing or only on q and k: an impulse meets the taps newest first") {
    Weights made(18);
    Direct fix(made, 1, 7);
    const Floats taps{0.1F, -0.4F, 0.9F, 1.6F};  // oldest first
    Floats conv(4 * 7);
    for (std::size_t j = 0; j < 4; ++j) std::fill_n(conv.begin() + static_cast<std::ptrdiff_t>(j * 7), 7, taps[j]);
    for (const float*& c : fix.f.w.conv) c = conv.data();
    Floats x = fix.zeros(5);
    fix.at(x, Direct::v, 2) = 1.5F;
    for (const LayerTable* table : tables()) {
        State state(fix.f);
        step(table, fix.f, state, x, true);
        for (std::size_t t = 0; t < 5; ++t) {
            const double want = t < 4 ? silu(1.5 * d(taps[3 - t])) : 0.0;
            CHECK(d(state.v[t * 7 + 2]) == doctest::Approx(want).epsilon(1e-6));
        }
    }
}

TEST_CASE(
    "layers/kda: conv history before the start is +0 and its taps are applied (a NaN tap shows from the first token)") {
    Weights made(19);
    Direct fix(made, 1, 7);
    for (std::size_t j = 0; j < 4; ++j) {
        Floats conv(4 * 7, 0.5F);
        conv[j * 7 + 3] = std::numeric_limits<float>::quiet_NaN();
        for (const float*& c : fix.f.w.conv) c = conv.data();
        for (const LayerTable* table : tables()) {
            State state(fix.f);
            Floats x = fix.zeros(2);
            for (std::size_t i = 0; i < 7; ++i) fix.at(x, Direct::v, i) = 1;
            step(table, fix.f, state, x, true);
            for (std::size_t t = 0; t < 2; ++t) {
                CHECK(std::isnan(state.v[t * 7 + 3]));
                CHECK_FALSE(std::isnan(state.v[t * 7 + 4]));
            }
        }
    }
}

TEST_CASE("layers/kda: trap 10, the gate before the norm; trap 12, SiLU for the sigmoid gate: norm(o) * sigmoid(g)") {
    Weights made(20);
    Direct fix(made, 1, 8, 1e-12);
    Floats x = fix.zeros(1);
    for (std::size_t i = 0; i < 8; ++i) {
        fix.at(x, Direct::q, i) = 1, fix.at(x, Direct::k, i) = 1, fix.at(x, Direct::v, i) = 1;
        fix.at(x, Direct::g, i) = -10 + 3 * static_cast<float>(i);
    }
    for (const LayerTable* table : tables()) {
        State state(fix.f);
        const Floats y = step(table, fix.f, state, x);
        for (std::size_t i = 0; i < 8; ++i)
            CHECK(d(y[i]) ==
                  doctest::Approx(sigmoid(-10 + 3 * static_cast<double>(i))).epsilon(1e-5));  // all o equal: norm is 1
    }
}

TEST_CASE(
    "layers/kda: trap 11, the output norm over all channels: one head times 1000 leaves the other heads' bits alone") {
    Weights made(21);
    const Direct fix(made, 3, 8);
    Floats x = fix.zeros(1);
    for (std::size_t i = 0; i < 24; ++i)
        fix.at(x, Direct::q, i) = 1 + made.rng.normal(0.3), fix.at(x, Direct::k, i) = 1,
                             fix.at(x, Direct::v, i) = made.rng.normal();
    Floats loud = x;
    for (std::size_t i = 8; i < 16; ++i) fix.at(loud, Direct::v, i) *= 1000;
    for (const LayerTable* table : tables()) {
        State a(fix.f), b(fix.f);
        const Floats quiet = step(table, fix.f, a, x), got = step(table, fix.f, b, loud);
        CHECK(same_bits(part(got, 0, 8), part(quiet, 0, 8)));
        CHECK(same_bits(part(got, 16, 8), part(quiet, 16, 8)));
        CHECK_FALSE(same_bits(part(got, 8, 8), part(quiet, 8, 8)));
    }
}
