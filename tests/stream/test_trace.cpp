#include "k3/stream/trace.hpp"

#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "k3/io/file.hpp"
#include "k3/stream/replay.hpp"
#include "k3/stream/trace_reader.hpp"
#include "k3/stream/trace_writer.hpp"
#include "support/doctest.hpp"
#include "support/mini_checkpoint.hpp"

using namespace k3;
using namespace k3::stream;
using namespace k3::tests;

namespace {

using Keys = std::vector<std::uint32_t>;

constexpr TraceShape kShape{.layers = 6, .experts = 20, .top_k = 3, .expert_bytes = 1000};

/// What an engine would do: layer 0 is dense; a cache and a recorder see the same events.
struct Run {
    ExpertSlots cache;
    TraceRecorder recorder;
    std::mt19937_64 rng{5};
    CacheCounters prefill{};

    explicit Run(std::size_t slots = 9, Policy policy = Policy::lfru, std::uint64_t most = std::uint64_t{1} << 30)
        : cache(slots, kShape.keys(), policy, kShape.experts), recorder(kShape, most) {}

    void step(StepMode mode, std::size_t tokens, std::size_t failed, std::size_t ahead) {
        recorder.begin_step(mode, tokens, ahead);
        for (std::uint32_t layer = 1; layer < kShape.layers; ++layer) {
            Keys requests;
            for (std::size_t t = layer > 2 ? failed : 0; t < tokens; ++t)
                for (std::size_t k = 0; k < kShape.top_k; ++k)
                    requests.push_back(layer * kShape.experts +
                                       static_cast<std::uint32_t>((rng() % 7) * 3 + k) % kShape.experts);
            recorder.batch(requests);
            cache.batch(
                requests, [](auto...) {}, [](auto...) { return true; });
            for (std::size_t i = 0; i < ahead && layer + 1 < kShape.layers; ++i) {
                const auto key = (layer + 1) * kShape.experts + static_cast<std::uint32_t>(rng() % kShape.experts);
                recorder.lookahead(key);
                cache.prefetch(key);
            }
        }
        if (mode == StepMode::prefill) prefill = cache.counters();
    }
    void all() {
        step(StepMode::prefill, 40, 0, 0);
        step(StepMode::prefill, 17, 2, 1);
        for (int n = 0; n < 30; ++n) step(StepMode::decode, 1, n == 20 ? 1 : 0, 2);
        step(StepMode::decode, 3, 0, 2);
    }
    TraceRun run() const { return {cache.slots(), cache.policy(), cache.counters()}; }
    void write(const std::string& folder) const { write_trace(recorder.trace(), run(), folder); }
};

void replace(const std::string& path, const std::string& from, const std::string& to) {
    std::string text = io::File::read_text(path);
    const std::size_t at = text.find(from);
    REQUIRE(at != std::string::npos);
    std::ofstream(path, std::ios::binary) << text.replace(at, from.size(), to);
}

void put_int(const std::string& path, std::size_t offset, std::int32_t value) {
    std::string bytes = io::File::read_text(path);
    REQUIRE(offset + 4 <= bytes.size());
    std::memcpy(bytes.data() + offset, &value, 4);
    std::ofstream(path, std::ios::binary) << bytes;
}

}  // namespace

TEST_CASE("stream/trace: what was recorded is read back, and the replay has the counters of the run to the digit") {
    for (const Policy policy : kPolicies)
        for (const std::size_t slots : {4, 9, 30, 100}) {
            Run run(slots, policy);
            run.all();
            const TempFolder folder;
            run.write(folder.path());
            const Trace trace = read_trace_folder(folder.path());
            const Trace& mine = run.recorder.trace();
            CHECK(trace.shape == kShape);
            CHECK(trace.steps == mine.steps);
            CHECK(trace.batches == mine.batches);
            CHECK(trace.requests == mine.requests);
            CHECK(trace.lookaheads == mine.lookaheads);
            CHECK(!trace.truncated);
            REQUIRE(trace.run);
            CHECK(*trace.run == run.run());
            const ReplayTotals totals = replay(trace, slots, policy);
            CHECK(totals.all() == run.cache.counters());
            CHECK(totals.of(StepMode::prefill) == run.prefill);
            CHECK(totals.of(StepMode::decode) == run.cache.counters() - run.prefill);
            const ReplayTotals without = replay(trace, slots, policy, Lookahead::none);
            CHECK(without.all().lookahead_loads == 0);
            CHECK(without.all().requests == totals.all().requests);
            const TraceBound bound(trace);
            const auto loads = bound.loads(slots);
            CHECK(loads[0] + loads[1] <= without.all().loads());
            CHECK(loads[0] + loads[1] <= totals.all().loads());
        }
}

