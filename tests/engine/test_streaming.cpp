// The streaming engine end to end: with however little memory, whatever reads and in whatever pieces, the logits are
// bit for bit those of a run that holds everything.
#include <chrono>
#include <cstdio>
#include <fstream>

#include <nlohmann/json.hpp>

#include "engine/rewrite.hpp"
#include "engine/rig.hpp"
#include "k3/core/digest.hpp"
#include "k3/engine/session.hpp"
#include "support/doctest.hpp"

using namespace k3;
using namespace k3::tests;
using engine::Options;
using engine::Plan;
using engine::Session;
using io::ReaderKind;
using stream::Policy;

namespace {

Options options_for(const std::string& dir) {
    Options options;
    options.model_dir = dir;
    options.arch = engine::widest_arch();
    options.pages = core::Pages::ordinary;
    options.least_work = 0;  // splits even tiny work
    return options;
}
Floats floats(std::span<const float> values) { return {values.begin(), values.end()}; }

/// A prompt, and the ids that follow it one at a time.
struct Text {
    Ids prompt, more;
};

/// Logits after the prompt and after each further id.
using Rows = std::vector<Floats>;

Rows run(Session& session, const Text& text) {
    Rows rows{floats(session.feed(text.prompt, {}, !text.more.empty()))};
    for (std::size_t i = 0; i < text.more.size(); ++i)
        rows.push_back(floats(session.feed({&text.more[i], 1}, {}, i + 1 < text.more.size())));
    return rows;
}
bool same(const Rows& a, const Rows& b) {
    if (a.size() != b.size()) return false;
    for (std::size_t i = 0; i < a.size(); ++i)
        if (!same_bits(a[i], b[i])) return false;
    return true;
}
/// The same from all weights in memory, below the Session, by the scalar arch, one token at a time.
Rows resident(const std::string& dir, const Text& text) {
    Loaded model(dir);
    Runner runner(model, engine::ArchName::scalar, 1, 64, 1, text.prompt.size() + text.more.size());
    Sequence sequence(runner);
    Rows rows;
    for (std::size_t at = 0; at < text.prompt.size(); at += 64) {
        const std::size_t count = std::min<std::size_t>(64, text.prompt.size() - at);
        REQUIRE_FALSE(sequence.feed(runner, part(text.prompt, at, count), 1));
    }
    rows.push_back(sequence.logits);
    for (const std::int32_t id : text.more) {
        REQUIRE_FALSE(sequence.feed(runner, {id}, 1));
        rows.push_back(sequence.logits);
    }
    return rows;
}

struct Fixture {
    std::string name, dir;
    std::size_t vocab, top_k;
    Text text;
    Rows want;
};
const std::vector<Fixture>& fixtures() {
    static const std::vector<Fixture> all = [] {
        std::vector<Fixture> f{{"A", golden_dir("A"), 256, 2, {}, {}},
                               {"B", golden_dir("B"), 301, 3, {}, {}},
                               {"demo", tests_dir() + "demo/model", 2304, 4, {}, {}}};
        for (Fixture& x : f) {
            x.text = {some_ids(70, x.vocab, 3), some_ids(4, x.vocab, 4)};
            x.want = resident(x.dir, x.text);
        }
        return f;
    }();
    return all;
}

/// The plan, with exactly so many expert slots.
Plan with_slots(const Session& session, std::size_t positions, std::size_t slots) {
    Plan plan = session.plan(positions);
    REQUIRE(plan.expert_slots >= slots);
    plan.expert_slots = slots;
    return plan;
}

std::uint64_t trunk_bytes(const std::string& dir) { return Session::open(options_for(dir)).plan(1).trunk_bytes; }

/// Cache bytes for so many slots: found by asking.
std::uint64_t cache_bytes(const Options& options, std::size_t slots) {
    std::uint64_t low = 0, high = std::uint64_t{1} << 30;
    while (low + 1 < high) {
        const std::uint64_t middle = (low + high) / 2;
        Options o = options;
        o.memory.cache = middle;
        std::size_t got = 0;
        try {
            got = Session::open(o).plan(10).expert_slots;
        } catch (const Error&) {
        }
        (got >= slots ? high : low) = middle;
    }
    return high;
}

}  // namespace

