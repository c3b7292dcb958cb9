#include "k3/layers/moe.hpp"

#include <chrono>
#include <thread>

#include "engine/panels.hpp"
#include "layers/data.hpp"
#include "support/no_predictions.hpp"

using namespace k3;
using namespace k3::tests;
using core::FaultCode;

namespace {

constexpr layers::Situ kSitu{3.5F, 21.0F};
constexpr oracle::Situ kSitu64{3.5, 21};

struct Fixture {
    layers::MoeShape shape{};
    layers::MoeWeights w{};
    std::size_t hidden = 0;
    std::vector<layers::ExpertWeights> experts;
    std::vector<oracle::Mlp> experts64;
    oracle::Moe f64;
};

/// All dimensions differ: 11 experts, top 4, latent 45, expert width 37, shared width 58, hidden 67.
Fixture random_fixture(Weights& made, Format trunk, Format expert, std::size_t top_k = 4, bool renormalize = true,
                       bool latent_norm = true) {
    Fixture f;
    const std::size_t experts = 11, latent = 45, width = 37, shared = 58, hidden = 67;
    f.shape = {experts, top_k, latent, width, shared, latent_norm, renormalize, 2.5, 1e-5, kSitu};
    f.hidden = hidden;
    const Pair gate = made.make(trunk, experts, hidden), down = made.make(trunk, latent, hidden),
               up = made.make(trunk, hidden, latent), sg = made.make(trunk, shared, hidden),
               su = made.make(trunk, shared, hidden), sd = made.make(trunk, hidden, shared);
    const Floats bias = made.rng.normals(experts, 0.3), norm = made.rng.normals(latent, 0.8);
    f.w = {gate.weight, made.vector(bias), down.weight,
           up.weight,   made.vector(norm), {sg.weight, su.weight, sd.weight}};
    f.f64.gate = gate.f64, f.f64.down = down.f64, f.f64.up = up.f64;
    f.f64.bias = vec(bias), f.f64.norm = vec(norm), f.f64.latent_norm = latent_norm;
    f.f64.shared = {sg.f64, su.f64, sd.f64};
    f.f64.routing = {static_cast<Index>(top_k), renormalize, 2.5};
    for (std::size_t e = 0; e < experts; ++e) {
        const Pair w1 = made.make(expert, width, latent, 0.3), w3 = made.make(expert, width, latent, 0.3),
                   w2 = made.make(expert, latent, width);
        f.experts.push_back({w1.weight, w3.weight, w2.weight});
        f.experts64.push_back({w1.f64, w3.f64, w2.f64});
    }
    return f;
}

/// Experts one (token, rank) at a time, in any order; keeps what it was asked and what it answered.
struct Service final : NoPredictions {
    enum Order { forward, backward, threaded };
    const LayerTable* table = nullptr;
    const Fixture* f = nullptr;
    Order order = forward;
    std::int32_t failing = -1;
    std::vector<std::int32_t> ids;
    Floats z, e;
    std::size_t calls = 0;

