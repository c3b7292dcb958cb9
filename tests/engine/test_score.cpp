#include "k3/engine/score.hpp"

#include <fstream>
#include <functional>
#include <iterator>

#include <nlohmann/json.hpp>

#include "engine/rig.hpp"
#include "engine/small_work.hpp"
#include "support/doctest.hpp"

using namespace k3;
using namespace k3::tests;
using engine::ArchName;
using engine::Options;
using engine::Score;
using engine::Session;

namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

struct Golden {
    explicit Golden(const std::string& name) {
        const std::string dir = tests_dir() + "golden/" + name;
        std::ifstream text(dir + "/expected.json"), in(dir + "/logits.f64", std::ios::binary);
        const nlohmann::json json = nlohmann::json::parse(text);
        full = json.at("full_ids").get<Ids>();
        argmax = json.at("teacher_forced_argmax").get<Ids>();
        const std::string bytes{std::istreambuf_iterator<char>(in), {}};
        logits.resize(bytes.size() / sizeof(double));
        std::memcpy(logits.data(), bytes.data(), bytes.size());
        vocab = logits.size() / full.size();
    }
    Ids full, argmax;
    std::vector<double> logits;
    std::size_t vocab;
};

Options options_for(const std::string& name, std::size_t chunk = 0, unsigned threads = 2,
                    ArchName arch = engine::widest_arch()) {
    Options options = small_work(golden_dir(name), chunk, threads, arch);
    options.all_logits = true;
    return options;
}

Score scored(const Options& options, const Ids& ids) {
    Session session = Session::open(options);
    session.load(ids.size() - 1);
    Score score;
    engine::score(session, ids, score);
    return score;
}

Code code_of(const std::function<void()>& action, std::string* line = nullptr) {
    try {
        action();
    } catch (const Error& error) {
        if (line != nullptr) *line = error.what();
        return error.code();
    }
    return Code::internal;
}

}  // namespace

TEST_CASE("engine/score: log-probabilities, agreement, sum and perplexity are those of the float64 logits") {
    for (const char* name : {"A", "B", "F"}) {
        const Golden golden(name);
        const std::size_t n = golden.full.size();
        const Score score = scored(options_for(name), golden.full);
        REQUIRE(score.positions() == n - 1);
        REQUIRE(score.greedy.size() == n - 1);
        double nll = 0, allowed = 0, worst = 0;
        std::size_t matches = 0;
        for (std::size_t t = 0; t + 1 < n; ++t) {
            const double* const row = golden.logits.data() + t * golden.vocab;
            const double most = *std::max_element(row, row + golden.vocab);
            double sum = 0, largest = 0;
            for (std::size_t i = 0; i < golden.vocab; ++i) {
                sum += std::exp(row[i] - most);
                largest = std::max(largest, std::fabs(row[i]));
            }
            const double want = row[golden.full[t + 1]] - most - std::log(sum);
            // Logits may be off by 1e-4 of the largest. The logarithm of a sum of exponentials moves no further than
            // the logit that moves most, so a difference of the two moves at most twice as far.
            const double tolerance = 2e-4 * largest;
            worst = std::max(worst, std::fabs(score.log_probs[t] - want) / tolerance);
            CHECK(score.greedy[t] == golden.argmax[t]);
            matches += golden.argmax[t] == golden.full[t + 1];
            nll -= want;
            allowed += tolerance;
        }
        CHECK(worst < 1);
        CHECK(worst > 1e-4);  // float32 arithmetic does show
        CHECK(score.matches == matches);
        CHECK(score.agreement() == static_cast<double>(matches) / static_cast<double>(n - 1));
        CHECK(std::fabs(score.nll - nll) < allowed);
        CHECK(score.perplexity == doctest::Approx(std::exp(score.nll / static_cast<double>(n - 1))).epsilon(1e-15));
    }
}