TEST_CASE("stream/trace: the files are those of the format, byte for byte") {
    TraceRecorder recorder({.layers = 3, .experts = 4, .top_k = 2, .expert_bytes = 7});
    recorder.begin_step(StepMode::prefill, 2);
    recorder.batch(Keys{4, 5, 5, 7});
    recorder.batch(Keys{8, 11, 8, 9});
    recorder.begin_step(StepMode::decode, 1, 1);
    recorder.batch(Keys{6, 7});
    recorder.lookahead(10);
    recorder.batch(Keys{});  // the token failed
    const TempFolder folder;
    write_trace(recorder.trace(), {5, Policy::s3fifo, {.requests = 10}}, folder.path());
    CHECK(io::File::read_text(folder / "expert_hist.json") ==
          "{\"n_layers\":3,\"n_experts\":4,\"counts\":{\"1,0\":1,\"1,1\":2,\"1,2\":1,\"1,3\":2,\"2,0\":2,\"2,1\":1,"
          "\"2,3\":1}}\n");
    const std::int32_t want[] = {1, 0, 1, 1, 1, 1, 1, 3, 2, 0, 2, 3, 2, 0, 2, 1, 1, 2, 1, 3};
    CHECK(io::File::read_text(folder / "expert_trace.bin") ==
          std::string(reinterpret_cast<const char*>(want), sizeof want));
    const std::int32_t ahead[] = {2, 2};
    CHECK(io::File::read_text(folder / "expert_lookahead.bin") ==
          std::string(reinterpret_cast<const char*>(ahead), sizeof ahead));
    CHECK(io::File::read_text(folder / "expert_trace.json") ==
          "{\"version\":1,\"layers\":3,\"experts\":4,\"top_k\":2,\"expert_bytes\":7,\"truncated\":false,"
          "\"run\":{\"slots\":5,\"policy\":\"s3fifo\",\"counters\":{\"requests\":10,\"resident_hits\":0,"
          "\"prefetched_hits\":0,\"lookahead_hits\":0,\"misses\":0,\"evictions\":0,\"lookahead_loads\":0,"
          "\"lookahead_wasted\":0,\"drops\":0}},"
          "\"steps\":[{\"mode\":\"prefill\",\"tokens\":2,\"batches\":2,\"requests\":8},"
          "{\"mode\":\"decode\",\"tokens\":1,\"batches\":2,\"requests\":2,\"counts\":[2,0],\"lookaheads\":[1,0]}]}\n");
    CHECK(read_trace_folder(folder.path()).steps == recorder.trace().steps);
    CHECK(read_trace_folder(folder.path()).batches == recorder.trace().batches);
}

