// latent_attention and attention_residual: bits on every arch against the plain loops, and one fixture per wrong
// variant.
#include "support/doctest.hpp"
#include "support/kernel_table.hpp"
#include "support/kernel_table_data.hpp"
#include "support/kernel_table_twin.hpp"

using namespace k3;
using namespace k3::tests;

namespace {

std::size_t pad(std::size_t n) { return (n + 7) / 8 * 8; }

/// A paged cache. Pad columns are +0, as the kernel requires; everything behind the last position is NaN.
struct Pages {
    Pages(std::size_t positions, std::size_t latent_floats, std::size_t key_floats, std::size_t page, Kind kind,
          std::uint64_t seed)
        : rank(latent_floats), rope(key_floats), per_page(page) {
        const std::size_t floats = pad(rank) + pad(rope);
        for (std::size_t first = 0; first < positions; first += per_page) {
            memory.emplace_back(per_page * floats, seed % 5);
            for (std::size_t p = 0; p < per_page && first + p < positions; ++p)
                for (std::size_t i = 0; i < floats; ++i) {
                    const bool live = i < rank || (i >= pad(rank) && i < pad(rank) + rope);
                    memory.back()[p * floats + i] = live ? value(kind, seed, (first + p) * floats + i) : 0.0F;
                }
        }
        for (Floats& floats_of_page : memory) pages.push_back(floats_of_page.data());
    }
    Cache view() const { return {pages.data(), per_page, rank, rope}; }
    float* row(std::size_t s) const { return pages[s / per_page] + s % per_page * (pad(rank) + pad(rope)); }
    float& latent(std::size_t s, std::size_t c) const { return row(s)[c]; }
    float& key(std::size_t s, std::size_t c) const { return row(s)[pad(rank) + c]; }
    std::size_t rank, rope, per_page;
    std::vector<Floats> memory;
    std::vector<float*> pages;
};

struct Queries {
    Queries(std::size_t count, std::size_t rank, std::size_t rope, Kind kind, std::uint64_t seed)
        : heads(count), qa_stride(rank + 3), rope_stride(rope + 2), qa(heads * qa_stride), qr(heads * rope_stride) {
        for (std::size_t h = 0; h < heads; ++h) {
            for (std::size_t c = 0; c < rank; ++c) qa[h * qa_stride + c] = value(kind, seed, h * rank + c);
            for (std::size_t c = 0; c < rope; ++c) qr[h * rope_stride + c] = value(kind, seed + 1, h * rope + c);
        }
    }
    std::size_t heads, qa_stride, rope_stride;
    Floats qa, qr;  // NaN between the rows
};

Floats run(const KernelTable& table, const Pages& cache, std::size_t positions, const Queries& q, double scale) {
    const Run scratch(1, table.latent_attention_scratch(positions, pad(cache.rank) + pad(cache.rope)), 0);
    Floats out(q.heads * (cache.rank + 1));
    out.fill(-7.0F);
    table.latent_attention(cache.view(), positions, q.heads, q.qa, q.qa_stride, q.qr, q.rope_stride, scale, out,
                           cache.rank + 1, core::Arena(scratch.exec.local, scratch.exec.local_bytes));
    return out;
}
Floats plain(const Pages& cache, std::size_t positions, const Queries& q, double scale) {
    Floats out(q.heads * (cache.rank + 1));
    out.fill(-7.0F);
    for (std::size_t h = 0; h < q.heads; ++h)
        twin::latent_attention(
            positions, cache.rank, cache.rope, [&](std::size_t s, std::size_t c) { return cache.latent(s, c); },
            [&](std::size_t s, std::size_t c) { return cache.key(s, c); }, q.qa + h * q.qa_stride,
            q.qr + h * q.rope_stride, scale, out + h * (cache.rank + 1));
    return out;
}

Floats mix(const KernelTable& table, const std::vector<Floats>& sources, const Floats& fold, double eps = 1e-5) {
    std::vector<const float*> views;
    for (const Floats& s : sources) views.push_back(s);
    Floats out(fold.size() + 1, 3), scratch(sources.size() + 1, 1);
    out[fold.size()] = scratch[sources.size()] = -7.0F;
    table.attention_residual(views.data(), views.size(), fold, fold.size(), eps, out, scratch);
    CHECK(out[fold.size()] == -7.0F);
    CHECK(scratch[sources.size()] == -7.0F);
    Floats trimmed(fold.size());
    std::copy(out.data(), out.data() + fold.size(), trimmed.data());
    return trimmed;
}

}  // namespace

