#include "k3/stream/trunk.hpp"

#include <random>

#include "stream/slow_disk.hpp"
#include "stream/walks.hpp"
#include "support/doctest.hpp"
#include "support/mini_checkpoint.hpp"

using namespace k3;
using namespace k3::tests;
using stream::Trunk;
using stream::TrunkMatrix;

namespace {

constexpr std::uint64_t kPanel = 6000;  // bytes: some matrices are cut, some are not
constexpr std::size_t kAll = ~std::size_t{0};

/// A file of random bytes and a walk over it, as a Trunk wants it.
struct Rig {
    explicit Rig(std::uint64_t seed, const WalkShape& shape = {}, io::Access access = io::Access::buffered)
        : random(seed), walk(random_walk(random, shape)) {
        bytes.resize(end_of(walk) + 2 * io::kBlock);
        for (char& byte : bytes) byte = static_cast<char>(random());
        file.emplace(io::StreamFile::open(folder.write("trunk.bin", bytes), access));
        std::filesystem::create_directory(folder / "embedding");
        folder.write("embedding/model.safetensors", shard_of({{"table", "BF16", {50, 6}, std::string(600, 'x')}}));
        index.emplace(checkpoint::ShardIndex::open(folder / "embedding", 1));
        embedding.emplace(*index, *index->find("table"));
        weights.resize(walk.size());
        for (std::size_t i = 0; i < walk.size(); ++i) {
            walk[i].place.file = &*file;
            weights[i].format = walk[i].element_bytes == 4 ? layers::Format::f32 : layers::Format::bf16;
            weights[i].rows = walk[i].rows;
            weights[i].cols = walk[i].row_bytes / walk[i].element_bytes;
            weights[i].id = static_cast<std::uint32_t>(i);
            pointers.push_back(&weights[i]);
        }
    }
    /// A ring of `slots` slots; pinned: about one matrix of `every`, none if 0.
    stream::TrunkOptions options(std::size_t slots, std::size_t every = 0) {
        stream::TrunkOptions o;
        o.pinned.resize(walk.size());
        for (std::size_t i = 0; i < walk.size(); ++i) o.pinned[i] = every != 0 && random() % every == 0;
        o.ring_bytes = slots * stream::ring_slot_bytes(walk, kPanel);
        o.panel_bytes = kPanel;
        o.pages = core::Pages::ordinary;
        return o;
    }
    bool right(const std::byte* at, std::uint64_t offset, std::size_t count) const {
        return std::memcmp(at, bytes.data() + offset, count) == 0;
    }

    TempFolder folder;
    std::mt19937_64 random;
    Walk walk;
    std::string bytes;
    std::optional<io::StreamFile> file;
    std::optional<checkpoint::ShardIndex> index;
    std::optional<stream::EmbeddingRows> embedding;
    std::vector<layers::Weight> weights;
    std::vector<layers::Weight*> pointers;
};

/// What a step did.
struct Outcome {
    bool finished = true;
    std::size_t panels = 0, mistakes = 0;
};

/// A step as the layers run it: the matrices of the walk in order, one panel at a time, its bytes looked at when they
/// come and just before they go. `stop`: it is given up after so many panels, the last of them still held.
Outcome run_step(Rig& rig, Trunk& trunk, SlowDisk& disk, bool logits, bool more, std::size_t stop = kAll) {
    Outcome out;
    trunk.begin_step(logits, more);
    for (std::size_t i = 0; i < rig.walk.size(); ++i) {
        const TrunkMatrix& m = rig.walk[i];
        if (m.lm_head && !logits) continue;
        if (rig.weights[i].data != nullptr) {
            out.mistakes += !rig.right(rig.weights[i].data, m.place.offset, m.place.bytes);
            continue;
        }
        for (std::size_t first = 0; first < m.rows;) {
            layers::Panel panel;
            if (!trunk.acquire(rig.weights[i], first, m.undivided, panel)) {
                out.finished = false;
                return out;
            }
            ++out.panels;
            const std::size_t bytes = panel.rows * m.row_bytes;
            const std::uint64_t offset = m.place.offset + first * m.row_bytes;
            disk.hold(panel.data, bytes);
            out.mistakes += panel.first != first || panel.rows == 0 || panel.rows > m.rows - first;
            out.mistakes += reinterpret_cast<std::uintptr_t>(panel.data) % m.element_bytes != 0;
            out.mistakes += m.undivided && panel.rows != m.rows;
            out.mistakes += !rig.right(panel.data, offset, bytes);
            if (out.panels % 3 == 0) std::this_thread::sleep_for(std::chrono::microseconds(rig.random() % 60));
            out.mistakes += !rig.right(panel.data, offset, bytes);
            disk.let_go(panel.data);
            if (out.panels == stop) return out;
            trunk.release(rig.weights[i], panel);
            first += panel.rows;
        }
    }
    return out;
}

/// Windows and bytes of the panels of a step.
struct Volume {
    std::uint64_t windows = 0, bytes = 0, head = 0;
    std::size_t panels = 0;
};
Volume volume_of(const Rig& rig, const stream::TrunkOptions& options, bool logits) {
    Volume sum;
    for (const stream::TrunkPanel& panel : stream::cut_panels(rig.walk, options.pinned, options.panel_bytes)) {
        const bool head = rig.walk[panel.matrix].lm_head;
        if (head && !logits) continue;
        const stream::Place place = place_of(rig.walk, panel);
        sum.windows += io::window_of(place.offset, place.bytes).bytes;
        sum.bytes += place.bytes;
        sum.head += head ? place.bytes : 0;
        ++sum.panels;
    }
    return sum;
}

}  // namespace

