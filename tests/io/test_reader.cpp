// One suite for all backends. What a kernel does once in a year comes from hooks: a filter between the real result of
// a request and the reader, and a gate that holds requests back so that order can be seen.
#include "k3/io/reader.hpp"

#include <sys/mman.h>
#include <sys/resource.h>

#include <array>
#include <chrono>
#include <cstring>
#include <ctime>
#include <deque>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <thread>
#include <vector>

#include "k3/core/buffer.hpp"
#include "support/doctest.hpp"
#include "support/mini_checkpoint.hpp"

using namespace k3;
using namespace k3::tests;
using io::Access;
using io::kBlock;
using io::Read;
using io::Reader;
using io::ReaderKind;
using io::ReaderOptions;
using io::ReadState;
using io::StreamFile;
using io::Urgency;

namespace {

struct Backend {
    const char* name;
    ReaderKind kind;
    Access access;
};
constexpr Backend kBackends[] = {{"uring, direct", ReaderKind::uring, Access::direct},
                                 {"uring, buffered", ReaderKind::uring, Access::buffered},
                                 {"threads, direct", ReaderKind::threads, Access::direct},
                                 {"threads, buffered", ReaderKind::threads, Access::buffered},
                                 {"buffered", ReaderKind::buffered, Access::direct}};

bool there_is(ReaderKind kind) {
    if (kind != ReaderKind::uring) return true;
    static const std::string why = Reader(ReaderOptions{}).why();
    if (!why.empty()) MESSAGE("SKIP, io_uring: " << why);
    return why.empty();
}

/// Runs `body(backend)` for each backend there is.
template <class Body>
void on_all(Body body) {
    for (const Backend& backend : kBackends) {
        if (!there_is(backend.kind)) continue;
        INFO("backend: " << std::string(backend.name));
        body(backend);
    }
}

std::string pattern(std::size_t n, unsigned seed) {
    std::string text(n, '\0');
    for (char& c : text) c = static_cast<char>((seed = seed * 1664525 + 1013904223) >> 24);
    return text;
}

/// A Read with its window, and blocks behind it that nobody may touch.
struct Target {
    core::Buffer memory;
    Read read;
    Target(const StreamFile& file, std::uint64_t offset, std::size_t bytes, Urgency urgency = Urgency::ahead)
        : memory(io::window_of(offset, bytes).bytes + 2 * kBlock) {
        read.file = &file;
        read.offset = offset;
        read.bytes = bytes;
        read.window = memory.data() + kBlock;
        read.urgency = urgency;
        std::memset(memory.data(), 0xEE, memory.size());
    }
    std::string text() const { return {reinterpret_cast<const char*>(read.data()), read.bytes}; }
    bool unharmed() const {
        for (std::size_t i = 0; i < kBlock; ++i)
            if (memory.data()[i] != std::byte{0xEE} || memory.data()[memory.size() - 1 - i] != std::byte{0xEE})
                return false;
        return true;
    }
};

/// Between a request's real result (bytes or -errno) and the reader.
using Filter = std::function<std::int64_t(std::uint64_t offset, std::int64_t result)>;

ReaderOptions options_of(const Backend& backend, std::size_t piece, unsigned depth, const Filter& filter = {}) {
    ReaderOptions options;
    options.kind = backend.kind;
    options.piece = piece;
    options.depth = depth;
    if (!filter) return options;
    options.completion = [filter](std::uint64_t offset, int result) {
        return static_cast<int>(filter(offset, result));
    };
    options.pread = [filter](int fd, void* to, std::size_t bytes, off_t offset) -> ssize_t {
        ssize_t got = ::pread(fd, to, bytes, offset);
        const std::int64_t told = filter(static_cast<std::uint64_t>(offset), got < 0 ? -errno : got);
        const std::size_t good = told < 0 ? 0 : static_cast<std::size_t>(told);
        if (good < bytes) std::memset(static_cast<char*>(to) + good, 0xDD, bytes - good);  // not there: not to be used
        if (told >= 0) return told;
        errno = static_cast<int>(-told);
        return -1;
    };
    return options;
}

/// Lets requests through by permits and remembers their offsets. Of use at depth 1, where both backends go one by one.
class Gate {
  public:
    Filter filter() {
        return [this](std::uint64_t offset, std::int64_t result) {
            std::unique_lock lock(mutex_);
            seen_.push_back(offset);
            changed_.notify_all();
            changed_.wait(lock, [this] { return passed_ < permits_; });
            ++passed_;
            return result;
        };
    }
    void allow(std::size_t more) {
        const std::lock_guard lock(mutex_);
        permits_ += more;
        changed_.notify_all();
    }
    void open() { allow(1000000); }
    void await(std::size_t requests) {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [&] { return seen_.size() >= requests; });
    }
    std::vector<std::uint64_t> seen() {
        const std::lock_guard lock(mutex_);
        return seen_;
    }

