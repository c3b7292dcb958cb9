// short_conv, shift_history, delta_rule: bits on every arch against the plain loops, and one fixture per wrong variant.
#include "support/doctest.hpp"
#include "support/kernel_table.hpp"
#include "support/kernel_table_data.hpp"
#include "support/kernel_table_twin.hpp"

using namespace k3;
using namespace k3::tests;

namespace {

/// The plain loop over tokens: history [K-1][P], u [T][P], w [K][P].
Floats plain_conv(In u, const Floats& w, std::size_t taps, const Floats& history) {
    Floats y(u.rows * u.cols);
    for (std::size_t t = 0; t < u.rows; ++t)
        for (std::size_t c = 0; c < u.cols; ++c)
            y[t * u.cols + c] = twin::short_conv(
                taps,
                [&](std::size_t back) {
                return back <= t ? u.row(t - back)[c] : history[(taps - 1 + t - back) * u.cols + c];
                },
                [&](std::size_t j) { return w[j * u.cols + c]; });
    return y;
}

struct Token {
    Token(std::size_t dk, std::size_t dv, Kind kind, std::uint64_t seed)
        : q(dk, kind, seed),
          k(dk, kind, seed + 1),
          v(dv, kind, seed + 2),
          alpha(dk),
          beta(std::fabs(uniform(seed, 9))) {
        for (std::size_t i = 0; i < dk; ++i) alpha[i] = std::fabs(uniform(seed + 3, i));
    }
    Delta view() const { return {q, k, v, alpha, beta}; }
    Floats q, k, v, alpha;
    float beta;
};

}  // namespace

TEST_CASE("kernels/short_conv: every arch is the plain loop: K 1..5, T 1..9 (also T < K-1), every channel range") {
    for (const KernelTable* table : tables_of_this_cpu()) {
        std::uint64_t seed = 0;
        for (std::size_t taps = 1; taps <= 5; ++taps)
            for (const std::size_t tokens : {0U, 1U, 2U, 3U, 4U, 9U})
                for (const std::size_t channels : {1U, 7U, 8U, 9U, 17U, 33U, 64U}) {
                    const Kind kind = kKinds[++seed % std::size(kKinds)];
                    const Floats u(tokens * channels, kind, seed), w(taps * channels, kind, seed + 1, 3);
                    const Floats history((taps - 1) * channels, kind, seed + 2);
                    const In view(u, tokens, channels);
                    const Floats want = plain_conv(view, w, taps, history);
                    CAPTURE(std::string(table->name));
                    CAPTURE(taps);
                    CAPTURE(tokens);
                    CAPTURE(channels);
                    Floats y(tokens * channels);
                    table->short_conv(view, w, taps, taps == 1 ? nullptr : history.data(), 0, channels,
                                      {y.data(), tokens, channels});
                    REQUIRE(difference(y, want) == "");
                    // Any cut into ranges gives the same, and a range writes its own channels only.
                    const std::size_t cut = seed % (channels + 1);
                    Floats parts(tokens * channels);
                    parts.fill(-7.0F);
                    table->short_conv(view, w, taps, history, cut, channels, {parts.data(), tokens, channels});
                    for (std::size_t t = 0; t < tokens; ++t)
                        for (std::size_t c = 0; c < cut; ++c) REQUIRE(parts[t * channels + c] == -7.0F);
                    table->short_conv(view, w, taps, history, 0, cut, {parts.data(), tokens, channels});
                    REQUIRE(difference(parts, want) == "");
                }
    }
}

