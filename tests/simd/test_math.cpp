// exp, tanh, sigmoid on every arch. The fast cases sample every exponent; the slow one walks all 2^32 inputs on the
// widest arch (about three minutes on two free cores):
//
//   build/tests/simd/test_simd --no-skip -ts=slow
//
// How correct rounding is judged: libm's binary64 value is within 2^-50 of the truth; if both ends of that interval
// round to the same binary32 there is nothing to decide. Otherwise long double decides in the same way with 2^-62. exp
// and tanh of a binary32 number other than 0 are transcendental: no exact ties exist, so what is still open then is
// counted and must be none.
#include <atomic>
#include <thread>

#include "k3/simd/math.hpp"
#include "support/doctest.hpp"
#include "support/kernel_table.hpp"
#include "support/kernel_table_data.hpp"
#include "support/kernel_table_twin.hpp"

using namespace k3;
using namespace k3::tests;

namespace {

enum class Function { exp, tanh };

struct Verdict {
    float value;
    bool open;
};
template <class T>
bool decided(T v, T relative, float& out) {
    const T low = v - std::fabs(v) * relative, high = v + std::fabs(v) * relative;
    out = static_cast<float>(v);
    return same(static_cast<float>(low), static_cast<float>(high));
}
/// The correctly rounded value.
Verdict truth(Function f, float x) {
    Verdict v{0, false};
    if (x == 0) return {f == Function::exp ? 1.0F : x, false};
    if (f == Function::exp && x > 89) return {x == x ? kInf : x, false};
    if (f == Function::exp && x < -104) return {0.0F, false};  // below 2^-150
    if (f == Function::tanh && std::fabs(x) < 0x1p-13F) {      // x - x^3/3: less than half an ulp below x
        v.value = x;
        return v;
    }
    if (f == Function::tanh && std::fabs(x) > 10) return {std::copysign(1.0F, x), false};  // 1 - 2^-28.8
    const double d = static_cast<double>(x);
    if (decided(f == Function::exp ? std::exp(d) : std::tanh(d), 0x1p-50, v.value)) return v;
    const long double l = static_cast<long double>(x);
    v.open = !decided(f == Function::exp ? std::exp(l) : std::tanh(l), 0x1p-62L, v.value);
    return v;
}
/// Distance from the exact sigmoid in units of the last place of binary32.
double sigmoid_error(float got, float x) {
    const double d = static_cast<double>(x);
    const double exact = d >= 0 ? 1 / (1 + std::exp(-d)) : std::exp(d) / (1 + std::exp(d));
    int exponent;
    std::frexp(std::max(exact, 0x1p-126), &exponent);
    return std::fabs(static_cast<double>(got) - exact) / std::ldexp(1.0, exponent - 24);
}

/// Every exponent and sign with `each` mantissas, edges included; then the neighbourhood of the clamps.
std::vector<float> samples(std::size_t each) {
    std::vector<float> all;
    for (std::uint32_t high = 0; high < 512; ++high)
        for (std::size_t i = 0; i < each; ++i) {
            std::uint32_t mantissa = static_cast<std::uint32_t>(hash(high, i)) & 0x7fffffU;
            if (i < 8) mantissa = static_cast<std::uint32_t>(i);
            if (i >= 8 && i < 16) mantissa = 0x7fffffU - static_cast<std::uint32_t>(i - 8);
            all.push_back(std::bit_cast<float>((high << 23) | mantissa));
        }
    for (const float edge : {-104.0F, -103.972076F, -103.27893F, -87.33654F, 88.72284F, 89.0F, 104.0F, 20.0F, -20.0F,
                             9.01F, 0x1p-20F, -0x1p-20F, 0x1p-12F, 0x1p-25F, 17.32868F, -17.32868F, 0.34657359F}) {
        float up = edge, down = edge;
        for (int i = 0; i < 200; ++i) {
            all.push_back(up);
            all.push_back(down);
            up = std::nextafter(up, kInf);
            down = std::nextafter(down, -kInf);
        }
    }
    // So near the middle of two floats that a series without its last four terms falls on the other side.
    for (const float hard : {0x1.35632cp-2F, 0x1.35fe46p-2F, 0x1.385596p-2F, 0x1.4dbcdcp+2F, 0x1.4e426p+2F})
        all.push_back(hard);
    while (all.size() % 8 != 0) all.push_back(0.5F);
    return all;
}

}  // namespace

