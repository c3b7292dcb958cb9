#include "k3/io/file.hpp"

#include <sys/stat.h>

#include <functional>
#include <thread>
#include <vector>

#include "k3/core/buffer.hpp"
#include "k3/io/atomic_file.hpp"
#include "support/doctest.hpp"
#include "support/mini_checkpoint.hpp"

using namespace k3;
using namespace k3::tests;
using io::File;

namespace {
std::span<std::byte> bytes_of(std::string& text) { return std::as_writable_bytes(std::span(text.data(), text.size())); }
Code code_of(const std::function<void()>& action) {
    try {
        action();
    } catch (const Error& error) {
        return error.code();
    }
    return Code::internal;
}
}  // namespace

TEST_CASE("io/file: reads exactly what was asked, at any offset, and knows its size and path") {
    const TempFolder folder;
    const std::string path = folder.write("a", "0123456789");
    const File file = File::open(path);
    CHECK(file.size() == 10);
    CHECK(file.path() == path);
    std::string out(4, '-');
    file.read(3, bytes_of(out));
    CHECK(out == "3456");
    std::string whole(10, '-'), none;
    file.read(0, bytes_of(whole));
    CHECK(whole == "0123456789");
    file.read(10, bytes_of(none));  // nothing, at the end
    file.read(99, bytes_of(none));  // nothing, beyond it
    CHECK(File::read_text(path) == "0123456789");
    CHECK(File::read_text(folder.write("empty", "")) == "");
    CHECK(File::read_text(folder.write("zeros", std::string("a\0b", 3))).size() == 3);
}

TEST_CASE("io/file: a short file is an error with path, offset, both lengths and what to do") {
    const TempFolder folder;
    const std::string path = folder.write("a", "0123456789");
    const File file = File::open(path);
    std::string out(8, '-');
    const std::string line = refusal([&] { file.read(5, bytes_of(out)); });
    CHECK(holds(line, path));
    CHECK(holds(line, "offset 5"));
    CHECK(holds(line, "8 bytes"));
    CHECK(holds(line, "after 5"));
    CHECK(holds(line, "download"));
    CHECK(code_of([&] { file.read(5, bytes_of(out)); }) == Code::read);
    CHECK(code_of([&] { file.read(std::uint64_t{1} << 40, bytes_of(out)); }) == Code::read);
    CHECK(code_of([&] { file.read(~std::uint64_t{0} - 2, bytes_of(out)); }) ==
          Code::read);                        // no offset of a file at all
    CHECK(::truncate(path.c_str(), 4) == 0);  // shrinks after it was opened
    CHECK(code_of([&] { file.read(0, bytes_of(out)); }) == Code::read);
}

TEST_CASE("io/file: missing files, directories, sockets of other kinds and unreadable files are refused by name") {
    const TempFolder folder;
    CHECK(holds(refusal([&] { File::open(folder / "nothing"); }), folder / "nothing"));
    CHECK(holds(refusal([&] { File::open(folder.path()); }), "directory"));
    CHECK(holds(refusal([&] { File::open("/dev/null"); }), "not a regular file"));
    CHECK(code_of([&] { File::open(folder.path()); }) == Code::read);
    CHECK(refusal([&] { File::open(""); }) != "");
    CHECK(holds(refusal([&] { File::read_text(folder.write("big", std::string(100, 'x')), 99); }), "99"));
}

TEST_CASE("io/file: a FIFO without a writer is refused at once, it does not block") {
    const TempFolder folder;
    const std::string path = folder / "fifo";
    REQUIRE(::mkfifo(path.c_str(), 0600) == 0);
    CHECK(holds(refusal([&] { File::open(path); }), "not a regular file"));
}

