// The golden checkpoints and the demo model, end to end: ids, argmax and logits against the independent float64
// answers, and one digest per case whatever the arch, the number of threads, the chunk and the path.
#include <cstdio>
#include <fstream>
#include <iterator>
#include <optional>

#include <nlohmann/json.hpp>

#include "engine/rig.hpp"
#include "k3/core/digest.hpp"
#include "k3/engine/session.hpp"
#include "support/doctest.hpp"

using namespace k3;
using namespace k3::tests;
using engine::ArchName;
using Json = nlohmann::json;

namespace {

Json read_json(const std::string& path) {
    std::ifstream in(path);
    REQUIRE_MESSAGE(in.good(), path);
    return Json::parse(in);
}

struct Case {
    explicit Case(const std::string& name) : dir(golden_dir(name)) {
        const Json json = read_json(tests_dir() + "golden/" + name + "/expected.json");
        prompt = json.at("prompt_ids").get<Ids>();
        generated = json.at("generated_ids").get<Ids>();
        full = json.at("full_ids").get<Ids>();
        argmax = json.at("teacher_forced_argmax").get<Ids>();
        first = json.at("first_step_logits").get<std::vector<double>>();
        next = json.at("next_after_full").get<std::int32_t>();
        std::ifstream in(tests_dir() + "golden/" + name + "/logits.f64", std::ios::binary);
        const std::string bytes{std::istreambuf_iterator<char>(in), {}};
        logits.resize(bytes.size() / sizeof(double));
        std::memcpy(logits.data(), bytes.data(), logits.size() * sizeof(double));
    }
    std::string dir;
    Ids prompt, generated, full, argmax;
    std::vector<double> first, logits;
    std::int32_t next = -1;
};

/// max|d| / max|reference| of one position; infinite if a value is not finite.
double relative_error(std::span<const float> got, std::span<const double> want) {
    double worst = 0, largest = 0;
    for (std::size_t i = 0; i < want.size(); ++i) {
        if (!std::isfinite(got[i])) return std::numeric_limits<double>::infinity();
        worst = std::max(worst, std::fabs(static_cast<double>(got[i]) - want[i]));
        largest = std::max(largest, std::fabs(want[i]));
    }
    return worst / largest;
}

std::string hex(std::uint64_t value) {
    char text[17];
    std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(value));
    return text;
}

/// The digest that is committed for a case. A new one is entered by hand, with its reason in the change log.
std::string committed(const std::string& name) {
    const Json all = read_json(tests_dir() + "golden/digests.json");
    return all.contains(name) ? all.at(name).get<std::string>() : "none committed";
}

/// One setting of the engine.
struct Setting {
    ArchName arch;
    unsigned threads;
    std::size_t chunk;
    std::string text() const {
        return std::string(engine::name(arch)) + ", threads " + std::to_string(threads) + ", chunk " +
               std::to_string(chunk);
    }
};

enum class Path { incremental, recompute };

struct Generated {
    Ids ids;
    core::Digest digest;  // ruling 9: the rows from which each id was chosen
    Floats first;         // logits after the prompt
};

engine::Session loaded_session(const std::string& dir, const Setting& s, std::size_t positions) {
    engine::Options options;
    options.model_dir = dir;
    options.arch = s.arch;
    options.threads = s.threads;
    options.prefill_chunk = s.chunk;
    options.least_work = 0;  // splits even tiny work
    engine::Session session = engine::Session::open(options);
    session.load(positions);
    return session;
}

Generated generate(engine::Session& session, const Ids& prompt, std::size_t count, Path path,
                   core::Digest digest = {}) {
    Generated out;
    out.digest = digest;
    session.reset();
    Ids all = prompt;
    std::span<const float> logits = session.feed(prompt);
    out.first.assign(logits.begin(), logits.end());
    for (std::size_t i = 0; i < count; ++i) {
        out.digest.add(logits.data(), logits.size());
        const std::int32_t id = session.argmax(logits, i);
        out.ids.push_back(id);
        all.push_back(id);
        if (i + 1 < count) logits = path == Path::recompute ? session.recompute(all) : session.feed({&id, 1});
    }
    return out;
}

/// Teacher forcing: logits of every position, first against float64, then bit for bit against the first setting's.
struct Forced {
    Floats reference;
    double worst = 0;

