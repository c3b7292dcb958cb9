#include "k3/layers/mla.hpp"

#include "engine/panels.hpp"
#include "layers/data.hpp"

using namespace k3;
using namespace k3::tests;
using core::FaultCode;

namespace {

constexpr std::size_t kPage = 16;  // small pages: several of them in every test

struct Fixture {
    layers::MlaShape shape{};
    layers::MlaWeights w{};
    oracle::MlaWeights f64;
    std::size_t hidden = 0;
    std::size_t o_width() const { return shape.heads * shape.value; }
};

/// All dimensions differ; hidden > heads * value, so that W_o can be a selection (then y = the gated output).
Fixture random_fixture(Weights& made, Format format, bool select_out, bool gated = true, std::size_t heads = 5) {
    Fixture f;
    const std::size_t nope = 12, rope = 6, value = 10, q_lora = 35, kv_lora = 27, hidden = 101;
    f.shape = {heads, nope, rope, value, q_lora, kv_lora, gated, 1e-6};
    f.hidden = hidden;
    const Pair q_a = made.make(format, q_lora, hidden), q_b = made.make(format, heads * (nope + rope), q_lora, 0.5),
               kv_a = made.make(format, kv_lora + rope, hidden, 0.15),
               kv_b = made.make(format, heads * (nope + value), kv_lora), g = made.make(format, heads * value, hidden),
               o = select_out ? made.pick(hidden, heads * value, 0) : made.make(format, hidden, heads * value);
    const Floats q_norm = made.rng.normals(q_lora, 1.5), kv_norm = made.rng.normals(kv_lora, 1.2);
    f.w = {q_a.weight, q_b.weight,          kv_a.weight,         kv_b.weight, gated ? g.weight : layers::Weight{},
           o.weight,   made.vector(q_norm), made.vector(kv_norm)};
    const auto i = [](std::size_t n) { return static_cast<Index>(n); };
    f.f64 = {{i(heads), i(nope), i(rope), i(value), i(kv_lora)},
             1e-6,
             gated,
             q_a.f64,
             q_b.f64,
             kv_a.f64,
             kv_b.f64,
             g.f64,
             o.f64,
             vec(q_norm),
             vec(kv_norm)};
    return f;
}

/// A latent cache; unused rows hold NaN.
struct Cache {
    explicit Cache(const layers::MlaShape& s, std::size_t positions = 160)
        : row(kernels::LatentCache::pad(s.kv_lora) + kernels::LatentCache::pad(s.rope)) {
        memory.assign((positions + kPage - 1) / kPage, Floats(kPage * row, std::numeric_limits<float>::quiet_NaN()));
        for (Floats& page : memory) pages.push_back(page.data());
    }
    Cache(const Cache&) = delete;
    Cache& operator=(const Cache&) = delete;
    layers::SegmentRows rows(std::size_t first, std::size_t tokens) const {
        layers::SegmentRows r{};
        r.first = first;
        r.tokens = tokens;
        r.latent = {pages.data(), kPage, length};
        return r;
    }
    Floats all() const {
        Floats out;
        for (std::size_t p = 0; p < length; ++p)
            out.insert(out.end(), pages[p / kPage] + p % kPage * row, pages[p / kPage] + p % kPage * row + row);
        return out;
    }
    Mat columns(std::size_t from, std::size_t count) const {
        return mat(all(), length, row).middleCols(static_cast<Index>(from), static_cast<Index>(count));
    }
    std::size_t row, length = 0;
    std::vector<Floats> memory;
    std::vector<float*> pages;
};

Floats step(const LayerTable* table, const Fixture& f, const layers::MlaWeights& w, Cache& cache, const Floats& x,
            unsigned threads = 2) {
    const std::size_t tokens = x.size() / f.hidden;
    const Bench bench(threads, layers::mla_bytes(f.shape, tokens));
    REQUIRE(layers::mla_local_bytes(f.shape, cache.length + tokens) <= bench.exec.local_bytes);
    Floats y(tokens * f.hidden, -9.0F);
    const layers::SegmentRows rows = cache.rows(0, tokens);
    REQUIRE_FALSE(table->mla({bench.exec, nullptr, nullptr}, f.shape, w, {x.data(), tokens, f.hidden}, &rows, 1,
                             {y.data(), tokens, f.hidden}, bench.arena()));
    CHECK(bench.guard_is_clean());
    cache.length += tokens;
    return y;
}
Floats step(const LayerTable* table, const Fixture& f, Cache& cache, const Floats& x, unsigned threads = 2) {
    return step(table, f, f.w, cache, x, threads);
}

float* values_of(layers::Weight& w, Floats& copy) {  // an f32 weight, to be changed
    copy.assign(reinterpret_cast<const float*>(w.data), reinterpret_cast<const float*>(w.data) + w.rows * w.cols);
    w.data = reinterpret_cast<const std::byte*>(copy.data());
    return copy.data();
}

}  // namespace

