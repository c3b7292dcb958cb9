#ifndef K3_DRIVERS_DOCTOR_MACHINE_HPP
#define K3_DRIVERS_DOCTOR_MACHINE_HPP
// What the machine is: processor, cores, memory as the planner sees it, huge pages, and what building k3 wants.
#include <sys/resource.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "drivers/bench/machine.hpp"
#include "k3/engine/cpu_arches.hpp"
#include "k3/io/cpu_limits.hpp"
#include "k3/io/memory_limits.hpp"

namespace k3::doctor {

/// Something a build wants. `version` is empty if it was not found.
struct Tool {
    const char *name, *package;  // as Debian names the package
    bool needed;                 // else something is left out, or another does
    std::string version{};
};

struct Facts {
    bench::Machine machine{};
    std::vector<std::string> arches{};  // narrowest first; k3 takes the last
    unsigned online = 0;
    io::CpuLimits cpus{};
    std::uint64_t memory_bytes = 0;         // all there is
    std::vector<io::MemoryLimit> limits{};  // what may still be taken, by what says so
    io::MemoryLimit least{};
    std::uint64_t lockable = 0;  // RLIMIT_MEMLOCK: buffers io_uring may pin
    std::string huge_pages{};    // always, madvise, never; empty: not there
    std::vector<Tool> tools{};
};

namespace detail {

/// The first line that a command prints, or nothing. The commands are constants of this file.
inline std::string first_line_of(const std::string& command) {
    std::string line;
    if (std::FILE* const pipe = ::popen((command + " 2>/dev/null").c_str(), "r")) {
        for (int c = std::fgetc(pipe); c != EOF && c != '\n' && line.size() < 60; c = std::fgetc(pipe))
            if (c >= ' ' && c < 127) line += static_cast<char>(c);
        ::pclose(pipe);
    }
    return line;
}

/// The word in brackets of "always [madvise] never".
inline std::string chosen_word(const std::string& path) {
    std::ifstream in(path);
    for (std::string word; in >> word;)
        if (word.size() > 2 && word.front() == '[' && word.back() == ']') return word.substr(1, word.size() - 2);
    return {};
}

struct Wanted {
    Tool tool;
    const char* command;  // prints its version; null: a library
    const char* module;   // of pkg-config
    const char* header;   // where it has no module
};

inline const std::vector<Wanted>& wanted() {
    static const std::vector<Wanted> list{
        {{"g++", "g++", false}, "g++ -dumpfullversion", nullptr, nullptr},
        {{"clang++", "clang", false}, "clang++ -dumpversion", nullptr, nullptr},
        {{"meson", "meson", true}, "meson --version", nullptr, nullptr},
        {{"ninja", "ninja-build", true}, "ninja --version", nullptr, nullptr},
        {{"xsimd", "libxsimd-dev", true}, nullptr, "xsimd", "xsimd/xsimd.hpp"},
        {{"simdjson", "libsimdjson-dev", true}, nullptr, "simdjson", "simdjson.h"},
        {{"nlohmann-json", "nlohmann-json3-dev", true}, nullptr, "nlohmann_json", "nlohmann/json.hpp"},
        {{"CLI11", "libcli11-dev", true}, nullptr, "CLI11", "CLI/CLI.hpp"},
        {{"PCRE2", "libpcre2-dev", true}, nullptr, "libpcre2-8", "pcre2.h"},
        {{"liburing", "liburing-dev", false}, nullptr, "liburing", "liburing.h"},
        {{"libcurl", "libcurl4-openssl-dev", false}, nullptr, "libcurl", "curl/curl.h"},
        {{"libcrypto", "libssl-dev", false}, nullptr, "libcrypto", "openssl/evp.h"},
        {{"Eigen", "libeigen3-dev", false}, nullptr, "eigen3", "eigen3/Eigen/Core"},
        {{"doctest", "doctest-dev", false}, nullptr, "doctest", "doctest/doctest.h"},
    };
    return list;
}

inline std::string library_version(const Wanted& library) {
    const std::string version = first_line_of(std::string("pkg-config --modversion ") + library.module);
    if (!version.empty()) return version;
    for (const char* root : {"/usr/include/", "/usr/local/include/"})
        if (::access((root + std::string(library.header)).c_str(), R_OK) == 0) return "found";
    return {};
}

}  // namespace detail

inline std::vector<Tool> find_tools() {
    std::vector<Tool> tools;
    for (const detail::Wanted& wanted : detail::wanted()) {
        tools.push_back(wanted.tool);
        tools.back().version =
            wanted.command != nullptr ? detail::first_line_of(wanted.command) : detail::library_version(wanted);
    }
    return tools;
}

inline Facts this_machine() {
    Facts facts;
    facts.machine = bench::this_machine();
    for (const engine::ArchName arch : engine::arches_of_this_cpu()) facts.arches.emplace_back(engine::name(arch));
    facts.online = static_cast<unsigned>(::sysconf(_SC_NPROCESSORS_ONLN));
    facts.cpus = io::cpu_limits();
    facts.memory_bytes =
        static_cast<std::uint64_t>(::sysconf(_SC_PHYS_PAGES)) * static_cast<std::uint64_t>(::sysconf(_SC_PAGE_SIZE));
    facts.limits = io::memory_limits();
    facts.least = io::memory_limit();
    struct rlimit lockable {};
    if (::getrlimit(RLIMIT_MEMLOCK, &lockable) == 0)
        facts.lockable = lockable.rlim_cur == RLIM_INFINITY ? io::kUnlimited : lockable.rlim_cur;
    facts.huge_pages = detail::chosen_word("/sys/kernel/mm/transparent_hugepage/enabled");
    facts.tools = find_tools();
    return facts;
}

}  // namespace k3::doctor
#endif
