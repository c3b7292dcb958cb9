#include "k3/engine/session.hpp"

#include <sys/resource.h>
#include <sys/wait.h>

#include <functional>
#include <thread>

#include "engine/rewrite.hpp"
#include "engine/rig.hpp"
#include "engine/small_work.hpp"
#include "support/doctest.hpp"

using namespace k3;
using namespace k3::tests;
using engine::ArchName;
using engine::Options;
using engine::Plan;
using engine::Session;

namespace {

Options options_for(const std::string& dir, std::size_t chunk = 0, unsigned threads = 2,
                    ArchName arch = engine::widest_arch()) {
    return small_work(dir, chunk, threads, arch);
}

struct Refusal {
    Code code = Code::internal;
    std::string line;  // empty: nothing was refused
};
Refusal refused(const std::function<void()>& action) {
    try {
        action();
    } catch (const Error& error) {
        return {error.code(), error.what()};
    }
    return {};
}

Floats floats(std::span<const float> values) { return {values.begin(), values.end()}; }

/// The logits after `ids`, fed to a sequence of its own.
Floats logits_after(const std::string& dir, const Ids& ids) {
    Session session = Session::open(options_for(dir, 3, 1, ArchName::scalar));
    session.load(ids.size());
    return floats(session.feed(ids));
}

/// Golden B whose embedding row `id` is NaN.
void write_poisoned_b(const TempFolder& folder, std::size_t id) {
    std::vector<MiniTensor> tensors = tensors_of(golden_dir("B"));
    for (MiniTensor& t : tensors)
        if (t.name == model::names::kEmbedTokens)
            for (std::size_t i = 0; i < 100; ++i) {
                const std::size_t size = t.dtype == "F32" ? 4 : 2, at = (id * 100 + i) * size;
                t.data[at + size - 1] = '\x7f';
                t.data[at + size - 2] = '\xc0';
            }
    write_checkpoint(folder, golden_dir("B"), tensors);
}

#if defined(__SANITIZE_ADDRESS__)
constexpr bool kSanitized = true;
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif
#else
constexpr bool kSanitized = false;
#endif

/// Runs `body` in a child whose address space may grow by `room` bytes; true if it returned true.
bool in_small_space(std::uint64_t room, const std::function<bool()>& body) {
    const pid_t child = ::fork();
    if (child == 0) {
        const std::uint64_t held = io::detail::kilobytes_of("/proc/self/status", "VmSize").value_or(0);
        struct rlimit limit {};
        ::getrlimit(RLIMIT_AS, &limit);
        limit.rlim_cur = held + room;
        bool good = ::setrlimit(RLIMIT_AS, &limit) == 0;
        try {
            good = good && body();
        } catch (const std::exception& error) {
            std::fprintf(stderr, "in the child: %s\n", error.what());
            good = false;
        }
        ::_exit(good ? 0 : 1);
    }
    int status = -1;
    return ::waitpid(child, &status, 0) == child && status == 0;
}

/// The number that stands before `words` in a line.
std::uint64_t number_before(const std::string& line, const std::string& words) {
    const std::size_t end = line.find(words);
    if (end == std::string::npos) return 0;
    std::size_t begin = end;
    while (begin > 0 && std::isdigit(static_cast<unsigned char>(line[begin - 1]))) --begin;
    return begin == end ? 0 : std::stoull(line.substr(begin, end - begin));
}

}  // namespace