TEST_CASE(
    "engine/streaming: one set of logits over budgets from everything down to the least, rings of one slot, two and "
    "many, every policy, every reader, chunks of 1, 7 and 64, one thread and two") {
    constexpr ReaderKind kReaders[] = {ReaderKind::automatic, ReaderKind::threads, ReaderKind::buffered};
    constexpr std::size_t kChunks[] = {1, 7, 64}, kRings[] = {1, 2, 5};
    for (const Fixture& f : fixtures()) {
        const std::uint64_t all = trunk_bytes(f.dir);
        unsigned turn = 0;
        // In sixteenths of the trunk; the last has everything.
        for (const std::uint64_t share : {0, 1, 2, 4, 6, 8, 10, 12, 15, 16})
            for (const std::size_t extra_slots : {0, 6}) {
                Options options = options_for(f.dir);
                options.reader = kReaders[turn % 3];
                options.policy = stream::kPolicies[turn / 3 % 3];
                options.prefill_chunk = kChunks[(turn + turn / 3) % 3];
                options.threads = 1 + turn / 2 % 2;
                options.memory.ring = kRings[(turn / 2 + turn / 9) % 3];
                options.memory.trunk = share == 16 ? 2 * all + (std::uint64_t{4} << 20) : all * share / 16;
                options.read_ahead = turn % 7 != 6;
                if (turn % 4 != 0) options.look_ahead = turn % 4 - 1;
                ++turn;
                Session session = Session::open(options);
                Plan plan = with_slots(session, 80, f.top_k + 1 + extra_slots);
                INFO(f.name, ": trunk ", share, "/16, slots ", plan.expert_slots, ", ring ", *options.memory.ring,
                     ", policy ", stream::name(options.policy), ", chunk ", options.prefill_chunk, ", threads ",
                     options.threads, ", reader ", static_cast<int>(options.reader), ", turn ", turn);
                session.load(plan);
                CHECK(same(run(session, f.text), f.want));
                const engine::Traffic t = session.traffic();
                // The prompt's steps but the last want no logits, and the weights are read for each step once.
                const std::uint64_t steps =
                    (70 + options.prefill_chunk - 1) / options.prefill_chunk + f.text.more.size();
                if (share == 16) {
                    CHECK(t.trunk.streamed_bytes == 0);
                    CHECK(t.trunk.pinned_bytes == plan.trunk_bytes);
                } else {
                    const std::uint64_t head = t.trunk.lm_head_bytes;
                    CHECK(head % (1 + f.text.more.size()) == 0);
                    const std::uint64_t once = plan.streamed_bytes - head / (1 + f.text.more.size());
                    CHECK(t.trunk.streamed_bytes == steps * once + head);
                    CHECK(head > 0);
                    CHECK(t.trunk.dropped_bytes == 0);
                }
                CHECK(t.experts.requests == t.experts.resident_hits + t.experts.prefetched_hits +
                                                t.experts.lookahead_hits + t.experts.misses);
                CHECK(t.experts.drops == 0);
            }
    }
}

TEST_CASE("engine/streaming: the digests of the goldens, generated with the least of everything") {
    std::ifstream in(tests_dir() + "golden/digests.json");
    const auto digests = nlohmann::json::parse(in);
    for (const char* name : {"A", "B"}) {
        std::ifstream expected(tests_dir() + "golden/" + name + "/expected.json");
        const auto json = nlohmann::json::parse(expected);
        const Ids prompt = json.at("prompt_ids").get<Ids>(), want = json.at("generated_ids").get<Ids>();
        for (const bool recompute : {false, true}) {
            INFO(name, recompute ? ", recompute" : ", incremental");
            Options options = options_for(golden_dir(name));
            options.memory.trunk = 0;
            options.memory.ring = 1;
            options.memory.cache = cache_bytes(options, std::string(name) == "A" ? 3 : 4);
            options.prefill_chunk = 7;
            Session session = Session::open(options);
            session.load(prompt.size() + want.size());
            core::Digest digest;
            Ids all = prompt;
            std::span<const float> logits = session.feed(prompt, {}, true);
            for (std::size_t i = 0; i < want.size(); ++i) {
                digest.add(logits.data(), logits.size());
                const std::int32_t id = session.argmax(logits, i);
                CHECK(id == want[i]);
                all.push_back(id);
                if (i + 1 == want.size()) break;
                logits = recompute ? session.recompute(all, {}, i % 2 == 0) : session.feed({&id, 1}, {}, i % 3 != 0);
            }
            char hex[17];
            std::snprintf(hex, sizeof hex, "%016llx", static_cast<unsigned long long>(digest.value()));
            CHECK(hex == digests.at(name).get<std::string>());
        }
    }
}