    void submit(const core::Exec& exec, std::size_t layer, const layers::Routes& routes, core::MatView<const float> in,
                core::MatView<float> out, core::Fault* faults, core::Arena) noexcept override {
        ++calls;
        const std::size_t slots = routes.tokens * routes.top_k;
        ids.assign(routes.ids, routes.ids + slots);
        z.clear();
        for (std::size_t t = 0; t < in.rows; ++t) z.insert(z.end(), in.row(t), in.row(t) + in.cols);
        for (std::size_t s = 0; s < slots; ++s)  // poison: a slot nobody fills must not be used
            std::fill_n(out.row(s), out.cols, std::numeric_limits<float>::quiet_NaN());
        const auto one = [&](std::size_t slot, const core::Exec& with) {
            if (ids[slot] < 0) return;
            std::vector<std::byte> scratch(layers::mlp_bytes(1, f->shape.expert_width) + 64);
            std::byte* const at = scratch.data() + (64 - reinterpret_cast<std::size_t>(scratch.data()) % 64) % 64;
            table->expert(with, f->experts[static_cast<std::size_t>(ids[slot])], f->shape.situ,
                          in.row_range(slot / routes.top_k, 1), out.row_range(slot, 1),
                          {at, layers::mlp_bytes(1, f->shape.expert_width)});
        };
        if (order == threaded) {
            std::vector<std::thread> threads;
            for (std::size_t s = 0; s < slots; ++s)
                threads.emplace_back([&, s] {
                    std::this_thread::sleep_for(std::chrono::microseconds((s * 7919) % 1500));
                    const Bench own(1);
                    one(s, own.exec);
                });
            for (std::thread& t : threads) t.join();
        } else {
            for (std::size_t s = 0; s < slots; ++s) one(order == forward ? s : slots - 1 - s, exec);
        }
        for (std::size_t s = 0; s < slots; ++s) {
            if (failing < 0 || ids[s] != failing) continue;
            std::fill_n(out.row(s), out.cols, std::numeric_limits<float>::quiet_NaN());
            faults[s / routes.top_k] = {.code = FaultCode::expert_failed,
                                        .layer = static_cast<std::int32_t>(layer),
                                        .token = static_cast<std::int32_t>(s / routes.top_k),
                                        .expert = failing};
        }
        e.clear();
        for (std::size_t s = 0; s < slots; ++s) e.insert(e.end(), out.row(s), out.row(s) + out.cols);
    }
};

/// Delivers the same row for every slot.
struct Constant final : NoPredictions {
    float value = 0;
    std::vector<std::int32_t> ids;
    void submit(const core::Exec&, std::size_t, const layers::Routes& routes, core::MatView<const float>,
                core::MatView<float> out, core::Fault*, core::Arena) noexcept override {
        ids.assign(routes.ids, routes.ids + routes.tokens * routes.top_k);
        for (std::size_t s = 0; s < out.rows; ++s) std::fill_n(out.row(s), out.cols, value);
    }
};

struct Result {
    Floats y;
    std::vector<core::Fault> faults;
    core::Fault fault;
};

Result run(const LayerTable* table, const layers::MoeShape& shape, const layers::MoeWeights& w,
           layers::ExpertService* service, const Floats& x, std::size_t hidden, unsigned threads = 2,
           layers::WeightSource* source = nullptr) {
    const std::size_t tokens = x.size() / hidden;
    const Bench bench(threads, layers::moe_bytes(shape, hidden, tokens));
    Result r{Floats(tokens * hidden, -9.0F), std::vector<core::Fault>(tokens), {}};
    r.fault = table->moe({bench.exec, source, service}, 3, shape, w, {x.data(), tokens, hidden},
                         {r.y.data(), tokens, hidden}, r.faults.data(), bench.arena());
    CHECK(bench.guard_is_clean());
    return r;
}
Result run(const LayerTable* table, const Fixture& f, Service& service, const Floats& x, unsigned threads = 2) {
    service.table = table;
    service.f = &f;
    return run(table, f.shape, f.w, &service, x, f.hidden, threads);
}

oracle::Picks picks_of(const std::vector<std::int32_t>& ids, std::size_t top_k) {
    oracle::Picks picks;
    for (std::size_t i = 0; i < ids.size(); i += top_k)
        picks.emplace_back(ids.begin() + static_cast<std::ptrdiff_t>(i),
                           ids.begin() + static_cast<std::ptrdiff_t>(i + top_k));
    return picks;
}

/// A router fixture on x = logits: gate = identity, up = identity, no norm, no shared part: y_i = sum of weights *
/// value.
struct Direct {
    Direct(Weights& made, std::size_t n, std::size_t top_k, bool renormalize, double scale) : bias(n, 0.0F) {
        shape = {n, top_k, n, 4, 4, false, renormalize, scale, 1e-5, kSitu};
        const layers::Weight identity = made.pick(n, n, 0).weight;
        const Floats zeros(4 * n, 0.0F);
        w = {identity,
             bias.data(),
             identity,
             identity,
             nullptr,
             {made.from(Format::f32, 4, n, zeros).weight, made.from(Format::f32, 4, n, zeros).weight,
              made.from(Format::f32, n, 4, zeros).weight}};
    }
    Direct(const Direct&) = delete;
    Direct& operator=(const Direct&) = delete;
    layers::MoeShape shape{};
    layers::MoeWeights w{};
    Floats bias;
};

double sigmoid(double v) { return 1 / (1 + std::exp(-v)); }

}  // namespace

