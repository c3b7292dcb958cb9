#include "k3/io/stream_file.hpp"

#include <sys/stat.h>

#include <string>
#include <utility>
#include <vector>

#include "support/doctest.hpp"
#include "support/mini_checkpoint.hpp"

using namespace k3;
using namespace k3::tests;
using io::Access;
using io::kBlock;
using io::StreamFile;
using io::Window;
using io::window_of;

namespace {
constexpr bool same(Window a, Window b) { return a.begin == b.begin && a.bytes == b.bytes && a.skip == b.skip; }
static_assert(same(window_of(0, 1), {0, 4096, 0}));
static_assert(same(window_of(0, 4096), {0, 4096, 0}));
static_assert(same(window_of(0, 4097), {0, 8192, 0}));
static_assert(same(window_of(4095, 1), {0, 4096, 4095}));
static_assert(same(window_of(4095, 2), {0, 8192, 4095}));
static_assert(same(window_of(4096, 4096), {4096, 4096, 0}));
static_assert(same(window_of((std::uint64_t{1} << 40) + 5, 4091), {std::uint64_t{1} << 40, 4096, 5}));
static_assert(same(window_of(4099, 0), {4096, 0, 3}));

std::string first_block(const StreamFile& file) {
    const core::Buffer block(kBlock);
    const ssize_t got = ::pread(file.descriptor(), block.data(), kBlock, 0);
    return got < 0 ? "failed" : std::string(reinterpret_cast<const char*>(block.data()), static_cast<std::size_t>(got));
}
}  // namespace

TEST_CASE("io/stream_file: files of any size open, know path and size, and read direct or say why not") {
    const TempFolder folder;
    for (const std::size_t size : {0, 1, 511, 512, 513, 4095, 4096, 4097, 1000003}) {
        std::string text(size, 'x');
        for (std::size_t i = 0; i < size; ++i) text[i] = static_cast<char>('a' + i % 23);
        const std::string path = folder.write("f" + std::to_string(size), text);
        const StreamFile file = StreamFile::open(path, Access::direct);
        CHECK(file.path() == path);
        CHECK(file.size() == size);
        CHECK((file.access() == Access::direct) == file.why_buffered().empty());
        INFO(file.why_buffered());
        CHECK(first_block(file) == text.substr(0, kBlock));
        const int flags = ::fcntl(file.descriptor(), F_GETFL);
        CHECK(((flags & O_DIRECT) != 0) == (file.access() == Access::direct));
        CHECK((flags & O_NONBLOCK) == 0);
        CHECK((::fcntl(file.buffered_descriptor(), F_GETFL) & (O_DIRECT | O_NONBLOCK)) == 0);
        CHECK((::fcntl(file.descriptor(), F_GETFD) & FD_CLOEXEC) != 0);
    }
}

TEST_CASE("io/stream_file: buffered on request, and where the file system has no direct reads, with the reason") {
    const TempFolder folder;
    const StreamFile asked = StreamFile::open(folder.write("a", "hello"), Access::buffered);
    CHECK(asked.access() == Access::buffered);
    CHECK(asked.descriptor() == asked.buffered_descriptor());
    CHECK(holds(asked.why_buffered(), "asked for"));
    CHECK(first_block(asked) == "hello");

    const StreamFile refused = StreamFile::open("/proc/self/status");  // a regular file that takes no O_DIRECT
    CHECK(refused.access() == Access::buffered);
    CHECK(holds(refused.why_buffered(), "refuses O_DIRECT (Invalid argument)"));
    CHECK(holds(first_block(refused), "Name:"));
}

TEST_CASE("io/stream_file: refuses what io::File refuses, in the same words") {
    const TempFolder folder;
    const std::string fifo = folder / "fifo";
    REQUIRE(::mkfifo(fifo.c_str(), 0600) == 0);
    for (const std::string& path : {folder / "missing", folder.path(), fifo, std::string("/dev/null")}) {
        const std::string line = refusal([&] { (void)StreamFile::open(path); });
        CHECK(!line.empty());
        CHECK(line == refusal([&] { (void)io::File::open(path); }));
    }
}

TEST_CASE("io/stream_file: moves with its descriptors; loses direct reads once") {
    const TempFolder folder;
    StreamFile a = StreamFile::open(folder.write("a", "first")), b = StreamFile::open(folder.write("b", "second"));
    const bool direct = a.access() == Access::direct;
    const StreamFile c(std::move(a));
    CHECK(first_block(c) == "first");
    b = StreamFile::open(c.path(), Access::buffered);
    CHECK(first_block(b) == "first");
    CHECK(b.access() == Access::buffered);
    CHECK(c.lose_direct() == direct);
    CHECK(!c.lose_direct());
    CHECK(c.access() == Access::buffered);
    CHECK(c.descriptor() == c.buffered_descriptor());
    CHECK(first_block(c) == "first");
}
