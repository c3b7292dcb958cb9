#include "k3/stream/expert_cache.hpp"

#include <algorithm>
#include <map>
#include <random>
#include <set>

#include "stream/slow_disk.hpp"
#include "support/doctest.hpp"
#include "support/mini_checkpoint.hpp"

using namespace k3;
using namespace k3::tests;
using stream::ExpertCache;
using stream::Policy;

namespace {

// Groups are cut off at the end of every row; no block of a file has the start of two packed tensors.
constexpr std::size_t kLayers = 4, kFirstMoe = 1, kWidth = 66, kLatent = 134;

enum class Layout {
    neighbours,  // as in the release: the six tensors of an expert one after another
    shuffled,    // all tensors in any order
    gaps,        // an odd number of bytes between any two
    plain,       // not quantised: bf16 and f32, in one expert too
    plain_gaps,  // the same at odd offsets
    shards,      // quantised and plain, over three files
};
constexpr Layout kLayouts[] = {Layout::neighbours, Layout::shuffled,   Layout::gaps,
                               Layout::plain,      Layout::plain_gaps, Layout::shards};

constexpr std::uint64_t kSeed = 1469598103934665603U;
std::uint64_t hash(std::uint64_t seed, const void* at, std::size_t bytes) {
    const auto* byte = static_cast<const unsigned char*>(at);
    for (std::size_t i = 0; i < bytes; ++i) seed = (seed ^ byte[i]) * 1099511628211U;
    return seed;
}

std::size_t data_bytes(const layers::Weight& w) {
    return w.format == layers::Format::mxfp4 ? w.rows * ((w.cols + 1) / 2)
                                             : w.rows * w.cols * (w.format == layers::Format::f32 ? 4 : 2);
}
std::size_t scale_bytes(const layers::Weight& w) {
    return w.format == layers::Format::mxfp4 ? w.rows * ((w.cols + 31) / 32) : 0;
}

/// A checkpoint of routed experts alone, and the checksum of each.
struct Rig {
    Rig(Layout layout, std::size_t experts, std::size_t top_k, std::uint64_t seed) : random(seed) {
        config.experts = experts;
        config.experts_per_token = top_k;
        config.expert_width = kWidth;
        config.latent = kLatent;
        config.first_dense = kFirstMoe;
        config.layers = kLayers;
        std::vector<MiniTensor> tensors;
        for (std::uint32_t n = kFirstMoe; n < kLayers; ++n)
            for (std::uint32_t e = 0; e < experts; ++e) add_expert(layout, n, e, tensors);
        if (layout != Layout::neighbours && layout != Layout::plain)
            std::shuffle(tensors.begin(), tensors.end(), random);
        if (layout == Layout::gaps || layout == Layout::plain_gaps || layout == Layout::shards) {
            std::vector<MiniTensor> spread;
            for (std::size_t i = 0; i < tensors.size(); ++i) {
                spread.push_back({"gap." + std::to_string(i), "U8", {1 + 2 * (random() % 300)}});
                spread.push_back(tensors[i]);
            }
            tensors = std::move(spread);
        }
        const unsigned shards = layout == Layout::shards ? 3 : 1;
        for (unsigned s = 0; s < shards; ++s) {
            std::vector<MiniTensor> mine;
            for (std::size_t i = s; i < tensors.size(); i += shards) mine.push_back(tensors[i]);
            folder.write(shard_name(s + 1, shards), shard_of(mine));
        }
        index.emplace(checkpoint::ShardIndex::open(folder.path(), 1));
        files.emplace(*index, seed % 2 == 0 ? io::Access::direct : io::Access::buffered, "");
        places.emplace(config, *files, kLayers);
    }

    void add_expert(Layout layout, std::uint32_t n, std::uint32_t e, std::vector<MiniTensor>& tensors) {
        std::uint64_t sum = kSeed;
        using checkpoint::ExpertMatrix, checkpoint::ExpertPart;
        const auto add =
            [&](ExpertMatrix matrix, ExpertPart part, const char* dtype, std::uint64_t rows, std::uint64_t cols) {
            MiniTensor t{checkpoint::to_string(checkpoint::ExpertName{n, e, matrix, part}), dtype, {rows, cols}};
            t.data.resize(t.bytes());
            for (char& byte : t.data) byte = static_cast<char>(random());
            sum = hash(sum, t.data.data(), t.data.size());
            size[{n, e}] += t.data.size();
            tensors.push_back(std::move(t));
        };
        const bool plain =
            layout == Layout::plain || layout == Layout::plain_gaps || (layout == Layout::shards && e % 3 == 0);
        for (const ExpertMatrix matrix : {ExpertMatrix::gate, ExpertMatrix::down, ExpertMatrix::up}) {
            const std::uint64_t rows = matrix == ExpertMatrix::down ? kLatent : kWidth,
                                cols = matrix == ExpertMatrix::down ? kWidth : kLatent;
            if (plain) {
                add(matrix, ExpertPart::plain, random() % 2 == 0 ? "F32" : "BF16", rows, cols);
            } else {
                add(matrix, ExpertPart::packed, "U8", rows, (cols + 1) / 2);
                add(matrix, ExpertPart::scale, "U8", rows, (cols + 31) / 32);
            }
        }
        want[{n, e}] = sum;
    }
    /// Windows of the reads an expert takes.
    std::vector<SlowDisk::Request> reads_of(std::size_t layer, std::size_t expert) const {
        const stream::ExpertLoad load = places->at(layer, expert, nullptr);
        std::vector<SlowDisk::Request> reads;
        for (std::size_t p = 0; p < load.count; ++p) {
            const stream::Place& place = load.pieces[p].place;
            const io::Window window = io::window_of(place.offset, place.bytes);
            reads.push_back({place.file->descriptor(), window.begin, window.bytes});
        }
        return reads;
    }

