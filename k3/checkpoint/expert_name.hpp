#ifndef K3_CHECKPOINT_EXPERT_NAME_HPP
#define K3_CHECKPOINT_EXPERT_NAME_HPP
// The names of the routed experts' tensors, as coordinates:
//   language_model.model.layers.LAYER.block_sparse_moe.experts.EXPERT.{w1,w2,w3}.{weight_packed,weight_scale,weight}
// 494,592 of the release's 497,220 tensors have such a name. Coordinates are 8 bytes where the string is 83.
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace k3::checkpoint {

/// Which of an expert's three matrices. The released names say w1, w2, w3.
enum class ExpertMatrix : std::uint8_t {
    gate,  ///< w1
    down,  ///< w2, not the third
    up,    ///< w3
};

/// Which tensor of a matrix.
enum class ExpertPart : std::uint8_t {
    packed,  ///< weight_packed: two 4-bit codes a byte
    scale,   ///< weight_scale: one byte for 32 weights
    plain,   ///< weight: not quantised (small fixtures; the release has none)
};

struct ExpertName {
    std::uint32_t layer;
    std::uint32_t expert;
    ExpertMatrix matrix;
    ExpertPart part;

    friend constexpr bool operator==(const ExpertName&, const ExpertName&) noexcept = default;
    /// Orders by layer, expert, matrix, part. Unique below kLimit.
    constexpr std::uint64_t key() const noexcept {
        return (std::uint64_t{layer} << 32) | (std::uint64_t{expert} << 4) | (static_cast<std::uint64_t>(matrix) << 2) |
               static_cast<std::uint64_t>(part);
    }
    static constexpr ExpertName from_key(std::uint64_t key) noexcept {
        return {static_cast<std::uint32_t>(key >> 32), static_cast<std::uint32_t>((key >> 4) & 0xfffffff),
                static_cast<ExpertMatrix>((key >> 2) & 3), static_cast<ExpertPart>(key & 3)};
    }
};

namespace detail {
inline constexpr std::string_view kLayers = "language_model.model.layers.";
inline constexpr std::string_view kExperts = ".block_sparse_moe.experts.";
inline constexpr std::array<std::string_view, 3> kMatrices{".w1.", ".w2.", ".w3."};
inline constexpr std::array<std::string_view, 3> kParts{"weight_packed", "weight_scale", "weight"};

/// Takes a canonical decimal number (no sign, no leading zero, below 2^27) off the front of `text`.
constexpr std::optional<std::uint32_t> take_number(std::string_view& text) noexcept {
    constexpr std::uint32_t kLimit = std::uint32_t{1} << 27;
    std::uint32_t value = 0;
    std::size_t digits = 0;
    while (digits < text.size() && text[digits] >= '0' && text[digits] <= '9') {
        value = value * 10 + static_cast<std::uint32_t>(text[digits++] - '0');
        if (value >= kLimit) return std::nullopt;
    }
    if (digits == 0 || (digits > 1 && text[0] == '0')) return std::nullopt;
    text.remove_prefix(digits);
    return value;
}

constexpr bool take_text(std::string_view& text, std::string_view expected) noexcept {
    if (!text.starts_with(expected)) return false;
    text.remove_prefix(expected.size());
    return true;
}
}  // namespace detail

/// The coordinates in `name`, or nothing if it is not exactly such a name.
constexpr std::optional<ExpertName> parse_expert_name(std::string_view name) noexcept {
    if (!detail::take_text(name, detail::kLayers)) return std::nullopt;
    const auto layer = detail::take_number(name);
    if (!layer || !detail::take_text(name, detail::kExperts)) return std::nullopt;
    const auto expert = detail::take_number(name);
    if (!expert) return std::nullopt;
    for (std::size_t matrix = 0; matrix < detail::kMatrices.size(); ++matrix) {
        std::string_view rest = name;
        if (!detail::take_text(rest, detail::kMatrices[matrix])) continue;
        for (std::size_t part = 0; part < detail::kParts.size(); ++part) {
            if (rest == detail::kParts[part]) {
                return ExpertName{*layer, *expert, static_cast<ExpertMatrix>(matrix), static_cast<ExpertPart>(part)};
            }
        }
    }
    return std::nullopt;
}

inline std::string to_string(const ExpertName& name) {
    std::string text(detail::kLayers);
    text += std::to_string(name.layer);
    text += detail::kExperts;
    text += std::to_string(name.expert);
    text += detail::kMatrices[static_cast<std::size_t>(name.matrix)];
    text += detail::kParts[static_cast<std::size_t>(name.part)];
    return text;
}

}  // namespace k3::checkpoint
#endif