TEST_CASE("kernels/short_conv: trap 8, T tokens at once are T single calls with carried history, bit for bit") {
    const std::size_t channels = 21;
    for (const KernelTable* table : tables_of_this_cpu())
        for (std::size_t taps = 1; taps <= 5; ++taps)
            for (const std::size_t tokens : {1U, 2U, 3U, 4U, 5U, 11U}) {
                CAPTURE(std::string(table->name));
                CAPTURE(taps);
                CAPTURE(tokens);
                const Floats u(tokens * channels, Kind::plain, 3), w(taps * channels, Kind::plain, 4);
                const Floats start((taps - 1) * channels, Kind::plain, 5);
                Floats at_once(tokens * channels), steps(tokens * channels), history = start;
                table->short_conv(In(u, tokens, channels), w, taps, start, 0, channels,
                                  {at_once.data(), tokens, channels});
                for (std::size_t t = 0; t < tokens; ++t) {
                    const In one(u + t * channels, 1, channels);
                    table->short_conv(one, w, taps, history, 0, channels, {steps + t * channels, 1, channels});
                    table->shift_history(one, 1, taps, 0, channels, history);
                }
                CHECK(difference(steps, at_once) == "");
                // The history at once, too; and the pre-conv inputs are what it holds, not outputs.
                Floats moved = start;
                table->shift_history(In(u, tokens, channels), tokens, taps, 0, channels, moved);
                CHECK(difference(moved, history) == "");
                for (std::size_t j = 0; j + 1 < taps; ++j) {
                    const std::size_t joined = tokens + j;  // row of (start, u)
                    for (std::size_t c = 0; c < channels; ++c)
                        CHECK(same(moved[j * channels + c], joined < taps - 1 ? start[joined * channels + c]
                                                                              : u[(joined + 1 - taps) * channels + c]));
                }
            }
}

TEST_CASE(
    "kernels/short_conv: shift_history keeps the first n of more tokens, moves its own channels, and n = 0 nothing") {
    const std::size_t channels = 10, taps = 4;
    for (const KernelTable* table : tables_of_this_cpu())
        for (std::size_t n = 0; n <= 6; ++n) {
            const Floats u(6 * channels, Kind::plain, 3), start(3 * channels, Kind::plain, 5);
            Floats part = start, whole = start;
            table->shift_history(In(u, 6, channels), n, taps, 4, 9, part);
            table->shift_history(In(u, n, channels), n, taps, 0, channels, whole);
            for (std::size_t i = 0; i < part.size(); ++i) {
                const std::size_t c = i % channels;
                CHECK(same(part[i], c >= 4 && c < 9 ? whole[i] : start[i]));
            }
            if (n == 0) CHECK(difference(whole, start) == "");
        }
}

TEST_CASE(
    "kernels/short_conv: trap 8, tap K-1 meets the current token and tap 0 the oldest; the order of adds is fixed") {
    for (const KernelTable* table : tables_of_this_cpu()) {
        // One channel; silu is undone by comparing with silu of the expected sum.
        const Floats w = [] {
            Floats taps(4);
            for (std::size_t j = 0; j < 4; ++j) taps[j] = static_cast<float>(j + 1);
            return taps;
        }();
        const float u[4] = {1000, 100, 10, 1}, zero[3] = {0, 0, 0};
        float y[4];
        table->short_conv(In(u, 4, 1), w, 4, zero, 0, 1, {y, 4, 1});
        CHECK(same(y[0], 4000.0F));
        CHECK(same(y[1], 3400.0F));
        CHECK(same(y[2], 2340.0F));
        CHECK(same(y[3], 1234.0F));  // reversed: 4321
        // acc = w3 u3, then + w0 u0, + w1 u1, + w2 u2: 1 + 2^-24 + 2^-24 stays 1; oldest first with w3 last would not.
        const float ones[4] = {1, 1, 1, 1}, v[4] = {0x1p-24F, 0x1p-24F, 0, 1};
        table->short_conv(In(v, 4, 1), ones, 4, zero, 0, 1, {y, 4, 1});
        CHECK(same(y[3], twin::silu(1.0F)));
        REQUIRE_FALSE(same(twin::silu(1.0F), twin::silu(1.0F + 0x1p-23F)));
        // silu after the sum: silu of each product would differ.
        const float mixed[4] = {-3, 2, -1, 1};
        table->short_conv(In(mixed, 4, 1), ones, 4, zero, 0, 1, {y, 4, 1});
        CHECK(same(y[3], twin::silu(-1.0F)));
    }
}