TEST_CASE("engine/session: the plan is the sum of its parts, and each part is what will be allocated") {
    for (const char* name : {"A", "B", "F"})
        for (const unsigned threads : {1U, 3U})
            for (const std::size_t positions : {1, 7, 300, 5000}) {
                const Session session = Session::open(options_for(golden_dir(name), 0, threads));
                const Plan plan = session.plan(positions);
                CHECK(plan.total() ==
                      plan.held + plan.reserve + plan.state + plan.workspace + plan.pinned + plan.ring + plan.experts);
                CHECK(plan.fits());
                CHECK(plan.positions == positions);
                const Loaded model(golden_dir(name));
                const auto forward = engine::make_forward(engine::widest_arch(), model.bound.view());
                const model::StepBytes step = forward->step_bytes(plan.prefill_chunk, 1, positions);
                const std::uint64_t scratch = step.workspace + step.shared + threads * step.local + model.vocab() * 4;
                CHECK(plan.workspace >= scratch);
                CHECK(plan.workspace < scratch + (6 << 20));  // three buffers, rounded up to huge pages
                CHECK(plan.state == model::State::bytes(model.bound.view(), positions, plan.prefill_chunk));
                CHECK(plan.streamed_bytes == 0);  // all of it fits
                CHECK(plan.expert_slots == plan.all_experts);
                CHECK(plan.pinned >= plan.trunk_bytes);
                CHECK(plan.experts >= session.experts().all_bytes());
                CHECK(plan.held > session.index().memory_bytes() + model.bound.vector_bytes());
                CHECK(plan.available > 0);
                CHECK(plan.available <= io::memory_limit().bytes + (std::uint64_t{1} << 30));
                CHECK_FALSE(plan.limited_by.empty());
            }
}

TEST_CASE("engine/session: the chunk is 512, or fewer for a short sequence, or what the options say") {
    const Session free = Session::open(options_for(golden_dir("B")));
    CHECK(free.plan(5).prefill_chunk == 5);
    CHECK(free.plan(511).prefill_chunk == 511);
    CHECK(free.plan(512).prefill_chunk == 512);
    CHECK(free.plan(100000).prefill_chunk == 512);
    CHECK(free.plan(0).prefill_chunk == 1);
    const Session fixed = Session::open(options_for(golden_dir("B"), 7));
    CHECK(fixed.plan(100).prefill_chunk == 7);
    CHECK(fixed.plan(3).prefill_chunk == 3);
    const Session large = Session::open(options_for(golden_dir("B"), 2000));
    CHECK(large.plan(5000).prefill_chunk == 2000);
}

TEST_CASE("engine/session: where memory is tight the chunk shrinks until the plan fits, and the run is the same") {
    const Ids ids = some_ids(600, 301, 5);
    const Floats want = logits_after(golden_dir("B"), ids);
    const std::uint64_t most = Session::open(options_for(golden_dir("B"), 512, 1)).plan(700).least,
                        least = Session::open(options_for(golden_dir("B"), 8, 1)).plan(700).least;
    REQUIRE(most > least + (1 << 20));
    Options tight = options_for(golden_dir("B"), 0, 1);
    tight.memory.ceiling = (most + least) / 2;
    Session session = Session::open(tight);
    const Plan plan = session.plan(700);
    CHECK(plan.fits());
    CHECK(plan.prefill_chunk < 512);
    CHECK(plan.prefill_chunk >= 8);
    CHECK(plan.total() <= *tight.memory.ceiling);
    session.load(plan);
    CHECK(same_bits(session.feed(ids), want));
}

TEST_CASE(
    "engine/session: a plan that does not fit is refused with positions and bytes, and the fit it names does load") {
    if (kSanitized) return;  // the address space of a sanitized process is not ours to limit
    const std::size_t positions = 1000000;
    CHECK(in_small_space(std::uint64_t{400} << 20, [&] {
        Session session = Session::open(options_for(golden_dir("A"), 0, 1));
        const Plan plan = session.plan(positions);
        if (plan.limited_by.find("address-space") == std::string::npos) return false;
        const Refusal refusal = refused([&] { session.load(positions); });
        if (refusal.code != Code::plan) return false;
        const std::uint64_t fits = number_before(refusal.line, " positions fit");
        if (!holds(refusal.line, std::to_string(positions)) || !holds(refusal.line, "there are")) return false;
        if (fits < 1000 || fits >= positions) return false;
        if (session.plan(fits + fits / 50).fits()) return false;  // the nearest, or close to it
        // What is named must fit in a fresh process of the same size too; here a little was used since.
        const std::size_t close = fits - fits / 100;
        session.load(close);
        return !session.feed(some_ids(20, 256, 1)).empty() && session.position() == 20;
    }));
}