TEST_CASE("layers/mla: every stage within its budget on random shapes, from the engine's own stage inputs") {
    Ratios ratios("layers/mla random");
    Weights made(1);
    for (const Format format : {Format::bf16, Format::f32})
        for (const std::size_t heads : {5, 9}) {  // below and above a block of eight heads
            const Fixture f = random_fixture(made, format, true, true, heads);
            const std::size_t tokens = 70;  // more than a tile of 64
            const Floats x = made.rng.normals(tokens * f.hidden);
            const Bounded xx = oracle::exact(mat(x, tokens, f.hidden));
            const auto want = oracle::mla_project(xx, f.f64);
            for (const LayerTable* table : tables()) {
                Cache cache(f.shape);
                const Floats y = step(table, f, cache, x);
                const Mat latent = cache.columns(0, 27), key = cache.columns(32, 6);
                CHECK(ratios.add("latent", latent, want.latent) <= 1.0);
                CHECK(ratios.add("key", key, want.key) <= 1.0);
                CHECK(cache.columns(27, 5).isZero(0));  // padding is +0
                CHECK(cache.columns(38, 2).isZero(0));
                const Bounded mixed = oracle::latent_attention(want.q, oracle::exact(latent), oracle::exact(key),
                                                               f.f64.kv_b, f.f64.shape);
                const std::size_t shown = std::min(f.o_width(), f.hidden);
                const Bounded gated = oracle::columns(oracle::mla_gate(xx, mixed, f.f64), 0, static_cast<Index>(shown));
                const Mat got = mat(y, tokens, f.hidden).leftCols(static_cast<Index>(shown));
                CHECK(ratios.add("gated", got, gated) <= 1.0);
                CHECK(oracle::relative_max(got, gated.value) <=
                      1e-5);  // the budget of q, carried through the scores, is loose
            }
        }
    for (const bool gated : {true, false}) {
        const Fixture f = random_fixture(made, Format::bf16, false, gated);
        const std::size_t tokens = 33;
        const Floats x = made.rng.normals(tokens * f.hidden);
        const Bounded want = oracle::mla_layer(oracle::exact(mat(x, tokens, f.hidden)), f.f64).out;
        for (const LayerTable* table : tables()) {
            Cache cache(f.shape);
            CHECK(ratios.add("layer", mat(step(table, f, cache, x), tokens, f.hidden), want) <= 1.0);
        }
    }
}