TEST_CASE("io/file: one read of more than 2 GiB, at an offset beyond 4 GiB, in a sparse file") {
    const TempFolder folder;
    const std::string path = folder.write("sparse", "");
    constexpr std::uint64_t kOffset = (std::uint64_t{4} << 30) + 4097, kLength = (std::uint64_t{2} << 30) + 12345;
    if (::truncate(path.c_str(), static_cast<off_t>(kOffset + kLength)) != 0) {
        MESSAGE("SKIPPED: this file system has no files of 6 GiB");
        return;
    }
    {
        std::fstream out(path, std::ios::binary | std::ios::in | std::ios::out);
        for (const auto& [at, mark] : {std::pair{std::uint64_t{0}, 'a'},
                                       {(std::uint64_t{1} << 31) - 1, 'b'},
                                       {std::uint64_t{0x7ffff000}, 'c'},
                                       {kLength - 1, 'd'}}) {
            out.seekp(static_cast<std::streamoff>(kOffset + at));
            out.put(mark);
        }
    }
    const File file = File::open(path);
    CHECK(file.size() == kOffset + kLength);
    const core::Buffer buffer(kLength + 1);
    buffer.data()[kLength] = std::byte{'!'};
    file.read(kOffset, {buffer.data(), kLength});
    CHECK(buffer.data()[0] == std::byte{'a'});
    CHECK(buffer.data()[(std::uint64_t{1} << 31) - 1] == std::byte{'b'});
    CHECK(buffer.data()[0x7ffff000] == std::byte{'c'});
    CHECK(buffer.data()[kLength - 1] == std::byte{'d'});
    CHECK(buffer.data()[kLength] == std::byte{'!'});
    std::string last(2, '-');
    CHECK_THROWS_AS(file.read(kOffset + kLength - 1, bytes_of(last)), Error);
}

TEST_CASE("io/file: moving hands the descriptor over once; many threads read one file at their own offsets") {
    const TempFolder folder;
    std::string text;
    for (int i = 0; i < 10000; ++i) text += static_cast<char>('a' + i % 26);
    File first = File::open(folder.write("a", text));
    const int fd = first.descriptor();
    File second = std::move(first);
    CHECK(second.descriptor() == fd);
    second = File::open(folder.write("b", "other"));
    CHECK(second.size() == 5);
    const File file = File::open(folder / "a");
    std::vector<int> good(8, 0);
    std::vector<std::thread> threads;
    for (std::size_t t = 0; t < good.size(); ++t)
        threads.emplace_back([&, t] {
            for (std::size_t i = 0; i < 200; ++i) {
                const std::size_t at = (t * 1231 + i * 97) % 9900;
                std::string out(100, '-');
                file.read(at, bytes_of(out));
                good[t] += out == text.substr(at, 100);
            }
        });
    for (std::thread& t : threads) t.join();
    for (const int n : good) CHECK(n == 200);
}

TEST_CASE(
    "io/atomic_file: a file appears whole at commit(), replaces only a file, and leaves nothing if it is dropped") {
    const TempFolder folder;
    const std::string path = folder.write("a", "old");
    const auto files = [&] { return std::distance(std::filesystem::directory_iterator(folder.path()), {}); };
    {
        io::PendingFile pending = io::PendingFile::create(path);
        pending.reserve(3);
        pending.write(0, std::as_bytes(std::span("new", 3)));
        CHECK(File::read_text(path) == "old");
        CHECK(files() == 2);
        io::PendingFile other = io::PendingFile::create(path);  // a second one in the same process
        CHECK(other.temporary_path() != pending.temporary_path());
        other.write(0, std::as_bytes(std::span("other", 5)));
        pending.commit();
        CHECK(File::read_text(path) == "new");
    }
    CHECK(files() == 1);
    CHECK(File::read_text(path) == "new");
    // What a killed process of our number left stays, and is in nobody's way.
    const std::string stray = "a.tmp." + std::to_string(::getpid());
    folder.write(stray, "stray");
    io::write_small_file(path, "newer");
    CHECK(File::read_text(path) == "newer");
    CHECK(File::read_text(folder / stray) == "stray");
    CHECK(files() == 2);
    for (const std::string& special : {folder.path(), std::string("/dev/null")}) {
        CHECK(code_of([&] { io::PendingFile::create(special); }) == Code::write);
        CHECK(holds(refusal([&] { io::PendingFile::create(special); }), "is not a regular file"));
    }
    CHECK(code_of([&] { io::PendingFile::create(folder / "no/a"); }) == Code::write);
    CHECK(holds(refusal([&] { io::require_free_space(folder.path(), ~std::uint64_t{0}); }), "smaller model"));
    CHECK(holds(refusal([&] { io::require_free_space(folder.path(), ~std::uint64_t{0}, "or not"); }), "free; or not"));
}