  private:
    std::mutex mutex_;
    std::condition_variable changed_;
    std::vector<std::uint64_t> seen_;
    std::size_t permits_ = 0, passed_ = 0;
};

constexpr std::size_t kPiece = 4 * kBlock;

}  // namespace

TEST_CASE("io/reader: any offset and length, tails included, gives the bytes of File::read and touches nothing else") {
    const TempFolder folder;
    for (const std::size_t size : {std::size_t{1}, std::size_t{511}, std::size_t{4096}, 3 * kPiece + 777}) {
        const std::string path = folder.write("f", pattern(size, 3));
        const io::File plain = io::File::open(path);
        on_all([&](const Backend& backend) {
            const StreamFile file = StreamFile::open(path, backend.access);
            Reader reader(options_of(backend, kPiece, 4));
            std::deque<Target> targets;
            std::set<std::uint64_t> edges;
            for (const std::uint64_t edge : {std::uint64_t{0}, std::uint64_t{512}, std::uint64_t{kBlock},
                                             std::uint64_t{kPiece}, std::uint64_t{2 * kPiece}, std::uint64_t{size}})
                for (const std::int64_t near : {-1, 0, 1})
                    if (const auto at = static_cast<std::int64_t>(edge) + near;
                        at >= 0 && static_cast<std::uint64_t>(at) <= size)
                        edges.insert(static_cast<std::uint64_t>(at));
            for (const std::uint64_t from : edges)
                for (const std::uint64_t to : edges)
                    if (from <= to) targets.emplace_back(file, from, to - from);
            std::vector<Read*> batch;
            for (Target& target : targets) batch.push_back(&target.read);
            reader.submit(batch);
            bool sound = true;
            for (Target& target : targets) {
                std::string expected(target.read.bytes, '\0');
                plain.read(target.read.offset, std::as_writable_bytes(std::span(expected.data(), expected.size())));
                sound = reader.wait(target.read) && target.read.state == ReadState::done && target.text() == expected &&
                        target.unharmed() && sound;
            }
            CHECK(sound);
            CHECK(reader.stats().failed_reads == 0);
        });
    }
}

TEST_CASE("io/reader: 2000 random reads of two files from four threads all arrive") {
    const TempFolder folder;
    const std::string texts[] = {pattern(900001, 5), pattern(300000, 6)};
    const std::string paths[] = {folder.write("a", texts[0]), folder.write("b", texts[1])};
    on_all([&](const Backend& backend) {
        const StreamFile files[] = {StreamFile::open(paths[0], backend.access),
                                    StreamFile::open(paths[1], backend.access)};
        Reader reader(options_of(backend, kPiece, 16));
        std::atomic<int> wrong{0};
        const auto work = [&](unsigned seed) {
            std::mt19937 random(seed);
            for (int round = 0; round < 50; ++round) {
                std::deque<Target> targets;
                std::vector<Read*> batch, open;
                for (int i = 0; i < 10; ++i) {
                    const unsigned which = random() % 2;
                    const std::size_t bytes = random() % (i == 0 ? 200000 : 9000), room = texts[which].size() - bytes;
                    targets.emplace_back(files[which], random() % (room + 1), bytes,
                                         random() % 2 == 0 ? Urgency::now : Urgency::ahead);
                    batch.push_back(&targets.back().read);
                }
                reader.submit(batch);
                reader.promote(*batch[5]);
                open = batch;
                for (std::size_t left = open.size(); left > 0; --left) {
                    const std::size_t i = reader.wait_any(open);
                    const Target& target = targets[i];
                    const std::string& text = texts[target.read.file == &files[0] ? 0 : 1];
                    if (target.read.state != ReadState::done || !target.unharmed() ||
                        text.compare(target.read.offset, target.read.bytes, target.text()) != 0)
                        ++wrong;
                    open[i] = nullptr;
                }
                if (reader.wait_any(open) != open.size()) ++wrong;
            }
        };
        std::vector<std::thread> threads;
        for (unsigned i = 0; i < 4; ++i) threads.emplace_back(work, i);
        for (std::thread& thread : threads) thread.join();
        CHECK(wrong == 0);
        const io::ReaderStats stats = reader.stats();
        CHECK(stats.failed_reads == 0);
        CHECK(stats.reads_now + stats.reads_ahead <= 2000);  // those of no bytes are not counted
        CHECK(stats.reads_now + stats.reads_ahead > 1900);
        CHECK(stats.mean_depth >= 1);
        CHECK(stats.mean_depth <= reader.depth());
    });
}

