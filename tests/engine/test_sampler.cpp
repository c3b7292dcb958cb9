#include "k3/engine/sampler.hpp"

#include <cfenv>
#include <functional>
#include <limits>
#include <numeric>

#include "support/doctest.hpp"

using namespace k3;
using engine::Pcg32;
using engine::Sampler;
using engine::SamplerOptions;

namespace {

using Floats = std::vector<float>;
using Ids = std::vector<std::int32_t>;
constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

/// Logits in [-range, range), `steps` different ones; exact where both are powers of two.
Floats some_logits(std::size_t count, std::uint64_t seed, float range, std::uint64_t steps = 1 << 20) {
    Floats logits;
    for (std::size_t i = 0; i < count; ++i) {
        const std::uint64_t step = engine::splitmix64(seed) % steps;
        logits.push_back(static_cast<float>(step) * (2 * range / static_cast<float>(steps)) - range);
    }
    return logits;
}

Ids draws(Sampler& sampler, const Floats& logits, std::size_t count) {
    Ids ids;
    for (std::size_t i = 0; i < count; ++i) ids.push_back(sampler.choose(logits));
    return ids;
}
Ids draws(const SamplerOptions& options, const Floats& logits, std::size_t count) {
    Sampler sampler(options);
    return draws(sampler, logits, count);
}

struct Refusal {
    Code code;
    std::string line;
};
Refusal refused(const std::function<void()>& action) {
    try {
        action();
    } catch (const Error& error) {
        return {error.code(), error.what()};
    }
    return {Code::internal, ""};
}
bool holds(const std::string& line, const std::string& part) { return line.find(part) != std::string::npos; }

// ---- the definition, from its text: sorts everything, and has an exp of its own

double rn64(double v) {
    volatile double r = v;
    return r;
}
double exp64(double x) {
    if (x < -700) return 0;
    const double n = std::nearbyint(rn64(x * 1.44269504088896338700e+00));
    const double r = rn64(rn64(x - rn64(n * 6.93147180369123816490e-01)) - rn64(n * 1.90821492927058770002e-10));
    double c[14], factorial = 1.0;
    for (int k = 1; k <= 13; ++k) c[k] = 1.0 / (factorial *= k);
    const double r2 = rn64(r * r), r4 = rn64(r2 * r2), r8 = rn64(r4 * r4);
    double pair[6], four[3];
    for (int k = 0; k < 6; ++k) pair[k] = rn64(c[2 + 2 * k] + rn64(r * c[3 + 2 * k]));
    for (int k = 0; k < 3; ++k) four[k] = rn64(pair[2 * k] + rn64(pair[2 * k + 1] * r2));
    const double p = rn64(r + rn64(r2 * rn64(rn64(four[0] + rn64(four[1] * r4)) + rn64(four[2] * r8))));
    const double s = std::ldexp(1.0, static_cast<int>(n));
    return rn64(s + rn64(s * p));
}

__extension__ typedef unsigned __int128 Wide;

std::uint64_t weight_of(float logit, float most, double temperature) {
    const double below = rn64(static_cast<double>(logit) - static_cast<double>(most));
    return static_cast<std::uint64_t>(
        std::floor(std::ldexp(static_cast<long double>(exp64(rn64(below / temperature))), 39) + 0.5L));
}

std::int32_t defined(const Floats& logits, const SamplerOptions& o, Pcg32& generator) {
    const float most = *std::max_element(logits.begin(), logits.end());
    std::vector<std::uint64_t> weight;
    std::uint64_t all = 0;
    for (const float l : logits) all += weight.emplace_back(weight_of(l, most, o.temperature));
    Ids order(logits.size());
    std::iota(order.begin(), order.end(), 0);
    std::sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) {
        const float la = logits[static_cast<std::size_t>(a)], lb = logits[static_cast<std::size_t>(b)];
        return la != lb ? la > lb : a < b;
    });
    const Wide share = static_cast<Wide>(std::floor(std::ldexp(o.top_p, 53))) * all;
    std::uint64_t kept = 0;
    std::size_t count = 0;
    while (count < order.size() && (o.top_k == 0 || count < o.top_k)) {
        kept += weight[static_cast<std::size_t>(order[count++])];
        if ((Wide{kept} << 53) >= share) break;
    }
    const auto drawn = static_cast<std::uint64_t>((Wide{generator.next53()} * kept) >> 53);
    std::uint64_t sum = 0;
    for (const std::int32_t id : order)
        if ((sum += weight[static_cast<std::size_t>(id)]) > drawn) return id;
    return -1;
}

}  // namespace

