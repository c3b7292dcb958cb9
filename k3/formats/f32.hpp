#ifndef K3_FORMATS_F32_HPP
#define K3_FORMATS_F32_HPP
// IEEE binary32, little-endian, as stored.
#include <cstring>

#include "k3/formats/weight_format.hpp"

namespace k3::formats::inline K3_TARGET {

struct f32 {
    static constexpr const char* kName = "f32";
    static constexpr std::size_t kBlock = 8;
    struct Row {
        const std::byte* data;
    };

    K3_INLINE static constexpr std::size_t row_bytes(std::size_t cols) noexcept { return 4 * cols; }
    K3_INLINE static constexpr std::size_t scale_bytes(std::size_t) noexcept { return 0; }
    K3_INLINE static Row row(const std::byte* data, const std::byte*, std::size_t cols, std::size_t r) noexcept {
        return {data + r * row_bytes(cols)};
    }
    template <simd::Arch A>
    K3_INLINE static void decode(Row row, std::size_t col, simd::f64x8<A>* out) noexcept {
        *out = simd::load_widened<A>(reinterpret_cast<const float*>(row.data) + col);
    }
    K3_INLINE static void decode_tail(Row row, std::size_t col, std::size_t count, double* out) noexcept {
        for (std::size_t i = 0; i < kBlock; ++i) {
            float value = 0.0F;
            if (i < count) std::memcpy(&value, row.data + 4 * (col + i), 4);
            out[i] = static_cast<double>(value);
        }
    }
};
static_assert(WeightFormat<f32>);

}  // namespace k3::formats::inline K3_TARGET
#endif