TEST_CASE(
    "io/reader: a batch goes by file and offset, `now` overtakes `ahead`, batches of one urgency keep their order") {
    const TempFolder folder;
    const std::string path = folder.write("f", pattern(40 * kPiece, 1));
    on_all([&](const Backend& backend) {
        const StreamFile file = StreamFile::open(path, backend.access);
        Gate gate;
        Reader reader(options_of(backend, kPiece, 1, gate.filter()));
        Target a2(file, 2 * kPiece, 2 * kPiece), a0(file, 0, 2 * kPiece), a8(file, 8 * kPiece, kPiece);
        Target b1(file, kPiece, kPiece), n9(file, 9 * kPiece, 2 * kPiece, Urgency::now);
        Target n5(file, 5 * kPiece, kPiece, Urgency::now), m4(file, 4 * kPiece, kPiece, Urgency::now);
        reader.submit(std::array{&a8.read, &a2.read, &a0.read});
        gate.await(1);  // a0's first piece is at the device
        reader.submit(std::array{&b1.read, &n9.read, &n5.read});
        reader.submit(m4.read);
        gate.allow(5);
        CHECK(reader.wait(n9.read));
        CHECK(reader.wait(m4.read));
        CHECK(a2.read.state == ReadState::queued);
        gate.open();
        for (Target* target : {&a2, &a0, &a8, &b1, &n5}) CHECK(reader.wait(target->read));
        std::vector<std::uint64_t> order;
        for (const std::uint64_t offset : gate.seen()) order.push_back(offset / kPiece);
        CHECK(order == std::vector<std::uint64_t>{0, 5, 9, 10, 4, 1, 2, 3, 8, 1});
        CHECK(reader.stats().reads_now == 3);
        CHECK(reader.stats().reads_ahead == 4);
        CHECK(reader.stats().pieces == 10);
        CHECK(reader.stats().bytes == 10 * kPiece);
    });
}

TEST_CASE("io/reader: a large ahead batch of a deep pool lets the now batch behind it finish first") {
    const TempFolder folder;
    const std::string path = folder.write("f", pattern(100 * kPiece, 1));
    const StreamFile file = StreamFile::open(path);
    std::mutex mutex;
    std::vector<std::uint64_t> order;
    std::atomic<bool> both_there{false};
    ReaderOptions options = options_of(kBackends[2], kPiece, 4);
    options.pread = [&](int fd, void* to, std::size_t bytes, off_t offset) {
        both_there.wait(false);
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
        const std::lock_guard lock(mutex);
        order.push_back(static_cast<std::uint64_t>(offset) / kPiece);
        return ::pread(fd, to, bytes, offset);
    };
    Reader reader(options);
    std::deque<Target> targets;
    std::vector<Read*> ahead, now;
    for (std::size_t i = 0; i < 80; ++i) ahead.push_back(&targets.emplace_back(file, i * kPiece, kPiece).read);
    for (std::size_t i = 80; i < 90; ++i)
        now.push_back(&targets.emplace_back(file, i * kPiece, kPiece, Urgency::now).read);
    reader.submit(ahead);
    reader.submit(now);
    both_there = true;
    both_there.notify_all();
    for (Read* read : now) CHECK(reader.wait(*read));
    for (Read* read : ahead) CHECK(reader.wait(*read));
    REQUIRE(order.size() == 90);
    // At most four of ahead were at the device already. When the next one is taken all of now are, and at most three of
    // those are still in the hands of the other threads.
    std::size_t now_first = 0;
    for (std::size_t i = 0; order[i] < 4 || order[i] >= 80; ++i) now_first += order[i] >= 80 ? 1 : 0;
    CHECK(now_first >= 7);
}

