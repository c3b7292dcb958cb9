#ifndef K3_TESTS_IO_FAKE_ROOTS_HPP
#define K3_TESTS_IO_FAKE_ROOTS_HPP
// A /proc and a /sys/fs/cgroup of our own.
#include <filesystem>

#include "k3/io/memory_limits.hpp"
#include "support/mini_checkpoint.hpp"

namespace k3::tests {

struct FakeRoots {
    explicit FakeRoots(const std::string& own_cgroups, std::uint64_t available_kb = 8000000)
        : roots{folder / "proc", folder / "cgroup"} {
        put("proc/self/cgroup", own_cgroups);
        put("proc/meminfo", "MemTotal:       16000000 kB\nMemFree:         1000000 kB\nMemAvailable:    " +
                                std::to_string(available_kb) + " kB\nBuffers: 5 kB\n");
        put("proc/self/status", "Name:\tk3\nVmPeak:\t 2000 kB\nVmSize:\t 1000 kB\nVmHWM:\t  777 kB\nVmRSS:\t 700 kB\n");
    }
    void put(const std::string& path, const std::string& text) const {
        std::filesystem::create_directories(std::filesystem::path(folder / path).parent_path());
        folder.write(path, text);
    }
    void cpu(int number, const std::string& package, const std::string& core) const {
        put("cpu/cpu" + std::to_string(number) + "/topology/physical_package_id", package + "\n");
        put("cpu/cpu" + std::to_string(number) + "/topology/core_id", core + "\n");
    }
    TempFolder folder;
    io::SystemRoots roots;
};

}  // namespace k3::tests
#endif