TEST_CASE("engine/pcg32: the published numbers of PCG32 and splitmix64") {
    Pcg32 pcg(42, 54);
    for (const std::uint32_t want : {0xa15c02b7U, 0x7b47f409U, 0xba1d3330U, 0x83d2f293U, 0xbfa4784bU, 0xcbed606eU})
        CHECK(pcg.next() == want);
    std::uint64_t x = 1234567;
    for (const std::uint64_t want : {6457827717110365317U, 3203168211198807973U, 9817491932198370423U})
        CHECK(engine::splitmix64(x) == want);
    // 53 bits: one output whole, 21 bits of the next.
    Pcg32 again(42, 54);
    CHECK(again.next53() == (std::uint64_t{0xa15c02b7U} << 21 | (0x7b47f409U & 0x1fffffU)));
    CHECK(again.next53() == (std::uint64_t{0xba1d3330U} << 21 | (0x83d2f293U & 0x1fffffU)));
}

TEST_CASE("engine/sampler: a turn is seeded through splitmix64 of the seed xor turn times the golden ratio") {
    for (const std::uint64_t seed : {std::uint64_t{0}, std::uint64_t{7}, ~std::uint64_t{0}})
        for (const std::uint64_t turn : {1U, 2U, 1000U}) {
            std::uint64_t x = seed ^ turn * 0x9e3779b97f4a7c15U;
            const std::uint64_t first = engine::splitmix64(x), second = engine::splitmix64(x);
            Sampler sampler({.seed = seed});
            if (turn != 1) sampler.start_turn(turn);
            CHECK(sampler.generator() == Pcg32(first, second).state());
        }
}

TEST_CASE("engine/sampler: golden ids: the same on every machine, compiler and flag") {
    const Floats logits = some_logits(5000, 11, 8);
    struct Row {
        SamplerOptions options;
        Ids ids;
    };
    const Row rows[] = {
        {{.seed = 0}, {4373, 331, 4665, 994, 3851, 592, 2164, 4620, 2818, 2384, 2046, 364}},
        {{.temperature = 0.7, .top_p = 0.95, .seed = 1},
         {1513, 2573, 1653, 3152, 1695, 4220, 3205, 3597, 1840, 1077, 4403, 2108}},
        {{.temperature = 2.5, .seed = 123456789},
         {666, 2856, 161, 3606, 2829, 2648, 1610, 1060, 3100, 1469, 4648, 402}},
        {{.top_p = 0.5, .top_k = 100, .seed = 42}, {624, 721, 88, 464, 3798, 2546, 3936, 3936, 2961, 411, 2904, 2911}},
        {{.temperature = 100, .seed = ~std::uint64_t{0}},
         {3884, 3873, 363, 2896, 350, 4209, 2146, 636, 4720, 1228, 1134, 4273}},
        {{.temperature = 0.05, .seed = 3}, {331, 697, 4520, 971, 4616, 331, 4575, 333, 697, 4178, 3580, 88}},
    };
    for (const Row& row : rows) CHECK(draws(row.options, logits, 12) == row.ids);
}

TEST_CASE("engine/sampler: the ids are those of the definition, which sorts everything, with one random number each") {
    std::size_t ids = 0;
    for (const std::size_t vocab : {1, 7, 8, 9, 257, 1031})
        for (const float range : {0.001F, 1.0F, 9.0F, 60.0F, 1e38F})
            for (const std::uint64_t steps : {3, 40, 1 << 20})  // few different logits: many ties
                for (const double temperature : {1e-300, 0.3, 7.0, 1e300})
                    for (const double top_p : {1.0, 0.9, 0.3, 1e-30})
                        for (const std::size_t top_k : {0, 1, 5, 300, 100000}) {
                            Floats logits = some_logits(vocab, vocab + steps, range, steps);
                            if (steps == 40) logits[vocab / 2] = vocab > 1 ? -kInf : 0;
                            if (steps == 40) std::replace(logits.begin(), logits.end(), 0.0F, -0.0F);
                            const SamplerOptions o{temperature, top_p, top_k, vocab};
                            Sampler sampler(o);
                            Pcg32 generator(sampler.generator());
                            for (int i = 0; i < 2; ++i) {
                                const std::int32_t want = defined(logits, o, generator);
                                if (sampler.choose(logits) != want || sampler.generator() != generator.state())
                                    FAIL("vocab " << vocab << " range " << range << " T " << temperature << " p "
                                                  << top_p << " k " << top_k);
                                ++ids;
                            }
                        }
    CHECK(ids == 6 * 5 * 3 * 4 * 4 * 5 * 2);
}