TEST_CASE("stream/trace: every damage is refused with the file, and the offset where there is one") {
    Run run;
    run.all();
    struct Damage {
        const char* file;
        void (*act)(const std::string& path);
        std::vector<std::string> words;
    };
    const std::vector<Damage> damages = {
        {"expert_trace.bin",
         [](const std::string& p) { std::filesystem::resize_file(p, 1003); },
         {"offset 1000", "middle of a (layer, expert) pair"}},
        {"expert_trace.bin",
         [](const std::string& p) { std::filesystem::resize_file(p, 1000); },
         {"offset 1000", "has 125 pairs"}},
        {"expert_trace.bin",
         [](const std::string& p) { std::ofstream(p, std::ios::app) << std::string(8, '\0'); },
         {"pairs, the steps"}},
        {"expert_trace.bin", [](const std::string& p) { put_int(p, 80, 6); }, {"offset 80", "layer 6 of 6"}},
        {"expert_trace.bin", [](const std::string& p) { put_int(p, 80, -1); }, {"offset 80", "layer -1 of 6"}},
        {"expert_trace.bin", [](const std::string& p) { put_int(p, 84, 20); }, {"offset 80", "expert 20 of 20"}},
        {"expert_trace.bin",
         [](const std::string& p) { put_int(p, 80, 2); },
         {"offset 80", "a batch of layer 1 has a request of layer 2"}},
        {"expert_trace.bin", [](const std::string& p) { put_int(p, 84, 19); }, {"expert_hist.json", "requests in"}},
        {"expert_trace.bin", [](const std::string& p) { std::filesystem::remove(p); }, {"cannot be opened"}},
        {"expert_lookahead.bin", [](const std::string& p) { std::filesystem::remove(p); }, {"cannot be opened"}},
        {"expert_lookahead.bin",
         [](const std::string& p) { std::filesystem::resize_file(p, 16); },
         {"has 2 pairs", "offset 16"}},
        {"expert_lookahead.bin", [](const std::string& p) { put_int(p, 4, 99); }, {"expert 99 of 20", "offset 0"}},
        {"expert_hist.json", [](const std::string& p) { std::filesystem::remove(p); }, {"cannot be opened"}},
        {"expert_hist.json",
         [](const std::string& p) { replace(p, "\"n_layers\":6", "\"n_layers\":7"); },
         {"layers is 6, expert_hist.json says 7"}},
        {"expert_hist.json",
         [](const std::string& p) { replace(p, "\"n_experts\":20", "\"n_experts\":0"); },
         {"n_experts is 0"}},
        {"expert_hist.json",
         [](const std::string& p) { replace(p, "\"n_layers\":6", "\"n_layers\":1048576"); },
         {"layers is 6"}},
        {"expert_hist.json", [](const std::string& p) { replace(p, "\"1,0\":", "\"5,19\":"); }, {"counts"}},
        {"expert_hist.json", [](const std::string& p) { replace(p, "}}", ",\"5,19\":1}}"); }, {"counts"}},
        {"expert_hist.json", [](const std::string& p) { replace(p, "counts", "count"); }, {"counts is missing"}},
        {"expert_hist.json", [](const std::string& p) { std::filesystem::resize_file(p, 30); }, {"is not JSON"}},
        {"expert_trace.json", [](const std::string& p) { std::filesystem::resize_file(p, 500); }, {"is not JSON"}},
        {"expert_trace.json",
         [](const std::string& p) { replace(p, "\"version\":1", "\"version\":2"); },
         {"version 2", "use the version"}},
        {"expert_trace.json", [](const std::string& p) { replace(p, "\"top_k\":3", "\"top_k\":21"); }, {"top_k is 21"}},
        {"expert_trace.json", [](const std::string& p) { replace(p, "\"top_k\":3", "\"top_k\":2"); }, {"requests is"}},
        {"expert_trace.json",
         [](const std::string& p) { replace(p, "\"tokens\":40", "\"tokens\":41"); },
         {"steps[0].requests is 600", "have 615"}},
        {"expert_trace.json",
         [](const std::string& p) { replace(p, "\"requests\":600", "\"requests\":601"); },
         {"steps[0].requests is 601"}},
        {"expert_trace.json",
         [](const std::string& p) { replace(p, "\"batches\":5", "\"batches\":7"); },
         {"steps[0].batches is 7"}},
        {"expert_trace.json",
         [](const std::string& p) { replace(p, "\"mode\":\"prefill\"", "\"mode\":\"fast\""); },
         {"steps[0].mode"}},
        {"expert_trace.json",
         [](const std::string& p) { replace(p, "\"counts\":[51,", "\"counts\":[52,"); },
         {"steps[1].counts", "up to 51"}},
        {"expert_trace.json",
         [](const std::string& p) { replace(p, "\"counts\":[51,51", "\"counts\":[51"); },
         {"steps[1].counts is not a list of 5"}},
        {"expert_trace.json",
         [](const std::string& p) { replace(p, "\"lookaheads\":[1,", "\"lookaheads\":[2,"); },
         {"expert_lookahead.bin", "pairs"}},
        {"expert_trace.json",
         [](const std::string& p) { replace(p, "\"policy\":\"lfru\"", "\"policy\":\"arc\""); },
         {"run.policy"}},
        {"expert_trace.json",
         [](const std::string& p) { replace(p, "\"slots\":9", "\"slots\":0"); },
         {"run.slots is 0"}},
        {"expert_trace.json",
         [](const std::string& p) { replace(p, "\"misses\":", "\"missed\":"); },
         {"run.counters.misses is missing"}},
        {"expert_trace.json",
         [](const std::string& p) { replace(p, "\"truncated\":false", "\"truncated\":0"); },
         {"truncated"}},
        {"expert_trace.json",
         [](const std::string& p) { replace(p, "\"steps\":", "\"step\":"); },
         {"steps is missing"}},
        {"expert_trace.json",
         [](const std::string& p) { replace(p, "\"layers\":6", "\"layers\":6,\"layers\":6"); },
         {"twice"}},
    };
    for (const Damage& damage : damages) {
        const TempFolder folder;
        run.write(folder.path());
        CHECK(refusal([&] { read_trace_folder(folder.path()); }) == "");
        damage.act(folder / damage.file);
        const std::string line = refusal([&] { read_trace_folder(folder.path()); });
        CAPTURE(line);
        CHECK(line.size() > 10);
        CHECK(!holds(line, "checkpoint"));
        for (const std::string& word : damage.words) CHECK(holds(line, word));
    }
}