    TempFolder folder;
    std::mt19937_64 random;
    model::Config config{};
    std::map<std::pair<std::size_t, std::size_t>, std::uint64_t> want, size;
    std::optional<checkpoint::ShardIndex> index;
    std::optional<stream::StreamFiles> files;
    std::optional<stream::ExpertPlaces> places;
};

/// The kernel's view of the test; kernels are plain functions.
struct Kernel {
    SlowDisk* disk = nullptr;
    std::atomic<std::size_t> calls{0};
    std::size_t torn = 0, misaligned = 0;
    std::uint64_t refuse = 0;  // checksum of an expert whose kernel fails
    std::mt19937_64 random{9};

    void start(SlowDisk& of) {
        disk = &of;
        calls = torn = misaligned = 0;
        refuse = 0;
    }
} kernel_state;

/// out[t] = the checksum of the weights in three pieces, then z[t]. The weights are looked at twice.
core::Fault checksum_kernel(const core::Exec&, const layers::ExpertWeights& w, layers::Situ,
                            core::MatView<const float> z, core::MatView<float> out, core::Arena) noexcept {
    Kernel& k = kernel_state;
    ++k.calls;
    const layers::Weight* const all[] = {&w.gate, &w.down, &w.up};
    for (const layers::Weight* m : all) {
        const std::size_t element = m->format == layers::Format::f32 ? 4 : m->format == layers::Format::bf16 ? 2 : 1;
        k.misaligned += reinterpret_cast<std::uintptr_t>(m->data) % element != 0;
        k.disk->hold(m->data, data_bytes(*m));
        if (m->scales != nullptr) k.disk->hold(m->scales, scale_bytes(*m));
    }
    const auto look = [&] {
        std::uint64_t sum = kSeed;
        for (const layers::Weight* m : all) {
            sum = hash(sum, m->data, data_bytes(*m));
            sum = hash(sum, m->scales, scale_bytes(*m));
        }
        return sum;
    };
    const std::uint64_t sum = look();
    if (k.random() % 4 == 0) {
        std::this_thread::sleep_for(std::chrono::microseconds(k.random() % 60));
        k.torn += look() != sum;
    }
    for (const layers::Weight* m : all) {
        k.disk->let_go(m->data);
        if (m->scales != nullptr) k.disk->let_go(m->scales);
    }
    if (sum == k.refuse) return {.code = core::FaultCode::weight_failed};
    for (std::size_t t = 0; t < z.rows; ++t) {
        for (unsigned i = 0; i < 3; ++i) out.row(t)[i] = static_cast<float>(sum >> (22 * i) & 0x3fffff);
        std::memcpy(out.row(t) + 3, z.row(t) + 3, (z.cols - 3) * sizeof(float));
    }
    return {};
}

/// The tokens of one submit, and what came back.
struct Batch {
    std::size_t layer = kFirstMoe, tokens = 0, top_k = 0;
    std::vector<std::int32_t> ids;
    std::vector<float> z, e;
    std::vector<core::Fault> faults;