TEST_CASE("kernels/softmax: weights are floor(exp * 2^39 + 1/2), to the last bit, for every length") {
    for (const double temperature : {0.4, 1.0, 3.0})
        for (const std::size_t count : {1, 7, 8, 9, 16, 4000}) {
            const Floats logits = some_logits(count, count, 9);
            const float most = *std::max_element(logits.begin(), logits.end());
            std::vector<std::uint64_t> got(count + 1, 77), want;
            kernels::softmax_weights<simd::scalar>(logits.data(), count, most, temperature, got.data());
            CHECK(got.back() == 77);  // nothing beyond the end
            got.pop_back();
            for (const float l : logits) want.push_back(weight_of(l, most, temperature));
            CHECK(got == want);
        }
}

TEST_CASE("engine/sampler: a random number that falls on the border of two ids is the second one's") {
    // A state whose outputs are 0x80000000 and then 0: u = 2^52, half of the whole.
    const std::uint64_t state = std::uint64_t{1} << 58 | std::uint64_t{1} << 40;
    const Pcg32::State half{state, 1 - state * 6364136223846793005U};
    REQUIRE(Pcg32(half).next53() == std::uint64_t{1} << 52);
    Sampler sampler({.seed = 1});
    sampler.set_generator(half);
    CHECK(sampler.choose(Floats{1, 1}) == 1);
    sampler.set_generator(half);
    CHECK(sampler.choose(Floats{-1, 1, 1, 1, 1}) == 3);  // 2.07 of 4.14 times 2^39
}

TEST_CASE("engine/sampler: at the release's vocabulary, flat or steep, the definition too") {
    for (const float range : {0.0F, 0.5F, 12.0F})
        for (const auto& [top_p, top_k] : {std::pair{1.0, 0}, std::pair{0.95, 0}, std::pair{0.95, 50}}) {
            const Floats logits = some_logits(163840, 5, range, 1 << 24);
            const SamplerOptions o{1.0, top_p, static_cast<std::size_t>(top_k), 9};
            Sampler sampler(o);
            Pcg32 generator(sampler.generator());
            CHECK(sampler.choose(logits) == defined(logits, o, generator));
        }
}

TEST_CASE("engine/sampler: top-k 1, a tiny top-p and a tiny temperature are argmax, the lowest id on ties") {
    for (std::uint64_t seed = 0; seed < 40; ++seed) {
        Floats logits = some_logits(1000, seed, 4, 50);  // some twenty ids share the largest
        const auto best = static_cast<std::int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
        CHECK(draws({.top_k = 1, .seed = seed}, logits, 3) == Ids(3, best));
        CHECK(draws({.top_p = 1e-12, .seed = seed}, logits, 3) == Ids(3, best));
        CHECK(draws({.top_p = std::numeric_limits<double>::denorm_min(), .seed = seed}, logits, 3) == Ids(3, best));
        // All that tie for the largest stay at any temperature.
        for (const double temperature : {1e-9, std::numeric_limits<double>::denorm_min()})
            for (const std::int32_t id : draws({.temperature = temperature, .seed = seed}, logits, 20))
                CHECK(logits[static_cast<std::size_t>(id)] == logits[static_cast<std::size_t>(best)]);
    }
    CHECK(draws({.top_k = 1, .seed = 1}, {-0.0F, 0.0F}, 5) == Ids(5, 0));  // equal: the lower id
    CHECK(draws({.top_k = 1, .seed = 1}, {-1.0F, -0.0F, 0.0F}, 5) == Ids(5, 1));
}

TEST_CASE("engine/sampler: at a temperature without end every id is as likely; no id is out of reach") {
    const Floats logits = some_logits(10, 3, 30);
    std::vector<int> count(10);
    for (const std::int32_t id : draws({.temperature = std::numeric_limits<double>::max(), .seed = 8}, logits, 10000))
        ++count[static_cast<std::size_t>(id)];
    for (const int n : count) {
        CHECK(n > 900);  // 1000 +- 3.3 standard deviations of 30
        CHECK(n < 1100);
    }
}