TEST_CASE("io/reader: promote moves what is not yet issued, and does nothing to others") {
    const TempFolder folder;
    const std::string path = folder.write("f", pattern(20 * kPiece, 1));
    on_all([&](const Backend& backend) {
        const StreamFile file = StreamFile::open(path, backend.access);
        Gate gate;
        Reader reader(options_of(backend, kPiece, 1, gate.filter()));
        Target a(file, 0, 3 * kPiece), b(file, 3 * kPiece, kPiece), c(file, 4 * kPiece, 2 * kPiece);
        Target idle(file, 0, kPiece);
        reader.submit(std::array{&a.read, &b.read, &c.read});
        gate.await(1);
        reader.promote(c.read);
        reader.promote(c.read);
        reader.promote(a.read);
        reader.promote(idle.read);
        CHECK(idle.read.state == ReadState::idle);
        gate.open();
        for (Target* target : {&a, &b, &c}) CHECK(reader.wait(target->read));
        reader.promote(a.read);
        CHECK(a.read.state == ReadState::done);
        std::vector<std::uint64_t> order;
        for (const std::uint64_t offset : gate.seen()) order.push_back(offset / kPiece);
        CHECK(order == std::vector<std::uint64_t>{0, 4, 5, 1, 2, 3});
    });
}

TEST_CASE("io/reader: wait_any gives the first that has ended, passing over null, idle and queued ones") {
    const TempFolder folder;
    const std::string path = folder.write("f", pattern(20 * kPiece, 1));
    on_all([&](const Backend& backend) {
        const StreamFile file = StreamFile::open(path, backend.access);
        Gate gate;
        Reader reader(options_of(backend, kPiece, 1, gate.filter()));
        Target a(file, 0, kPiece), b(file, kPiece, kPiece), past(file, 30 * kPiece, kPiece), idle(file, 0, 1);
        CHECK(reader.wait_any({}) == 0);
        CHECK(reader.wait_any(std::array<Read*, 2>{nullptr, &idle.read}) == 2);
        reader.submit(std::array{&past.read, &b.read, &a.read});
        std::array<Read*, 5> open{nullptr, &idle.read, &past.read, &b.read, &a.read};
        std::thread later([&] {
            std::this_thread::sleep_for(std::chrono::milliseconds(20));
            gate.allow(1);
        });
        CHECK(reader.wait_any(open) == 4);
        later.join();
        open[4] = nullptr;
        gate.allow(1);
        CHECK(reader.wait_any(open) == 3);
        open[3] = nullptr;
        gate.open();
        CHECK(reader.wait_any(open) == 2);
        CHECK(past.read.state == ReadState::failed);
        open[2] = nullptr;
        CHECK(reader.wait_any(open) == 5);
    });
}

TEST_CASE("io/reader: cancel drops what is queued, waits for what is in flight, and leaves what has ended alone") {
    const TempFolder folder;
    const std::string path = folder.write("f", pattern(40 * kPiece, 1));
    on_all([&](const Backend& backend) {
        const StreamFile file = StreamFile::open(path, backend.access);
        Gate gate;
        Reader reader(options_of(backend, kPiece, 1, gate.filter()));
        Target a(file, 0, 8 * kPiece), b(file, 8 * kPiece, 8 * kPiece), c(file, 20 * kPiece, kPiece);
        reader.submit(std::array{&a.read, &b.read, &c.read});
        gate.await(1);
        CHECK(reader.cancel(b.read));  // nothing in flight: at once, with the gate shut
        CHECK(b.read.state == ReadState::idle);
        std::atomic<bool> back{false};
        std::thread canceller([&] {
            CHECK(reader.cancel(a.read));
            back = true;
        });
        std::thread waiter([&] { CHECK(!reader.wait(a.read)); });
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
        CHECK(!back);  // one piece still goes into the window
        gate.open();
        canceller.join();
        waiter.join();
        CHECK(a.read.state == ReadState::idle);
        CHECK(reader.wait(c.read));
        CHECK(!reader.cancel(c.read));
        CHECK(c.read.state == ReadState::done);
        CHECK(!reader.cancel(b.read));
        CHECK(gate.seen() == std::vector<std::uint64_t>{0, 20 * kPiece});
        reader.submit(std::array{&a.read, &b.read});  // and both can be asked for again
        CHECK(reader.wait(a.read));
        CHECK(reader.wait(b.read));
        CHECK((a.text() == pattern(40 * kPiece, 1).substr(0, 8 * kPiece)));
    });
}

