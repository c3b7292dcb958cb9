#ifndef K3_DRIVERS_BENCH_MACHINE_HPP
#define K3_DRIVERS_BENCH_MACHINE_HPP
// What must stand beside a figure: the processor, its last-level cache, the compiler.
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <fstream>
#include <string>

namespace k3::bench {

struct Machine {
    std::string cpu{}, compiler{};
    std::size_t cache_bytes = 0;  // last level; 0 if the system does not say
};

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
    for (int index = 0; index < 8; ++index) {
        std::ifstream file("/sys/devices/system/cpu/cpu0/cache/index" + std::to_string(index) + "/size");
        std::size_t size = 0;
        char unit = 0;
        if (!(file >> size)) continue;
        file >> unit;
        machine.cache_bytes = std::max(machine.cache_bytes, size << (unit == 'M' ? 20 : unit == 'K' ? 10 : 0));
    }
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