TEST_CASE(
    "stream/trunk: every panel's bytes are right while it is held, with a ring of one slot, of two, of many, from a "
    "disk that answers late and out of order; each is read once a step, and nothing beside it") {
    for (const std::size_t slots : {1, 2, 3, 7, 60})
        for (const std::size_t every : {0, 3})
            for (const io::Access access : {io::Access::buffered, io::Access::direct}) {
                INFO("slots ", slots, ", pinned one of ", every);
                Rig rig(slots * 10 + every, {}, access);
                SlowDisk disk;
                io::Reader reader(disk.options(1 + static_cast<unsigned>(slots) % 6));
                const stream::TrunkOptions options = rig.options(slots, every);
                Trunk trunk(rig.walk, rig.pointers, *rig.embedding, reader, options);
                trunk.load();
                const std::uint64_t loaded = disk.moved;
                Volume sum;
                std::size_t mistakes = 0, panels = 0, unfinished = 0;
                const int steps = 12;
                for (int step = 0; step < steps; ++step) {
                    const bool logits = step + 1 == steps || rig.random() % 2 == 0, more = step + 1 < steps;
                    const Volume v = volume_of(rig, options, logits);
                    sum.windows += v.windows;
                    sum.bytes += v.bytes;
                    sum.head += v.head;
                    sum.panels += v.panels;
                    const Outcome out = run_step(rig, trunk, disk, logits, more && step % 4 != 2);
                    mistakes += out.mistakes;
                    panels += out.panels;
                    unfinished += !out.finished;
                }
                disk.settle(disk.requests);
                CHECK(mistakes == 0);
                CHECK(unfinished == 0);
                CHECK(disk.overwrites == 0);
                CHECK(panels == sum.panels);
                CHECK(trunk.counters().panels == sum.panels);
                CHECK(trunk.counters().streamed_bytes == sum.bytes);
                CHECK(trunk.counters().lm_head_bytes == sum.head);
                CHECK(trunk.counters().dropped_bytes == 0);
                CHECK(disk.moved - loaded == sum.windows);
                CHECK_FALSE(trunk.failure());
            }
}

TEST_CASE(
    "stream/trunk: without read-ahead a panel is asked for when it is needed and not before; the bytes are the same") {
    Rig rig(5);
    SlowDisk disk;
    io::Reader reader(disk.options());
    stream::TrunkOptions options = rig.options(40);
    options.read_ahead = false;
    Trunk trunk(rig.walk, rig.pointers, *rig.embedding, reader, options);
    trunk.load();
    const std::size_t panels = volume_of(rig, options, true).panels;
    for (std::size_t stop = 1; stop <= panels; stop += 5) {
        const std::uint64_t before = disk.requests;
        const Outcome out = run_step(rig, trunk, disk, true, true, stop);
        CHECK(out.mistakes == 0);
        CHECK(disk.settle(before + stop) == before + stop);
    }
    CHECK(run_step(rig, trunk, disk, true, false).mistakes == 0);
}