TEST_CASE("layers/mla: golden weights within the layer's budget and within 1e-5 of the largest output") {
    Ratios ratios("layers/mla golden");
    Weights made(2);
    for (const char* name : {"A", "B", "F"}) {
        const Loaded model(golden_dir(name));
        const oracle::Model f64(golden_dir(name));
        const model::Config& c = model.config.shape;
        Fixture f;
        f.shape = {c.heads, c.qk_nope, c.qk_rope, c.v_head, c.q_lora, c.kv_lora, c.mla_output_gate, c.mla_norm_eps};
        f.hidden = c.hidden;
        const std::size_t tokens = 40;
        const Floats x = made.rng.normals(tokens * c.hidden);
        for (std::size_t n = 0; n < c.layers; ++n) {
            if (model.config.kinds[n] != model::LayerKind::mla) continue;
            const Bounded want = f64.attention(static_cast<Index>(n), oracle::exact(mat(x, tokens, c.hidden)));
            for (const LayerTable* table : tables()) {
                Cache cache(f.shape);
                const Mat y = mat(step(table, f, model.bound.view().layers[n].mla, cache, x), tokens, c.hidden);
                CHECK(ratios.add(name, y, want) <= 1.0);
                CHECK(oracle::relative_max(y, want.value) <= 1e-5);
            }
        }
    }
}

TEST_CASE(
    "layers/mla: trap 18, no causal mask in a batch: chunks of 1, 2, 7, 64 or all give the same bits and latents") {
    Weights made(3);
    const Fixture f = random_fixture(made, Format::bf16, false);
    const std::size_t tokens = 75;
    const Floats x = made.rng.normals(tokens * f.hidden);
    Floats want, latents;
    for (const LayerTable* table : tables())
        for (const unsigned threads : {1U, 2U, 3U})
            for (const std::size_t chunk : {std::size_t{1}, std::size_t{2}, std::size_t{7}, std::size_t{64}, tokens}) {
                Cache cache(f.shape);
                Floats y;
                for (std::size_t t = 0; t < tokens; t += chunk) {
                    const Floats piece =
                        step(table, f, cache, part(x, t * f.hidden, std::min(chunk, tokens - t) * f.hidden), threads);
                    y.insert(y.end(), piece.begin(), piece.end());
                }
                if (want.empty()) want = y, latents = cache.all();
                CHECK(same_bits(y, want));
                CHECK(same_bits(cache.all(), latents));
            }
}

TEST_CASE(
    "layers/mla: streamed in panels of 1, 3 or all rows: the same bits; kv_b is asked for whole, once; failures are "
    "faults") {
    Weights made(4);
    const Fixture f = random_fixture(made, Format::bf16, false);
    const Floats x = made.rng.normals(3 * f.hidden);
    for (const LayerTable* table : tables()) {
        Cache resident(f.shape);
        const Floats want = step(table, f, resident, x);
        for (const std::size_t rows : {std::size_t{1}, std::size_t{3}, PanelSource::kAll}) {
            std::size_t fail_at = PanelSource::kAll, panels = 0;
            do {
                PanelSource source(rows, fail_at);
                layers::MlaWeights w = f.w;
                for (layers::Weight* m : {&w.q_a, &w.q_b, &w.kv_a, &w.kv_b, &w.g, &w.o}) source.take(*m);
                Cache cache(f.shape);
                const Bench bench(2, layers::mla_bytes(f.shape, 3));
                Floats y(3 * f.hidden);
                const layers::SegmentRows r = cache.rows(0, 3);
                const core::Fault fault =
                    table->mla({bench.exec, &source, nullptr}, f.shape, w, {x.data(), 3, f.hidden}, &r, 1,
                               {y.data(), 3, f.hidden}, bench.arena());
                CHECK(source.outstanding == 0);
                CHECK(source.mistakes == 0);
                if (fail_at == PanelSource::kAll) {
                    CHECK_FALSE(fault);
                    CHECK(same_bits(y, want));
                    CHECK(source.whole_acquired == 1);
                    CHECK(source.last_whole == w.kv_b.id);
                    panels = source.acquired;
                    fail_at = 0;
                } else {
                    CHECK(fault.code == FaultCode::weight_failed);
                    fail_at += rows == 1 ? 13 : 1;
                }
            } while (fail_at < panels);
        }
    }
}

