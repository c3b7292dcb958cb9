// Norms and elementwise kernels: bits on every arch against the plain loops, aliasing, and one fixture per wrong
// variant.
#include "support/doctest.hpp"
#include "support/kernel_table.hpp"
#include "support/kernel_table_data.hpp"
#include "support/kernel_table_twin.hpp"

using namespace k3;
using namespace k3::tests;

namespace {

/// Calls fn(table, kind, n, seed, shift) for every arch, kind, length and a few misalignments.
template <class Fn>
void sweep(Fn fn) {
    for (const KernelTable* table : tables_of_this_cpu())
        for (const Kind kind : kKinds)
            for (const std::size_t n : lengths())
                for (const std::size_t shift : {0U, 1U, 5U}) {
                    CAPTURE(std::string(table->name));
                    CAPTURE(static_cast<int>(kind));
                    CAPTURE(n);
                    CAPTURE(shift);
                    fn(*table, kind, n, 31 * n + static_cast<std::size_t>(kind) + 7 * shift, shift);
                }
}
/// The values that carry rounding of a whole norm: 1 / sqrt(mean + eps) at sizes where eps counts and where it does
/// not.
constexpr double kEps[] = {1e-5, 1e-6, 0x1p-20};

}  // namespace

TEST_CASE("kernels/norm: rmsnorm is the plain loop on every arch; y may be x; exactly n values are written") {
    sweep([](const KernelTable& table, Kind kind, std::size_t n, std::uint64_t seed, std::size_t shift) {
        Floats x(n, kind, seed, shift);
        const Floats w(n, kind == Kind::huge ? Kind::plain : kind, seed + 1, (shift + 2) % 8);
        for (const double eps : kEps) {
            Floats want(n), y(n + 1, shift);
            const float inv = twin::rms_factor(x, n, eps);
            for (std::size_t i = 0; i < n; ++i) want[i] = twin::mul(twin::mul(x[i], inv), w[i]);
            y[n] = -7.0F;
            table.rmsnorm(x, w, n, eps, y);
            REQUIRE(difference(y.data(), want.data(), n) == "");
            REQUIRE(y[n] == -7.0F);
            Floats in_place = x;
            table.rmsnorm(in_place, w, n, eps, in_place);
            REQUIRE(difference(in_place, want) == "");
        }
    });
}

TEST_CASE("kernels/norm: l2norm and l2norm_scaled are the plain loops on every arch; y may be x") {
    const float scale = twin::rn(twin::inverse_sqrt(128.0));
    sweep([scale](const KernelTable& table, Kind kind, std::size_t n, std::uint64_t seed, std::size_t shift) {
        const Floats x(n, kind, seed, shift);
        const float inv = twin::l2_factor(x, n);
        Floats plain(n), scaled(n), y(n, shift);
        for (std::size_t i = 0; i < n; ++i) {
            plain[i] = twin::mul(x[i], inv);
            scaled[i] = twin::mul(plain[i], scale);
        }
        table.l2norm(x, n, y);
        REQUIRE(difference(y, plain) == "");
        table.l2norm_scaled(x, n, scale, y);
        REQUIRE(difference(y, scaled) == "");
        Floats in_place = x;
        table.l2norm_scaled(in_place, n, scale, in_place);
        REQUIRE(difference(in_place, scaled) == "");
    });
}

TEST_CASE("kernels/norm: inverse_sqrt is RN64(1 / RN64(sqrt(v))), not the rounded reciprocal root") {
    unsigned differ = 0;
    for (const KernelTable* table : tables_of_this_cpu())
        for (int v = 1; v < 2000; ++v) {
            const double want = twin::inverse_sqrt(v);
            CHECK(same(table->inverse_sqrt(v), want));
            differ += want != static_cast<double>(1 / std::sqrt(static_cast<long double>(v)));
        }
    CHECK(differ > 0);  // the other definition is other bits: the test can tell them apart
}

TEST_CASE("kernels/norm: trap 43, eps is inside the root and is the caller's: 1e-5 and 1e-6 differ on a small input") {
    for (const KernelTable* table : tables_of_this_cpu()) {
        const std::size_t n = 64;
        Floats x(n, 0), w(n, 0), a(n), b(n);
        x.fill(1e-3F);
        w.fill(1.0F);
        table->rmsnorm(x, w, n, 1e-5, a);
        table->rmsnorm(x, w, n, 1e-6, b);
        CHECK(a[0] == doctest::Approx(1e-3 / std::sqrt(1e-6 + 1e-5)).epsilon(1e-6));  // eps outside: 0.990
        CHECK(b[0] == doctest::Approx(1e-3 / std::sqrt(1e-6 + 1e-6)).epsilon(1e-6));
    }
}