    std::set<std::size_t> distinct() const {
        std::set<std::size_t> out;
        for (const std::int32_t id : ids)
            if (id >= 0) out.insert(static_cast<std::size_t>(id));
        return out;
    }
    bool has(std::size_t token, std::size_t expert) const {
        for (std::size_t j = 0; j < top_k; ++j)
            if (ids[token * top_k + j] == static_cast<std::int32_t>(expert)) return true;
        return false;
    }
};

/// Random tokens, some of which have failed already; `favourites`: how many experts are wanted more often.
Batch random_batch(Rig& rig, std::size_t tokens, std::size_t favourites = 0) {
    Batch b;
    b.tokens = tokens;
    b.top_k = rig.config.experts_per_token;
    b.layer = kFirstMoe + rig.random() % (kLayers - kFirstMoe);
    for (std::size_t t = 0; t < tokens; ++t) {
        const bool failed = rig.random() % 17 == 0;
        b.faults.push_back({});
        if (failed) b.faults.back() = {.code = core::FaultCode::router_nan, .token = static_cast<std::int32_t>(t)};
        std::vector<std::int32_t> chosen;
        while (chosen.size() < b.top_k) {
            const std::size_t most = favourites >= b.top_k && rig.random() % 4 != 0 ? favourites : rig.config.experts;
            const auto id = static_cast<std::int32_t>(rig.random() % most);
            if (std::find(chosen.begin(), chosen.end(), id) == chosen.end()) chosen.push_back(id);
        }
        for (const std::int32_t id : chosen) b.ids.push_back(failed ? -1 : id);
    }
    for (std::size_t i = 0; i < tokens * kLatent; ++i) b.z.push_back(static_cast<float>(rig.random() % 100000));
    b.e.assign(tokens * b.top_k * kLatent, -77.0F);
    return b;
}

struct Machine {
    explicit Machine(Rig& of, std::size_t slots, Policy policy = Policy::lru, unsigned depth = 4,
                     stream::LookAhead look_ahead = {})
        : rig(of), reader(disk.options(depth)), scratch(std::size_t{4} << 20) {
        kernel_state.start(disk);
        cache.emplace(*rig.places, layers::Situ{1, 1}, reader,
                      stream::ExpertCacheOptions{.slots = slots,
                                                 .look_ahead = look_ahead,
                                                 .policy = policy,
                                                 .pages = core::Pages::ordinary,
                                                 .most_tokens = 64});
        cache->use(checksum_kernel);
    }
    void submit(Batch& b) {
        cache->submit(core::Exec{}, b.layer, {b.ids.data(), b.tokens, b.top_k}, {b.z.data(), b.tokens, kLatent},
                      {b.e.data(), b.tokens * b.top_k, kLatent}, b.faults.data(), {scratch.data(), scratch.size()});
    }
    /// Outputs that are not what the routes ask for. `failing`: experts whose tokens must have a fault instead.
    std::size_t mistakes(const Batch& before, const Batch& b, const std::set<std::size_t>& failing = {}) const {
        std::size_t bad = 0;
        for (std::size_t t = 0; t < b.tokens; ++t) {
            bool fails = false;
            for (const std::size_t expert : failing) fails = fails || b.has(t, expert);
            const core::Fault &was = before.faults[t], &is = b.faults[t];
            if (was) {
                bad += is.code != was.code;
            } else if (fails) {
                bad += is.code != core::FaultCode::expert_failed || is.token != static_cast<std::int32_t>(t) ||
                       is.layer != static_cast<std::int32_t>(b.layer) || is.expert < 0 ||
                       !failing.contains(static_cast<std::size_t>(is.expert)) ||
                       !b.has(t, static_cast<std::size_t>(is.expert));
            } else {
                bad += static_cast<bool>(is);
            }
            for (std::size_t j = 0; j < b.top_k; ++j) {
                const std::int32_t id = b.ids[t * b.top_k + j];
                const float* const row = b.e.data() + (t * b.top_k + j) * kLatent;
                if (id < 0) {
                    bad += row[0] != -77.0F;
                    continue;
                }
                if (failing.contains(static_cast<std::size_t>(id))) continue;
                const std::uint64_t sum = rig.want.at({b.layer, static_cast<std::size_t>(id)});
                for (unsigned i = 0; i < 3; ++i) bad += row[i] != static_cast<float>(sum >> (22 * i) & 0x3fffff);
                bad += std::memcmp(row + 3, b.z.data() + t * kLatent + 3, (kLatent - 3) * sizeof(float)) != 0;
            }
        }
        return bad;
    }
    /// Requests of the disk that no expert of the batch explains, or that were made twice; and the experts read.
    std::pair<std::size_t, std::size_t> read_by(const Batch& b) {
        std::vector<SlowDisk::Request> log = disk.take_log();
        std::sort(log.begin(), log.end());
        std::size_t experts = 0;
        for (const std::size_t expert : b.distinct()) {
            std::vector<SlowDisk::Request> reads = rig.reads_of(b.layer, expert), left;
            std::sort(reads.begin(), reads.end());
            if (!std::includes(log.begin(), log.end(), reads.begin(), reads.end())) continue;
            std::set_difference(log.begin(), log.end(), reads.begin(), reads.end(), std::back_inserter(left));
            log = std::move(left);
            ++experts;
        }
        return {experts, log.size()};
    }