TEST_CASE("layers/mla: segments with caches of different lengths do not see each other") {
    Weights made(5);
    const Fixture f = random_fixture(made, Format::bf16, false);
    const Floats past = made.rng.normals(18 * f.hidden), a = made.rng.normals(5 * f.hidden),
                 b = made.rng.normals(f.hidden);
    for (const LayerTable* table : tables()) {
        Cache ca(f.shape), cb(f.shape), da(f.shape), db(f.shape);
        step(table, f, cb, past), step(table, f, db, past);
        const Floats ya = step(table, f, ca, a), yb = step(table, f, cb, b);
        Floats x = b;
        x.insert(x.end(), a.begin(), a.end());
        const layers::SegmentRows rows[2] = {db.rows(0, 1), da.rows(1, 5)};
        const Bench bench(3, layers::mla_bytes(f.shape, 6));
        Floats y(6 * f.hidden);
        REQUIRE_FALSE(table->mla({bench.exec, nullptr, nullptr}, f.shape, f.w, {x.data(), 6, f.hidden}, rows, 2,
                                 {y.data(), 6, f.hidden}, bench.arena()));
        CHECK(same_bits(part(y, 0, f.hidden), yb));
        CHECK(same_bits(part(y, f.hidden, 5 * f.hidden), ya));
    }
}

TEST_CASE("layers/mla: trap 13, the rope slots dropped: zeroing only them changes the output") {
    Weights made(6);
    const Fixture f = random_fixture(made, Format::f32, false);
    layers::MlaWeights w = f.w;
    Floats copy;
    float* const q_b = values_of(w.q_b, copy);
    for (std::size_t h = 0; h < 5; ++h)
        for (std::size_t r = 12; r < 18; ++r) std::fill_n(q_b + (h * 18 + r) * 35, 35, 0.0F);
    const Floats x = made.rng.normals(9 * f.hidden);
    for (const LayerTable* table : tables()) {
        Cache a(f.shape), b(f.shape);
        const Floats with = step(table, f, a, x), without = step(table, f, w, b, x);
        CHECK(same_bits(part(with, 0, f.hidden),
                        part(without, 0, f.hidden)));  // one position: the softmax is 1 either way
        CHECK(oracle::relative_max(mat(with, 9, f.hidden), mat(without, 9, f.hidden)) > 1e-2);
    }
}

TEST_CASE("layers/mla: trap 14, rotated slots: permuting the earlier positions leaves the last output as it was") {
    Weights made(7);
    const Fixture f = random_fixture(made, Format::bf16, false);
    const std::size_t tokens = 12;
    Floats x = made.rng.normals(tokens * f.hidden);
    Floats permuted;
    for (std::size_t t = 0; t + 1 < tokens; ++t) {
        const std::size_t from = (t * 5 + 3) % (tokens - 1);
        permuted.insert(permuted.end(), x.begin() + static_cast<std::ptrdiff_t>(from * f.hidden),
                        x.begin() + static_cast<std::ptrdiff_t>((from + 1) * f.hidden));
    }
    permuted.insert(permuted.end(), x.end() - static_cast<std::ptrdiff_t>(f.hidden), x.end());
    for (const LayerTable* table : tables()) {
        Cache a(f.shape), b(f.shape);
        const Floats y = step(table, f, a, x), z = step(table, f, b, permuted);
        const Floats last = part(y, (tokens - 1) * f.hidden, f.hidden),
                     other = part(z, (tokens - 1) * f.hidden, f.hidden);
        CHECK(oracle::relative_max(mat(other, 1, f.hidden), mat(last, 1, f.hidden)) < 1e-6);
    }
}

TEST_CASE("layers/mla: trap 15, the norm over latent and key slot: rope rows times 100 leave the latents' bits alone") {
    Weights made(8);
    const Fixture f = random_fixture(made, Format::f32, false);
    layers::MlaWeights w = f.w;
    Floats copy;
    float* const kv_a = values_of(w.kv_a, copy);
    for (std::size_t i = 27 * f.hidden; i < 33 * f.hidden; ++i) kv_a[i] *= 100;
    const Floats x = made.rng.normals(4 * f.hidden);
    for (const LayerTable* table : tables()) {
        Cache a(f.shape), b(f.shape);
        step(table, f, a, x), step(table, f, w, b, x);
        CHECK(a.columns(0, 27) == b.columns(0, 27));
        CHECK(oracle::relative_max(b.columns(32, 6), 100 * a.columns(32, 6)) < 1e-5);  // the key slot is not normalised
    }
}