TEST_CASE("kernels/norm: trap 4, l2norm divides by the sum of squares plus 1e-6: no mean, no max(norm, 1e-12)") {
    for (const KernelTable* table : tables_of_this_cpu()) {
        const std::size_t n = 128;
        Floats x(n, Kind::plain, 5), y(n), small(n, 0);
        table->l2norm(x, n, y);
        double norm = 0;
        for (std::size_t i = 0; i < n; ++i) norm += twin::f64(y[i]) * twin::f64(y[i]);
        CHECK(norm == doctest::Approx(1.0).epsilon(1e-5));  // the mean form gives 128
        small.fill(1e-5F);                                  // sum of squares 1.28e-8
        table->l2norm(small, n, y);
        CHECK(y[0] == doctest::Approx(1e-5 / std::sqrt(1.28e-8 + 1e-6)).epsilon(1e-6));  // max form: 0.088
        small.fill(0.0F);
        table->l2norm(small, n, y);
        for (std::size_t i = 0; i < n; ++i) CHECK(same(y[i], 0.0F));
    }
}

TEST_CASE("kernels/norm: the factor comes from a binary64 sum: squares that overflow or vanish in binary32 are kept") {
    for (const KernelTable* table : tables_of_this_cpu()) {
        const std::size_t n = 16;
        Floats x(n, 0), w(n, 0), y(n);
        w.fill(1.0F);
        x.fill(0x1p+100F);
        table->rmsnorm(x, w, n, 1e-5, y);
        for (std::size_t i = 0; i < n; ++i) CHECK(y[i] == doctest::Approx(1.0));
        x.fill(0x1p-126F);
        x[3] = 0x1p-140F;  // a subnormal: flushed it would be 0
        table->rmsnorm(x, w, n, 0.0, y);
        CHECK(y[3] == doctest::Approx(0x1p-14 / std::sqrt(15.0 / 16)));
    }
}

TEST_CASE(
    "kernels/elementwise: add, sigmoid_gate, scaled_add, sigmoid, exp, tanh, silu are the plain loops on every arch") {
    sweep([](const KernelTable& table, Kind kind, std::size_t n, std::uint64_t seed, std::size_t shift) {
        const Floats a(n, kind, seed, shift), b(n, kind, seed + 1, (shift + 3) % 8);
        const float w = value(kind, seed + 2, n);
        Floats want(n), y(n + 1, shift);
        y[n] = -7.0F;
        const auto judge = [&](auto plain) {
            for (std::size_t i = 0; i < n; ++i) want[i] = plain(i);
            REQUIRE(difference(y.data(), want.data(), n) == "");
            REQUIRE(y[n] == -7.0F);
        };
        table.add(a, b, n, y);
        judge([&](std::size_t i) { return twin::add(a[i], b[i]); });
        table.sigmoid_gate(a, b, n, y);
        judge([&](std::size_t i) { return twin::mul(a[i], twin::sigmoid(b[i])); });
        std::copy(b.data(), b.data() + n, y.data());
        table.scaled_add(w, a, n, y);
        judge([&](std::size_t i) { return twin::add(b[i], twin::mul(w, a[i])); });
        table.sigmoid(a, n, y);
        judge([&](std::size_t i) { return twin::sigmoid(a[i]); });
        table.silu(a, n, y);
        judge([&](std::size_t i) { return twin::silu(a[i]); });
        table.exp(a, n, y);
        judge([&](std::size_t i) { return twin::exp(a[i]); });
        table.tanh(a, n, y);
        judge([&](std::size_t i) { return twin::tanh(a[i]); });
    });
}

TEST_CASE("kernels/elementwise: outputs may be inputs") {
    for (const KernelTable* table : tables_of_this_cpu())
        for (const std::size_t n : lengths()) {
            const Floats a(n, Kind::wide, n), b(n, Kind::plain, n + 1);
            Floats want(n), y(n);
            const auto both = [&](auto call) {  // call(x, y, out): out apart, out = x, out = y
                call(a.data(), b.data(), want.data());
                y = a;
                call(y.data(), b.data(), y.data());
                REQUIRE(difference(y, want) == "");
                y = b;
                call(a.data(), y.data(), y.data());
                REQUIRE(difference(y, want) == "");
            };
            both([&](const float* p, const float* q, float* out) { table->add(p, q, n, out); });
            both([&](const float* p, const float* q, float* out) { table->sigmoid_gate(p, q, n, out); });
            both([&](const float* p, const float* q, float* out) { table->situ_glu(p, q, n, 4.0F, 25.0F, out); });
            both([&](const float* p, const float* q, float* out) { table->decay(p, q, n, 0.7F, -5.0F, out); });
        }
}

TEST_CASE("kernels/elementwise: situ_glu is the plain loop on every arch, with the release's betas and others") {
    sweep([](const KernelTable& table, Kind kind, std::size_t n, std::uint64_t seed, std::size_t shift) {
        const Floats g(n, kind, seed, shift), u(n, kind, seed + 1, (shift + 3) % 8);
        for (const float b1 : {4.0F, 3.3F}) {
            const float b2 = b1 == 4.0F ? 25.0F : 7.1F;
            Floats want(n), y(n);
            for (std::size_t i = 0; i < n; ++i) want[i] = twin::situ(g[i], u[i], b1, b2);
            table.situ_glu(g, u, n, b1, b2, y);
            REQUIRE(difference(y, want) == "");
        }
    });
}

