#include "k3/io/memory_limits.hpp"

#include <sys/wait.h>
#include <unistd.h>

#include "io/fake_roots.hpp"
#include "support/doctest.hpp"

using namespace k3;
using namespace k3::tests;
using io::memory_limit;
using io::MemoryLimit;

namespace {
constexpr std::uint64_t kMB = 1000000;
std::string n(std::uint64_t value) { return std::to_string(value) + "\n"; }
}  // namespace

TEST_CASE("io/memory_limits: without cgroups it is MemAvailable, not MemTotal or MemFree") {
    const FakeRoots fake("");
    const MemoryLimit limit = memory_limit(fake.roots);
    CHECK(limit.bytes == 8000000ULL * 1024);
    CHECK(holds(limit.source, "available"));
    CHECK(io::peak_rss_bytes(fake.roots) == 777 * 1024);
    CHECK(memory_limit({fake.folder / "no", fake.folder / "no"}).bytes > 0);  // no files at all: no limit, no crash
}

TEST_CASE("io/memory_limits: cgroup v2, nested: the least room along the chain counts; 'max' is no limit") {
    const FakeRoots fake("0::/user.slice/a/b\n");
    fake.put("cgroup/user.slice/a/b/memory.max", "max\n");
    fake.put("cgroup/user.slice/a/b/memory.current", n(3 * kMB));
    fake.put("cgroup/user.slice/a/memory.max", n(900 * kMB));  // an ancestor is the tightest
    fake.put("cgroup/user.slice/a/memory.current", n(200 * kMB));
    fake.put("cgroup/user.slice/memory.max", n(2000 * kMB));
    fake.put("cgroup/user.slice/memory.current", n(300 * kMB));
    MemoryLimit limit = memory_limit(fake.roots);
    CHECK(limit.bytes == 700 * kMB);
    CHECK(holds(limit.source, "user.slice/a"));
    fake.put("cgroup/user.slice/memory.current",
             n(1900 * kMB));  // now the outer one: its limit is larger, its room is less
    limit = memory_limit(fake.roots);
    CHECK(limit.bytes == 100 * kMB);
    fake.put("cgroup/user.slice/a/b/memory.max", n(50 * kMB));  // and the innermost
    CHECK(memory_limit(fake.roots).bytes == 47 * kMB);
    std::vector<std::uint64_t> all;  // available memory, then the chain from the inside; an address-space limit is last
    for (const MemoryLimit& each : io::memory_limits(fake.roots)) all.push_back(each.bytes);
    REQUIRE(all.size() >= 4);
    CHECK(std::vector(all.begin() + 1, all.begin() + 4) == std::vector{47 * kMB, 700 * kMB, 100 * kMB});
}

TEST_CASE("io/memory_limits: cgroup v2 page cache can be given back and is subtracted from what is held") {
    const FakeRoots fake("0::/a\n");
    fake.put("cgroup/a/memory.max", n(1000 * kMB));
    fake.put("cgroup/a/memory.current", n(800 * kMB));
    CHECK(memory_limit(fake.roots).bytes == 200 * kMB);
    fake.put("cgroup/a/memory.stat",
             "anon 100000000\nfile 650000000\nkernel_stack 1000\ninactive_file 400000000\nactive_file "
             "200000000\nunevictable 0\n");
    CHECK(memory_limit(fake.roots).bytes == 800 * kMB);
    fake.put("cgroup/a/memory.current",
             n(500 * kMB));  // counters are not read at one instant: never more than the limit
    CHECK(memory_limit(fake.roots).bytes == 1000 * kMB);
    fake.put("cgroup/a/memory.current", n(5000 * kMB));  // over the limit: no room
    CHECK(memory_limit(fake.roots).bytes == 0);
}

TEST_CASE("io/memory_limits: cgroup v1, nested, beside other controllers; its way of saying none; its page cache") {
    const FakeRoots fake("12:pids:/x\n9:cpu,cpuacct:/tight\n5:memory:/x/y\n1:name=systemd:/x\n0::/\n");
    fake.put("cgroup/memory/x/y/memory.limit_in_bytes", n(9223372036854771712ULL));
    fake.put("cgroup/memory/x/y/memory.usage_in_bytes", n(10 * kMB));
    fake.put("cgroup/memory/x/memory.limit_in_bytes", n(600 * kMB));
    fake.put("cgroup/memory/x/memory.usage_in_bytes", n(500 * kMB));
    fake.put("cgroup/memory/x/memory.stat",
             "cache 1\ninactive_file 7\nactive_file 9\ntotal_inactive_file 200000000\ntotal_active_file 50000000\n");
    fake.put("cgroup/memory/tight/memory.limit_in_bytes", n(1));  // another controller's path: not ours
    const MemoryLimit limit = memory_limit(fake.roots);
    CHECK(limit.bytes == 350 * kMB);
    CHECK(holds(limit.source, "memory/x"));
}

TEST_CASE("io/memory_limits: in a container the path of the host is not there: the root of the hierarchy counts") {
    const FakeRoots fake("3:memory:/docker/0123456789abcdef\n");
    fake.put("cgroup/memory/memory.limit_in_bytes", n(256 * kMB));
    fake.put("cgroup/memory/memory.usage_in_bytes", n(56 * kMB));
    CHECK(memory_limit(fake.roots).bytes == 200 * kMB);
    const FakeRoots two("0::/\n");
    two.put("cgroup/memory.max", n(300 * kMB));
    CHECK(memory_limit(two.roots).bytes == 300 * kMB);  // no usage file: the limit itself
}

TEST_CASE("io/memory_limits: MemAvailable still counts when the cgroup allows more") {
    const FakeRoots fake("0::/a\n", 1000);
    fake.put("cgroup/a/memory.max", n(900 * kMB));
    CHECK(memory_limit(fake.roots).bytes == 1000 * 1024);
}

TEST_CASE("io/memory_limits: lines that are not those of a cgroup are passed over") {
    const FakeRoots fake("\n:\nnonsense\n7:memory\n0::/a/../a\n");
    fake.put("cgroup/a/memory.max", "junk\n");
    CHECK(memory_limit(fake.roots).bytes == 8000000ULL * 1024);
    fake.put("cgroup/a/memory.max", "99999999999999999999999999\n");
    CHECK(memory_limit(fake.roots).bytes == 8000000ULL * 1024);
}

TEST_CASE("io/memory_limits: an address-space limit leaves what is not mapped yet") {
    const FakeRoots fake("");
    struct rlimit before {};
    REQUIRE(::getrlimit(RLIMIT_AS, &before) == 0);
    // In a child: the limit would stay with this process.
    const pid_t child = ::fork();
    if (child == 0) {
        struct rlimit tight = before;
        tight.rlim_cur = 3000 * 1024;  // VmSize of the fake process is 1000 kB; nothing is mapped from here on
        const bool set = ::setrlimit(RLIMIT_AS, &tight) == 0;
        const MemoryLimit limit = memory_limit(fake.roots);
        ::_exit(set && limit.bytes == 2000 * 1024 && limit.source.find("address-space") != std::string::npos ? 0 : 1);
    }
    int status = -1;
    REQUIRE(::waitpid(child, &status, 0) == child);
    CHECK(status == 0);
}

TEST_CASE("io/memory_limits: this machine's own limit is plausible") {
    const MemoryLimit limit = memory_limit();
    CHECK(limit.bytes > 16 * kMB);
    CHECK(limit.bytes < std::uint64_t{1} << 50);
    CHECK(io::peak_rss_bytes() > kMB);
}