TEST_CASE("engine/score: one digest whatever the arch, the threads, the chunk and the memory") {
    const Golden golden("A");
    const Score want = scored(options_for("A", 64, 1, ArchName::scalar), golden.full);
    CHECK(want.digest == 0x2c0dff6fd69b84ba);  // the committed bits
    for (const ArchName arch : engine::arches_of_this_cpu())
        for (const unsigned threads : {1U, 2U, 3U})
            for (const std::size_t chunk : {1, 7, 64}) {
                INFO(std::string(engine::name(arch)) << ", threads " << threads << ", chunk " << chunk);
                CHECK(scored(options_for("A", chunk, threads, arch), golden.full) == want);
            }
    Options options = options_for("A", 7);
    const std::uint64_t least = Session::open(options).plan(golden.full.size()).least;
    for (const std::uint64_t more : {2, 3, 4}) {  // MB: parts of trunk and experts are streamed
        options.memory.ceiling = least + more * 1000000;
        Session session = Session::open(options);
        const engine::Plan plan = session.plan(golden.full.size());
        CHECK((plan.streamed_bytes > 0 || plan.expert_slots < plan.all_experts));
        session.load(plan);
        Score score;
        engine::score(session, golden.full, score);
        CHECK(score == want);
    }
}

TEST_CASE("engine/session: feed_all hands out the logits that feed gives after each id, and leaves the same state") {
    const Ids ids = some_ids(20, 301, 3);
    Session plain = Session::open(options_for("B", 1));
    plain.load(30);
    Floats want;
    for (const std::int32_t id : part(ids, 0, 15)) {
        const std::span<const float> row = plain.feed({&id, 1});
        want.insert(want.end(), row.begin(), row.end());
    }
    const std::span<const float> last = plain.feed(part(ids, 15, 5));
    const Floats after(last.begin(), last.end());
    for (const std::size_t chunk : {1, 4, 15, 64}) {
        Session session = Session::open(options_for("B", chunk));
        session.load(30);
        Floats got;
        std::size_t calls = 0;
        session.feed_all(part(ids, 0, 15), [&](std::size_t first, std::span<const float> rows) {
            CHECK(first * 301 == got.size());
            CHECK(session.position() == first + rows.size() / 301);
            got.insert(got.end(), rows.begin(), rows.end());
            ++calls;
        });
        CHECK(same_bits(got, want));
        CHECK(calls == (15 + std::min<std::size_t>(chunk, 30) - 1) / std::min<std::size_t>(chunk, 30));
        CHECK(same_bits(session.feed(part(ids, 15, 5)), after));  // one row, though there is room for more
    }
}

TEST_CASE("engine/session: feed_all needs room for its logits, and the plan has it") {
    Options options = options_for("B", 50, 1);
    const Session with = Session::open(options);
    options.all_logits = false;
    Session without = Session::open(options);
    CHECK(with.plan(200).workspace == without.plan(200).workspace + 49 * 301 * sizeof(float));
    CHECK(with.plan(20).workspace == without.plan(20).workspace + 19 * 301 * sizeof(float));  // a chunk of 20
    without.load(20);
    CHECK(code_of([&] { without.feed_all(Ids{1, 2}, [](std::size_t, std::span<const float>) {}); }) == Code::usage);
    CHECK(without.position() == 0);
    CHECK(without.feed(Ids{1, 2}).size() == 301);
    // In little memory the chunk gives way to the logits: 5 MB of them for 512 ids of the demo model.
    Options demo = options_for("A");
    demo.model_dir = tests_dir() + "demo/model";
    demo.all_logits = false;
    demo.memory.ceiling = Session::open(demo).plan(600).least + 20000000;
    const engine::Plan large = Session::open(demo).plan(600);
    demo.all_logits = true;
    const engine::Plan small = Session::open(demo).plan(600);
    CHECK(large.fits());
    CHECK(small.fits());
    CHECK(small.prefill_chunk < large.prefill_chunk);
}