TEST_CASE("layers/moe: router, latent, experts and sum within their budgets on random shapes, stage by stage") {
    Ratios ratios("layers/moe random");
    Weights made(1);
    for (const auto& [trunk, expert] :
         {std::pair{Format::bf16, Format::mxfp4}, {Format::f32, Format::bf16}, {Format::bf16, Format::f32}})
        for (const bool plain : {false, true}) {
            Fixture f = random_fixture(made, trunk, expert, plain ? 1 : 4, true, !plain);
            f.f64.expert = [&f](Index e) { return f.experts64[static_cast<std::size_t>(e)]; };
            const std::size_t tokens = 30;
            const Floats x = made.rng.normals(tokens * f.hidden);
            const Bounded xx = oracle::exact(mat(x, tokens, f.hidden));
            for (const LayerTable* table : tables()) {
                Service service;
                const Result r = run(table, f, service, x);
                REQUIRE_FALSE(r.fault);
                for (const core::Fault& fault : r.faults) CHECK_FALSE(fault);
                const oracle::Picks picks = picks_of(service.ids, f.shape.top_k);
                const auto routing = oracle::router(xx, f.f64.gate, f.f64.bias, f.f64.routing, &picks);
                for (std::size_t t = 0; t < tokens; ++t)
                    CHECK(oracle::choice_allowed(routing, static_cast<Index>(t), picks[t]));
                CHECK(ratios.add("z", mat(service.z, tokens, 45), oracle::matmul(xx, f.f64.down)) <= 1.0);
                for (std::size_t s = 0; s < service.ids.size(); ++s) {
                    const Mat z = mat(service.z.data() + s / f.shape.top_k * 45, 1, 45);
                    CHECK(ratios.add(
                              "expert", mat(service.e.data() + s * 45, 1, 45),
                              oracle::dense_mlp(oracle::exact(z), f.experts64[static_cast<std::size_t>(service.ids[s])],
                                                kSitu64)) <= 1.0);
                }
                const Bounded want = oracle::latent_moe(xx, f.f64, kSitu64, 1e-5, &picks).out;
                CHECK(ratios.add("layer", mat(r.y, tokens, f.hidden), want) <= 1.0);
                CHECK(oracle::relative_max(mat(r.y, tokens, f.hidden), want.value) < 1e-5);
            }
        }
}

TEST_CASE("layers/moe: golden weights within the layer's budget, following legal choices") {
    Ratios ratios("layers/moe golden");
    Weights made(2);
    for (const char* name : {"A", "B", "F"}) {
        Loaded model(golden_dir(name));
        const oracle::Model f64(golden_dir(name));
        const model::Config& c = model.config.shape;
        const layers::MoeShape shape{
            c.experts,     c.experts_per_token, c.latent,       c.expert_width, c.shared_width(),
            c.latent_norm, c.renormalize,       c.routed_scale, c.rms_norm_eps, {4, 25}};
        const std::size_t tokens = 24;
        const Floats x = made.rng.normals(tokens * c.hidden);
        const Bounded xx = oracle::exact(mat(x, tokens, c.hidden));
        struct Watch final : NoPredictions {
            layers::ExpertService* inner = nullptr;
            std::vector<std::int32_t> ids;
            std::size_t layer = 0;
            void submit(const core::Exec& exec, std::size_t, const layers::Routes& routes, core::MatView<const float> z,
                        core::MatView<float> e, core::Fault* faults, core::Arena scratch) noexcept override {
                ids.assign(routes.ids, routes.ids + routes.tokens * routes.top_k);
                inner->submit(exec, layer, routes, z, e, faults, scratch);
            }
        } watch;
        watch.inner = &model.experts;
        for (const std::size_t n : {std::size_t{1}, c.layers - 1}) {
            watch.layer = n;
            const oracle::Moe moe = f64.moe(static_cast<Index>(n));
            for (const LayerTable* table : tables()) {
                model.experts.use(table->expert);
                const Result r = run(table, shape, model.bound.view().layers[n].moe, &watch, x, c.hidden);
                REQUIRE_FALSE(r.fault);
                const oracle::Picks picks = picks_of(watch.ids, c.experts_per_token);
                const auto want = oracle::latent_moe(xx, moe, f64.config().situ, c.rms_norm_eps, &picks);
                for (std::size_t t = 0; t < tokens; ++t)
                    CHECK(oracle::choice_allowed(want.routing, static_cast<Index>(t), picks[t]));
                CHECK(ratios.add(name, mat(r.y, tokens, c.hidden), want.out) <= 1.0);
            }
        }
    }
}

