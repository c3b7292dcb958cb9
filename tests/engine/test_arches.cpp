#include "k3/engine/arches.hpp"

#include <algorithm>
#include <fstream>
#include <string>

#include "support/doctest.hpp"

using namespace k3::engine;

TEST_CASE("engine/arches: names and values belong together, and nothing else is a name") {
    for (const ArchName arch : {ArchName::scalar, ArchName::sse42, ArchName::avx2, ArchName::avx512, ArchName::neon})
        CHECK(arch_named(name(arch)) == arch);
    for (const char* text : {"", "AVX2", "avx", "avx2 ", "avx512f", "sse4.2", "auto"})
        CHECK_FALSE(arch_named(text).has_value());
    CHECK(std::string(name(ArchName::sse42)) == "sse42");
}

TEST_CASE("engine/arches: scalar first, each once, the widest last, and as the kernel lists the CPU's flags") {
    const auto arches = arches_of_this_cpu();
    REQUIRE_FALSE(arches.empty());
    CHECK(arches.front() == ArchName::scalar);
    CHECK(std::is_sorted(arches.begin(), arches.end()));
    CHECK(std::adjacent_find(arches.begin(), arches.end()) == arches.end());
    CHECK(widest_arch() == arches.back());
    std::ifstream cpu("/proc/cpuinfo");
    std::string flags;
    for (std::string line; std::getline(cpu, line);)
        if (line.rfind("flags", 0) == 0) {
            flags = line + " ";
            break;
        }
    if (flags.empty()) return;  // not x86, or an emulator without the list
    const auto has = [&](const char* flag) { return flags.find(std::string(" ") + flag + " ") != std::string::npos; };
    const auto lists = [&](ArchName arch) { return std::find(arches.begin(), arches.end(), arch) != arches.end(); };
    CHECK(lists(ArchName::sse42) == has("sse4_2"));
    CHECK(lists(ArchName::avx2) == (has("avx2") && has("fma")));
    CHECK(lists(ArchName::avx512) ==
          (has("avx512f") && has("avx512bw") && has("avx512dq") && has("avx512vl") && has("fma")));
}