TEST_CASE("engine/sampler: -inf is never drawn, and ids that are -inf change nothing for the others") {
    const Floats few = some_logits(64, 4, 3);
    Floats padded(200, -kInf);
    for (std::size_t i = 0; i < few.size(); ++i) padded[3 * i + 1] = few[i];
    for (const SamplerOptions& o : {SamplerOptions{.seed = 6}, SamplerOptions{.temperature = 1e300, .seed = 6},
                                    SamplerOptions{.top_p = 0.8, .top_k = 40, .seed = 6}}) {
        Ids want = draws(o, few, 500);
        for (std::int32_t& id : want) id = 3 * id + 1;
        CHECK(draws(o, padded, 500) == want);
    }
    CHECK(draws({.temperature = 1e300, .top_k = 5, .seed = 1}, {-kInf, 1.0F, -kInf}, 50) == Ids(50, 1));
}

TEST_CASE("engine/sampler: another order of the vocabulary draws the same tokens") {
    Floats logits = some_logits(777, 21, 5, std::uint64_t{1} << 24);
    std::sort(logits.begin(), logits.end());
    REQUIRE(std::adjacent_find(logits.begin(), logits.end()) == logits.end());  // ties do look at ids
    std::vector<std::size_t> order(logits.size());
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = i * 500 % 777;
    Floats moved;
    for (const std::size_t i : order) moved.push_back(logits[i]);
    for (const SamplerOptions& o :
         {SamplerOptions{.seed = 2}, SamplerOptions{.temperature = 3, .top_p = 0.9, .seed = 2},
          SamplerOptions{.top_k = 77, .seed = 2}}) {
        const Ids here = draws(o, logits, 300), there = draws(o, moved, 300);
        for (std::size_t i = 0; i < here.size(); ++i)
            CHECK(static_cast<std::size_t>(here[i]) == order[static_cast<std::size_t>(there[i])]);
    }
}

TEST_CASE("engine/sampler: subnormal and huge logits: the differences count, and only they") {
    const float tiny = std::numeric_limits<float>::denorm_min(), big = std::numeric_limits<float>::max();
    CHECK(draws({.temperature = 1e-50, .seed = 4}, {tiny, 2 * tiny, 0.0F, -tiny}, 50) == Ids(50, 1));
    CHECK(draws({.seed = 4}, {-big, big, 0.0F}, 50) == Ids(50, 1));
    const Floats four{0.5F, -1.0F, 0.25F, 2.0F};
    Floats shifted;
    for (const float l : four) shifted.push_back(l + 4096.0F);  // exact
    CHECK(draws({.seed = 4}, four, 200) == draws({.seed = 4}, shifted, 200));
    // Twice the logits at twice the temperature.
    Floats doubled;
    for (const float l : four) doubled.push_back(2 * l);
    CHECK(draws({.seed = 4}, four, 200) == draws({.temperature = 2, .seed = 4}, doubled, 200));
}

TEST_CASE("engine/sampler: ids come as often as their probabilities say, with and without cuts") {
    const Floats logits = some_logits(24, 77, 2);
    for (const SamplerOptions& o :
         {SamplerOptions{.seed = 1}, SamplerOptions{.temperature = 0.6, .seed = 2},
          SamplerOptions{.temperature = 1.5, .top_k = 10, .seed = 3}, SamplerOptions{.top_p = 0.8, .seed = 4}}) {
        std::vector<std::pair<double, std::size_t>> p;
        double all = 0, kept = 0;
        for (std::size_t i = 0; i < logits.size(); ++i)
            all += p.emplace_back(std::exp(static_cast<double>(logits[i]) / o.temperature), i).first;
        std::sort(p.rbegin(), p.rend());
        if (o.top_k != 0) p.resize(o.top_k);
        std::size_t count = 0;
        while (count < p.size() && kept < o.top_p * all) kept += p[count++].first;
        p.resize(count);
        if (o.top_p < 1) CHECK(count < 24);
        constexpr int kDraws = 20000;
        std::vector<double> seen(logits.size());
        for (const std::int32_t id : draws(o, logits, kDraws)) seen[static_cast<std::size_t>(id)] += 1;
        double chi = 0, inside = 0;
        for (const auto& [weight, id] : p) {
            const double expected = kDraws * weight / kept;
            REQUIRE(expected > 5);
            chi += (seen[id] - expected) * (seen[id] - expected) / expected;
            inside += seen[id];
        }
        CHECK(inside == kDraws);  // nothing beyond the cut
        const double freedom = static_cast<double>(count - 1);
        CHECK(chi < freedom + 3.5 * std::sqrt(2 * freedom));
        CHECK(chi > freedom - 3 * std::sqrt(2 * freedom));  // nor too regular
    }
}