TEST_CASE("io/reader: the destructor cancels what is queued and waits for what is in flight") {
    const TempFolder folder;
    const std::string path = folder.write("f", pattern(40 * kPiece, 1));
    on_all([&](const Backend& backend) {
        const StreamFile file = StreamFile::open(path, backend.access);
        Gate gate;
        Target a(file, 0, kPiece), b(file, kPiece, 8 * kPiece), c(file, 20 * kPiece, kPiece);
        std::optional<Reader> reader(std::in_place, options_of(backend, kPiece, 1, gate.filter()));
        reader->submit(std::array{&a.read, &b.read, &c.read});
        gate.await(1);
        std::thread later([&] {
            std::this_thread::sleep_for(std::chrono::milliseconds(20));
            gate.open();
        });
        reader.reset();
        later.join();
        CHECK(a.read.state == ReadState::done);
        CHECK(b.read.state == ReadState::idle);
        CHECK(c.read.state == ReadState::idle);
        CHECK(gate.seen().size() == 1);
        const Reader unused(options_of(backend, kPiece, 4));
    });
    for (int i = 0; i < 50; ++i) {  // at any moment, at any depth
        on_all([&](const Backend& backend) {
            const StreamFile file = StreamFile::open(path, backend.access);
            std::deque<Target> targets;
            {
                Reader reader(options_of(backend, kPiece, 16));
                std::vector<Read*> batch;
                for (std::size_t k = 0; k < 20; ++k)
                    batch.push_back(&targets.emplace_back(file, k * 2 * kPiece, kPiece + 1).read);
                reader.submit(batch);
                if (i % 2 == 1) reader.wait(*batch[0]);
            }
            bool settled = true;
            for (const Target& target : targets)
                settled = (target.read.state == ReadState::done || target.read.state == ReadState::idle) && settled;
            CHECK(settled);
        });
    }
}

TEST_CASE("io/reader: short, interrupted and postponed requests are repeated until all bytes are there") {
    const TempFolder folder;
    const std::string text = pattern(5 * kPiece + 1234, 8), path = folder.write("f", text);
    struct Fault {
        const char* name;
        bool ends_direct;
        std::function<std::int64_t(int attempt, std::int64_t result)> change;
    };
    const Fault faults[] =
        {
            {"one byte", true, [](int, std::int64_t r) { return std::min<std::int64_t>(r, 1); }},
            {"half", true, [](int, std::int64_t r) { return r > 1 ? r / 2 : r; }},
            {"half, whole blocks", false,
             [](int, std::int64_t r) {
        const auto half = r / 2 / std::int64_t{kBlock} * std::int64_t{kBlock};
        return half > 0 ? half : r;
             }},
            {"a thousand bytes less, once", false,
             [](int attempt, std::int64_t r) { return attempt == 0 && r > 1000 ? r - 1000 : r; }},
            {"interrupted 50 times", false, [](int attempt, std::int64_t r) { return attempt < 50 ? -EINTR : r; }},
            {"postponed 3 times", false, [](int attempt, std::int64_t r) { return attempt < 3 ? -EAGAIN : r; }},
            {"no buffers twice", false, [](int attempt, std::int64_t r) { return attempt < 2 ? -ENOBUFS : r; }},
            {"direct reads refused", true, {}},
    };
    for (const Fault& fault : faults) {
        INFO("fault: " << std::string(fault.name));
        on_all([&](const Backend& backend) {
            const StreamFile file = StreamFile::open(path, backend.access);
            const bool direct = file.access() == Access::direct && backend.kind != ReaderKind::buffered;
            const bool refuses = !fault.change;
            if (!direct && refuses) return;  // there it is an error
            std::mutex mutex;
            std::map<std::uint64_t, int> attempts;
            Reader reader(options_of(backend, kPiece, 3, [&](std::uint64_t offset, std::int64_t result) {
                const std::lock_guard lock(mutex);
                return refuses ? (file.access() == Access::direct ? -EINVAL : result)
                               : fault.change(attempts[offset]++, result);
            }));
            Target whole(file, 0, text.size()), middle(file, kPiece - 5, 2 * kPiece), last(file, text.size() - 1, 1);
            reader.submit(std::array{&whole.read, &middle.read, &last.read});
            for (Target* target : {&whole, &middle, &last}) {
                CHECK(reader.wait(target->read));
                CHECK((target->text() == text.substr(target->read.offset, target->read.bytes)));
                CHECK(target->unharmed());
            }
            CHECK(reader.stats().retries > 0);
            CHECK(reader.stats().lost_direct == (direct && fault.ends_direct ? 1 : 0));
            if (direct) CHECK((file.access() == Access::buffered) == fault.ends_direct);
        });
    }
}