TEST_CASE("engine/streaming: `more` moves no bit, right or wrong; right, it leaves nothing read in vain") {
    const Fixture& f = fixtures()[1];
    std::uint64_t asked_one_by_one = 0;
    for (const int more : {-1, 0, 1, 2}) {  // -1: nothing is read ahead at all
        Options options = options_for(f.dir);
        options.memory.trunk = 0;
        options.memory.ring = 3;
        options.prefill_chunk = 16;
        options.read_ahead = more >= 0;
        options.look_ahead = 0;
        Session session = Session::open(options);
        session.load(with_slots(session, 80, f.top_k + 1));
        Rows rows{floats(session.feed(f.text.prompt, {}, more > 0))};
        for (std::size_t i = 0; i < f.text.more.size(); ++i) {
            const bool last = i + 1 == f.text.more.size();
            rows.push_back(floats(session.feed({&f.text.more[i], 1}, {}, more == 2 || (more == 1 && !last))));
        }
        CHECK(same(rows, f.want));
        if (more < 2) CHECK(session.traffic().trunk.dropped_bytes == 0);
        const io::ReaderStats read = session.traffic().reader;
        const std::uint64_t reads = read.reads_now + read.reads_ahead;
        if (more < 0) asked_one_by_one = reads;
        CHECK((reads > asked_one_by_one) == (more == 2));  // ahead, but never beyond the end
        // The promise is broken: another sequence follows, in one chunk and in several.
        session.reset();
        CHECK(same(run(session, f.text), f.want));
    }
}

TEST_CASE(
    "engine/streaming: a step that is stopped at any layer leaves the sequence as it was, and it goes on with the same "
    "bits") {
    for (const Fixture& f : {fixtures()[0], fixtures()[1]})
        for (const std::size_t ring : {1, 2, 6}) {
            Options options = options_for(f.dir);
            options.memory.trunk = ring == 2 ? trunk_bytes(f.dir) / 2 : 0;
            options.memory.ring = ring;
            options.prefill_chunk = 30;
            options.policy = stream::kPolicies[ring % 3];
            Session session = Session::open(options);
            session.load(with_slots(session, 80, f.top_k + 1));
            const auto stop_at = [](std::size_t layer) {
                return [layer](std::size_t, std::size_t, std::size_t done, std::size_t) { return done < layer; };
            };
            const auto stopped = [](const auto& feeding) {
                try {
                    feeding();
                } catch (const Error& error) {
                    return error.code() == Code::interrupted;
                }
                return false;
            };
            for (std::size_t layer = 0; layer < session.layers(); layer += 3)
                CHECK(stopped([&] { session.feed(f.text.prompt, stop_at(layer), layer % 2 == 0); }));
            CHECK(session.position() == 0);
            // In the second chunk: the first stays.
            CHECK(stopped([&] {
                session.feed(f.text.prompt, [](std::size_t done, std::size_t, std::size_t layer, std::size_t) {
                    return done == 0 || layer < 4;
                });
            }));
            CHECK(session.position() == 30);
            CHECK(same_bits(session.feed(part(f.text.prompt, 30, 40), {}, true), f.want[0]));
            for (std::size_t i = 0; i < f.text.more.size(); ++i) {
                CHECK(stopped([&] { session.feed({&f.text.more[i], 1}, stop_at(1 + i * 2), i % 2 == 0); }));
                CHECK(same_bits(session.feed({&f.text.more[i], 1}, {}, i % 2 == 1), f.want[i + 1]));
            }
            CHECK(session.position() == 74);
        }
}

TEST_CASE("engine/streaming: recomputing gives the bits of going on, with the least memory") {
    for (const Fixture& f : fixtures()) {
        Options options = options_for(f.dir);
        options.memory.trunk = 0;
        options.memory.ring = 2;
        options.prefill_chunk = 64;
        Session session = Session::open(options);
        session.load(with_slots(session, 80, f.top_k + 1));
        Ids all = f.text.prompt;
        CHECK(same_bits(session.recompute(all), f.want[0]));
        for (std::size_t i = 0; i < f.text.more.size(); ++i) {
            all.push_back(f.text.more[i]);
            CHECK(same_bits(session.recompute(all, {}, i % 2 == 0), f.want[i + 1]));
        }
    }
}