    Rig& rig;
    SlowDisk disk;
    io::Reader reader;
    core::Buffer scratch;
    std::optional<ExpertCache> cache;
};

bool adds_up(const stream::CacheCounters& c) {
    return c.requests == c.resident_hits + c.prefetched_hits + c.lookahead_hits + c.misses &&
           c.loads() == c.misses + c.lookahead_loads && c.lookahead_wasted <= c.lookahead_loads;
}

constexpr std::size_t kExperts = 13, kTopK = 3;

}  // namespace

TEST_CASE(
    "stream/expert_cache: thousands of random batches through the fewest slots, a few more, and as many as there are "
    "experts: every output is of the right bytes, each distinct expert is computed once and read at most once, and the "
    "counters add up") {
    const int rounds = kThreadSanitizer ? 40 : 100;
    for (const Layout layout : kLayouts)
        for (const std::size_t slots : {kTopK + 1, kTopK + 3, kExperts, kExperts * (kLayers - kFirstMoe)})
            for (const Policy policy : stream::kPolicies) {
                Rig rig(layout, kExperts, kTopK, static_cast<std::uint64_t>(layout) * 100 + slots);
                Machine m(rig, slots, policy, 1 + static_cast<unsigned>(slots) % 6);
                INFO("layout ", static_cast<int>(layout), ", slots ", slots, ", policy ", stream::name(policy));
                std::size_t bad = 0, calls = 0, unexplained = 0, miscounted = 0, requests = 0;
                std::uint64_t bytes = 0;
                for (int round = 0; round < rounds; ++round) {
                    m.disk.slowest = round % 3 == 0 ? 120 : 20;
                    // Decoding, short and long prefill: in a long one every expert is wanted, more than there are
                    // slots.
                    const std::size_t tokens = round % 2 == 0 ? 1 : round % 8 == 1 ? 40 : 1 + rig.random() % 8;
                    Batch batch = random_batch(rig, tokens, 5);
                    const Batch before = batch;
                    const stream::CacheCounters was = m.cache->counters();
                    const std::size_t calls_before = kernel_state.calls;
                    const std::uint64_t moved = m.disk.moved;
                    m.submit(batch);
                    const std::set<std::size_t> distinct = batch.distinct();
                    const stream::CacheCounters now = m.cache->counters() - was;
                    bad += m.mistakes(before, batch);
                    miscounted += kernel_state.calls - calls_before != distinct.size();
                    miscounted += !adds_up(now) || now.misses > distinct.size();
                    for (const std::int32_t id : batch.ids) requests += id >= 0;
                    miscounted += m.cache->counters().requests != requests;
                    if (!kThreadSanitizer) {
                        const auto [experts, left] = m.read_by(batch);
                        unexplained += left;
                        miscounted += experts != now.misses;
                    }
                    if (now.misses == 0) miscounted += m.disk.moved != moved;
                    calls += distinct.size();
                }
                for (const auto& [key, size] : rig.size) bytes = std::max(bytes, size);
                CHECK(bad == 0);
                CHECK(unexplained == 0);
                CHECK(miscounted == 0);
                CHECK(kernel_state.torn == 0);
                CHECK(kernel_state.misaligned == 0);
                CHECK(m.disk.overwrites == 0);
                CHECK(m.cache->counters().drops == 0);
                CHECK_FALSE(m.cache->failure());
                CHECK(m.cache->traffic().bytes <= m.cache->counters().misses * bytes);
                CHECK(m.cache->traffic().bytes <= m.disk.moved);
                if (layout == Layout::neighbours)  // all of one size
                    CHECK(m.cache->traffic().bytes == m.cache->counters().misses * bytes);
                if (slots == kExperts * (kLayers - kFirstMoe)) {
                    CHECK(m.cache->counters().evictions == 0);
                    CHECK(m.cache->counters().misses <= slots);
                }
            }
}

TEST_CASE("stream/expert_cache: the order in which experts arrive moves no output") {
    Rig rig(Layout::gaps, kExperts, kTopK, 4);
    std::vector<Batch> batches;
    for (int i = 0; i < 60; ++i) batches.push_back(random_batch(rig, 1 + rig.random() % 20));
    std::vector<std::vector<float>> first;
    stream::CacheCounters counters;
    for (const unsigned depth : {1U, 2U, 8U}) {
        Machine m(rig, kTopK + 2, Policy::lfru, depth);
        m.disk.slowest = depth == 2 ? 400 : 30;
        std::vector<std::vector<float>> got;
        for (Batch batch : batches) {
            m.submit(batch);
            got.push_back(batch.e);
        }
        if (first.empty()) {
            first = got;
            counters = m.cache->counters();
        }
        CHECK(got == first);
        CHECK(m.cache->counters() == counters);  // a function of the requests, not of time
    }
}

