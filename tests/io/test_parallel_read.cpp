#include "k3/io/parallel_read.hpp"

#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

#include "support/doctest.hpp"
#include "support/mini_checkpoint.hpp"

using namespace k3;
using namespace k3::tests;
using io::File;
using io::parallel_read;
using io::ReadJob;

namespace {
std::string pattern(std::size_t n, unsigned seed) {
    std::string text(n, '\0');
    for (char& c : text) c = static_cast<char>((seed = seed * 1664525 + 1013904223) >> 24);
    return text;
}
constexpr std::size_t kBig = (std::size_t{20} << 20) + 77;  // three pieces of 8 MiB
}  // namespace

TEST_CASE(
    "io/parallel_read: every byte of every job arrives, whatever the threads; progress rises on this thread and ends "
    "at the total") {
    const TempFolder folder;
    const std::string a = pattern(kBig, 1), b = pattern(5000, 2);
    const File fa = File::open(folder.write("a", a)), fb = File::open(folder.write("b", b));
    for (const unsigned threads : {0U, 1U, 2U, 3U, 9U}) {
        std::string whole(kBig, '-'), middle(100, '-'), tail(4000, '-'), none;
        const auto bytes = [](std::string& s) { return std::as_writable_bytes(std::span(s.data(), s.size())); };
        const std::vector<ReadJob> jobs{
            {&fb, 1000, bytes(tail)}, {&fa, 0, bytes(whole)}, {&fb, 7, bytes(none)}, {&fa, 12345, bytes(middle)}};
        const std::uint64_t total = kBig + 100 + 4000;
        std::uint64_t last = 0;
        bool sound = true;
        const auto self = std::this_thread::get_id();
        parallel_read(jobs, threads, [&](std::uint64_t done, std::uint64_t all) {
            sound = sound && done >= last && done <= total && all == total && std::this_thread::get_id() == self;
            last = done;
        });
        CHECK(sound);
        CHECK(last == total);
        CHECK(whole == a);
        CHECK(middle == a.substr(12345, 100));
        CHECK(tail == b.substr(1000));
    }
    parallel_read({}, 3);
    std::uint64_t calls = 0;
    parallel_read({}, 3, [&](std::uint64_t done, std::uint64_t all) { calls += done == 0 && all == 0; });
    CHECK(calls == 1);
}

TEST_CASE(
    "io/parallel_read: a failed read comes out as its Error whichever thread met it, after all threads have stopped") {
    const TempFolder folder;
    const std::string a = pattern(kBig, 1);
    const File fa = File::open(folder.write("a", a)), fb = File::open(folder.write("short", "abc"));
    for (const unsigned threads : {1U, 2U, 4U})
        for (const std::size_t bad_at : {std::size_t{0}, std::size_t{2}, std::size_t{5}}) {
            std::vector<std::string> outs(6, std::string(std::size_t{3} << 20, '-'));
            std::vector<ReadJob> jobs;
            for (std::size_t i = 0; i < outs.size(); ++i)
                jobs.push_back(
                    {i == bad_at ? &fb : &fa, i, std::as_writable_bytes(std::span(outs[i].data(), outs[i].size()))});
            const std::string line = refusal([&] { parallel_read(jobs, threads); });
            CHECK(holds(line, folder / "short"));
            CHECK(holds(line, "ended early"));
        }
}

TEST_CASE("io/parallel_read: a progress callback that throws ends the reading with its exception, not the process") {
    const TempFolder folder;
    const std::string a = pattern(kBig, 1);
    const File fa = File::open(folder.write("a", a));
    for (const unsigned threads : {1U, 3U}) {
        std::string whole(kBig, '-');
        const std::vector<ReadJob> jobs{{&fa, 0, std::as_writable_bytes(std::span(whole.data(), whole.size()))}};
        const pid_t child = ::fork();
        if (child == 0) {
            std::signal(SIGABRT, SIG_DFL);  // doctest's handler would report for the child
            try {
                parallel_read(jobs, threads,
                              [](std::uint64_t, std::uint64_t) { throw Error(Code::interrupted, "stopped", ""); });
            } catch (const Error& error) {
                ::_exit(error.code() == Code::interrupted ? 0 : 1);
            }
            ::_exit(2);
        }
        int status = -1;
        REQUIRE(::waitpid(child, &status, 0) == child);
        CAPTURE(threads);
        CHECK(WIFEXITED(status));
        CHECK(status == 0);
    }
}
