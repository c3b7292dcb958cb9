#ifndef K3_IO_MEMORY_LIMITS_HPP
#define K3_IO_MEMORY_LIMITS_HPP
// How much memory this process may use: the least of what the machine has available, the limits of its cgroups (v1 and
// v2, along the whole chain), and its address-space limit. The roots are parameters so that tests can fake them.
#include <sys/resource.h>

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace k3::io {

/// Where the kernel's files are.
struct SystemRoots {
    std::string proc = "/proc";
    std::string cgroup = "/sys/fs/cgroup";
};

inline constexpr std::uint64_t kUnlimited = std::numeric_limits<std::uint64_t>::max();

/// The least limit and what sets it.
struct MemoryLimit {
    std::uint64_t bytes = kUnlimited;
    std::string source = "no limit";
};

namespace detail {

inline std::optional<std::uint64_t> first_number(const std::string& path) {
    std::ifstream in(path);
    std::string word;
    if (!(in >> word) || word.empty() || word.find_first_not_of("0123456789") != std::string::npos) return std::nullopt;
    try {
        return std::stoull(word);
    } catch (const std::exception&) {
        return std::nullopt;
    }
}

/// A value of /proc/meminfo or /proc/self/status, in bytes.
inline std::optional<std::uint64_t> kilobytes_of(const std::string& path, const std::string& key) {
    std::ifstream in(path);
    for (std::string line; std::getline(in, line);)
        if (line.rfind(key + ":", 0) == 0) return std::stoull(line.substr(key.size() + 1)) * 1024;
    return std::nullopt;
}

/// Free room in one cgroup directory: its limit minus what it holds and cannot give back (page cache can be reclaimed).
inline std::optional<std::uint64_t> cgroup_room(const std::string& dir, bool v2) {
    const auto limit = first_number(dir + (v2 ? "/memory.max" : "/memory.limit_in_bytes"));
    if (!limit || *limit >= (std::uint64_t{1} << 62)) return std::nullopt;  // "max", or v1's way of saying none
    const auto usage = first_number(dir + (v2 ? "/memory.current" : "/memory.usage_in_bytes")).value_or(0);
    std::uint64_t cache = 0;
    std::ifstream stat(dir + "/memory.stat");
    for (std::string key; stat >> key;) {
        std::uint64_t value = 0;
        stat >> value;
        if (key == (v2 ? "inactive_file" : "total_inactive_file") || key == (v2 ? "active_file" : "total_active_file"))
            cache += value;
    }
    const std::uint64_t held = usage > cache ? usage - cache : 0;
    return *limit > held ? *limit - held : 0;
}

}  // namespace detail

/// Every limit there is: bytes this process may still allocate, and what says so.
inline std::vector<MemoryLimit> memory_limits(const SystemRoots& roots = {}) {
    std::vector<MemoryLimit> limits;
    const auto consider = [&limits](std::optional<std::uint64_t> bytes, const std::string& source) {
        if (bytes) limits.push_back({*bytes, source});
    };
    consider(detail::kilobytes_of(roots.proc + "/meminfo", "MemAvailable"), "available memory");

    std::ifstream groups(roots.proc + "/self/cgroup");
    for (std::string line; std::getline(groups, line);) {
        const std::size_t first = line.find(':'), second = line.find(':', first + 1);
        if (first == std::string::npos || second == std::string::npos) continue;
        const std::string controllers = line.substr(first + 1, second - first - 1);
        const bool v2 = controllers.empty();
        if (!v2 && ("," + controllers + ",").find(",memory,") == std::string::npos) continue;
        const std::string root = v2 ? roots.cgroup : roots.cgroup + "/memory";
        for (std::string path = line.substr(second + 1);;) {  // the chain up to the root
            if (path == "/") path.clear();
            consider(detail::cgroup_room(root + path, v2), "cgroup limit of " + root + path);
            if (path.empty()) break;
            const std::size_t slash = path.rfind('/');
            path.resize(slash == std::string::npos ? 0 : slash);
        }
    }

    struct rlimit space {};
    if (::getrlimit(RLIMIT_AS, &space) == 0 && space.rlim_cur != RLIM_INFINITY) {
        const std::uint64_t held = detail::kilobytes_of(roots.proc + "/self/status", "VmSize").value_or(0);
        const auto limit = static_cast<std::uint64_t>(space.rlim_cur);
        consider(limit > held ? limit - held : 0, "address-space limit (ulimit -v)");
    }
    return limits;
}

/// The least of them; of equals the first.
inline MemoryLimit memory_limit(const SystemRoots& roots = {}) {
    MemoryLimit least;
    for (MemoryLimit& limit : memory_limits(roots))
        if (limit.bytes < least.bytes) least = std::move(limit);
    return least;
}

/// The resident size of this process now.
inline std::uint64_t rss_bytes(const SystemRoots& roots = {}) {
    return detail::kilobytes_of(roots.proc + "/self/status", "VmRSS").value_or(0);
}

/// The largest resident size of this process so far.
inline std::uint64_t peak_rss_bytes(const SystemRoots& roots = {}) {
    return detail::kilobytes_of(roots.proc + "/self/status", "VmHWM").value_or(0);
}

}  // namespace k3::io
#endif