TEST_CASE(
    "layers/moe: trap 32, arrival order: reversed or delayed by threads, any chunk, thread count and arch: the same "
    "bits") {
    Weights made(3);
    const Fixture f = random_fixture(made, Format::bf16, Format::mxfp4);
    const std::size_t tokens = 12;
    const Floats x = made.rng.normals(tokens * f.hidden);
    Floats want;
    for (const LayerTable* table : tables())
        for (const Service::Order order : {Service::forward, Service::backward, Service::threaded})
            for (const unsigned threads : {1U, 2U, 3U})
                for (const std::size_t chunk : {std::size_t{1}, std::size_t{5}, tokens}) {
                    Service service;
                    service.order = order;
                    Floats y;
                    for (std::size_t t = 0; t < tokens; t += chunk) {
                        const Result r = run(table, f, service,
                                             part(x, t * f.hidden, std::min(chunk, tokens - t) * f.hidden), threads);
                        y.insert(y.end(), r.y.begin(), r.y.end());
                    }
                    if (want.empty()) want = y;
                    CHECK(same_bits(y, want));
                }
}

TEST_CASE(
    "layers/moe: traps 30 and 31, a failed expert: the fault of its tokens alone; the other rows keep every bit") {
    Weights made(4);
    const Fixture f = random_fixture(made, Format::bf16, Format::mxfp4);
    const std::size_t tokens = 9;
    const Floats x = made.rng.normals(tokens * f.hidden);
    for (const LayerTable* table : tables()) {
        Service good;
        const Floats want = run(table, f, good, x).y;
        std::size_t failed = 0, sound = 0;
        for (std::int32_t e = 0; e < 11; ++e) {
            Service service;
            service.failing = e;
            const Result r = run(table, f, service, x);
            CHECK_FALSE(r.fault);
            for (std::size_t t = 0; t < tokens; ++t) {
                const bool wanted = std::find(good.ids.begin() + static_cast<std::ptrdiff_t>(t * 4),
                                              good.ids.begin() + static_cast<std::ptrdiff_t>(t * 4 + 4),
                                              e) != good.ids.begin() + static_cast<std::ptrdiff_t>(t * 4 + 4);
                CHECK(static_cast<bool>(r.faults[t]) == wanted);
                if (wanted) {
                    ++failed;
                    CHECK(r.faults[t].code == FaultCode::expert_failed);
                    CHECK(r.faults[t].expert == e);
                } else {
                    ++sound;
                    CHECK(same_bits(part(r.y, t * f.hidden, f.hidden), part(want, t * f.hidden, f.hidden)));
                }
            }
        }
        CHECK(failed == tokens * 4);
        CHECK(sound > 0);
    }
}

TEST_CASE("layers/moe: a NaN score is the fault of its token alone, which then asks for no expert") {
    Weights made(5);
    const Fixture f = random_fixture(made, Format::bf16, Format::mxfp4);
    const std::size_t tokens = 5;
    const Floats x = made.rng.normals(tokens * f.hidden);
    Floats bad = x;
    bad[2 * f.hidden + 7] = std::numeric_limits<float>::quiet_NaN();
    for (const LayerTable* table : tables()) {
        Service good, service;
        const Floats want = run(table, f, good, x).y;
        const Result r = run(table, f, service, bad);
        CHECK_FALSE(r.fault);
        for (std::size_t t = 0; t < tokens; ++t) {
            CHECK(static_cast<bool>(r.faults[t]) == (t == 2));
            if (t != 2) CHECK(same_bits(part(r.y, t * f.hidden, f.hidden), part(want, t * f.hidden, f.hidden)));
            for (std::size_t j = 0; j < 4; ++j) CHECK((service.ids[t * 4 + j] == -1) == (t == 2));
        }
        CHECK(r.faults[2].code == FaultCode::router_nan);
        CHECK(r.faults[2].layer == 3);
        CHECK(r.faults[2].token == 2);
    }
}