TEST_CASE("simd/math: exp and tanh are correctly rounded on a million sampled arguments, every exponent, every arch") {
    const std::vector<float> x = samples(2048);
    std::vector<float> exp_of, tanh_of;
    for (const float v : x) {
        const Verdict e = truth(Function::exp, v), t = truth(Function::tanh, v);
        REQUIRE_FALSE(e.open);
        REQUIRE_FALSE(t.open);
        exp_of.push_back(e.value);
        tanh_of.push_back(t.value);
    }
    std::vector<float> y(x.size());
    for (const KernelTable* table : tables_of_this_cpu()) {
        CAPTURE(std::string(table->name));
        table->exp(x.data(), x.size(), y.data());
        CHECK(difference(y, exp_of) == "");
        table->tanh(x.data(), x.size(), y.data());
        CHECK(difference(y, tanh_of) == "");
    }
}

TEST_CASE("simd/math: sigmoid is the listed binary64 sequence rounded once, on every arch, and within 0.501 ulp") {
    const std::vector<float> x = samples(1024);
    std::vector<float> want, y(x.size());
    double worst = 0;
    for (const float v : x) {
        want.push_back(twin::sigmoid(v));
        if (v == v) worst = std::max(worst, sigmoid_error(want.back(), v));
    }
    CHECK(worst < 0.501);
    for (const KernelTable* table : tables_of_this_cpu()) {
        CAPTURE(std::string(table->name));
        table->sigmoid(x.data(), x.size(), y.data());
        CHECK(difference(y, want) == "");
    }
}

TEST_CASE("simd/math: specials: zeros, infinities, NaN, subnormals") {
    const float tiny = std::numeric_limits<float>::denorm_min(), big = std::numeric_limits<float>::max();
    struct Row {
        float x, exp, sigmoid, tanh, silu;
    };
    const Row rows[] = {{0.0F, 1.0F, 0.5F, 0.0F, 0.0F},
                        {-0.0F, 1.0F, 0.5F, -0.0F, -0.0F},
                        {kInf, kInf, 1.0F, 1.0F, kInf},
                        {-kInf, 0.0F, 0.0F, -1.0F, kNaN},  // -inf * 0
                        {kNaN, kNaN, kNaN, kNaN, kNaN},
                        {-kNaN, kNaN, kNaN, kNaN, kNaN},
                        {tiny, 1.0F, 0.5F, tiny, 0.0F},  // half of it is a tie: to even
                        {-tiny, 1.0F, 0.5F, -tiny, -0.0F},
                        {3 * tiny, 1.0F, 0.5F, 3 * tiny, 2 * tiny},
                        {0x1.fffffcp-127F, 1.0F, 0.5F, 0x1.fffffcp-127F, 0x1.fffffcp-128F},
                        {big, kInf, 1.0F, 1.0F, big},
                        {-big, 0.0F, 0.0F, -1.0F, -0.0F},
                        {88.72284F, std::exp(88.72284F), 1.0F, 1.0F, 88.72284F},
                        {-103.0F, std::exp(-103.0F), std::exp(-103.0F), -1.0F, -103.0F * std::exp(-103.0F)}};
    for (const KernelTable* table : tables_of_this_cpu())
        for (std::size_t lane = 0; lane < 8; ++lane)  // every lane, beside ordinary values
            for (const Row& row : rows) {
                float x[8] = {1, 2, 3, 4, 5, 6, 7, 8}, y[8];
                x[lane] = row.x;
                CAPTURE(std::string(table->name));
                CAPTURE(row.x);
                table->exp(x, 8, y);
                CHECK(same(y[lane], row.exp));
                table->sigmoid(x, 8, y);
                CHECK(same(y[lane], row.sigmoid));
                table->tanh(x, 8, y);
                CHECK(same(y[lane], row.tanh));
                table->silu(x, 8, y);
                CHECK(same(y[lane], row.silu));
            }
}

TEST_CASE("simd/math: a result does not depend on the lane, the tail or its neighbours") {
    const std::vector<float> x = samples(16);
    for (const KernelTable* table : tables_of_this_cpu()) {
        std::vector<float> whole(x.size()), one(1);
        const UnaryFn functions[] = {table->exp, table->sigmoid, table->tanh, table->silu};
        for (const UnaryFn fn : functions) {
            fn(x.data(), x.size(), whole.data());
            for (std::size_t i = 0; i < x.size(); ++i) {
                fn(&x[i], 1, one.data());
                REQUIRE(same(one[0], whole[i]));
            }
        }
    }
}