TEST_CASE("engine/session: weights that do not fit at all are refused, and fewer layers are named") {
    if (kSanitized) return;
    Session session = Session::open(options_for(golden_dir("A"), 0, 1));
    CHECK(in_small_space(2 << 20, [&] {
        const Refusal refusal = refused([&] { session.load(8); });
        return refusal.code == Code::plan && holds(refusal.line, "--layers");
    }));
}

TEST_CASE("engine/session: more positions than the model has are refused with both numbers") {
    Session session = Session::open(options_for(tests_dir() + "demo/model"));
    const Refusal refusal = refused([&] { session.load(1025); });
    CHECK(refusal.code == Code::plan);
    CHECK(holds(refusal.line, "1025"));
    CHECK(holds(refusal.line, "1024"));
    session.load(1024);
    CHECK(session.feed(Ids{5}).size() == 2304);
}

TEST_CASE(
    "engine/session: ids out of range are refused by value and number; the sequence goes on as if nothing had been "
    "asked") {
    const Ids good = some_ids(9, 301, 1);
    const Floats want = logits_after(golden_dir("B"), good);
    Session session = Session::open(options_for(golden_dir("B")));
    session.load(20);
    session.feed(part(good, 0, 5));
    for (const std::int32_t bad : {-1, 301, 2147483647, -2147483647 - 1}) {
        const Refusal refusal = refused([&] { session.feed(Ids{1, 2, bad, 3}); });
        CHECK(refusal.code == Code::usage);
        CHECK(holds(refusal.line, std::to_string(bad)));
        CHECK(holds(refusal.line, "number 2"));
        CHECK(session.position() == 5);
    }
    CHECK(same_bits(session.feed(part(good, 5, 4)), want));
    CHECK(session.feed(Ids{0, 300}).size() == 301);  // the first and the last id are in range
}

TEST_CASE(
    "engine/session: trap 19, positions beyond the plan are refused before anything moves; the last one is usable") {
    const Ids ids = some_ids(10, 301, 1);
    const Floats want = logits_after(golden_dir("B"), ids);
    Session session = Session::open(options_for(golden_dir("B")));
    CHECK(refused([&] { session.feed(ids); }).code == Code::plan);  // not loaded yet: planned for none
    session.load(10);
    CHECK(refused([&] { session.feed(some_ids(11, 301, 2)); }).code == Code::plan);
    CHECK(session.position() == 0);
    session.feed(part(ids, 0, 7));
    const Refusal refusal = refused([&] { session.feed(part(ids, 0, 4)); });
    CHECK(refusal.code == Code::plan);
    CHECK(holds(refusal.line, "11"));
    CHECK(holds(refusal.line, "10"));
    CHECK(session.position() == 7);
    CHECK(same_bits(session.feed(part(ids, 7, 3)), want));
    CHECK(refused([&] { session.feed(Ids{1}); }).code == Code::plan);
    session.reset();
    CHECK(session.position() == 0);
    CHECK(same_bits(session.feed(ids), want));
}

TEST_CASE("engine/session: argmax takes the lowest id on ties; a NaN is an error naming position and step") {
    Session session = Session::open(options_for(golden_dir("B")));
    session.load(20);
    Floats logits = floats(session.feed(some_ids(6, 301, 1)));
    std::fill(logits.begin(), logits.end(), 1.0F);
    logits[17] = logits[200] = 3;
    CHECK(session.argmax(logits, 0) == 17);
    logits[300] = std::numeric_limits<float>::infinity();  // ordinary in greedy
    CHECK(session.argmax(logits, 0) == 300);
    logits[250] = std::numeric_limits<float>::quiet_NaN();
    const Refusal refusal = refused([&] { session.argmax(logits, 7); });
    CHECK(refusal.code == Code::numeric);
    CHECK(holds(refusal.line, "position 6"));
    CHECK(holds(refusal.line, "step 7"));
}

