#ifndef K3_IO_CPU_LIMITS_HPP
#define K3_IO_CPU_LIMITS_HPP
// How many threads are worth running: physical cores this process may use, within its CPU quota. Two threads on one
// core share its multipliers and only slow each other down.
#include <sched.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <set>
#include <string>
#include <utility>

#include "k3/io/memory_limits.hpp"

namespace k3::io {

struct CpuLimits {
    unsigned cpus = 0;   // in the affinity mask, two for a core that runs two threads; 0 if the system does not say
    unsigned cores = 0;  // physical ones among them
    double quota = 0;    // of the cgroups, in CPUs; 0: none

    /// Physical cores, at most the quota rounded up, at least 1.
    unsigned usable() const noexcept {
        const unsigned most = std::max(1U, cores);
        return quota > 0 ? std::min(most, std::max(1U, static_cast<unsigned>(std::ceil(quota)))) : most;
    }
};

inline CpuLimits cpu_limits(const SystemRoots& roots = {}, const std::string& sys = "/sys/devices/system/cpu") {
    CpuLimits limits;
    cpu_set_t mask;
    CPU_ZERO(&mask);
    std::set<std::pair<std::string, std::string>> cores;
    if (::sched_getaffinity(0, sizeof mask, &mask) == 0) {
        for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
            if (!CPU_ISSET(cpu, &mask)) continue;
            ++limits.cpus;
            const std::string dir = sys + "/cpu" + std::to_string(cpu) + "/topology/";
            std::string package, core;
            std::ifstream(dir + "physical_package_id") >> package;
            std::ifstream(dir + "core_id") >> core;
            if (core.empty()) core = "cpu" + std::to_string(cpu);  // no topology: every CPU counts as a core
            cores.emplace(package, core);
        }
    }
    limits.cores = static_cast<unsigned>(cores.size());
    const auto limit = [&limits](double quota, double period) {
        if (quota > 0 && period > 0 && (limits.quota == 0 || quota / period < limits.quota))
            limits.quota = quota / period;
    };
    std::ifstream groups(roots.proc + "/self/cgroup");
    for (std::string line; std::getline(groups, line);) {
        const std::size_t first = line.find(':'), second = line.find(':', first + 1);
        if (first == std::string::npos || second == std::string::npos) continue;
        const std::string controllers = line.substr(first + 1, second - first - 1);
        const bool v2 = controllers.empty();
        if (!v2 && ("," + controllers + ",").find(",cpu,") == std::string::npos) continue;
        const std::string root = v2 ? roots.cgroup : roots.cgroup + "/cpu";
        for (std::string path = line.substr(second + 1);;) {
            if (path == "/") path.clear();
            double quota = -1, period = -1;
            if (v2) {
                std::ifstream(root + path + "/cpu.max") >> quota >> period;  // "max 100000" leaves quota unset
            } else {
                std::ifstream(root + path + "/cpu.cfs_quota_us") >> quota;
                std::ifstream(root + path + "/cpu.cfs_period_us") >> period;
            }
            limit(quota, period);
            if (path.empty()) break;
            const std::size_t slash = path.rfind('/');
            path.resize(slash == std::string::npos ? 0 : slash);
        }
    }
    return limits;
}

/// How many threads are worth running: CpuLimits::usable().
inline unsigned usable_cores(const SystemRoots& roots = {}, const std::string& sys = "/sys/devices/system/cpu") {
    return cpu_limits(roots, sys).usable();
}

}  // namespace k3::io
#endif
