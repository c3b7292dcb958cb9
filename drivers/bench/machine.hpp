#ifndef K3_DRIVERS_BENCH_MACHINE_HPP
#define K3_DRIVERS_BENCH_MACHINE_HPP
// What must stand beside a figure: the processor, its last-level caches, the compiler.
#include <cstddef>
#include <fstream>
#include <map>
#include <string>

namespace k3::bench {

struct Machine {
    std::string cpu{}, compiler{};
    std::size_t cache_bytes = 0;  // all caches of the last level together; 0 if the system does not say
};

/// A large processor has several last-level caches, each shared by some cores; a matrix that is read by all cores is
/// spread over them. So every list of sharing cores counts once.
inline std::size_t last_level_cache() {
    std::map<std::string, std::size_t> caches;  // list of sharing cores -> bytes, of the highest level seen
    int level = 0;
    for (int cpu = 0; cpu < 4096; ++cpu) {
        const std::string folder = "/sys/devices/system/cpu/cpu" + std::to_string(cpu) + "/cache/index";
        if (!std::ifstream(folder + "0/size")) continue;  // there is none, or it is offline
        for (int index = 0; index < 8; ++index) {
            const std::string cache = folder + std::to_string(index) + "/";
            std::ifstream size_file(cache + "size"), level_file(cache + "level"), list(cache + "shared_cpu_list");
            std::size_t size = 0;
            char unit = 0;
            int at = 0;
            std::string cores;
            if (!(size_file >> size) || !(level_file >> at) || !(list >> cores) || at < level) continue;
            size_file >> unit;
            if (at > level) caches.clear();
            level = at;
            caches[cores] = size << (unit == 'M' ? 20 : unit == 'K' ? 10 : 0);
        }
    }
    std::size_t sum = 0;
    for (const auto& [cores, bytes] : caches) sum += bytes;
    return sum;
}

inline Machine this_machine() {
    Machine machine;
    std::ifstream info("/proc/cpuinfo");
    for (std::string line; std::getline(info, line);) {
        if (line.rfind("model name", 0) != 0) continue;
        const std::size_t colon = line.find(": ");
        if (colon != std::string::npos) machine.cpu = line.substr(colon + 2);
        break;
    }
    if (machine.cpu.empty()) machine.cpu = "unknown";
    machine.cache_bytes = last_level_cache();
#if defined(__clang__)
    machine.compiler = "clang " __clang_version__;
#else
    machine.compiler = "g++ " __VERSION__;
#endif
    while (!machine.compiler.empty() && machine.compiler.back() == ' ') machine.compiler.pop_back();
    return machine;
}

}  // namespace k3::bench
#endif