TEST_CASE(
    "engine/streaming: experts as plain bf16 and f32, in any order, at odd offsets, give the bits of the same in "
    "memory") {
    for (const char* dtype : {"BF16", "F32"}) {
        std::vector<MiniTensor> tensors = plain_experts(tensors_of(golden_dir("B")), 52, 36, dtype), spread;
        std::reverse(tensors.begin(), tensors.end());
        for (std::size_t i = 0; i < tensors.size(); ++i) {
            spread.push_back({"gap." + std::to_string(i), "U8", {1 + i % 7}});
            spread.push_back(tensors[i]);
        }
        const TempFolder folder;
        write_checkpoint(folder, golden_dir("B"), spread);
        const Text text{some_ids(30, 301, 8), some_ids(3, 301, 9)};
        const Rows want = resident(folder.path(), text);
        for (const ReaderKind kind : {ReaderKind::automatic, ReaderKind::buffered}) {
            Options options = options_for(folder.path());
            options.memory.trunk = 0;
            options.memory.ring = 1;
            options.reader = kind;
            options.threads = 2;
            options.prefill_chunk = 7;
            Session session = Session::open(options);
            session.load(with_slots(session, 40, 4));
            CHECK(same(run(session, text), want));
        }
    }
}

TEST_CASE(
    "engine/streaming: a load or a step that cannot read is Code::read or Code::expert with the file, and can be asked "
    "again") {
    const Text text{some_ids(20, 301, 8), some_ids(2, 301, 9)};
    const TempFolder folder;
    write_checkpoint(folder, golden_dir("B"), tensors_of(golden_dir("B")));
    const Rows want = resident(folder.path(), text);
    const std::string path = folder / "model.safetensors", bytes = io::File::read_text(path);
    for (const bool whole_trunk : {false, true}) {
        INFO("all of the trunk stays: ", whole_trunk);
        Options options = options_for(folder.path());
        options.memory.trunk = whole_trunk ? std::uint64_t{64} << 20 : 0;
        options.memory.ring = 2;
        options.prefill_chunk = 7;
        Session session = Session::open(options);
        const auto refused_as = [&](const auto& action) {
            try {
                action();
            } catch (const Error& error) {
                CHECK(holds(error.what(), path));
                return error.code();
            }
            return Code::internal;
        };
        const Plan plan = with_slots(session, 30, 4);
        if (whole_trunk) {
            std::filesystem::resize_file(path, bytes.size() / 16);
            CHECK(refused_as([&] { session.load(plan); }) == Code::read);
            folder.write("model.safetensors", bytes);
        }
        session.load(plan);
        session.feed(part(text.prompt, 0, 9));
        std::filesystem::resize_file(path, bytes.size() / 2);
        const Code code = refused_as([&] { session.feed(part(text.prompt, 9, 5)); });
        CHECK((code == Code::read || code == Code::expert));
        CHECK(session.position() == 9);
        folder.write("model.safetensors", bytes);
        CHECK(same_bits(session.feed(part(text.prompt, 9, 11)), want[0]));
        for (std::size_t i = 0; i < text.more.size(); ++i)
            CHECK(same_bits(session.feed({&text.more[i], 1}), want[i + 1]));
    }
}

TEST_CASE(
    "engine/streaming: fewer expert slots than a token needs, and a ceiling below the least, are refused with the "
    "numbers") {
    Options options = options_for(golden_dir("A"));
    options.memory.cache = 1;
    const std::string small = refusal([&] { Session::open(options).load(20); });
    CHECK(holds(small, "needs 3"));
    options = options_for(golden_dir("A"));
    options.memory.ceiling = std::uint64_t{1} << 20;
    const std::string line = refusal([&] { Session::open(options).load(20); });
    CHECK(holds(line, "as asked for"));
    const std::size_t at = line.find("--memory ");
    REQUIRE(at != std::string::npos);
    // What it names does fit.
    options.memory.ceiling = std::stoull(line.substr(at + 9)) * 1000000;
    CHECK(holds(line.substr(at), "M"));
    Session session = Session::open(options);
    session.load(20);
    CHECK(session.feed(some_ids(5, 256, 1)).size() == 256);
}

TEST_CASE("engine/streaming: the dense layers alone have no experts, and stream all the same") {
    Options options = options_for(golden_dir("A"));
    options.layers = 1;
    options.memory.trunk = 0;
    options.memory.ring = 1;
    Session session = Session::open(options);
    session.load(20);
    const Floats streamed = floats(session.feed(some_ids(9, 256, 1)));
    options.memory = {};
    Session whole = Session::open(options);
    whole.load(20);
    CHECK(same_bits(whole.feed(some_ids(9, 256, 1)), streamed));
}