TEST_CASE("stream/expert_cache: work starts on an expert that is there while another is still under way") {
    Rig rig(Layout::neighbours, kExperts, kTopK, 6);
    Machine m(rig, kExperts);
    m.disk.slowest = 0;
    Batch warm = random_batch(rig, 1);
    warm.layer = kFirstMoe;
    warm.ids = {4, 5, 6};
    m.submit(warm);
    // 4 is there and 1 is not: while 1 is being read, 4 must be computed.
    static std::atomic<std::size_t> computed_while_reading;
    computed_while_reading = 0;
    const std::size_t before = kernel_state.calls;
    std::atomic<bool> over{false};
    m.disk.slowest = 200000;
    std::thread watcher([&] {
        const std::uint64_t requests = m.disk.requests;
        while (!over) {
            if (m.disk.requests == requests && kernel_state.calls > before) ++computed_while_reading;
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
        }
    });
    if (!kThreadSanitizer) {
        Batch batch = warm;
        batch.ids = {1, 4, 2};
        batch.e.assign(batch.e.size(), -77.0F);
        const Batch was = batch;
        m.submit(batch);
        CHECK(m.mistakes(was, batch) == 0);
    }
    over = true;
    watcher.join();
    if (!kThreadSanitizer) CHECK(computed_while_reading > 0);
}

TEST_CASE(
    "stream/expert_cache: an expert that cannot be read is a fault of exactly the tokens that want it; the others are "
    "sound, and the next batch reads it again") {
    for (const Layout layout : kLayouts)
        for (const std::size_t slots : {kTopK + 1, kTopK + 4, kExperts * (kLayers - kFirstMoe)})
            for (const int error : {EIO, 0}) {
                INFO("layout ", static_cast<int>(layout), ", slots ", slots, ", errno ", error);
                Rig rig(layout, kExperts, kTopK, 30 + slots);
                if (rig.index->shards().size() > 1) continue;  // the disk knows offsets, not files
                Machine m(rig, slots, stream::kPolicies[slots % 3]);
                std::size_t bad = 0, drops = 0, unread = 0, hits = 0;
                for (int round = 0; round < 40; ++round) {
                    Batch batch = random_batch(rig, 1 + rig.random() % 12);
                    const std::size_t victim = *batch.distinct().begin();
                    const std::vector<SlowDisk::Request> reads = rig.reads_of(batch.layer, victim);
                    const SlowDisk::Request& piece = reads[rig.random() % reads.size()];
                    // One block of the piece; whoever else has this block fails too.
                    const std::uint64_t block = piece.offset + rig.random() % (piece.bytes / io::kBlock) * io::kBlock;
                    std::set<std::size_t> failing;
                    for (const std::size_t expert : batch.distinct())
                        for (const SlowDisk::Request& r : rig.reads_of(batch.layer, expert))
                            if (block < r.offset + r.bytes && block + io::kBlock > r.offset) failing.insert(expert);
                    const auto slots_before = m.cache->counters();
                    m.disk.fail(block, io::kBlock, error);
                    Batch first = batch;
                    m.submit(first);
                    m.disk.heal();
                    const std::uint64_t dropped = (m.cache->counters() - slots_before).drops;
                    drops += dropped;
                    if (dropped == 0) {  // it was there already: nothing was read, nothing may fail
                        ++hits;
                        bad += m.mistakes(batch, first);
                    } else if (dropped == failing.size()) {
                        bad += m.mistakes(batch, first, failing);
                    }
                    m.disk.take_log();
                    const auto again_before = m.cache->counters();
                    Batch second = batch;
                    m.submit(second);
                    bad += m.mistakes(batch, second);
                    if (dropped > 0) unread += (m.cache->counters() - again_before).misses < dropped;
                    if (!kThreadSanitizer) {
                        const auto [experts, left] = m.read_by(batch);
                        unread += experts != (m.cache->counters() - again_before).misses || left != 0;
                    }
                }
                CHECK(bad == 0);
                CHECK(unread == 0);
                CHECK(drops > 0);
                CHECK(hits < 40);
                CHECK(m.disk.overwrites == 0);
                CHECK(kernel_state.torn == 0);
                REQUIRE(m.cache->failure());
                CHECK(m.cache->failure()->code() == Code::expert);
                CHECK(holds(m.cache->failure()->what(), "expert "));
                CHECK(m.cache->failure()->where().path == rig.index->shards()[0].file.path());
                CHECK(m.cache->failure()->where().offset.has_value());
            }
}