TEST_CASE(
    "layers/moe: streamed in panels of 1, 3 or all rows: the same bits; every failing panel is a fault of the step") {
    Weights made(6);
    const Fixture f = random_fixture(made, Format::bf16, Format::mxfp4);
    const Floats x = made.rng.normals(3 * f.hidden);
    for (const LayerTable* table : tables()) {
        Service service;
        const Floats want = run(table, f, service, x).y;
        for (const std::size_t rows : {std::size_t{1}, std::size_t{3}, PanelSource::kAll}) {
            std::size_t fail_at = PanelSource::kAll, panels = 0;
            do {
                PanelSource source(rows, fail_at);
                layers::MoeWeights w = f.w;
                for (layers::Weight* m : {&w.gate, &w.down, &w.up, &w.shared.gate, &w.shared.up, &w.shared.down})
                    source.take(*m);
                const Result r = run(table, f.shape, w, &service, x, f.hidden, 2, &source);
                CHECK(source.outstanding == 0);
                CHECK(source.mistakes == 0);
                if (fail_at == PanelSource::kAll) {
                    CHECK_FALSE(r.fault);
                    CHECK(same_bits(r.y, want));
                    panels = source.acquired;
                    fail_at = 0;
                } else {
                    CHECK(r.fault.code == FaultCode::weight_failed);
                    fail_at += rows == 1 ? 13 : 1;
                }
            } while (fail_at < panels);
        }
    }
}

TEST_CASE("layers/moe: trap 21, weights from the biased scores; trap 22, bias ignored in the choice") {
    Weights made(11);
    Direct fix(made, 6, 2, true, 1.0);
    const Floats logits{2, 1.5F, -1, 0.2F, -0.4F, 0.9F};
    fix.bias = {0, 0, 5, 0, 4, 0};  // chosen: 2, then 4, though 0 and 1 score higher
    fix.w.bias = fix.bias.data();
    struct First final : NoPredictions {  // rank 0 delivers 1, rank 1 delivers 0: y = the first weight
        std::vector<std::int32_t> ids;
        void submit(const core::Exec&, std::size_t, const layers::Routes& routes, core::MatView<const float>,
                    core::MatView<float> out, core::Fault*, core::Arena) noexcept override {
            ids.assign(routes.ids, routes.ids + 2);
            std::fill_n(out.row(0), out.cols, 1.0F);
            std::fill_n(out.row(1), out.cols, 0.0F);
        }
    } service;
    for (const LayerTable* table : tables()) {
        const Result r = run(table, fix.shape, fix.w, &service, logits, 6);
        CHECK(service.ids == std::vector<std::int32_t>{2, 4});
        CHECK(static_cast<double>(r.y[0]) ==
              doctest::Approx(sigmoid(-1) / (sigmoid(-1) + sigmoid(-0.4))).epsilon(1e-6));
    }
}

TEST_CASE("layers/moe: trap 23, softmax, no renormalisation, the scaling factor left out or applied twice") {
    Weights made(12);
    const Floats logits{2, 1.5F, -1, 0.2F, -0.4F, 0.9F};
    Constant one;
    one.value = 1;
    for (const LayerTable* table : tables()) {
        const Direct scaled(made, 6, 3, true, 2.5), plain(made, 6, 3, false, 2.5), single(made, 6, 1, true, 2.5);
        CHECK(static_cast<double>(run(table, scaled.shape, scaled.w, &one, logits, 6).y[0]) ==
              doctest::Approx(2.5).epsilon(1e-6));
        const double sum = sigmoid(2) + sigmoid(1.5) + sigmoid(static_cast<double>(0.9F));
        CHECK(static_cast<double>(run(table, plain.shape, plain.w, &one, logits, 6).y[0]) ==
              doctest::Approx(2.5 * sum).epsilon(1e-6));
        // The released rule: a single chosen expert is not renormalised.
        CHECK(static_cast<double>(run(table, single.shape, single.w, &one, logits, 6).y[0]) ==
              doctest::Approx(2.5 * sigmoid(2)).epsilon(1e-6));
    }
}