TEST_CASE("engine/session: a failing step leaves the position unchanged and the next step right, short or long") {
    const TempFolder folder;
    write_poisoned_b(folder, 7);
    Ids good = some_ids(40, 301, 1);
    for (std::int32_t& id : good)
        if (id == 7) id = 8;
    const Floats want = logits_after(folder.path(), good);
    for (const std::size_t bad_length :
         {std::size_t{1}, std::size_t{5}, std::size_t{8}, std::size_t{9}, std::size_t{20}}) {
        Session session = Session::open(options_for(folder.path(), 64));
        session.load(60);
        session.feed(part(good, 0, 13));
        Ids bad = part(good, 3, bad_length);
        bad[bad_length / 2] = 7;
        const Refusal refusal = refused([&] { session.feed(bad); });
        CHECK(refusal.code == Code::numeric);
        CHECK(holds(refusal.line, "position " + std::to_string(13 + bad_length / 2)));
        CHECK(holds(refusal.line, "layer 1"));
        CHECK(session.position() == 13);
        CHECK(same_bits(session.feed(part(good, 13, 27)), want));
    }
    // Fed in several steps, those before the failing one stand, and position() says how far it got.
    Session session = Session::open(options_for(folder.path(), 4));
    session.load(60);
    Ids bad = part(good, 0, 12);
    bad[9] = 7;
    CHECK(refused([&] { session.feed(bad); }).code == Code::numeric);
    CHECK(session.position() == 8);
    CHECK(same_bits(session.feed(part(good, 8, 32)), want));
}

TEST_CASE("engine/session: a read that fails in a step is Code::read with the file, and the step can be asked again") {
    const TempFolder folder;
    write_checkpoint(folder, golden_dir("B"), tensors_of(golden_dir("B")));
    const Ids ids = some_ids(12, 301, 1);
    const Floats want = logits_after(folder.path(), ids);
    Session session = Session::open(options_for(folder.path()));
    session.load(20);
    session.feed(part(ids, 0, 4));
    const std::string path = folder / "model.safetensors", bytes = io::File::read_text(path);
    std::filesystem::resize_file(path, 100);  // only the embedding is still read from there
    const Refusal refusal = refused([&] { session.feed(part(ids, 4, 8)); });
    CHECK(refusal.code == Code::read);
    CHECK(holds(refusal.line, path));
    CHECK(session.position() == 4);
    folder.write("model.safetensors", bytes);
    CHECK(same_bits(session.feed(part(ids, 4, 8)), want));
    CHECK(session.traffic().embedding_bytes > 0);
}

TEST_CASE("engine/session: two sessions in two threads at once give the bits of each alone") {
    const Ids a = some_ids(40, 301, 1), b = some_ids(40, 256, 2);
    const Floats want_a = logits_after(golden_dir("B"), a), want_b = logits_after(golden_dir("A"), b);
    const auto work = [](const std::string& dir, const Ids& ids, const Floats& want, unsigned threads, int& good) {
        for (int i = 0; i < 4; ++i) {
            Session session = Session::open(options_for(dir, 7, threads));
            session.load(ids.size());
            good += same_bits(session.feed(ids), want);
            good += same_bits(session.recompute(ids), want);
        }
    };
    int good_a = 0, good_b = 0;
    std::thread other([&] { work(golden_dir("A"), b, want_b, 2, good_b); });
    work(golden_dir("B"), a, want_a, 2, good_a);
    other.join();
    CHECK(good_a == 8);
    CHECK(good_b == 8);
}