TEST_CASE(
    "stream/trunk: the ring reads ahead as far as it has room, over matrices and over the end of the step if more is "
    "sure to follow, and not a byte further") {
    Rig rig(6, {.matrices = 12, .most_rows = 6, .most_cols = 300});
    const stream::TrunkOptions whole = rig.options(100);
    const std::size_t body = volume_of(rig, whole, false).panels, all = volume_of(rig, whole, true).panels;
    REQUIRE(all > body);
    REQUIRE(all < 60);
    for (const bool logits : {false, true})
        for (const bool more : {false, true}) {
            INFO("logits ", logits, ", more ", more);
            SlowDisk disk;
            io::Reader reader(disk.options());
            Trunk trunk(rig.walk, rig.pointers, *rig.embedding, reader, whole);
            trunk.load();
            // lm_head of the next step is not read: whether that wants logits is not known yet.
            const std::uint64_t mine = logits ? all : body, next = more ? body : 0;
            const std::uint64_t before = disk.requests;
            trunk.begin_step(logits, more);
            CHECK(disk.settle(before + mine + next) == before + mine + next);  // nothing was acquired yet
            trunk.begin_step(logits, more);  // the step begins again: what was ahead is another step's
            CHECK(trunk.counters().dropped_bytes > 0);
        }
    // With room for two slots it is two panels or more ahead, of the next step at the end.
    SlowDisk disk;
    io::Reader reader(disk.options());
    const stream::TrunkOptions two = rig.options(2);
    Trunk trunk(rig.walk, rig.pointers, *rig.embedding, reader, two);
    trunk.load();
    const Outcome out = run_step(rig, trunk, disk, true, true);
    CHECK(out.panels == all);
    CHECK(disk.settle(all + 2) >= all + 2);
    CHECK(run_step(rig, trunk, disk, true, false).mistakes == 0);
    CHECK(disk.settle(2 * all) == 2 * all);  // all of it was used
    CHECK(trunk.counters().dropped_bytes == 0);
}

TEST_CASE(
    "stream/trunk: a step that is given up half-way, again and again, with a panel held or none; the next one is "
    "right") {
    for (const std::size_t slots : {1, 2, 5, 60}) {
        INFO("slots ", slots);
        Rig rig(20 + slots);
        SlowDisk disk;
        io::Reader reader(disk.options());
        const stream::TrunkOptions options = rig.options(slots, 5);
        Trunk trunk(rig.walk, rig.pointers, *rig.embedding, reader, options);
        trunk.load();
        const std::size_t panels = volume_of(rig, options, true).panels;
        std::size_t mistakes = 0;
        for (int round = 0; round < 40; ++round) {
            const bool logits = rig.random() % 2 == 0, more = rig.random() % 2 == 0;
            if (round % 3 == 0)
                trunk.begin_step(logits, more);  // given up before its first panel
            else
                mistakes += run_step(rig, trunk, disk, logits, more, 1 + rig.random() % panels).mistakes;
            if (round % 2 == 0) {
                const Outcome out = run_step(rig, trunk, disk, true, round % 4 == 0);
                mistakes += out.mistakes + (out.panels != panels) + !out.finished;
            }
        }
        CHECK(mistakes == 0);
        CHECK(disk.overwrites == 0);
    }
}

TEST_CASE("stream/trunk: it can go while reads are under way") {
    for (int round = 0; round < 20; ++round) {
        Rig rig(50);
        SlowDisk disk;
        disk.slowest = 300;
        io::Reader reader(disk.options());
        Trunk trunk(rig.walk, rig.pointers, *rig.embedding, reader, rig.options(10));
        trunk.load();
        run_step(rig, trunk, disk, true, true, 1 + rig.random() % 20);
    }
}