TEST_CASE("engine/score: rows are judged each by itself: ties, -inf, huge logits; sums in order") {
    constexpr std::size_t kVocab = 11;
    const Ids ids{0, 3, 2, 10, 5, 0};
    Floats rows;
    for (std::size_t i = 0; i < 5 * kVocab; ++i) rows.push_back(static_cast<float>(i * 7 % 23) * 0.25F - 2);
    rows[0 * kVocab + 3] = rows[0 * kVocab + 9] = 40;     // a tie: the lower id, which comes
    rows[1 * kVocab + 1] = rows[1 * kVocab + 2] = 3e38F;  // a tie, and the higher one comes
    rows[2 * kVocab + 4] = -kInf;                         // not the one that comes
    for (std::size_t i = 0; i < kVocab; ++i) rows[4 * kVocab + i] = i == 0 ? 1.0F : -kInf;  // certain
    Score score;
    engine::detail::add_rows(ids, 0, std::span(rows).first(3 * kVocab), kVocab, 2, score);
    engine::detail::add_rows(ids, 3, std::span(rows).subspan(3 * kVocab), kVocab, 1, score);
    REQUIRE(score.positions() == 5);
    CHECK(score.greedy[0] == 3);
    CHECK(score.greedy[1] == 1);
    CHECK(score.greedy[4] == 0);
    double nll = 0;
    core::Digest digest;
    std::size_t matches = 0;
    for (std::size_t t = 0; t < 5; ++t) {
        const float* const row = rows.data() + t * kVocab;
        const long double most = *std::max_element(row, row + kVocab);
        long double sum = 0;
        for (std::size_t i = 0; i < kVocab; ++i) sum += std::exp(static_cast<long double>(row[i]) - most);
        const auto want = static_cast<double>(static_cast<long double>(row[ids[t + 1]]) - most - std::log(sum));
        CHECK(std::fabs(score.log_probs[t] - want) <= 4e-16 * std::max(1.0, std::fabs(want)));
        matches += std::max_element(row, row + kVocab) - row == ids[t + 1];
        nll = nll - score.log_probs[t];
        digest.add(score.log_probs[t]);
    }
    CHECK(score.log_probs[4] == 0);
    CHECK(score.matches == matches);
    CHECK(score.nll == nll);
    CHECK(score.digest == digest.value());
    CHECK(score.perplexity == doctest::Approx(std::exp(nll / 5)).epsilon(1e-15));
    // An impossible id: probability 0, and nothing that is summed over it is finite.
    rows[4] = -kInf;
    Score impossible;
    engine::detail::add_rows(Ids{0, 4}, 0, std::span(rows).first(kVocab), kVocab, 1, impossible);
    CHECK(impossible.log_probs[0] == -std::numeric_limits<double>::infinity());
    CHECK(impossible.perplexity == std::numeric_limits<double>::infinity());
}

TEST_CASE("engine/score: a NaN, +inf or nothing but -inf ends it, naming the position; those before it stand") {
    constexpr std::size_t kVocab = 9;
    const Ids ids{0, 1, 2, 3, 4, 5};
    Floats good;
    for (std::size_t i = 0; i < 5 * kVocab; ++i) good.push_back(static_cast<float>(i % 5));
    Score all, two;
    engine::detail::add_rows(ids, 0, good, kVocab, 1, all);
    engine::detail::add_rows(Ids{0, 1, 2}, 0, std::span(good).first(2 * kVocab), kVocab, 1, two);
    for (const float bad : {kNaN, kInf, -kInf}) {
        Floats rows = good;
        for (std::size_t i = 0; i < kVocab; ++i)
            if (i == 4 || bad == -kInf) rows[2 * kVocab + i] = bad;
        Score score;
        std::string line;
        CHECK(code_of([&] { engine::detail::add_rows(ids, 0, rows, kVocab, 2, score); }, &line) == Code::numeric);
        CHECK(line.find("position 2") != std::string::npos);
        CHECK(score == two);
    }
    CHECK(all.positions() == 5);
}

TEST_CASE("engine/score: stopped half-way it holds the chunks before; ids that cannot be judged are refused") {
    const Ids ids = some_ids(30, 256, 8);
    const Score whole = scored(options_for("A", 64), ids);
    Session session = Session::open(options_for("A", 8));
    session.load(40);
    Score score;
    CHECK(code_of([&] {
              engine::score(session, ids, score, [](std::size_t done, std::size_t, std::size_t layer, std::size_t) {
                  return !(done == 16 && layer == 3);
              });
          }) == Code::interrupted);
    REQUIRE(score.positions() == 16);
    CHECK(std::equal(score.log_probs.begin(), score.log_probs.end(), whole.log_probs.begin()));
    CHECK(score.perplexity == doctest::Approx(std::exp(score.nll / 16)).epsilon(1e-15));
    engine::score(session, ids, score);  // from the beginning, in the same session
    CHECK(score == whole);
    CHECK(session.position() == 29);  // the last id is not fed
    std::string line;
    CHECK(code_of([&] { engine::score(session, Ids{5}, score); }) == Code::usage);
    CHECK(code_of([&] { engine::score(session, Ids{5, 256}, score); }, &line) == Code::usage);
    CHECK(line.find("256") != std::string::npos);
    CHECK(code_of([&] { engine::score(session, Ids{5, -1}, score); }) == Code::usage);
    CHECK(code_of([&] { engine::score(session, Ids{-1, 5}, score); }) == Code::usage);
    CHECK(score.positions() == 0);
    CHECK(score.perplexity == 1);
}
