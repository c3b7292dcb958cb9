#ifndef K3_DRIVERS_RUN_MEMORY_OPTIONS_HPP
#define K3_DRIVERS_RUN_MEMORY_OPTIONS_HPP
// The options that set how memory is divided: their values are read and checked, contradictions are refused.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "drivers/sizes.hpp"
#include "k3/core/error.hpp"
#include "k3/stream/plan.hpp"

namespace k3::run {

using namespace drivers;  // how any driver reads numbers and sizes

struct Preset {
    const char* name;
    double trunk_gb, cache_gb;  // 0, 0: computed from what the machine has
    const char* help;
};
inline constexpr Preset kPresets[] = {
    {"auto", 0, 0, "whatever this machine has available"},
    {"ultra", 2.5, 0.31, "8 GB machines, embedding and lm_head streamed"},
    {"laptop", 3, 1, "16 GB"},
    {"desktop", 16, 10, "32 GB"},
    {"workstation", 60, 30, "128 GB"},
    {"server", 110, 13, "the whole trunk in memory"},
    {"max", 110, 109, "the whole trunk and as many experts again"},
};

/// The values as given; empty = not given. `preset_after_trunk` and `preset_after_cache`: a later option wins.
struct MemoryWords {
    std::optional<std::string> memory{}, preset{}, trunk_gb{}, cache_gb{}, trunk_ring{};
    bool preset_after_trunk = false, preset_after_cache = false;
};

using stream::MemoryRequest;

namespace detail {
inline const Preset& find_preset(const std::string& name) {
    std::string names;
    for (const Preset& preset : kPresets) {
        if (name == preset.name) return preset;
        names += std::string(names.empty() ? "" : ", ") + preset.name;
    }
    throw Error(Code::usage, "--preset: " + in_quotes(name) + " is not a preset", "choose one of " + names);
}

inline std::uint64_t gigabytes(double value) { return static_cast<std::uint64_t>(value * 1e9); }
}  // namespace detail

/// Errors: Code::usage for a value, Code::plan for values that contradict each other.
inline MemoryRequest memory_request(const MemoryWords& words) {
    constexpr std::uint64_t kGigabyte = 1000000000;
    MemoryRequest request;
    if (words.preset) {
        const Preset& preset = detail::find_preset(*words.preset);
        if (preset.trunk_gb > 0) {
            request.trunk = detail::gigabytes(preset.trunk_gb);
            request.cache = detail::gigabytes(preset.cache_gb);
        }
    }
    if (words.memory) {
        request.ceiling = parse_size("--memory", *words.memory, 0);
        if (*request.ceiling == 0) {
            throw Error(Code::usage, "--memory: '" + *words.memory + "' leaves nothing to run in",
                        "write a size like 8G (10^9 bytes), 8GiB (2^30 bytes) or 8000M");
        }
    }
    // Checked even where the preset wins: garbage is refused wherever it stands.
    const auto part = [](const char* option, const std::optional<std::string>& word) -> std::optional<std::uint64_t> {
        if (!word || *word == "auto") return std::nullopt;
        return parse_size(option, *word, kGigabyte);
    };
    const auto trunk = part("--trunk-gb", words.trunk_gb), cache = part("--cache-gb", words.cache_gb);
    if (words.trunk_gb && !words.preset_after_trunk) request.trunk = trunk;
    if (words.cache_gb && !words.preset_after_cache) request.cache = cache;
    if (words.trunk_ring) request.ring = parse_count("--trunk-ring", *words.trunk_ring, 1, 64);

    const std::uint64_t parts = request.trunk.value_or(0) + request.cache.value_or(0);
    if (request.ceiling && parts > *request.ceiling) {
        throw Error(Code::plan,
                    "--memory " + *words.memory + " is less than its parts: " + show_bytes(request.trunk.value_or(0)) +
                        " of trunk and " + show_bytes(request.cache.value_or(0)) + " of expert cache",
                    "raise --memory, or lower or leave out the other options");
    }
    return request;
}

inline void print_presets() {
    std::printf("%-12s %10s %10s   %s\n", "preset", "trunk GB", "cache GB", "meant for");
    for (const Preset& preset : kPresets) {
        if (preset.trunk_gb > 0) {
            std::printf("%-12s %10g %10g   %s\n", preset.name, preset.trunk_gb, preset.cache_gb, preset.help);
        } else {
            std::printf("%-12s %10s %10s   %s\n", preset.name, "-", "-", preset.help);
        }
    }
    std::printf(
        "What stays of the trunk, and the cache of experts; state and scratch come on top. --memory SIZE needs "
        "neither.\n");
}

}  // namespace k3::run
#endif
