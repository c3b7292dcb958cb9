#ifndef K3_KERNELS_DETAIL_MATMUL_FEW_HPP
#define K3_KERNELS_DETAIL_MATMUL_FEW_HPP
// matmul for one to a few tokens: memory bound. Weights are decoded in registers, a tile of rows at a time. The rows of
// a tile lie far apart (o, o + n/4, o + n/2, o + 3n/4), so that each is a sequential stream of its own for the
// prefetcher, and each is prefetched about 1 KiB ahead: the tokens are widened to binary64 once for all rows.
#include "k3/core/exec.hpp"
#include "k3/core/view.hpp"
#include "k3/formats/weight_format.hpp"

namespace k3::kernels::inline K3_TARGET {
namespace detail {

/// Rows of a register tile for T tokens, by the registers of the arch.
template <simd::Arch A>
K3_INLINE constexpr std::size_t few_rows(std::size_t tokens) noexcept {
    constexpr std::size_t regs = simd::f64x8<A>::kRegs;
    if (regs == 1) return 4;
    if (regs == 2) return tokens == 1 ? 4 : (tokens == 2 ? 2 : 1);
    return tokens == 1 ? 2 : 1;
}

/// Up to this many tokens the decoding in registers is cheaper than packing.
template <simd::Arch A>
inline constexpr std::size_t kFewTokens = simd::f64x8<A>::kRegs == 1 ? 4 : 2;

/// float: RN32 of the sum; double: the sum before rounding, for digests.
K3_INLINE void output(double sum, float& y) noexcept { y = simd::round32(sum); }
K3_INLINE void output(double sum, double& y) noexcept { y = sum; }

inline constexpr std::size_t kMostFewTokens = 4;
/// Doubles of one widened token: whole blocks of any format.
K3_INLINE constexpr std::size_t wide_stride(std::size_t cols) noexcept { return (cols + 31) / 32 * 32; }
/// Bytes of scratch that few() takes from its arena.
K3_INLINE constexpr std::size_t few_local_bytes(std::size_t cols) noexcept {
    return kMostFewTokens * wide_stride(cols) * sizeof(double);
}

/// out = x as binary64, padded with +0 to `padded` (a multiple of eight).
template <simd::Arch A>
K3_INLINE void widen_row(const float* x, std::size_t cols, std::size_t padded, double* out) noexcept {
    std::size_t i = 0;
    for (; i < cols; i += 8) simd::store<A>(out + i, simd::widen(simd::load<A>(x + i, cols - i)));
    for (; i < padded; i += 8) simd::store<A>(out + i, simd::broadcast<simd::f64x8, A>(0.0));
}

/// y[t][rows[r]] for R rows and T tokens; x: T widened tokens.
template <class F, simd::Arch A, std::size_t R, std::size_t T, class Out>
K3_INLINE void few_tile(const formats::Packed<F>& w, const std::size_t (&rows)[R], const double* x,
                        core::MatView<Out> y) noexcept {
    constexpr std::size_t kVectors = F::kBlock / 8;
    constexpr std::size_t kPrefetch = 1024;
    const std::size_t stride = wide_stride(w.cols);
    simd::f64x8<A> acc[R][T];
    typename F::Row row[R];
    for (std::size_t r = 0; r < R; ++r) {
        row[r] = w.row(rows[r]);
        for (std::size_t t = 0; t < T; ++t) acc[r][t] = simd::broadcast<simd::f64x8, A>(0.0);
    }
    const auto multiply = [&](auto r, std::size_t col, const auto& weights) __attribute__((always_inline)) {
        constexpr std::size_t kCount = sizeof(weights) / sizeof(weights[0]);
        simd::unroll<kCount>([&](auto k) __attribute__((always_inline)) {
            simd::unroll<T>([&](auto t) __attribute__((always_inline)) {
                acc[r][t] = simd::madd_exact(simd::load<A>(x + t * stride + col + 8 * k), weights[k], acc[r][t]);
            });
        });
    };
    std::size_t col = 0;
    for (; col + 32 <= w.cols; col += 32) {
        simd::unroll<R>([&](auto r) __attribute__((always_inline)) {
            __builtin_prefetch(row[r].data + F::row_bytes(col) + kPrefetch);
            simd::f64x8<A> weights[4];
            formats::decode32<F, A>(row[r], col, weights);
            multiply(r, col, weights);
        });
    }
    for (; col + F::kBlock <= w.cols; col += F::kBlock) {
        simd::unroll<R>([&](auto r) __attribute__((always_inline)) {
            simd::f64x8<A> weights[kVectors];
            F::template decode<A>(row[r], col, weights);
            multiply(r, col, weights);
        });
    }
    if (const std::size_t left = w.cols - col; left != 0) {
        simd::unroll<R>([&](auto r) __attribute__((always_inline)) {
            double padded[F::kBlock];
            F::decode_tail(row[r], col, left, padded);
            simd::f64x8<A> weights[kVectors];
            simd::unroll<kVectors>([&](auto k)
                                       __attribute__((always_inline)) { weights[k] = simd::load<A>(padded + 8 * k); });
            multiply(r, col, weights);
        });
    }
    for (std::size_t r = 0; r < R; ++r)
        for (std::size_t t = 0; t < T; ++t) output(simd::reduce(acc[r][t]), y.row(t)[rows[r]]);
}

/// Rows [begin, end) for exactly T tokens.
template <class F, simd::Arch A, std::size_t T, class Out>
void few_rows_of(const formats::Packed<F>& w, std::size_t begin, std::size_t end, core::MatView<const float> x,
                 core::MatView<Out> y, core::Arena scratch) noexcept {
    constexpr std::size_t kRows = few_rows<A>(T);
    const std::size_t stride = wide_stride(w.cols);
    double* const wide = scratch.take<double>(T * stride);
    for (std::size_t t = 0; t < T; ++t) widen_row<A>(x.row(t), w.cols, stride, wide + t * stride);
    const std::size_t far = (end - begin) / kRows;
    for (std::size_t o = 0; o < far; ++o) {
        std::size_t rows[kRows];
        for (std::size_t r = 0; r < kRows; ++r) rows[r] = begin + o + r * far;
        few_tile<F, A, kRows, T>(w, rows, wide, y);
    }
    for (std::size_t o = begin + far * kRows; o < end; ++o) {
        const std::size_t rows[1] = {o};
        few_tile<F, A, 1, T>(w, rows, wide, y);
    }
}

/// Rows [begin, end) for x.rows <= kFewTokens<A> tokens.
template <class F, simd::Arch A, class Out>
K3_INLINE void few(const formats::Packed<F>& w, std::size_t begin, std::size_t end, core::MatView<const float> x,
                   core::MatView<Out> y, core::Arena scratch) noexcept {
    constexpr std::size_t kMost = kFewTokens<A>;
    static_assert(kMost <= kMostFewTokens);
    if (x.rows == 1) return few_rows_of<F, A, 1>(w, begin, end, x, y, scratch);
    if (x.rows == 2) return few_rows_of<F, A, 2>(w, begin, end, x, y, scratch);
    if constexpr (kMost > 2) {
        if (x.rows == 3) return few_rows_of<F, A, 3>(w, begin, end, x, y, scratch);
        few_rows_of<F, A, 4>(w, begin, end, x, y, scratch);
    }
}

}  // namespace detail
}  // namespace k3::kernels::inline K3_TARGET
#endif