TEST_CASE(
    "stream/expert_cache: guesses, right, wrong, wasted or failed, move no output; what was guessed right is not read "
    "again") {
    for (const Layout layout : {Layout::neighbours, Layout::gaps, Layout::plain_gaps})
        for (const std::size_t slots : {kTopK + 1 + 3, kTopK + 1 + 5, kExperts, kExperts * (kLayers - kFirstMoe)})
            for (const Policy policy : stream::kPolicies) {
                INFO("layout ", static_cast<int>(layout), ", slots ", slots, ", policy ", stream::name(policy));
                Rig rig(layout, kExperts, kTopK, 200 + slots);
                Machine m(rig, slots, policy, 3, {.automatic = false, .count = 3});
                REQUIRE(m.cache->look_ahead() == 3);
                std::size_t bad = 0, miscounted = 0;
                for (int round = 0; round < (kThreadSanitizer ? 40 : 80); ++round) {
                    m.disk.slowest = round % 5 == 0 ? 400 : 20;
                    Batch batch = random_batch(rig, round % 6 == 0 ? 1 + rig.random() % 20 : 1);
                    const Batch before = batch;
                    std::vector<std::int32_t> guesses;
                    for (std::size_t g = 0; g < 3; ++g)
                        guesses.push_back(rig.random() % 3 == 0 || batch.ids[g] < 0
                                              ? static_cast<std::int32_t>(rig.random() % kExperts)
                                              : batch.ids[g]);
                    // Now and then for another layer, so that all of them are wasted, in flight or there.
                    const std::size_t layer =
                        round % 7 == 3 ? kFirstMoe + batch.layer % (kLayers - kFirstMoe) : batch.layer;
                    const bool fails = round % 4 == 2;
                    if (fails) m.disk.fail(0, ~std::uint64_t{0});
                    m.cache->predict(layer, guesses.data(), guesses.size());
                    if (round % 9 == 1) m.cache->predict(layer, guesses.data(), guesses.size());
                    if (fails) {
                        std::this_thread::sleep_for(std::chrono::microseconds(rig.random() % 2000));
                        m.disk.heal();
                    }
                    const stream::CacheCounters was = m.cache->counters();
                    m.submit(batch);
                    // A guess that failed is read again when it is wanted: no fault, whenever it failed.
                    Batch asked = before, got = batch;
                    for (std::size_t t = 0; t < batch.tokens; ++t) {
                        if (before.faults[t] || !batch.faults[t]) continue;
                        ++bad;
                        asked.faults[t] = batch.faults[t];
                        for (std::size_t k = t * kTopK; k < (t + 1) * kTopK; ++k) {
                            got.ids[k] = -1;
                            got.e[k * kLatent] = -77.0F;
                        }
                    }
                    bad += m.mistakes(asked, got);
                    const stream::CacheCounters now = m.cache->counters() - was;
                    miscounted += !adds_up(m.cache->counters()) || now.misses > batch.distinct().size();
                    // Guessed: a hit, not a miss; unless a read of an earlier guess was still on its way to fail, which
                    // is a drop and one more read.
                    if (!fails && layer == batch.layer) {
                        std::set<std::size_t> unguessed = batch.distinct();
                        for (const std::int32_t id : guesses) unguessed.erase(static_cast<std::size_t>(id));
                        miscounted += now.misses > unguessed.size() + now.drops || (now.drops != 0 && round <= 2);
                    }
                }
                CHECK(bad == 0);
                CHECK(miscounted == 0);
                CHECK(m.disk.overwrites == 0);
                CHECK(kernel_state.torn == 0);
                CHECK(kernel_state.misaligned == 0);
                CHECK(m.cache->counters().lookahead_loads > 0);
                CHECK(m.cache->counters().lookahead_hits > 0);
                if (layout == Layout::neighbours) CHECK(m.disk.requests <= m.cache->counters().loads());
            }
}

TEST_CASE("stream/expert_cache: a guess that failed before it was wanted is read again, and is no fault") {
    for (const std::size_t slots : {kTopK + 1 + 3, kExperts}) {
        Rig rig(Layout::gaps, kExperts, kTopK, 400);
        Machine m(rig, slots, Policy::lru, 1, {.automatic = false, .count = 3});
        core::Buffer window(io::kBlock);
        for (int round = 0; round < 20; ++round) {
            Batch batch = random_batch(rig, 1);
            if (batch.ids[0] < 0) continue;
            const Batch before = batch;
            m.disk.fail(0, ~std::uint64_t{0});
            m.cache->predict(batch.layer, batch.ids.data(), 3);
            io::Read last;  // one thread reads in order: when this one is over, so are the guesses
            last.file = rig.places->at(kFirstMoe, 0, nullptr).pieces[0].place.file;
            last.bytes = 8;
            last.window = window.data();
            m.reader.submit(last);
            m.reader.wait(last);
            m.disk.heal();
            m.submit(batch);
            CHECK(m.mistakes(before, batch) == 0);
        }
        CHECK_FALSE(m.cache->failure());
        CHECK(m.cache->counters().drops > 0);
    }
}