TEST_CASE(
    "stream/trunk: a panel that cannot be read is refused with file and offset, whether it failed ahead or when it was "
    "needed, and the step can be run again") {
    for (const std::size_t slots : {1, 2, 30})
        for (const int error : {EIO, 0})
            for (std::size_t victim = 0; victim < 20; victim += 3) {
                INFO("slots ", slots, ", errno ", error, ", matrix ", victim);
                Rig rig(70 + slots);
                SlowDisk disk;
                io::Reader reader(disk.options());
                const stream::TrunkOptions options = rig.options(slots);
                Trunk trunk(rig.walk, rig.pointers, *rig.embedding, reader, options);
                trunk.load();
                const std::size_t panels = volume_of(rig, options, true).panels;
                REQUIRE(run_step(rig, trunk, disk, true, false).finished);
                const stream::Place bad = rig.walk[victim].place;
                const bool healed_before_use = victim % 2 == 0;
                disk.fail(bad.offset + bad.bytes / 2, 1, error);
                const Outcome out = run_step(rig, trunk, disk, true, true);
                CHECK_FALSE(out.finished);
                CHECK(out.mistakes == 0);
                CHECK(out.panels < panels);
                REQUIRE(trunk.failure());
                CHECK(trunk.failure()->code() == Code::read);
                CHECK(trunk.failure()->where().path == rig.file->path());
                const std::uint64_t at = trunk.failure()->where().offset.value_or(0);
                CHECK(at + io::kBlock > bad.offset);
                CHECK(at <= bad.offset + bad.bytes);
                CHECK(holds(trunk.failure()->what(), error == 0 ? "ended early" : std::strerror(EIO)));
                if (healed_before_use) disk.heal();
                const Outcome again = run_step(rig, trunk, disk, true, false);
                CHECK(again.finished == healed_before_use);
                CHECK(again.mistakes == 0);
                disk.heal();
                const Outcome third = run_step(rig, trunk, disk, true, true);
                CHECK(third.finished);
                CHECK(third.panels == panels);
                CHECK(third.mistakes == 0);
                CHECK(disk.overwrites == 0);
            }
}

TEST_CASE("stream/trunk: a panel of the next step that fails while it is read ahead leaves this step whole") {
    Rig rig(90, {.matrices = 8, .most_rows = 4, .most_cols = 300});
    SlowDisk disk;
    io::Reader reader(disk.options());
    const stream::TrunkOptions options = rig.options(4);
    Trunk trunk(rig.walk, rig.pointers, *rig.embedding, reader, options);
    trunk.load();
    const std::size_t panels = volume_of(rig, options, true).panels;
    trunk.begin_step(true, true);
    for (std::size_t i = 0; i < rig.walk.size(); ++i)
        for (std::size_t first = 0; first < rig.walk[i].rows;) {
            if (i == 5) disk.fail(rig.walk[0].place.offset, rig.walk[0].place.bytes);
            layers::Panel panel;
            REQUIRE(trunk.acquire(rig.weights[i], first, rig.walk[i].undivided, panel));
            first += panel.rows;
            trunk.release(rig.weights[i], panel);
        }
    CHECK_FALSE(trunk.failure());
    disk.settle(panels + 1);
    disk.heal();
    CHECK_FALSE(run_step(rig, trunk, disk, true, true).finished);  // what came ahead is not taken for good
    const Outcome out = run_step(rig, trunk, disk, true, false);
    CHECK(out.finished);
    CHECK(out.mistakes == 0);
}

TEST_CASE(
    "stream/trunk: loading counts and reports bytes; a matrix that cannot be read is Code::read with file and offset") {
    Rig rig(100);
    SlowDisk disk;
    io::Reader reader(disk.options());
    stream::TrunkOptions options = rig.options(2, 2);
    options.pinned[3] = true;
    Trunk trunk(rig.walk, rig.pointers, *rig.embedding, reader, options);
    const stream::Place bad = rig.walk[3].place;
    disk.fail(bad.offset, bad.bytes);
    bool refused = false;
    try {
        trunk.load();
    } catch (const Error& error) {
        refused = true;
        CHECK(error.code() == Code::read);
        CHECK(error.where().path == rig.file->path());
        CHECK(error.where().offset.has_value());
    }
    CHECK(refused);
    disk.heal();
    std::uint64_t last = 0, total = 0, bytes = 0;
    bool rises = true;
    trunk.load([&](std::uint64_t done, std::uint64_t all) {
        rises = rises && done >= last && done <= all;
        last = done;
        total = all;
    });
    for (std::size_t i = 0; i < rig.walk.size(); ++i) {
        CHECK((rig.weights[i].data != nullptr) == options.pinned[i]);
        bytes += options.pinned[i] ? rig.walk[i].place.bytes : 0;
        if (options.pinned[i])
            CHECK(reinterpret_cast<std::uintptr_t>(rig.weights[i].data) % rig.walk[i].element_bytes == 0);
    }
    CHECK(rises);
    CHECK(last == total);
    CHECK(run_step(rig, trunk, disk, true, false).mistakes == 0);
    CHECK(bytes > 0);
}