TEST_CASE(
    "kernels/latent_attention: every arch is the plain loop: 1..8 heads, odd ranks and ropes, pages, every kind") {
    const double scale = twin::inverse_sqrt(192.0);
    for (const KernelTable* table : tables_of_this_cpu()) {
        std::uint64_t seed = 0;
        for (std::size_t heads = 1; heads <= 8; ++heads)
            for (const std::size_t rank : {1U, 7U, 8U, 9U, 16U, 31U, 64U})
                for (const std::size_t rope : {0U, 1U, 8U, 13U}) {
                    const Kind kind = kKinds[++seed % std::size(kKinds)];
                    const std::size_t positions = 1 + seed % 23, per_page = 1 + seed % 7;
                    const Pages cache(positions, rank, rope, per_page, kind, seed);
                    const Queries q(heads, rank, rope, kind, seed + 1000);
                    CAPTURE(std::string(table->name));
                    CAPTURE(heads);
                    CAPTURE(rank);
                    CAPTURE(rope);
                    CAPTURE(positions);
                    CAPTURE(static_cast<int>(kind));
                    REQUIRE(difference(run(*table, cache, positions, q, scale), plain(cache, positions, q, scale)) ==
                            "");
                }
    }
}

TEST_CASE("kernels/latent_attention: lengths around registers and pages, and the page size never changes a bit") {
    const double scale = twin::inverse_sqrt(17.0);
    for (const KernelTable* table : tables_of_this_cpu())
        for (const std::size_t positions : lengths()) {
            if (positions == 0) continue;
            const Pages cache(positions, 12, 5, 8, Kind::plain, positions);
            Pages other(positions, 12, 5, 11, Kind::plain, 1);
            for (std::size_t s = 0; s < positions; ++s) std::memcpy(other.row(s), cache.row(s), 24 * sizeof(float));
            const Queries q(3, 12, 5, Kind::plain, positions);
            const Floats got = run(*table, cache, positions, q, scale);
            REQUIRE(difference(got, plain(cache, positions, q, scale)) == "");
            REQUIRE(difference(run(*table, other, positions, q, scale), got) == "");
        }
}

TEST_CASE("kernels/latent_attention: heads are independent: a NaN query spoils its own head only") {
    for (const KernelTable* table : tables_of_this_cpu())
        for (std::size_t bad = 0; bad < 7; ++bad) {
            const Pages cache(9, 10, 3, 4, Kind::plain, 5);
            Queries q(7, 10, 3, Kind::plain, 6);
            const Floats clean = run(*table, cache, 9, q, 0.25);
            q.qr[bad * q.rope_stride + 1] = kNaN;
            const Floats got = run(*table, cache, 9, q, 0.25);
            for (std::size_t h = 0; h < 7; ++h)
                for (std::size_t c = 0; c < 10; ++c)
                    CHECK((h == bad ? got[h * 11 + c] != got[h * 11 + c] : same(got[h * 11 + c], clean[h * 11 + c])));
        }
}

TEST_CASE("kernels/latent_attention: trap 18, positions behind the last are never read (they are NaN here)") {
    for (const KernelTable* table : tables_of_this_cpu()) {
        const Pages whole(13, 9, 3, 5, Kind::plain, 5);
        Pages cut(13, 9, 3, 5, Kind::plain, 5);
        for (std::size_t s = 6; s < 13; ++s)
            for (std::size_t i = 0; i < 24; ++i) cut.row(s)[i] = kNaN;
        const Queries q(2, 9, 3, Kind::plain, 6);
        CHECK(difference(run(*table, cut, 6, q, 0.3), run(*table, whole, 6, q, 0.3)) == "");
    }
}