TEST_CASE("engine/session: a moved session goes on; feeding nothing moves nothing; progress counts tokens and layers") {
    const Ids ids = some_ids(10, 301, 1);
    const Floats want = logits_after(golden_dir("B"), ids);
    Session first = Session::open(options_for(golden_dir("B"), 4));
    std::uint64_t last = 0, total = 0;
    first.load(12, [&](std::uint64_t done, std::uint64_t all) {
        CHECK(done >= last);
        last = done;
        total = all;
    });
    CHECK(last == total);
    CHECK(total > 0);
    first.feed(part(ids, 0, 3));
    Session second = std::move(first);
    CHECK(second.position() == 3);
    second.feed(Ids{});
    CHECK(second.position() == 3);
    std::vector<std::size_t> tokens, layers;
    const auto logits =
        second.feed(part(ids, 3, 7), [&](std::size_t done, std::size_t all, std::size_t layer, std::size_t of) {
            CHECK(all == 7);
            CHECK(of == 9);
            if (layer == of) tokens.push_back(done);
            layers.push_back(layer);
            return true;
        });
    CHECK(same_bits(logits, want));
    CHECK(tokens == std::vector<std::size_t>{0, 4});
    CHECK(layers.size() == 18);
    CHECK(same_bits(second.recompute(ids), want));
}

TEST_CASE("engine/session: fewer layers bind, plan and run; counts out of range and broken folders are refused") {
    Options three = options_for(golden_dir("B"));
    three.layers = 3;
    Session session = Session::open(three);
    CHECK(session.layers() == 3);
    session.load(5);
    CHECK(all_finite(session.feed(Ids{1, 2, 3})));
    CHECK(session.plan(5).experts < Session::open(options_for(golden_dir("B"))).plan(5).experts);
    three.layers = 10;
    CHECK(refused([&] { Session::open(three); }).code == Code::usage);
    CHECK(refused([&] { Session::open(options_for("/nonexistent")); }).code == Code::config);
    const TempFolder folder;
    folder.write("config.json", io::File::read_text(golden_dir("B") + "/config.json"));
    CHECK(refused([&] { Session::open(options_for(folder.path())); }).code == Code::checkpoint);
    Options elsewhere = options_for(folder.path());
    elsewhere.model_dir = golden_dir("B");
    elsewhere.config_path = folder / "config.json";
    CHECK(refused([&] { Session::open(elsewhere); }).line == "");
}

TEST_CASE("engine/session: feeding that is stopped says so, keeps whole chunks and takes the current step back") {
    const Ids ids = some_ids(12, 301, 1);
    const Floats want = logits_after(golden_dir("B"), ids);
    for (const std::size_t chunk : {std::size_t{4}, std::size_t{10}}) {  // logged, and with a copy
        Session session = Session::open(options_for(golden_dir("B"), chunk));
        session.load(20);
        const Refusal refusal = refused([&] {
            session.feed(part(ids, 0, 11), [&](std::size_t done, std::size_t, std::size_t layer, std::size_t) {
                return !(done == chunk && layer == 5);
            });
        });
        CHECK(refusal.code == Code::interrupted);
        CHECK(session.position() == chunk);
        CHECK(same_bits(session.feed(part(ids, chunk, 12 - chunk)), want));
    }
}

TEST_CASE(
    "engine/session: used in another order than planned: reset before load, load again, no threads, any least_work") {
    const Ids ids = some_ids(12, 301, 1);
    const Floats want = logits_after(golden_dir("B"), ids);
    Session session = Session::open(options_for(golden_dir("B"), 5));
    session.reset();
    CHECK(session.position() == 0);
    CHECK(refused([&] { session.recompute(ids); }).code == Code::plan);
    session.load(12);
    CHECK(same_bits(session.feed(ids), want));
    session.load(300);  // more positions: the sequence starts over
    CHECK(session.position() == 0);
    CHECK(same_bits(session.feed(ids), want));
    CHECK(session.feed(some_ids(280, 301, 3)).size() == 301);
    for (const unsigned threads : {0U, 1U, 5U})
        for (const std::size_t least_work :
             {std::size_t{0}, std::size_t{1}, std::size_t{1000}, std::size_t{32768}, ~std::size_t{0}}) {
            Options options = options_for(golden_dir("B"), 7, threads);
            options.least_work = least_work;
            Session other = Session::open(options);
            other.load(12);
            CHECK(same_bits(other.feed(ids), want));
        }
}