    void check(const Case& c, Loaded& model, const Setting& s) {
        INFO(s.text());
        Runner runner(model, s.arch, s.threads, s.chunk, 1, c.full.size());
        Sequence sequence(runner);
        const Floats logits = sequence.feed_all(runner, c.full, s.chunk);
        const std::size_t vocab = model.vocab();
        REQUIRE(logits.size() == c.full.size() * vocab);
        REQUIRE(logits.size() == c.logits.size());
        if (reference.empty()) {
            for (std::size_t t = 0; t < c.full.size(); ++t) {
                const std::span<const float> row(logits.data() + t * vocab, vocab);
                worst = std::max(worst, relative_error(row, std::span(c.logits).subspan(t * vocab, vocab)));
                CHECK(runner.forward().argmax(row.data(), vocab) == c.argmax[t]);
            }
            CHECK(worst <= 1e-4);
            reference = logits;
        }
        CHECK(same_bits(logits, reference));
    }
};

/// Greedy generation through the Session; ids and digest, and the rows' bits are those of teacher forcing.
struct Greedy {
    std::optional<std::uint64_t> digest;

    void check(const Case& c, const Setting& s, Path path, std::size_t count) {
        INFO(s.text(), path == Path::recompute ? ", recompute" : ", incremental");
        engine::Session session = loaded_session(c.dir, s, c.full.size());
        const Generated run = generate(session, c.prompt, count, path);
        CHECK(run.ids == part(c.generated, 0, count));
        CHECK(relative_error(run.first, c.first) <= 1e-4);
        if (count < c.generated.size()) return;  // a thinned run: its ids are checked, the digest belongs to whole ones
        if (!digest) digest = run.digest.value();
        CHECK(run.digest.value() == *digest);
    }
};

void report(const char* name, const Forced& forced, const Greedy& greedy, std::size_t prompt, std::size_t vocab,
            std::size_t count) {
    core::Digest rows;  // the same digest from teacher forcing
    rows.add(forced.reference.data() + (prompt - 1) * vocab, count * vocab);
    REQUIRE(greedy.digest.has_value());
    CHECK(hex(rows.value()) == hex(*greedy.digest));
    CHECK(hex(*greedy.digest) == committed(name));
    std::printf("golden %s: worst logit error %.3g, digest %s\n", name, forced.worst, hex(*greedy.digest).c_str());
}

const std::vector<std::size_t> kChunks{1, 2, 7, 64};

}  // namespace

TEST_CASE(
    "golden/B: trap 60, ids, argmax and all logits by every arch, thread count, chunk and path, with one digest") {
    const Case c("B");
    Loaded model(c.dir);
    Forced forced;
    Greedy greedy;
    for (const ArchName arch : engine::arches_of_this_cpu())
        for (const unsigned threads : {1U, 2U, 3U})
            for (const std::size_t chunk : kChunks) {
                const Setting s{arch, threads, chunk};
                forced.check(c, model, s);
                greedy.check(c, s, Path::incremental, c.generated.size());
                // Recompute feeds 15 times as many tokens; with three threads on two cores a few of them must do.
                greedy.check(c, s, Path::recompute, threads == 3 && chunk < 64 ? 4 : c.generated.size());
            }
    report("B", forced, greedy, c.prompt.size(), model.vocab(), c.generated.size());
}

TEST_CASE("golden/A: ids, argmax and all logits by every arch, chunk and path, with one digest") {
    const Case c("A");
    Loaded model(c.dir);
    Forced forced;
    Greedy greedy;
    for (const ArchName arch : engine::arches_of_this_cpu())
        for (const std::size_t chunk : kChunks) {
            for (const unsigned threads : {1U, 2U, 3U}) forced.check(c, model, {arch, threads, chunk});
            greedy.check(c, {arch, 1 + static_cast<unsigned>(chunk % 3), chunk}, Path::incremental, c.generated.size());
        }
    for (const ArchName arch : engine::arches_of_this_cpu()) {
        greedy.check(c, {arch, 1, 64}, Path::recompute, c.generated.size());
        greedy.check(c, {arch, 2, 7}, Path::recompute, 6);
    }
    greedy.check(c, {engine::widest_arch(), 3, 1}, Path::recompute, c.generated.size());
    report("A", forced, greedy, c.prompt.size(), model.vocab(), c.generated.size());
}