namespace {

double exp64(double x) { return simd::exp<simd::scalar>(simd::broadcast<simd::f64x8, simd::scalar>(x)).r[7]; }
/// Distance from the truth in units of the last place of binary64; subnormal truths are not asked for.
double error64(double got, long double truth) {
    int exponent;
    std::frexp(truth, &exponent);
    return static_cast<double>(std::fabs(static_cast<long double>(got) - truth) / std::ldexp(1.0L, exponent - 53));
}
/// In [0, 1), 53 bits.
double unit(std::uint64_t seed, std::uint64_t i) { return static_cast<double>(hash(seed, i) >> 11) * 0x1p-53; }

}  // namespace

TEST_CASE("simd/math: exp and log of binary64 are within one ulp, everywhere that counts") {
    double worst_exp = 0, worst_log = 0;
    for (std::uint64_t i = 0; i < 100000; ++i) {
        for (const double x : {-40 * unit(1, i), -unit(2, i), 1409 * unit(3, i) - 700,
                               std::ldexp(unit(4, i) - 0.5, -static_cast<int>(i % 60))})
            worst_exp = std::max(worst_exp, error64(exp64(x), std::exp(static_cast<long double>(x))));
        for (const double x : {1 + 163839 * unit(5, i), 0.5 + 1.5 * unit(6, i),
                               1 + std::ldexp(unit(7, i) - 0.5, -static_cast<int>(i % 40)),
                               std::ldexp(1 + unit(8, i), static_cast<int>(i % 2046) - 1022)})
            if (x != 1) worst_log = std::max(worst_log, error64(simd::log(x), std::log(static_cast<long double>(x))));
    }
    CHECK(worst_exp < 1);
    CHECK(worst_log < 1);
    CHECK(worst_exp > 0.5);  // not the library's, which is nearer
    CHECK(worst_log > 0.5);
}

TEST_CASE("simd/math: exp and log of binary64 at their edges") {
    const double inf = std::numeric_limits<double>::infinity();
    CHECK(exp64(0.0) == 1);
    CHECK(exp64(-0.0) == 1);
    CHECK(exp64(0x1p-1074) == 1);
    CHECK(same(exp64(-inf), 0.0));
    CHECK(same(exp64(std::nextafter(-700.0, -inf)), 0.0));
    CHECK(exp64(-700.0) > 9e-305);
    CHECK(exp64(709.0) < inf);
    CHECK(exp64(std::nextafter(709.0, inf)) == inf);
    CHECK(exp64(inf) == inf);
    const double nan = exp64(std::numeric_limits<double>::quiet_NaN());
    CHECK(nan != nan);
    CHECK(same(simd::log(1.0), 0.0));
    CHECK(simd::log(2.0) == 0x1.62e42fefa39efp-1);
    CHECK(simd::log(0.5) == -0x1.62e42fefa39efp-1);
    CHECK(error64(simd::log(std::numeric_limits<double>::max()), 709.782712893383996732224L) < 1);
    CHECK(error64(simd::log(std::numeric_limits<double>::min()), -708.396418532264106224412L) < 1);
}

TEST_CASE("simd/lanes: reduce adds 4 to 4, 2 to 2, 1 to 1: any other tree differs on these lanes") {
    const double lanes[8] = {1, 0x1p-53, 0x1p+60, 3, 0x1p-53, 0x1p-52, -0x1p+60, 0x1p-51};
    const double want = ((1 + 0x1p-53) + (0x1p+60 - 0x1p+60)) + ((0x1p-53 + 0x1p-52) + (3 + 0x1p-51));
    double ascending = 0;
    for (const double v : lanes) ascending += v;
    REQUIRE(ascending != want);
    for (const KernelTable* table : tables_of_this_cpu()) {
        CHECK(same(table->reduce(lanes), want));
        for (std::uint64_t seed = 0; seed < 500; ++seed) {
            double v[8], sum[8];
            for (std::size_t i = 0; i < 8; ++i) v[i] = sum[i] = static_cast<double>(value(Kind::wide, seed, i));
            for (std::size_t i = 0; i < 4; ++i) sum[i] += v[i + 4];
            for (std::size_t i = 0; i < 2; ++i) sum[i] += sum[i + 2];
            CHECK(same(table->reduce(v), sum[0] + sum[1]));
        }
    }
}