TEST_CASE(
    "kernels/elementwise: trap 28, the sigmoid takes the raw gate, the caps are not omitted, exchanged or shared") {
    for (const KernelTable* table : tables_of_this_cpu()) {
        const float g[5] = {-30, -0.5F, 1, 8, 1000}, u[5] = {3, -40, 1000, 100, 1000};
        float y[5];
        table->situ_glu(g, u, 5, 4.0F, 25.0F, y);
        for (int i = 0; i < 5; ++i) {
            const double gi = g[i], ui = u[i];
            const double want = 4 * std::tanh(gi / 4) / (1 + std::exp(-gi)) * 25 * std::tanh(ui / 25);
            CHECK(y[i] == doctest::Approx(want).epsilon(1e-6));
            const double cap = 4 * std::tanh(gi / 4);
            const double wrong[] = {cap / (1 + std::exp(-cap)) * 25 * std::tanh(ui / 25),  // sigmoid of the capped gate
                                    gi / (1 + std::exp(-gi)) * ui,                         // no caps
                                    25 * std::tanh(gi / 25) / (1 + std::exp(-gi)) * 4 * std::tanh(ui / 4)};
            for (const double w : wrong)
                if (i == 0 || i == 3) CHECK(std::fabs(w - want) > 1e-4 * std::fabs(want));
        }
        CHECK(y[4] == 100.0F);  // the bound, exactly
        const float g0[1] = {-1.0F}, u0[1] = {2.0F};
        float a, b;
        table->situ_glu(g0, u0, 1, 4.0F, 25.0F, &a);
        table->situ_glu(u0, g0, 1, 4.0F, 25.0F, &b);
        CHECK(std::fabs(a - b) > 0.1F);  // w1 and w3 are not exchangeable
    }
}

TEST_CASE("kernels/elementwise: decay is the plain loop on every arch") {
    sweep([](const KernelTable& table, Kind kind, std::size_t n, std::uint64_t seed, std::size_t shift) {
        const Floats z(n, kind, seed, shift), dt(n, kind, seed + 1, (shift + 3) % 8);
        for (const float a : {1.0F, 0.0123F, 16.5F}) {
            Floats want(n), y(n);
            for (std::size_t i = 0; i < n; ++i) want[i] = twin::decay(z[i], dt[i], a, -5.0F);
            table.decay(z, dt, n, a, -5.0F, y);
            REQUIRE(difference(y, want) == "");
        }
    });
}

TEST_CASE(
    "kernels/elementwise: traps 2 and 3, decay scales a sigmoid by the bound: no softplus, no clamp, bias inside") {
    for (const KernelTable* table : tables_of_this_cpu()) {
        const std::size_t n = 401;
        Floats z(n), zero(n, 0), alpha(n);
        zero.fill(0.0F);
        for (std::size_t i = 0; i < n; ++i) z[i] = -20.0F + 0.1F * static_cast<float>(i);
        table->decay(z, zero, n, 0.5F, -5.0F, alpha);
        for (std::size_t i = 0; i < n; ++i) {
            CHECK(alpha[i] > static_cast<float>(std::exp(-5.0)));
            CHECK(alpha[i] < 1.0F);
            if (i > 0) CHECK(alpha[i] < alpha[i - 1]);  // strictly monotone: a clamp would be flat
        }
        float one = 0.0F, bias = 0.0F, out;
        table->decay(&one, &bias, 1, 3.0F, -5.0F, &out);
        CHECK(std::log(twin::f64(out)) == doctest::Approx(-2.5).epsilon(1e-6));  // softplus form: -3 ln 2
        one = 0.25F;
        bias = 0.5F;
        table->decay(&one, &bias, 1, 3.0F, -5.0F, &out);
        CHECK(std::log(twin::f64(out)) == doctest::Approx(-5 / (1 + std::exp(-3 * 0.75))).epsilon(1e-6));
        one = -300.0F;  // the sigmoid underflows to 0: alpha is exactly 1
        table->decay(&one, &bias, 1, 3.0F, -5.0F, &out);
        CHECK(same(out, 1.0F));
    }
}

TEST_CASE("kernels/elementwise: scaled_add rounds twice; a fused multiply-add gives other bits") {
    const float w = 1.0F + 0x1p-12F, x = 1.0F + 0x1p-12F, acc = -(1.0F + 0x1p-11F);
    REQUIRE(std::fma(w, x, acc) != 0.0F);
    for (const KernelTable* table : tables_of_this_cpu()) {
        std::vector<float> xs(19, x), y(19, acc);
        table->scaled_add(w, xs.data(), 19, y.data());
        for (const float v : y) CHECK(same(v, 0.0F));
    }
}