TEST_CASE("stream/expert_cache: any number of wrong guesses on a slow disk leaves a batch its reads") {
    constexpr std::size_t kMany = 300;  // far more guesses than reads of the cache there can be at a time
    Rig rig(Layout::neighbours, kMany, kTopK, 500);
    Machine m(rig, kMany, Policy::lru, 1, {.automatic = false, .count = 3});
    m.disk.slowest = 2000;
    for (int round = 0; round < 3; ++round) {
        Batch batch = random_batch(rig, 40);
        const Batch before = batch;
        const std::set<std::size_t> wanted = batch.distinct();
        std::vector<std::int32_t> wrong;
        for (std::size_t id = 0; id < kMany; ++id)
            if (!wanted.contains(id)) wrong.push_back(static_cast<std::int32_t>(id));
        for (std::size_t at = 0; at + 3 <= wrong.size(); at += 3) m.cache->predict(batch.layer, wrong.data() + at, 3);
        m.submit(batch);
        CHECK(m.mistakes(before, batch) == 0);
    }
    CHECK(m.disk.overwrites == 0);
    CHECK(kernel_state.torn == 0);
}

TEST_CASE(
    "stream/expert_cache: automatic guesses go on while they are right, and end when a twentieth is read in vain") {
    constexpr std::size_t kMany = 300;  // so many that a guess is rarely there already
    for (const int wrong_every : {0, 4}) {
        INFO("wrong every ", wrong_every);
        Rig rig(Layout::neighbours, kMany, kTopK, 500);
        Machine m(rig, kTopK + 1 + 3, Policy::lru, 1, {.automatic = true, .count = 3});
        for (int round = 0; round < 200; ++round) {
            Batch batch = random_batch(rig, 1);
            if (batch.ids[0] < 0) continue;
            const Batch before = batch;
            std::vector<std::int32_t> guesses(batch.ids.begin(), batch.ids.begin() + 3);
            if (wrong_every != 0 && round % wrong_every == 0)
                for (std::int32_t& id : guesses) id = static_cast<std::int32_t>((id + 150) % kMany);
            if (m.cache->wants_prediction(batch.layer) != 0)
                m.cache->predict(batch.layer, guesses.data(), guesses.size());
            m.submit(batch);
            CHECK(m.mistakes(before, batch) == 0);
        }
        CHECK(m.cache->counters().lookahead_loads >= 256);
        CHECK(m.cache->look_ahead() == (wrong_every == 0 ? 3 : 0));
    }
}

TEST_CASE("stream/expert_cache: with too few slots for a guess beside what a token needs there are no guesses") {
    Rig rig(Layout::neighbours, kExperts, kTopK, 300);
    Machine m(rig, kTopK + 3, Policy::lru, 2, {.automatic = false, .count = 3});
    CHECK(m.cache->look_ahead() == 0);
    CHECK(m.cache->wants_prediction(kFirstMoe) == 0);
}

TEST_CASE("stream/expert_cache: a disk on which nothing can be read fails every token, and every slot comes back") {
    Rig rig(Layout::neighbours, kExperts, kTopK, 40);
    Machine m(rig, kTopK + 1);
    for (int round = 0; round < 50; ++round) {
        m.disk.fail(0, ~std::uint64_t{0});
        Batch batch = random_batch(rig, 1 + rig.random() % 20);
        const Batch before = batch;
        m.submit(batch);
        CHECK(m.mistakes(before, batch, batch.distinct()) == 0);
        m.disk.heal();
    }
    CHECK(kernel_state.calls == 0);
    Batch batch = random_batch(rig, 20);
    const Batch before = batch;
    m.submit(batch);
    CHECK(m.mistakes(before, batch) == 0);
}

TEST_CASE("stream/expert_cache: a kernel that refuses is a fault of its tokens, and its expert is not kept") {
    Rig rig(Layout::neighbours, kExperts, kTopK, 50);
    Machine m(rig, kExperts * 3);
    Batch batch = random_batch(rig, 12);
    const std::size_t victim = *batch.distinct().rbegin();
    const Batch before = batch;
    kernel_state.refuse = rig.want.at({batch.layer, victim});
    m.submit(batch);
    CHECK(m.mistakes(before, batch, {victim}) == 0);
    kernel_state.refuse = 0;
    Batch again = before;
    const auto was = m.cache->counters();
    m.submit(again);
    CHECK(m.mistakes(before, again) == 0);
    CHECK((m.cache->counters() - was).misses == 1);
}

TEST_CASE("stream/expert_cache: a batch in which every token has failed already asks for nothing") {
    Rig rig(Layout::neighbours, kExperts, kTopK, 60);
    Machine m(rig, kTopK + 1);
    Batch batch = random_batch(rig, 5);
    std::fill(batch.ids.begin(), batch.ids.end(), -1);
    for (core::Fault& fault : batch.faults) fault = {.code = core::FaultCode::router_nan};
    const Batch before = batch;
    m.submit(batch);
    CHECK(m.mistakes(before, batch) == 0);
    CHECK(m.disk.requests == 0);
    CHECK(m.cache->counters().requests == 0);
    CHECK(kernel_state.calls == 0);
}