TEST_CASE(
    "layers/moe: trap 24, the router fed with the latent: with latent = hidden the values decide, not the shapes") {
    Weights made(13);
    Direct fix(made, 6, 1, true, 1.0);
    Floats reversed(36, 0.0F);
    for (std::size_t i = 0; i < 6; ++i) reversed[i * 6 + 5 - i] = 1;
    fix.w.down = made.from(Format::f32, 6, 6, reversed).weight;  // the latent is x backwards
    Constant one;
    for (const LayerTable* table : tables()) {
        run(table, fix.shape, fix.w, &one, {9, 1, 0, 0, 1, 2}, 6);
        CHECK(one.ids == std::vector<std::int32_t>{0});
    }
}

TEST_CASE("layers/moe: trap 25, ties go to the lowest id, in the choice and in its order") {
    Weights made(14);
    const Direct fix(made, 9, 4, true, 1.0);
    Constant one;
    for (const LayerTable* table : tables()) {
        run(table, fix.shape, fix.w, &one, {1, 2, 1, 2, 1, 2, 1, 1, 1}, 9);
        CHECK(one.ids == std::vector<std::int32_t>{1, 3, 5, 0});
        run(table, fix.shape, fix.w, &one, Floats(9, 0.5F), 9);
        CHECK(one.ids == std::vector<std::int32_t>{0, 1, 2, 3});
    }
}

TEST_CASE(
    "layers/moe: trap 26, the latent norm per expert: two experts of very different size are summed, then normalised "
    "once") {
    Weights made(15);
    Direct fix(made, 6, 2, true, 1.0);
    const Floats norm(6, 1.0F);
    fix.shape.latent_norm = true;
    fix.w.norm = norm.data();
    struct Two final : NoPredictions {
        void submit(const core::Exec&, std::size_t, const layers::Routes&, core::MatView<const float>,
                    core::MatView<float> out, core::Fault*, core::Arena) noexcept override {
            for (std::size_t i = 0; i < out.cols; ++i)
                out.row(0)[i] = i < 3 ? 1000.0F : 0.0F, out.row(1)[i] = i < 3 ? 0.0F : 1.0F;
        }
    } service;
    for (const LayerTable* table : tables()) {
        const Floats y = run(table, fix.shape, fix.w, &service, {1, 1, 0, 0, 0, 0}, 6).y;
        CHECK(static_cast<double>(y[0]) == doctest::Approx(std::sqrt(2.0)).epsilon(1e-4));
        CHECK(static_cast<double>(y[5]) ==
              doctest::Approx(std::sqrt(2.0) / 1000).epsilon(1e-4));  // per expert it would be as large as y[0]
    }
}

TEST_CASE(
    "layers/moe: trap 27, the shared expert on the latent, weighted or split: with zero experts y is the plain shared "
    "MLP") {
    Weights made(16);
    const Fixture f = random_fixture(made, Format::bf16, Format::mxfp4);
    const std::size_t tokens = 6;
    const Floats x = made.rng.normals(tokens * f.hidden);
    Constant zero;
    const Mat want = oracle::dense_mlp(mat(x, tokens, f.hidden), f.f64.shared, kSitu64);
    for (const LayerTable* table : tables()) {
        const Result r = run(table, f.shape, f.w, &zero, x, f.hidden);
        CHECK(oracle::relative_max(mat(r.y, tokens, f.hidden), want) < 1e-6);
        const Bench bench(2, layers::mlp_bytes(tokens, 58));
        Floats alone(tokens * f.hidden);
        REQUIRE_FALSE(table->mlp({bench.exec, nullptr, nullptr}, f.w.shared, kSitu, {x.data(), tokens, f.hidden},
                                 {alone.data(), tokens, f.hidden}, bench.arena()));
        CHECK(same_bits(r.y, alone));
    }
}