TEST_CASE("stream/trace: layers that do not ascend within a step are refused") {
    TraceRecorder recorder({.layers = 3, .experts = 4, .top_k = 2, .expert_bytes = 7});
    recorder.begin_step(StepMode::decode, 1);
    recorder.batch(Keys{8, 9});
    recorder.batch(Keys{4, 5});
    const TempFolder folder;
    write_trace(recorder.trace(), {5, Policy::lru, {}}, folder.path());
    CHECK(holds(refusal([&] { read_trace_folder(folder.path()); }), "layer 1 follows layer 2"));
}

TEST_CASE("stream/trace: a trace without a sidecar is cut into batches by layer and top_k") {
    Run run;
    for (int n = 0; n < 8; ++n) run.step(StepMode::decode, 1, 0, 0);
    const TempFolder folder;
    run.write(folder.path());
    std::filesystem::remove(folder / "expert_trace.json");
    std::filesystem::remove(folder / "expert_lookahead.bin");
    const std::string line = refusal([&] { read_trace_folder(folder.path()); });
    CHECK(holds(line, "give --top-k"));
    const Trace trace = read_trace_folder(folder.path(), {.top_k = 3});
    CHECK(trace.requests == run.recorder.trace().requests);
    CHECK(trace.batches == run.recorder.trace().batches);
    CHECK(trace.steps == run.recorder.trace().steps);
    CHECK(!trace.run);
    CHECK(trace.shape.expert_bytes == 0);
    CHECK(replay(trace, 9, Policy::lfru).all() == run.cache.counters());

    // one MoE layer: the cut after top_k keeps the tokens apart
    TraceRecorder single({.layers = 2, .experts = 4, .top_k = 2, .expert_bytes = 0});
    for (int n = 0; n < 3; ++n) {
        single.begin_step(StepMode::decode, 1);
        single.batch(Keys{4, 6});
    }
    write_trace(single.trace(), {3, Policy::lru, {}}, folder.path());
    std::filesystem::remove(folder / "expert_trace.json");
    CHECK(read_trace_folder(folder.path(), {.top_k = 2}).steps == single.trace().steps);
}