TEST_CASE("kernels/latent_attention: trap 13, the rope slots count: without them the weights are others") {
    for (const KernelTable* table : tables_of_this_cpu()) {
        Pages cache(2, 4, 2, 8, Kind::plain, 5);
        for (std::size_t c = 0; c < 4; ++c) cache.latent(0, c) = cache.latent(1, c) = 1.0F;
        cache.latent(1, 3) = 2.0F;
        cache.key(0, 0) = cache.key(0, 1) = 0.0F;
        cache.key(1, 0) = 3.0F;
        cache.key(1, 1) = 0.0F;
        Queries q(1, 4, 2, Kind::plain, 6);
        for (std::size_t c = 0; c < 4; ++c) q.qa[c] = 0.0F;
        q.qr[0] = 2.0F;
        q.qr[1] = 5.0F;
        const Floats out = run(*table, cache, 2, q, 0.5);  // scores 0 and 3
        const double p = 1 / (1 + std::exp(-3.0));
        CHECK(twin::f64(out[3]) == doctest::Approx(1 + p).epsilon(1e-6));
        CHECK(out[0] == 1.0F);
    }
}

TEST_CASE(
    "kernels/latent_attention: trap 14, no rotation: swapping earlier positions moves the result by rounding only") {
    for (const KernelTable* table : tables_of_this_cpu()) {
        const Pages cache(6, 16, 8, 4, Kind::plain, 5);
        Pages swapped(6, 16, 8, 4, Kind::plain, 5);
        std::swap_ranges(swapped.row(0), swapped.row(0) + 24, swapped.row(3));
        const Queries q(1, 16, 8, Kind::plain, 6);
        const Floats a = run(*table, cache, 6, q, 0.1), b = run(*table, swapped, 6, q, 0.1);
        for (std::size_t c = 0; c < 16; ++c) CHECK(a[c] == doctest::Approx(b[c]).epsilon(1e-6));
    }
}

TEST_CASE(
    "kernels/latent_attention: scores far below zero and far apart: the maximum is subtracted, starting at the first") {
    for (const KernelTable* table : tables_of_this_cpu()) {
        Pages cache(4, 8, 1, 2, Kind::plain, 5);
        Queries q(1, 8, 1, Kind::plain, 6);
        for (std::size_t c = 0; c < 8; ++c) q.qa[c] = 0.0F;
        q.qr[0] = 1.0F;
        const float keys[4] = {-3000, -2000, -2001, -1e30F};  // a maximum that starts at 0 gives 0 / 0
        for (std::size_t s = 0; s < 4; ++s) cache.key(s, 0) = keys[s];
        const Floats out = run(*table, cache, 4, q, 1.0);
        CHECK(difference(out, plain(cache, 4, q, 1.0)) == "");
        const double e = std::exp(-1.0);
        for (std::size_t c = 0; c < 8; ++c)
            CHECK(out[c] == doctest::Approx((cache.latent(1, c) + e * cache.latent(2, c)) / (1 + e)).epsilon(1e-6));
        for (std::size_t s = 0; s < 4; ++s) cache.key(s, 0) = -kInf;  // all -inf: NaN, as documented
        CHECK(std::isnan(run(*table, cache, 4, q, 1.0)[0]));
        cache.key(2, 0) = 1.0F;
        const Floats only = run(*table, cache, 4, q, 1.0);
        for (std::size_t c = 0; c < 8; ++c) CHECK(same(only[c], cache.latent(2, c)));
    }
}

TEST_CASE(
    "kernels/latent_attention: trap 16, the scale is applied in binary64 before one rounding, not to a rounded score") {
    // A score that rounds differently when it is rounded before the scale: found by search over queries.
    const double scale = twin::inverse_sqrt(192.0);
    unsigned differ = 0;
    for (std::uint64_t seed = 0; seed < 40; ++seed) {
        const Pages cache(1, 8, 8, 1, Kind::plain, seed);
        const Queries q(1, 8, 8, Kind::plain, seed + 1);
        const double sum = twin::dot64(q.qa, cache.row(0), 8) + twin::dot64(q.qr, cache.row(0) + 8, 8);
        differ += !same(twin::rn(sum * scale), twin::mul(twin::rn(sum), twin::rn(scale)));
    }
    REQUIRE(differ > 5);  // so that the bits tests above cannot pass with the other order
}