TEST_CASE("stream/trunk: counted pinned bytes are those of the matrices that stay") {
    Rig rig(101);
    SlowDisk disk;
    io::Reader reader(disk.options());
    stream::TrunkOptions options = rig.options(2, 2);
    Trunk trunk(rig.walk, rig.pointers, *rig.embedding, reader, options);
    trunk.load();
    std::uint64_t bytes = 0;
    for (std::size_t i = 0; i < rig.walk.size(); ++i) bytes += options.pinned[i] ? rig.walk[i].place.bytes : 0;
    CHECK(trunk.counters().pinned_bytes == bytes);
    CHECK(trunk.counters().streamed_bytes == 0);
}

TEST_CASE(
    "stream/trunk: layers that ask in another order than the walk's, or too far, are refused and get no wrong bytes") {
    Rig rig(110);
    SlowDisk disk;
    io::Reader reader(disk.options());
    Trunk trunk(rig.walk, rig.pointers, *rig.embedding, reader, rig.options(3));
    trunk.load();
    layers::Panel panel;
    trunk.begin_step(true, false);
    CHECK_FALSE(trunk.acquire(rig.weights[1], 0, rig.walk[1].undivided, panel));
    REQUIRE(trunk.failure());
    CHECK(trunk.failure()->code() == Code::internal);
    trunk.begin_step(true, false);
    CHECK_FALSE(trunk.acquire(rig.weights[0], 1, false, panel));
    CHECK(run_step(rig, trunk, disk, false, false).finished);
    CHECK_FALSE(trunk.acquire(rig.weights.back(), 0, false, panel));  // the step said it wants no logits
    CHECK(run_step(rig, trunk, disk, true, false).mistakes == 0);
}

TEST_CASE("stream/trunk: io_uring brings the same bytes") {
    if (kThreadSanitizer) return;  // it does not see what the kernel writes
    for (const io::ReaderKind kind : {io::ReaderKind::automatic, io::ReaderKind::threads, io::ReaderKind::buffered})
        for (const std::size_t slots : {1, 2, 50}) {
            Rig rig(120 + slots, {}, io::Access::direct);
            SlowDisk disk;
            io::Reader reader({.kind = kind, .piece = io::kBlock});
            Trunk trunk(rig.walk, rig.pointers, *rig.embedding, reader, rig.options(slots, 6));
            trunk.load();
            std::size_t mistakes = 0;
            for (int step = 0; step < 20; ++step) {
                const Outcome out = run_step(rig, trunk, disk, step % 3 == 0, step < 19);
                mistakes += out.mistakes + !out.finished;
            }
            CHECK(mistakes == 0);
            CHECK(trunk.counters().dropped_bytes == 0);
        }
}

TEST_CASE("stream/trunk: embedding rows come one at a time, exactly those asked for") {
    Rig rig(130);
    SlowDisk disk;
    io::Reader reader(disk.options());
    Trunk trunk(rig.walk, rig.pointers, *rig.embedding, reader, rig.options(1));
    layers::Weight table;
    table.rows = 50;
    table.cols = 6;
    const std::int32_t ids[] = {49, 0, 7};
    std::byte out[36];
    CHECK(trunk.read_rows(table, ids, 3, out));
    CHECK(rig.embedding->bytes_read() == 36);
    const std::int32_t beyond[] = {1000};
    CHECK_FALSE(trunk.read_rows(table, beyond, 1, out));
    REQUIRE(trunk.failure());
    CHECK(trunk.failure()->code() == Code::read);
}
