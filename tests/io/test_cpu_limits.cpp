#include "k3/io/cpu_limits.hpp"

#include <vector>

#include "io/fake_roots.hpp"
#include "support/doctest.hpp"

using namespace k3;
using namespace k3::tests;
using io::usable_cores;

namespace {
std::vector<int> own_cpus() {
    cpu_set_t mask;
    CPU_ZERO(&mask);
    std::vector<int> cpus;
    if (::sched_getaffinity(0, sizeof mask, &mask) != 0) return cpus;
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu)
        if (CPU_ISSET(cpu, &mask)) cpus.push_back(cpu);
    return cpus;
}
/// A machine in which every CPU of the affinity mask is a core of its own.
void separate_cores(const FakeRoots& fake) {
    for (const int cpu : own_cpus()) fake.cpu(cpu, "0", std::to_string(cpu));
}
}  // namespace

TEST_CASE("io/cpu_limits: hyperthreads of one core count once, equal core numbers of two packages twice") {
    const std::vector<int> cpus = own_cpus();
    const auto count = static_cast<unsigned>(cpus.size());
    REQUIRE(count >= 1);
    const FakeRoots separate(""), shared(""), packages(""), bare("");
    separate_cores(separate);
    CHECK(usable_cores(separate.roots, separate.folder / "cpu") == count);
    for (const int cpu : cpus) shared.cpu(cpu, "0", "3");
    CHECK(usable_cores(shared.roots, shared.folder / "cpu") == 1);
    for (const int cpu : cpus) packages.cpu(cpu, std::to_string(cpu), "0");
    CHECK(usable_cores(packages.roots, packages.folder / "cpu") == count);
    CHECK(usable_cores(bare.roots, bare.folder / "cpu") == count);  // no topology: every CPU is a core
}

TEST_CASE("io/cpu_limits: a quota of 1.5 CPUs allows two threads, of 0.5 one, 'max' all; v2") {
    const auto count = static_cast<unsigned>(own_cpus().size());
    const FakeRoots fake("0::/a/b\n");
    separate_cores(fake);
    const auto cores = [&] { return usable_cores(fake.roots, fake.folder / "cpu"); };
    CHECK(cores() == count);
    fake.put("cgroup/a/b/cpu.max", "150000 100000\n");
    CHECK(cores() == std::min(count, 2U));
    fake.put("cgroup/a/b/cpu.max", "100000 100000\n");
    CHECK(cores() == 1);
    fake.put("cgroup/a/b/cpu.max", "50000 100000\n");
    CHECK(cores() == 1);
    fake.put("cgroup/a/b/cpu.max", "max 100000\n");
    CHECK(cores() == count);
    CHECK(io::cpu_limits(fake.roots, fake.folder / "cpu").quota == 0);
    fake.put("cgroup/a/cpu.max", "90000 100000\n");  // an ancestor
    CHECK(cores() == 1);
    fake.put("cgroup/a/b/cpu.max", "250000 100000\n");
    const io::CpuLimits limits = io::cpu_limits(fake.roots, fake.folder / "cpu");
    CHECK(limits.cpus == count);
    CHECK(limits.cores == count);
    CHECK(limits.quota == doctest::Approx(0.9));
}

TEST_CASE(
    "io/cpu_limits: v1 takes the cpu controller's path, wherever it stands in the list; -1 is no quota; cpuset is "
    "another one") {
    const auto count = static_cast<unsigned>(own_cpus().size());
    const FakeRoots fake("4:cpuset:/small\n9:cpuacct,cpu:/x/y\n5:memory:/small\n0::/\n");
    separate_cores(fake);
    fake.put("cgroup/cpu/small/cpu.cfs_quota_us", "1000\n");
    fake.put("cgroup/cpu/small/cpu.cfs_period_us", "100000\n");
    const auto cores = [&] { return usable_cores(fake.roots, fake.folder / "cpu"); };
    CHECK(cores() == count);
    fake.put("cgroup/cpu/x/y/cpu.cfs_quota_us", "-1\n");
    fake.put("cgroup/cpu/x/y/cpu.cfs_period_us", "100000\n");
    CHECK(cores() == count);
    fake.put("cgroup/cpu/x/cpu.cfs_quota_us", "150000\n");
    fake.put("cgroup/cpu/x/cpu.cfs_period_us", "100000\n");
    CHECK(cores() == std::min(count, 2U));
    fake.put("cgroup/cpu/cpu.cfs_quota_us", "10000\n");
    fake.put("cgroup/cpu/cpu.cfs_period_us", "100000\n");
    CHECK(cores() == 1);
}

TEST_CASE("io/cpu_limits: this machine has at least one usable core and no more than its CPUs") {
    CHECK(usable_cores() >= 1);
    CHECK(usable_cores() <= own_cpus().size());
}