TEST_CASE(
    "layers/mla: trap 16, scale 1/sqrt(nope); trap 17, rows of kv_b split otherwise; trap 20, raw latents: each is off "
    "by far") {
    // The oracle's layer with one thing wrong is at a distance where the right one is within 1e-5.
    Weights made(9);
    const Fixture f = random_fixture(made, Format::f32, false);
    const std::size_t tokens = 20, rows = 22;
    const Floats x = made.rng.normals(tokens * f.hidden);
    const Mat xx = mat(x, tokens, f.hidden);
    const Mat right = oracle::mla_layer(xx, f.f64).out;
    oracle::MlaWeights scale = f.f64, split = f.f64, first = f.f64;
    scale.q_b = oracle::Weight::dense(f.f64.q_b.all() * std::sqrt(18.0 / 12.0));
    const Mat kv_b = f.f64.kv_b.all();
    Mat all_k(kv_b.rows(), kv_b.cols()), values_first(kv_b.rows(), kv_b.cols());
    for (Index h = 0; h < 5; ++h) {  // what a reader with the wrong layout would take for head h's keys and values
        all_k.middleRows(h * static_cast<Index>(rows), 12) = kv_b.middleRows(h * 12, 12);
        all_k.middleRows(h * static_cast<Index>(rows) + 12, 10) = kv_b.middleRows(60 + h * 10, 10);
        values_first.middleRows(h * static_cast<Index>(rows), 12) =
            kv_b.middleRows(h * static_cast<Index>(rows) + 10, 12);
        values_first.middleRows(h * static_cast<Index>(rows) + 12, 10) =
            kv_b.middleRows(h * static_cast<Index>(rows), 10);
    }
    split.kv_b = oracle::Weight::dense(all_k);
    first.kv_b = oracle::Weight::dense(values_first);
    auto raw = oracle::mla_project(xx, f.f64);
    raw.latent = oracle::matmul(xx, f.f64.kv_a).leftCols(27);
    const Mat unnormalised = oracle::matmul(
        oracle::mla_gate(xx, oracle::latent_attention(raw.q, raw.latent, raw.key, f.f64.kv_b, f.f64.shape), f.f64),
        f.f64.out);
    for (const LayerTable* table : tables()) {
        Cache cache(f.shape);
        const Mat y = mat(step(table, f, cache, x), tokens, f.hidden);
        CHECK(oracle::relative_max(y, right) < 1e-5);
        for (const Mat& wrong : {oracle::mla_layer(xx, scale).out, oracle::mla_layer(xx, split).out,
                                 oracle::mla_layer(xx, first).out, unnormalised})
            CHECK(oracle::relative_max(y, wrong) > 1e-2);
    }
}

TEST_CASE("layers/mla: trap 43, rms_norm_eps in the low-rank norms: small inputs tell 1e-6 from 1e-5") {
    Weights made(10);
    const Fixture f = random_fixture(made, Format::f32, false);
    const std::size_t tokens = 10;
    Floats x = made.rng.normals(tokens * f.hidden, 1e-3);
    const Mat xx = mat(x, tokens, f.hidden);
    oracle::MlaWeights other = f.f64;
    other.eps = 1e-5;
    for (const LayerTable* table : tables()) {
        Cache cache(f.shape);
        const Mat y = mat(step(table, f, cache, x), tokens, f.hidden);
        CHECK(oracle::relative_max(y, oracle::mla_layer(xx, f.f64).out) < 1e-5);
        CHECK(oracle::relative_max(y, oracle::mla_layer(xx, other).out) > 1e-2);
    }
}