TEST_CASE("kernels/attention_residual: every arch is the plain loop: 1..9 and 17 sources, every length and kind") {
    for (const KernelTable* table : tables_of_this_cpu()) {
        std::uint64_t seed = 0;
        for (const std::size_t count : {1U, 2U, 3U, 7U, 8U, 9U, 17U})
            for (const std::size_t n : lengths()) {
                if (n == 0) continue;
                const Kind kind = kKinds[++seed % std::size(kKinds)];
                std::vector<Floats> sources;
                for (std::size_t s = 0; s < count; ++s) sources.emplace_back(n, kind, seed + 50 * s, s % 8);
                const Floats fold(n, kind == Kind::huge ? Kind::plain : kind, seed + 7, 2);
                std::vector<const float*> views(sources.begin(), sources.end());
                Floats want(n);
                twin::attention_residual(views.data(), count, fold, n, 1e-5, want);
                CAPTURE(std::string(table->name));
                CAPTURE(count);
                CAPTURE(n);
                CAPTURE(static_cast<int>(kind));
                REQUIRE(difference(mix(*table, sources, fold), want) == "");
            }
    }
}

TEST_CASE(
    "kernels/attention_residual: trap 33, one source comes back bit for bit (-0 as +0): values are not normalised") {
    for (const KernelTable* table : tables_of_this_cpu())
        for (const Kind kind : kFinite)
            for (const std::size_t n : {1U, 8U, 9U, 64U, 100U}) {
                Floats source(n, kind, 3), fold(n, Kind::plain, 4);
                if (kind == Kind::huge) fold.fill(0x1p-60F);
                const Floats out = mix(*table, {source}, fold);
                CHECK(difference(out, source) == "");
                source[0] = -0.0F;  // the sum starts at +0
                CHECK(same(mix(*table, {source}, fold)[0], 0.0F));
            }
}

TEST_CASE("kernels/attention_residual: keys are normalised: scaling one source by 1000 does not move the weights") {
    for (const KernelTable* table : tables_of_this_cpu()) {
        const std::size_t n = 32;
        const Floats a(n, Kind::plain, 1), b(n, Kind::plain, 2), fold(n, Kind::plain, 3);
        Floats big = a;
        for (std::size_t i = 0; i < n; ++i) big[i] = 1000 * a[i];
        // out = p a + (1 - p) b; with the scaled source p stays (up to eps), so the outputs tell p.
        const auto weight = [&](const Floats& first, const Floats& out, std::size_t i) {
            return (twin::f64(out[i]) - twin::f64(b[i])) / (twin::f64(first[i]) - twin::f64(b[i]));
        };
        const double p = weight(a, mix(*table, {a, b}, fold), 5), p_big = weight(big, mix(*table, {big, b}, fold), 5);
        CHECK(p == doctest::Approx(p_big).epsilon(1e-3));
        CHECK(p > 0.0);
        CHECK(p < 1.0);
    }
}

TEST_CASE("kernels/attention_residual: scores far below zero: the maximum starts at the first source, not at 0") {
    for (const KernelTable* table : tables_of_this_cpu()) {
        const std::size_t n = 16;
        Floats fold(n), a(n), b(n);
        fold.fill(-100.0F);  // scores -1600 and about -1600: exp underflows unless the maximum is subtracted
        a.fill(1.0F);
        b.fill(2.0F);
        const Floats out = mix(*table, {a, b}, fold, 0.0);
        for (std::size_t i = 0; i < n; ++i) CHECK(same(out[i], 1.5F));
    }
}

TEST_CASE("kernels/attention_residual: a NaN in one source is NaN in every output (the softmax is shared)") {
    for (const KernelTable* table : tables_of_this_cpu())
        for (std::size_t bad = 0; bad < 3; ++bad) {
            std::vector<Floats> sources;
            for (std::size_t s = 0; s < 3; ++s) sources.emplace_back(11, Kind::plain, s);
            sources[bad][4] = kNaN;
            const Floats out = mix(*table, sources, Floats(11, Kind::plain, 9));
            for (std::size_t i = 0; i < 11; ++i) CHECK(std::isnan(out[i]));
        }
}