TEST_CASE(
    "kernels/short_conv: inputs before the start are +0 and their taps are applied: an infinite tap shows as NaN") {
    for (const KernelTable* table : tables_of_this_cpu()) {
        const float w[2] = {kInf, 1}, u[2] = {1, 2}, zero[1] = {0};
        float y[2];
        table->short_conv(In(u, 2, 1), w, 2, zero, 0, 1, {y, 2, 1});
        CHECK(y[0] != y[0]);
        CHECK(y[1] == kInf);
    }
}

TEST_CASE("kernels/delta_rule: every arch is the plain loop: dk and dv every length, dk != dv, several tokens") {
    for (const KernelTable* table : tables_of_this_cpu()) {
        std::uint64_t seed = 0;
        for (const std::size_t dk : {0U, 1U, 2U, 5U, 8U, 13U, 32U})
            for (const std::size_t dv : lengths()) {
                if (dv > 80 && dk > 8) continue;
                const Kind kind = kKinds[++seed % std::size(kKinds)];
                Floats state(dk * dv, kind, seed, seed % 5), want = state;
                for (int t = 0; t < 3; ++t) {
                    const Token token(dk, dv, kind, seed + 100 * static_cast<unsigned>(t));
                    Floats out(dv + 1, seed % 3), expected(dv);
                    out[dv] = -7.0F;
                    table->delta_rule(state, dk, dv, token.view(), out);
                    twin::delta_rule(want, dk, dv, token.view(), expected);
                    CAPTURE(std::string(table->name));
                    CAPTURE(dk);
                    CAPTURE(dv);
                    CAPTURE(static_cast<int>(kind));
                    REQUIRE(difference(out.data(), expected.data(), dv) == "");
                    REQUIRE(difference(state, want) == "");
                    REQUIRE(out[dv] == -7.0F);
                }
            }
    }
}

TEST_CASE("kernels/delta_rule: trap 6, decay first and by key row; read after decay; output after the update") {
    const std::size_t dk = 3, dv = 5;
    const Token token(dk, dv, Kind::plain, 11);
    const Floats start(dk * dv, Kind::plain, 12);
    const auto variant = [&](bool by_column, bool read_before_decay, bool out_before_update) {
        std::vector<double> out(dv);
        for (std::size_t j = 0; j < dv; ++j) {
            double u = 0, o = 0;
            const auto alpha = [&](std::size_t i) { return twin::f64(token.alpha[by_column ? j % dk : i]); };
            const auto s = [&](std::size_t i) { return twin::f64(start[i * dv + j]); };
            for (std::size_t i = 0; i < dk; ++i) u += twin::f64(token.k[i]) * s(i) * (read_before_decay ? 1 : alpha(i));
            for (std::size_t i = 0; i < dk; ++i) {
                const double decayed = s(i) * alpha(i);
                const double next =
                    decayed + twin::f64(token.k[i]) * twin::f64(token.beta) * (twin::f64(token.v[j]) - u);
                o += twin::f64(token.q[i]) * (out_before_update ? decayed : next);
            }
            out[j] = o;
        }
        return out;
    };
    const auto right = variant(false, false, false);
    const auto far = [&](const std::vector<double>& other) {
        double most = 0;
        for (std::size_t j = 0; j < dv; ++j) most = std::max(most, std::fabs(other[j] - right[j]));
        return most > 0.01;
    };
    REQUIRE(far(variant(true, false, false)));
    REQUIRE(far(variant(false, true, false)));
    REQUIRE(far(variant(false, false, true)));
    for (const KernelTable* table : tables_of_this_cpu()) {
        Floats state = start, out(dv);
        table->delta_rule(state, dk, dv, token.view(), out);
        for (std::size_t j = 0; j < dv; ++j) CHECK(twin::f64(out[j]) == doctest::Approx(right[j]).epsilon(1e-5));
    }
}