TEST_CASE("io/reader: a failed piece fails its Read alone, with path, offset, length and reason; the reader goes on") {
    const TempFolder folder;
    const std::string text = pattern(12 * kPiece, 8), path = folder.write("f", text);
    struct Fault {
        const char* name;
        std::int64_t result;
        const char* says;
        const char* next;
    };
    for (const Fault& fault : {Fault{"EIO", -EIO, "Input/output error", "check the disk"},
                               Fault{"nothing", 0, "the file ended early", "download"},
                               Fault{"more than asked", kPiece + 1, "Input/output error", "check the disk"}}) {
        INFO("fault: " << std::string(fault.name));
        on_all([&](const Backend& backend) {
            const StreamFile file = StreamFile::open(path, backend.access);
            for (const unsigned depth : {1U, 8U}) {
                Reader reader(options_of(backend, kPiece, depth, [&](std::uint64_t offset, std::int64_t result) {
                    return offset == 3 * kPiece ? fault.result : result;
                }));
                Target hit(file, 100, 8 * kPiece), sound(file, 9 * kPiece, 2 * kPiece);
                reader.submit(std::array{&hit.read, &sound.read});
                CHECK(!reader.wait(hit.read));
                CHECK(hit.read.state == ReadState::failed);
                const Error error = reader.error_of(hit.read);
                CHECK(error.code() == Code::read);
                const std::string line = error.what();
                INFO(line);
                CHECK(holds(line, path));
                CHECK(holds(line, "offset " + std::to_string(3 * kPiece)));
                CHECK(holds(line, std::to_string(kPiece) + " bytes"));
                CHECK(holds(line, fault.says));
                CHECK(holds(line, fault.next));
                CHECK(reader.wait(sound.read));
                CHECK((sound.text() == text.substr(9 * kPiece, 2 * kPiece)));
                CHECK(reader.stats().failed_reads == 1);
                if (depth == 1) CHECK(reader.stats().pieces == 4 + 2);  // the rest of a failed Read is not read
                CHECK(hit.unharmed());
            }
        });
    }
}

TEST_CASE("io/reader: EINVAL from a buffered read, and EAGAIN without end, are errors") {
    const TempFolder folder;
    const std::string path = folder.write("f", pattern(3 * kPiece, 8));
    on_all([&](const Backend& backend) {
        const StreamFile file = StreamFile::open(path, backend.access);
        Reader reader(options_of(backend, kPiece, 2, [](std::uint64_t, std::int64_t) { return -EINVAL; }));
        Target a(file, 0, 1);
        reader.submit(a.read);
        CHECK(!reader.wait(a.read));
        CHECK(holds(reader.error_of(a.read).what(), "Invalid argument"));
    });
    const StreamFile file = StreamFile::open(path);
    Reader reader(options_of(kBackends[2], kPiece, 2, [](std::uint64_t, std::int64_t) { return -EAGAIN; }));
    Target a(file, 0, 1);
    reader.submit(a.read);
    CHECK(!reader.wait(a.read));
    CHECK(holds(reader.error_of(a.read).what(), "Resource temporarily unavailable"));
}