TEST_CASE("golden/F: a prompt of 200 tokens and slow decay, with one digest") {
    const Case c("F");
    Loaded model(c.dir);
    Forced forced;
    Greedy greedy;
    unsigned turn = 0;  // every thread count and every chunk with every arch once, not all combinations
    for (const ArchName arch : engine::arches_of_this_cpu())
        for (const std::size_t chunk : kChunks) forced.check(c, model, {arch, 1 + turn++ % 3, chunk});
    for (const ArchName arch : engine::arches_of_this_cpu())
        greedy.check(c, {arch, 1 + turn++ % 3, kChunks[turn % 4]}, Path::incremental, c.generated.size());
    greedy.check(c, {engine::widest_arch(), 2, 64}, Path::recompute, c.generated.size());
    greedy.check(c, {engine::widest_arch(), 1, 7}, Path::recompute, 3);
    greedy.check(c, {ArchName::scalar, 1, 64}, Path::recompute, 3);
    report("F", forced, greedy, c.prompt.size(), model.vocab(), c.generated.size());
}

TEST_CASE("golden/next: the token after the last one is the expected one") {
    for (const char* name : {"A", "B", "F"}) {
        const Case c(name);
        engine::Session session = loaded_session(c.dir, {engine::widest_arch(), 2, 64}, c.full.size());
        CHECK(session.argmax(session.feed(c.full), 0) == c.next);
    }
}

TEST_CASE("golden/demo: ids, margins and prompt logits of the trained model, with one digest") {
    const Json json = read_json(tests_dir() + "demo/expected.json");
    const std::string dir = tests_dir() + "demo/model";
    std::optional<std::uint64_t> digest;
    double worst = 0, worst_margin = 0;
    const auto check = [&](const Setting& s, Path path) {
        INFO(s.text());
        engine::Session session = loaded_session(dir, s, 160);
        core::Digest sum;
        for (const Json& item : json.at("prompts")) {
            INFO(item.at("prompt").get<std::string>());
            const Ids prompt = item.at("prompt_ids").get<Ids>(), want = item.at("generated_ids").get<Ids>();
            const Generated run = generate(session, prompt, want.size(), path, sum);
            sum = run.digest;
            CHECK(run.ids == want);
            const auto every = item.at("last_prompt_logits_every_64th").get<std::vector<double>>();
            REQUIRE(every.size() == (run.first.size() + 63) / 64);
            for (std::size_t i = 0; i < every.size(); ++i)
                worst = std::max(worst, std::fabs(static_cast<double>(run.first[i * 64]) - every[i]));
        }
        if (!digest) digest = sum.value();
        CHECK(sum.value() == *digest);
    };
    for (const ArchName arch : engine::arches_of_this_cpu()) check({arch, 2, 64}, Path::incremental);
    check({engine::widest_arch(), 1, 7}, Path::incremental);
    check({engine::widest_arch(), 2, 512}, Path::recompute);
    CHECK(worst <= 1e-3);

    // Margins: the distance of the two largest logits at every generated token, by teacher forcing.
    Loaded model(dir);
    Runner runner(model, engine::widest_arch(), 2, 64, 1, 160);
    for (const Json& item : json.at("prompts")) {
        INFO(item.at("prompt").get<std::string>());
        Ids ids = item.at("prompt_ids").get<Ids>();
        const std::size_t prompt = ids.size();
        const Ids more = item.at("generated_ids").get<Ids>();
        ids.insert(ids.end(), more.begin(), more.end());
        Sequence sequence(runner);
        const Floats logits = sequence.feed_all(runner, ids, 64);
        REQUIRE(logits.size() == ids.size() * model.vocab());
        const auto margins = item.at("top1_margins").get<std::vector<double>>();
        for (std::size_t i = 0; i < margins.size(); ++i) {
            Floats row = part(logits, (prompt - 1 + i) * model.vocab(), model.vocab());
            std::nth_element(row.begin(), row.begin() + 1, row.end(), std::greater<>());
            const double margin = static_cast<double>(row[0]) - static_cast<double>(row[1]);
            worst_margin = std::max(worst_margin, std::fabs(margin - margins[i]));
        }
    }
    CHECK(worst_margin <= 1e-3);
    REQUIRE(digest.has_value());
    CHECK(hex(*digest) == committed("demo"));
    std::printf("demo: worst prompt logit difference %.3g, worst margin difference %.3g, digest %s\n", worst,
                worst_margin, hex(*digest).c_str());
}