TEST_CASE("kernels/delta_rule: trap 7, beta = 0 leaves exactly alpha * S in every entry") {
    for (const KernelTable* table : tables_of_this_cpu())
        for (const std::size_t dv : {1U, 8U, 19U, 64U}) {
            const std::size_t dk = 6;
            Token token(dk, dv, Kind::plain, 3);
            token.beta = 0.0F;
            const Floats start(dk * dv, Kind::wide, 4);
            Floats state = start, out(dv);
            table->delta_rule(state, dk, dv, token.view(), out);
            for (std::size_t i = 0; i < dk; ++i)
                for (std::size_t j = 0; j < dv; ++j)
                    CHECK(state[i * dv + j] == twin::mul(start[i * dv + j], token.alpha[i]));
        }
}

TEST_CASE("kernels/delta_rule: trap 5, from an empty state o = beta (k.q) v: q is not scaled again, k not at all") {
    for (const KernelTable* table : tables_of_this_cpu()) {
        const std::size_t dk = 4, dv = 3;
        const float q[4] = {1, 2, 0, 0}, k[4] = {0.5F, 0.25F, 8, 0}, v[3] = {1, -2, 4},
                    alpha[4] = {0.5F, 0.5F, 0.5F, 0.5F};
        Floats state(dk * dv, 0), out(dv);
        state.fill(0.0F);
        table->delta_rule(state, dk, dv, {q, k, v, alpha, 0.5F}, out);
        CHECK(out[0] == 0.5F);
        CHECK(out[1] == -1.0F);
        CHECK(out[2] == 2.0F);
    }
}

TEST_CASE("kernels/delta_rule: R is a rounded product: fusing S * alpha into the sum or the update gives other bits") {
    // The expression of ruling 1: acc + mul(x, y) where acc is itself a bare product.
    const std::size_t dk = 16, dv = 24;
    unsigned differ = 0;
    const Token token(dk, dv, Kind::plain, 21);
    const Floats start(dk * dv, Kind::plain, 22);
    Floats want = start, expected(dv);
    twin::delta_rule(want, dk, dv, token.view(), expected);
    for (std::size_t j = 0; j < dv; ++j) {
        float u = 0;
        for (std::size_t i = 0; i < dk; ++i)
            u = twin::add(u, twin::mul(token.k[i], twin::mul(start[i * dv + j], token.alpha[i])));
        for (std::size_t i = 0; i < dk; ++i) {
            const float write = twin::mul(twin::mul(token.k[i], token.beta), twin::add(token.v[j], -u));
            differ += !same(std::fma(start[i * dv + j], token.alpha[i], write), want[i * dv + j]);
        }
    }
    REQUIRE(differ > 10);
    for (const KernelTable* table : tables_of_this_cpu()) {
        Floats state = start, out(dv);
        table->delta_rule(state, dk, dv, token.view(), out);
        CHECK(difference(state, want) == "");
        CHECK(difference(out, expected) == "");
    }
}

TEST_CASE("kernels/delta_rule: value columns are independent: a NaN in one column of S stays there") {
    for (const KernelTable* table : tables_of_this_cpu())
        for (const std::size_t dv : {9U, 40U, 72U}) {
            const std::size_t dk = 5;
            const Token token(dk, dv, Kind::plain, 6);
            Floats state(dk * dv, Kind::plain, 7), out(dv);
            state[2 * dv + 4] = kNaN;
            table->delta_rule(state, dk, dv, token.view(), out);
            for (std::size_t j = 0; j < dv; ++j) CHECK((out[j] != out[j]) == (j == 4));
            for (std::size_t i = 0; i < dk * dv; ++i) CHECK((state[i] != state[i]) == (i % dv == 4));
        }
}