TEST_CASE("io/reader: a file cut after it was opened gives what it still has and fails beyond") {
    const TempFolder folder;
    const std::string text = pattern(6 * kPiece, 8);
    on_all([&](const Backend& backend) {
        const std::string path = folder.write("f", text);
        const StreamFile file = StreamFile::open(path, backend.access);
        const std::size_t cut = 2 * kPiece + 1000;
        REQUIRE(::truncate(path.c_str(), static_cast<off_t>(cut)) == 0);
        Reader reader(options_of(backend, kPiece, 4));
        Target before(file, 10, cut - 10), over(file, kPiece, cut - kPiece + 1), beyond(file, 4 * kPiece, 1);
        reader.submit(std::array{&before.read, &over.read, &beyond.read});
        CHECK(reader.wait(before.read));
        CHECK((before.text() == text.substr(10, cut - 10)));
        for (Target* target : {&over, &beyond}) {
            CHECK(!reader.wait(target->read));
            CHECK(target->read.state == ReadState::failed);
            CHECK(holds(reader.error_of(target->read).what(), "ended early"));
        }
        CHECK(reader.stats().lost_direct == 0);
    });
}

TEST_CASE("io/reader: reads of no bytes are done at once; absurd offsets and crooked windows fail without a request") {
    const TempFolder folder;
    const StreamFile file = StreamFile::open(folder.write("f", pattern(100, 8)));
    on_all([&](const Backend& backend) {
        Gate shut;
        Reader reader(options_of(backend, kPiece, 1, shut.filter()));
        Read none;
        none.file = &file;
        none.offset = 12345;
        CHECK(!reader.wait(none));  // idle
        reader.submit(none);
        CHECK(reader.wait(none));
        CHECK(none.data() == nullptr);
        Target far(file, std::uint64_t{1} << 63, 10), crooked(file, 0, 10);
        crooked.read.window += 512;
        Read nowhere;
        nowhere.file = &file;
        nowhere.bytes = 1;
        reader.submit(std::array<Read*, 4>{&far.read, nullptr, &crooked.read, &nowhere});
        CHECK(!reader.wait(far.read));
        CHECK(holds(reader.error_of(far.read).what(), "offset 9223372036854775808"));
        CHECK(!reader.wait(crooked.read));
        CHECK(!reader.wait(nowhere));
        CHECK(file.access() == StreamFile::open(file.path()).access());
        CHECK(shut.seen().empty());
        reader.submit(std::span<Read* const>{});
    });
}

TEST_CASE("io/reader: waiting costs no time of a processor") {
    const TempFolder folder;
    const std::string path = folder.write("f", pattern(8 * kPiece, 8));
    on_all([&](const Backend& backend) {
        const StreamFile file = StreamFile::open(path, backend.access);
        Gate gate;
        Reader reader(options_of(backend, kPiece, 4, gate.filter()));
        Target a(file, 0, 8 * kPiece);
        reader.submit(a.read);
        std::vector<std::thread> waiters;
        for (int i = 0; i < 3; ++i) waiters.emplace_back([&] { CHECK(reader.wait(a.read)); });
        gate.await(1);
        const std::clock_t start = std::clock();
        std::this_thread::sleep_for(std::chrono::milliseconds(300));
        const double spent = static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
        CHECK(spent < 0.1);
        gate.open();
        for (std::thread& waiter : waiters) waiter.join();
        const std::clock_t idle = std::clock();
        std::this_thread::sleep_for(std::chrono::milliseconds(200));
        CHECK(static_cast<double>(std::clock() - idle) / CLOCKS_PER_SEC < 0.1);
        const io::ReaderStats stats = reader.stats();
        CHECK(stats.busy_seconds >= 0.3);
        CHECK(stats.mean_depth >= 1);
        CHECK(stats.mean_depth <= 4);
        CHECK(stats.longest_gap_seconds <= stats.starved_seconds);
    });
}

TEST_CASE("io/reader: the page cache does not grow, whichever way is read") {
    const TempFolder folder;
    const std::size_t size = 64 * kPiece;
    const std::string path = folder.write("f", pattern(size, 8));
    const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    REQUIRE(fd >= 0);
    void* const view = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, fd, 0);
    REQUIRE(view != MAP_FAILED);
    const auto resident = [&] {
        std::vector<unsigned char> pages(size / kBlock);
        REQUIRE(::mincore(view, size, pages.data()) == 0);
        std::size_t count = 0;
        for (const unsigned char page : pages) count += page & 1;
        return count;
    };
    on_all([&](const Backend& backend) {
        ::fsync(fd);
        ::posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
        if (resident() != 0) {
            MESSAGE("SKIP: this file system keeps its pages");  // tmpfs is nothing else
            return;
        }
        const StreamFile file = StreamFile::open(path, backend.access);
        Reader reader(options_of(backend, kPiece, 4));
        Target a(file, 100, size - 100);
        reader.submit(a.read);
        CHECK(reader.wait(a.read));
        CHECK(resident() <= 16);
    });
    ::munmap(view, size);
    ::close(fd);
}