TEST_CASE("stream/trace: JSON lines are read, and damaged ones refused with the offset of the line") {
    const TempFolder folder;
    const std::string good = "{\"tok\": 0, \"layers\": [[0, 3], [1, 2]]}\n\n{\"layers\": [[3, 1], [5]]}";
    const Trace trace = read_trace_lines(folder.write("t.jsonl", good));
    CHECK(trace.shape == TraceShape{2, 6, 2, 0});
    CHECK(trace.requests == Keys{0, 3, 7, 8, 3, 1, 11});
    CHECK(trace.steps == std::vector<TraceStep>{{StepMode::decode, 1, 2}, {StepMode::decode, 1, 2}});
    CHECK(trace.batches == std::vector<TraceBatch>{{2, 0}, {2, 0}, {2, 0}, {1, 0}});
    CHECK(read_trace_lines(folder / "t.jsonl", {.experts = 64}).requests[2] == 65);
    const auto refused = [&](const std::string& text, const std::string& word, TraceHints hints = {}) {
        const std::string line = refusal([&] { read_trace_lines(folder.write("bad.jsonl", text), hints); });
        CAPTURE(line);
        CHECK(holds(line, word));
        CHECK(!holds(line, "checkpoint"));
    };
    refused("", "has no requests");
    refused("{\"layers\": [[], []]}", "has no requests");
    refused("{\"layers\": [[0], [1]]}\n{\"layers\": [[0]]}\n", "offset 23: has 1 layers, the first line has 2");
    refused("{\"layers\": [[0], [1]]}\n{\"layers\": [[0], [1]\n", "offset 23");
    refused("{\"layers\": [[0], [-1]]}\n", "layer 1 has -1");
    refused("{\"layers\": [[0], [1.5]]}\n", "layer 1 has 1.5");
    refused("{\"layers\": [[0], [2]]}\n", "not an expert id below 2", {.experts = 2});
    refused("{\"layers\": [[0], 1]}\n", "layer 1 is not a list");
    refused("{\"layers\": [[99999999999], [1]]}\n", "layer 0 has 99999999999");
    refused("{\"layer\": []}\n", "has no list");
    refused("[1]\n", "is not a JSON object");
    refused("plain text\n", "is not JSON");
}

TEST_CASE("stream/trace: the recorder keeps to its limit, in whole steps, and says so") {
    Run limited(9, Policy::lru, 3000);
    limited.all();
    const Trace& trace = limited.recorder.trace();
    CHECK(trace.truncated);
    CHECK(trace.steps.size() == 1);
    CHECK(trace.requests.size() == 600);
    CHECK(limited.recorder.bytes() < 5000);
    const TempFolder folder;
    limited.write(folder.path());
    CHECK(read_trace_folder(folder.path()).truncated);

    Run whole;
    whole.all();
    const std::uint64_t payload = whole.recorder.trace().requests.size() * 4;
    CHECK(whole.recorder.bytes() >= payload);
    CHECK(whole.recorder.bytes() <= 4 * payload + 10000);
}

TEST_CASE("stream/trace: within a step nothing is allocated") {
    TraceRecorder recorder(kShape);
    for (int n = 0; n < 100; ++n) {
        recorder.begin_step(StepMode::decode, 2, 2);
        const std::uint64_t before = recorder.bytes();
        for (std::uint32_t layer = 0; layer < kShape.layers; ++layer) {
            recorder.batch(Keys(6, layer * kShape.experts));
            recorder.lookahead(layer * kShape.experts);
            recorder.lookahead(layer * kShape.experts + 1);
        }
        CHECK(recorder.bytes() == before);
    }
    CHECK(recorder.trace().requests.size() == 100 * 6 * 6);
    CHECK(recorder.trace().lookaheads.size() == 100 * 12);
}

TEST_CASE("stream/trace: a write that fails names the file and leaves nothing behind") {
    Run run;
    run.step(StepMode::decode, 1, 0, 0);
    const TempFolder folder;
    CHECK(holds(refusal([&] { run.write(folder / "nowhere"); }), "nowhere/expert_trace.bin"));
    CHECK(std::filesystem::is_empty(folder.path()));
}
