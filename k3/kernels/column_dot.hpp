#ifndef K3_KERNELS_COLUMN_DOT_HPP
#define K3_KERNELS_COLUMN_DOT_HPP
// Sums down the columns of a weight matrix: the transposed product that absorbs the keys of latent attention.
#include <cassert>

#include "k3/core/view.hpp"
#include "k3/formats/weight_format.hpp"

namespace k3::kernels::inline K3_TARGET {

namespace detail {

template <class F, simd::Arch A, std::size_t T>
K3_INLINE void column_tile(const formats::Packed<F>& w, core::MatView<const float> x, std::size_t t0, std::size_t col,
                           std::size_t count, core::MatView<float> y) noexcept {
    static_assert(F::kBlock == 8, "a column tile is eight lanes wide");
    simd::f64x8<A> acc[T];
    simd::unroll<T>([&](auto t) __attribute__((always_inline)) { acc[t] = simd::broadcast<simd::f64x8, A>(0.0); });
    for (std::size_t r = 0; r < w.rows; ++r) {
        simd::f64x8<A> weights;
        if (count == 8) {
            F::template decode<A>(w.row(r), col, &weights);
        } else {
            double padded[8];
            F::decode_tail(w.row(r), col, count, padded);
            weights = simd::load<A>(padded);
        }
        simd::unroll<T>([&](auto t) __attribute__((always_inline)) {
            const auto factor = simd::broadcast<simd::f64x8, A>(static_cast<double>(x.row(t0 + t)[r]));
            acc[t] = simd::madd_exact(factor, weights, acc[t]);
        });
    }
    simd::unroll<T>([&](auto t) __attribute__((always_inline)) {
        simd::store<A>(y.row(t0 + t) + col, simd::narrow(acc[t]), count);
    });
}

}  // namespace detail

/// y[t][c] = RN32(sum over rows r ascending of x[t][r] * W[r][c]), one binary64 accumulator a column, from +0.
///
/// Shapes    w: [R, C] packed bf16 or f32; x: [T, R]; y: [T, C].
/// Numerics  products are exact; tokens and columns are independent.
/// Threads   none; safe for distinct outputs.
template <class F, simd::Arch A>
void column_dot(const formats::Packed<F>& w, core::MatView<const float> x, core::MatView<float> y) noexcept {
    assert(x.cols == w.rows && y.cols == w.cols && x.rows == y.rows);
    constexpr std::size_t kTokens = simd::f64x8<A>::kRegs == 1 ? 8 : (simd::f64x8<A>::kRegs == 2 ? 4 : 2);
    for (std::size_t col = 0; col < w.cols; col += 8) {
        const std::size_t count = w.cols - col < 8 ? w.cols - col : 8;
        std::size_t t = 0;
        for (; t + kTokens <= x.rows; t += kTokens) detail::column_tile<F, A, kTokens>(w, x, t, col, count, y);
        for (; t < x.rows; ++t) detail::column_tile<F, A, 1>(w, x, t, col, count, y);
    }
}

}  // namespace k3::kernels::inline K3_TARGET
#endif