TEST_CASE("io/reader: registered memory reads the same; memory that cannot be registered does no harm") {
    const TempFolder folder;
    const std::string text = pattern(8 * kPiece, 8), path = folder.write("f", text);
    on_all([&](const Backend& backend) {
        const StreamFile file = StreamFile::open(path, backend.access);
        const bool uring = backend.kind == ReaderKind::uring;
        for (const bool good : {true, false}) {
            Reader reader(options_of(backend, kPiece, 4));
            Target a(file, 100, 4 * kPiece), b(file, 5000, 100), c(file, kPiece, 2 * kPiece);
            bool registered = reader.register_memory({a.memory.data(), a.memory.size()});
            if (!uring) CHECK(!registered);
            if (good) {
                CHECK(reader.register_memory({b.memory.data(), b.memory.size()}) == registered);
            } else {
                void* const gone = ::mmap(nullptr, kPiece, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
                ::munmap(gone, kPiece);
                CHECK(!reader.register_memory({static_cast<std::byte*>(gone), kPiece}));
            }
            reader.submit(std::array{&a.read, &b.read, &c.read});
            for (Target* target : {&a, &b, &c}) {
                CHECK(reader.wait(target->read));
                CHECK((target->text() == text.substr(target->read.offset, target->read.bytes)));
                CHECK(target->unharmed());
            }
            CHECK(!reader.register_memory({c.memory.data(), c.memory.size()}));  // too late
        }
    });
}

TEST_CASE("io/reader: options out of range are refused; what is used, and why not io_uring, can be told") {
    for (const unsigned depth : {0U, 1025U}) {
        const std::string line = refusal([&] { Reader reader({.kind = ReaderKind::threads, .depth = depth}); });
        CHECK(holds(line, std::to_string(depth)));
    }
    for (const std::size_t piece : {std::size_t{0}, std::size_t{5000}, (std::size_t{1} << 30) + kBlock})
        CHECK(holds(refusal([&] { Reader reader({.kind = ReaderKind::threads, .piece = piece}); }), "4096"));

    const Reader threads({.kind = ReaderKind::threads, .depth = 32});
    CHECK(threads.kind() == ReaderKind::threads);
    CHECK(threads.depth() == 16);
    CHECK(holds(threads.why(), "not asked for"));
    const Reader buffered({.kind = ReaderKind::buffered, .depth = 3});
    CHECK(buffered.kind() == ReaderKind::buffered);
    CHECK(buffered.depth() == 3);
    const Reader automatic;
    if (there_is(ReaderKind::uring)) {
        CHECK(automatic.kind() == ReaderKind::uring);
        CHECK(automatic.why().empty());
        CHECK(automatic.depth() == 32);
    } else {
        CHECK(automatic.kind() == ReaderKind::threads);
        CHECK(!automatic.why().empty());
    }
}

TEST_CASE("io/reader: where io_uring is refused, automatic takes threads and uring is an error, both with the reason") {
    struct rlimit before {};
    REQUIRE(::getrlimit(RLIMIT_NOFILE, &before) == 0);
    struct rlimit none = before;
    none.rlim_cur = 0;  // no descriptor for a ring
    REQUIRE(::setrlimit(RLIMIT_NOFILE, &none) == 0);
    std::string why, line;
    ReaderKind kind = ReaderKind::automatic;
    Code code = Code::internal;
    {
        const Reader reader;
        why = reader.why();
        kind = reader.kind();
    }
    try {
        const Reader reader({.kind = ReaderKind::uring});
    } catch (const Error& error) {
        code = error.code();
        line = error.what();
    }
    REQUIRE(::setrlimit(RLIMIT_NOFILE, &before) == 0);
    CHECK(kind == ReaderKind::threads);
    CHECK(code == Code::usage);
    CHECK(holds(line, why));
#if defined(K3_HAVE_URING) && K3_HAVE_URING
    CHECK(holds(why, "refuses io_uring"));
#else
    CHECK(holds(why, "without liburing"));
#endif
}
