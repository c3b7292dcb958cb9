#ifndef K3_CHECKPOINT_DTYPE_HPP
#define K3_CHECKPOINT_DTYPE_HPP
// The element types of the safetensors format: all 22 names of the reference implementation, with their width in bits.
// What the bytes mean is formats/; here a dtype only has a name and a size.
#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

namespace k3::checkpoint {

enum class Dtype : std::uint8_t {
    boolean,
    f4,
    f6_e2m3,
    f6_e3m2,
    u8,
    i8,
    f8_e5m2,
    f8_e4m3,
    f8_e8m0,
    f8_e4m3fnuz,
    f8_e5m2fnuz,
    i16,
    u16,
    f16,
    bf16,
    i32,
    u32,
    f32,
    c64,
    f64,
    i64,
    u64,
};

namespace detail {
struct DtypeRow {
    std::string_view name;
    std::uint8_t bits;
};
// In the order of the enum; widths below 8 pack their elements without padding between them.
inline constexpr std::array<DtypeRow, 22> kDtypes{{
    {"BOOL", 8},    {"F4", 4},      {"F6_E2M3", 6}, {"F6_E3M2", 6},     {"U8", 8},          {"I8", 8},
    {"F8_E5M2", 8}, {"F8_E4M3", 8}, {"F8_E8M0", 8}, {"F8_E4M3FNUZ", 8}, {"F8_E5M2FNUZ", 8}, {"I16", 16},
    {"U16", 16},    {"F16", 16},    {"BF16", 16},   {"I32", 32},        {"U32", 32},        {"F32", 32},
    {"C64", 64},    {"F64", 64},    {"I64", 64},    {"U64", 64},
}};
}  // namespace detail

/// The name a header uses, "BF16" for instance.
constexpr std::string_view name(Dtype dtype) noexcept { return detail::kDtypes[static_cast<std::size_t>(dtype)].name; }

/// Width of one element in bits: 4, 6, 8, 16, 32 or 64.
constexpr unsigned bits(Dtype dtype) noexcept { return detail::kDtypes[static_cast<std::size_t>(dtype)].bits; }

/// Width of one element in whole bytes, or 0 for the types narrower than a byte.
constexpr unsigned element_bytes(Dtype dtype) noexcept { return bits(dtype) / 8; }

/// The type called `name` in a header; nothing for a name the format does not define (names are upper case).
constexpr std::optional<Dtype> dtype_named(std::string_view name) noexcept {
    for (std::size_t i = 0; i < detail::kDtypes.size(); ++i) {
        if (detail::kDtypes[i].name == name) return static_cast<Dtype>(i);
    }
    return std::nullopt;
}

}  // namespace k3::checkpoint
#endif