TEST_CASE("simd/lanes: narrow rounds to nearest even everywhere: ties, overflow, subnormals, the edge of zero") {
    const double x[] = {1 + 0x1p-24,
                        1 + 0x1p-24 + 0x1p-50,
                        1 + 3 * 0x1p-24,
                        -(1 + 0x1p-24),
                        0x1.ffffffp+127,
                        0x1.fffffefffffffp+127,
                        0x1p-149,
                        0x1p-150,
                        0x1.0000001p-150,
                        3 * 0x1p-150,
                        -0x1p-150,
                        0x1p-127 + 0x1p-150,
                        0x1.fffffefffffffp-127,
                        -0.0,
                        0x1p+1000,
                        -0x1p-1000};
    const float want[] = {1.0F,      1 + 0x1p-23F, 1 + 0x1p-22F, -1.0F,     kInf,  0x1.fffffep+127F,
                          0x1p-149F, 0.0F,         0x1p-149F,    0x1p-148F, -0.0F, 0x1p-127F,
                          0x1p-126F, -0.0F,        kInf,         -0.0F};
    for (const KernelTable* table : tables_of_this_cpu()) {
        float y[16];
        table->narrow(x, 16, y);
        CAPTURE(std::string(table->name));
        CHECK(difference(y, want, 16) == "");
    }
}

TEST_CASE("simd/canary: it is true on every arch of this CPU in this build") {
    for (const KernelTable* table : tables_of_this_cpu()) {
        CAPTURE(std::string(table->name));
        CHECK(table->canary());
    }
}

TEST_SUITE("slow") {
    TEST_CASE("simd/math: exp and tanh are correctly rounded on all 2^32 inputs; sigmoid's worst error" *
              doctest::skip(true)) {
        const KernelTable& table = *tables_of_this_cpu().back();
        struct Count {
            std::atomic<std::uint64_t> exp_wrong{0}, tanh_wrong{0}, sigmoid_off{0}, open{0};
            std::atomic<double> sigmoid_worst{0};
        } count;
        constexpr std::uint32_t kBlock = 1U << 16;
        std::atomic<std::uint32_t> next{0};
        const auto work = [&] {
            std::vector<float> x(kBlock), e(kBlock), t(kBlock), s(kBlock);
            for (;;) {
                const std::uint32_t block = next++;
                if (block >= (1U << 16)) return;
                for (std::uint32_t i = 0; i < kBlock; ++i) x[i] = std::bit_cast<float>((block << 16) | i);
                table.exp(x.data(), kBlock, e.data());
                table.tanh(x.data(), kBlock, t.data());
                table.sigmoid(x.data(), kBlock, s.data());
                double worst = 0;
                for (std::uint32_t i = 0; i < kBlock; ++i) {
                    const Verdict ve = truth(Function::exp, x[i]), vt = truth(Function::tanh, x[i]);
                    count.open += ve.open + vt.open;
                    count.exp_wrong += !same(e[i], ve.value);
                    count.tanh_wrong += !same(t[i], vt.value);
                    if (x[i] == x[i]) {
                        const double off = sigmoid_error(s[i], x[i]);
                        count.sigmoid_off += off > 0.5 + 1e-7;
                        worst = std::max(worst, off);
                    } else {
                        count.sigmoid_off += s[i] == s[i];
                    }
                }
                double seen = count.sigmoid_worst;
                while (seen < worst && !count.sigmoid_worst.compare_exchange_weak(seen, worst)) {
                }
            }
        };
        std::thread other(work);
        work();
        other.join();
        MESSAGE("arch " << std::string(table.name) << ": misrounded exp " << count.exp_wrong.load() << ", tanh "
                        << count.tanh_wrong.load() << "; undecided " << count.open.load() << "; sigmoid worst "
                        << count.sigmoid_worst.load() << " ulp, more than half an ulp off "
                        << count.sigmoid_off.load());
        CHECK(count.open == 0);
        CHECK(count.exp_wrong == 0);
        CHECK(count.tanh_wrong == 0);
        CHECK(count.sigmoid_worst < 0.501);
    }
}
