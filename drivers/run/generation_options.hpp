#ifndef K3_DRIVERS_RUN_GENERATION_OPTIONS_HPP
#define K3_DRIVERS_RUN_GENERATION_OPTIONS_HPP
// The options that set how tokens are chosen, what ends a run, and what a chat is: their values are read and checked.
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "drivers/sizes.hpp"
#include "k3/core/error.hpp"
#include "k3/engine/sampler.hpp"
#include "k3/text/chat_message.hpp"

namespace k3::run {

/// The values as given; empty = not given.
struct SamplingWords {
    std::optional<std::string> temperature{}, top_p{}, top_k{}, seed{};
    bool greedy = false;
};

namespace detail {
/// A decimal number in (0, most]. Errors: Code::usage naming the option.
inline double parse_positive(const char* option, std::string_view text, double most) {
    double value = 0;
    const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (failure != std::errc{} || end != text.data() + text.size() || !(value > 0 && value <= most)) {
        char limit[32];
        std::snprintf(limit, sizeof limit, "%g", most);
        throw Error(Code::usage, std::string(option) + ": " + drivers::in_quotes(text) + " is not a number it takes",
                    "give a number above 0, at most " + std::string(limit));
    }
    return value;
}
}  // namespace detail

/// How tokens are drawn; empty: greedily. Any value turns drawing on, with temperature 1 and top-p 0.95 unless they are
/// given; without --seed the system draws one, and the report names it. --greedy wins over all of them.
/// Errors: Code::usage.
inline std::optional<engine::SamplerOptions> sampling(const SamplingWords& words) {
    engine::SamplerOptions options;
    options.temperature = 1;
    options.top_p = 0.95;
    // Checked even where --greedy wins: garbage is refused wherever it stands.
    if (words.temperature) options.temperature = detail::parse_positive("--temperature", *words.temperature, 1000);
    if (words.top_p) options.top_p = detail::parse_positive("--top-p", *words.top_p, 1);
    if (words.top_k) options.top_k = drivers::parse_count("--top-k", *words.top_k, 1, std::uint64_t{1} << 31);
    if (words.seed) options.seed = drivers::parse_count("--seed", *words.seed, 0, ~std::uint64_t{0});
    const bool any = words.temperature || words.top_p || words.top_k || words.seed;
    if (words.greedy || !any) return std::nullopt;
    if (!words.seed) {
        std::random_device device;
        options.seed = (std::uint64_t{device()} << 32) | device();
    }
    return options;
}

/// What --chat was given.
struct ChatRequest {
    std::optional<std::string> system{};
    std::string history_path{};  // empty: the conversation is not kept
    text::Thinking thinking = text::Thinking::on;
    std::optional<text::Effort> effort = text::kDefaultEffort;  // empty without thinking
    std::size_t context = 0;                                    // positions the conversation may take; 0: not said
};

}  // namespace k3::run
#endif
