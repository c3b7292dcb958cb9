#ifndef K3_FORMATS_WEIGHT_FORMAT_HPP
#define K3_FORMATS_WEIGHT_FORMAT_HPP
// What a weight format is: bytes of one row to exact binary64 values, eight lanes at a time. Nothing else: no sums, no
// scratch, no state. All formats share one product rule (kernels/matmul.hpp) because all their values are exact.
#include <concepts>
#include <cstddef>

#include "k3/simd/lanes.hpp"

namespace k3::formats::inline K3_TARGET {

/// A packed row-major matrix. Rows follow one another without padding; `scales` is null for formats without any.
template <class F>
struct Packed {
    const std::byte* data = nullptr;
    const std::byte* scales = nullptr;
    std::size_t rows = 0, cols = 0;

    K3_INLINE typename F::Row row(std::size_t r) const noexcept { return F::row(data, scales, cols, r); }
    K3_INLINE Packed row_range(std::size_t first, std::size_t count) const noexcept {
        return {data + first * F::row_bytes(cols), scales == nullptr ? nullptr : scales + first * F::scale_bytes(cols),
                count, cols};
    }
};

/// Each requirement has its meaning beside it; every model ends with a static_assert.
template <class F>
concept WeightFormat = requires(const std::byte* bytes, std::size_t n, typename F::Row row,
                                simd::f64x8<simd::scalar>* lanes, double* padded) {
    { F::kName } -> std::convertible_to<const char*>;    // printed in digests and errors
    { F::kBlock } -> std::convertible_to<std::size_t>;   // columns decoded at once, a multiple of 8
    { F::row_bytes(n) } -> std::same_as<std::size_t>;    // packed bytes of n columns
    { F::scale_bytes(n) } -> std::same_as<std::size_t>;  // bytes of scales beside them
    {F::row(bytes, bytes, n, n)};                        // row r of a matrix of n columns
    {F::template decode<simd::scalar>(row, n, lanes)};   // kBlock columns from column n (a multiple of kBlock)
    {F::decode_tail(row, n, n, padded)};                 // the last count < kBlock columns, padded with +0
};

/// Columns col .. col + 31, col a multiple of the block: by the format's own decode32 where the arch has one.
template <class F, simd::Arch A>
K3_INLINE void decode32(typename F::Row row, std::size_t col, simd::f64x8<A>* out) noexcept {
    static_assert(32 % F::kBlock == 0);
    if constexpr (requires { F::template decode32<A>(row, col, out); }) {
        F::template decode32<A>(row, col, out);
    } else {
        simd::unroll<32 / F::kBlock>([&](auto b) __attribute__((always_inline)) {
            F::template decode<A>(row, col + b * F::kBlock, out + b * (F::kBlock / 8));
        });
    }
}

}  // namespace k3::formats::inline K3_TARGET
#endif