TEST_CASE("engine/sampler: the generator can be taken away and given back; a copy and a turn draw the same again") {
    const Floats logits = some_logits(500, 1, 3);
    Sampler sampler({.top_p = 0.9, .seed = 5});
    const Ids first = draws(sampler, logits, 30);
    const Pcg32::State saved = sampler.generator();
    Sampler copy = sampler;
    const Ids second = draws(sampler, logits, 30);
    CHECK(second != first);
    CHECK(draws(copy, logits, 30) == second);
    Sampler other({.top_p = 0.9, .seed = 999});
    other.set_generator(saved);
    CHECK(draws(other, logits, 30) == second);
    sampler.start_turn(1);
    CHECK(draws(sampler, logits, 30) == first);
    sampler.start_turn(2);
    CHECK(draws(sampler, logits, 30) != first);
    const Refusal damaged = refused([&] { other.set_generator({1, 2}); });
    CHECK(damaged.code == Code::state);
}

TEST_CASE("engine/sampler: NaN, +inf and nothing but -inf are errors that name the id, and take no random number") {
    Sampler sampler({.seed = 5});
    const Pcg32::State before = sampler.generator();
    const auto line = [&](const Floats& logits, Code code) {
        const Refusal refusal = refused([&] { sampler.choose(logits); });
        CHECK(refusal.code == code);
        CHECK(sampler.generator() == before);
        return refusal.line;
    };
    CHECK(holds(line({1, 2, kNaN, kInf}, Code::numeric), "id 2 is NaN"));
    CHECK(holds(line({1, -kNaN, 3}, Code::numeric), "id 1 is NaN"));
    CHECK(holds(line({kInf, 2, 3}, Code::numeric), "id 0 is infinite"));
    CHECK(holds(line({-kInf, -kInf}, Code::numeric), "-inf"));
    CHECK(holds(line({}, Code::usage), "0 logits"));
}

TEST_CASE("engine/sampler: options out of range are refused by value") {
    const double inf = std::numeric_limits<double>::infinity(), nan = std::numeric_limits<double>::quiet_NaN();
    for (const double temperature : {0.0, -1.0, inf, nan, -inf})
        CHECK(refused([&] { Sampler({.temperature = temperature}); }).code == Code::usage);
    for (const double top_p : {0.0, -0.5, 1.0000001, inf, nan})
        CHECK(refused([&] { Sampler({.top_p = top_p}); }).code == Code::usage);
    CHECK(refused([&] { Sampler({.temperature = 1e308, .top_p = 1, .top_k = ~std::size_t{0}}); }).line == "");
}

TEST_CASE("engine/sampler: the caller's rounding mode and flushing of subnormals move no id") {
    Floats logits = some_logits(3000, 13, 6);
    logits[5] = std::numeric_limits<float>::denorm_min();
    const SamplerOptions options[] = {{.seed = 3}, {.temperature = 0.8, .top_p = 0.9, .top_k = 900, .seed = 4}};
    for (const SamplerOptions& o : options) {
        const Ids want = draws(o, logits, 40);
        for (const int mode : {FE_UPWARD, FE_DOWNWARD, FE_TOWARDZERO}) {
            std::fesetround(mode);
            const Ids got = draws(o, logits, 40);
            CHECK(std::fegetround() == mode);
            std::fesetround(FE_TONEAREST);
            CHECK(got == want);
        }
#if defined(__x86_64__)
        const auto saved = core::FpGuard::read();
        core::FpGuard::write(saved | 0x8040);  // flush to zero, subnormals are zero
        const Ids got = draws(o, logits, 40);
        core::FpGuard::write(saved);
        CHECK(got == want);
#endif
    }
    // Logits that are subnormal themselves.
    const Floats close{0x1p-140F, 0x1p-141F, 0, -0x1p-140F};
    const Ids want = draws({.temperature = 1e-43, .seed = 3}, close, 60);
#if defined(__x86_64__)
    const auto saved = core::FpGuard::read();
    core::FpGuard::write(saved | 0x8040);
    const Ids got = draws({.temperature = 1e-43, .seed = 3}, close, 60);
    core::FpGuard::write(saved);
    CHECK(got == want);
#endif
    CHECK(std::count(want.begin(), want.end(), want[0]) < 60);
}