TEST_CASE("stream/expert_cache: more distinct experts than the reader takes at a time, with slots for all or for few") {
    for (const std::size_t slots : {5, 66, 150, 600}) {
        Rig rig(Layout::gaps, 200, 4, 70 + slots);
        Machine m(rig, std::min<std::size_t>(slots, 600));
        m.disk.slowest = 5;
        for (int round = 0; round < 4; ++round) {
            Batch batch = random_batch(rig, 60);
            const Batch before = batch;
            const auto was = m.cache->counters();
            m.submit(batch);
            CHECK(m.mistakes(before, batch) == 0);
            CHECK(batch.distinct().size() > 100);
            if (!kThreadSanitizer) {
                const auto [experts, left] = m.read_by(batch);
                CHECK(experts == (m.cache->counters() - was).misses);
                CHECK(left == 0);
            }
        }
        CHECK(m.disk.overwrites == 0);
        CHECK(kernel_state.torn == 0);
    }
}

TEST_CASE("stream/expert_cache: fewer slots than top_k + 1 are refused with the number that is needed") {
    Rig rig(Layout::neighbours, kExperts, kTopK, 80);
    CHECK(stream::least_slots(kTopK, 3 * kExperts) == kTopK + 1);
    CHECK(stream::least_slots(kTopK, kTopK) == kTopK);  // there are no more experts
    CHECK(stream::least_slots(kTopK, 0) == 0);
    SlowDisk disk;
    io::Reader reader(disk.options());
    for (std::size_t slots = 1; slots <= kTopK; ++slots) {
        bool refused = false;
        try {
            const ExpertCache cache(*rig.places, layers::Situ{1, 1}, reader, {.slots = slots});
        } catch (const Error& error) {
            refused = true;
            CHECK(error.code() == Code::plan);
            CHECK(holds(error.what(), std::to_string(slots) + " "));
            CHECK(holds(error.what(), std::to_string(kTopK + 1)));
            CHECK(holds(error.what(), std::to_string((kTopK + 1) * rig.places->slot_bytes())));
        }
        CHECK(refused);
    }
    const ExpertCache enough(*rig.places, layers::Situ{1, 1}, reader, {.slots = kTopK + 1});
    CHECK(enough.slots() == kTopK + 1);
}

TEST_CASE(
    "stream/expert_places: an expert whose tensors are neighbours is one read, any other at most six; sizes are those "
    "of the tensors") {
    for (const Layout layout : kLayouts) {
        Rig rig(layout, kExperts, kTopK, 90);
        std::uint64_t all = 0, most = 0;
        std::size_t bad = 0, slot_bytes = 0, single = 0;
        for (const auto& [key, size] : rig.size) {
            const stream::ExpertLoad load = rig.places->at(key.first, key.second, nullptr);
            all += size;
            most = std::max(most, size);
            bad += load.bytes != size || load.count < 1 || load.count > 6;
            single += load.count == 1;
            std::size_t end = 0, bytes = 0;
            for (std::size_t p = 0; p < load.count; ++p) {
                bad += load.pieces[p].at != end;
                end += io::window_of(load.pieces[p].place.offset, load.pieces[p].place.bytes).bytes;
                bytes += load.pieces[p].place.bytes;
            }
            bad += end != load.slot_bytes || bytes != size;
            slot_bytes = std::max(slot_bytes, end);
        }
        CHECK(bad == 0);
        CHECK(rig.places->all_bytes() == all);
        CHECK(rig.places->expert_bytes() == most);
        CHECK(rig.places->slot_bytes() == slot_bytes);
        CHECK(rig.places->slot_bytes() % io::kBlock == 0);
        CHECK(rig.places->count() == rig.size.size());
        CHECK((layout == Layout::neighbours || layout == Layout::plain) == (single == rig.size.size()));
    }
}

TEST_CASE("stream/expert_cache: io_uring brings the same bytes") {
    if (kThreadSanitizer) return;
    for (const Layout layout : kLayouts) {
        Rig rig(layout, kExperts, kTopK, 100);
        Machine m(rig, kTopK + 1);  // for its comparisons
        io::Reader reader({.kind = io::ReaderKind::automatic, .piece = io::kBlock});
        m.cache.emplace(*rig.places, layers::Situ{1, 1}, reader,
                        stream::ExpertCacheOptions{.slots = kTopK + 1, .most_tokens = 64});
        m.cache->use(checksum_kernel);
        std::size_t bad = 0;
        for (int round = 0; round < 200; ++round) {
            Batch batch = random_batch(rig, 1 + rig.random() % 10);
            const Batch before = batch;
            m.submit(batch);
            bad += m.mistakes(before, batch);
        }
        CHECK(bad == 0);
        m.cache.reset();
    }
}
