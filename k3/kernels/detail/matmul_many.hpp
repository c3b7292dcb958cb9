#ifndef K3_KERNELS_DETAIL_MATMUL_MANY_HPP
#define K3_KERNELS_DETAIL_MATMUL_MANY_HPP
// matmul for many tokens: compute bound. x is packed once as binary64, column chunk by column chunk; a block of rows is
// decoded once per chunk and multiplied with every token of the tile from the cache. The eight lanes of a sum are
// independent, so the innermost kernel works on one register width of them at a time; the lanes are carried from chunk
// to chunk in memory, so that the order over columns stays ascending.
#include "k3/core/exec.hpp"
#include "k3/kernels/detail/matmul_few.hpp"

namespace k3::kernels::inline K3_TARGET {
namespace detail {

inline constexpr std::size_t kTokenTile = 64;            // tokens that share one decoding of the weights
inline constexpr std::size_t kChunk = 256;               // columns
inline constexpr std::size_t kChunkStride = kChunk + 8;  // not a power of two: rows would collide in cache sets
inline constexpr std::size_t kRowBlock = 24;

template <simd::Arch A>
struct MicroTile {  // rows x tokens held in registers
    static constexpr std::size_t kRows = simd::Regs<A>::kWidth64 == 8 ? 6 : 3;
    static constexpr std::size_t kTokens = 4;
};

K3_INLINE constexpr std::size_t chunks_of(std::size_t cols) noexcept { return (cols + kChunk - 1) / kChunk; }
K3_INLINE constexpr std::size_t padded_tokens(std::size_t tokens) noexcept { return (tokens + 3) / 4 * 4; }
/// Doubles of a packed tile of x.
K3_INLINE constexpr std::size_t pack_size(std::size_t tokens, std::size_t cols) noexcept {
    return chunks_of(cols) * padded_tokens(tokens) * kChunkStride;
}
/// Bytes of scratch that many() takes from its arena.
inline constexpr std::size_t kManyLocalBytes = (kRowBlock * kChunkStride + kRowBlock * kTokenTile * 8) * sizeof(double);

/// Packs one token of a tile: [chunk][token][kChunkStride] doubles, the tail padded with +0 to a multiple of eight.
template <simd::Arch A>
K3_INLINE void pack_token(const float* x, std::size_t cols, std::size_t token, std::size_t padded,
                          double* pack) noexcept {
    for (std::size_t chunk = 0; chunk < chunks_of(cols); ++chunk) {
        double* out = pack + (chunk * padded + token) * kChunkStride;
        const std::size_t first = chunk * kChunk;
        const std::size_t count = cols - first < kChunk ? cols - first : kChunk;
        for (std::size_t i = 0; i < count; i += 8)
            simd::store<A>(out + i, simd::widen(x == nullptr ? simd::broadcast<simd::f32x8, A>(0.0F)
                                                             : simd::load<A>(x + first + i, count - i)));
    }
}

/// acc[row][token] lanes += w[row] . x[token] over `vectors` groups of eight columns.
template <simd::Arch A>
K3_INLINE void micro(const double* w, const double* x, std::size_t vectors, double* acc,
                     std::size_t acc_tokens) noexcept {
    using R = simd::Regs<A>;
    constexpr std::size_t kRows = MicroTile<A>::kRows, kTokens = MicroTile<A>::kTokens, kWidth = R::kWidth64;
    for (std::size_t slice = 0; slice < 8; slice += kWidth) {
        typename R::f64 sum[kRows][kTokens];
        simd::unroll<kRows>([&](auto r) __attribute__((always_inline)) {
            simd::unroll<kTokens>([&](auto t) __attribute__((always_inline)) {
                sum[r][t] = R::load(acc + (r * acc_tokens + t) * 8 + slice);
            });
        });
        for (std::size_t k = 0; k < vectors; ++k) {
            const std::size_t at = 8 * k + slice;
            typename R::f64 xs[kTokens];
            simd::unroll<kTokens>([&](auto t)
                                      __attribute__((always_inline)) { xs[t] = R::load(x + t * kChunkStride + at); });
            simd::unroll<kRows>([&](auto r) __attribute__((always_inline)) {
                const typename R::f64 weight = R::load(w + r * kChunkStride + at);
                simd::unroll<kTokens>([&](auto t) __attribute__((always_inline)) {
                    sum[r][t] = R::madd(xs[t], weight, sum[r][t]);
                });
            });
        }
        simd::unroll<kRows>([&](auto r) __attribute__((always_inline)) {
            simd::unroll<kTokens>([&](auto t) __attribute__((always_inline)) {
                R::store(acc + (r * acc_tokens + t) * 8 + slice, sum[r][t]);
            });
        });
    }
}

/// Decodes `count` columns from `first` of one row; the last group of eight is padded with +0.
template <class F, simd::Arch A>
K3_INLINE void decode_row(typename F::Row row, std::size_t first, std::size_t count, double* out) noexcept {
    std::size_t i = 0;
    for (; i + F::kBlock <= count; i += F::kBlock) {
        simd::f64x8<A> values[F::kBlock / 8];
        F::template decode<A>(row, first + i, values);
        simd::unroll<F::kBlock / 8>([&](auto k)
                                        __attribute__((always_inline)) { simd::store<A>(out + i + 8 * k, values[k]); });
    }
    if (i < count) F::decode_tail(row, first + i, count - i, out + i);
}

/// Rows [begin, end) for a packed tile of `tokens` <= kTokenTile tokens; y.row(t) belongs to token t of the tile.
template <class F, simd::Arch A, class Out>
void many(const formats::Packed<F>& w, std::size_t begin, std::size_t end, const double* pack, std::size_t tokens,
          core::MatView<Out> y, core::Arena scratch) noexcept {
    const std::size_t padded = padded_tokens(tokens);
    double* const weights = scratch.take<double>(kRowBlock * kChunkStride);
    double* const acc = scratch.take<double>(kRowBlock * kTokenTile * 8);
    for (std::size_t block = begin; block < end; block += kRowBlock) {
        const std::size_t rows = end - block < kRowBlock ? end - block : kRowBlock;
        const std::size_t tile_rows = (rows + MicroTile<A>::kRows - 1) / MicroTile<A>::kRows * MicroTile<A>::kRows;
        for (std::size_t i = 0; i < tile_rows * padded * 8; ++i) acc[i] = 0.0;
        for (std::size_t chunk = 0; chunk < chunks_of(w.cols); ++chunk) {
            const std::size_t first = chunk * kChunk;
            const std::size_t count = w.cols - first < kChunk ? w.cols - first : kChunk;
            for (std::size_t r = 0; r < rows; ++r)
                decode_row<F, A>(w.row(block + r), first, count, weights + r * kChunkStride);
            for (std::size_t i = rows * kChunkStride; i < tile_rows * kChunkStride; ++i) weights[i] = 0.0;
            for (std::size_t t = 0; t < padded; t += MicroTile<A>::kTokens)
                for (std::size_t r = 0; r < tile_rows; r += MicroTile<A>::kRows)
                    micro<A>(weights + r * kChunkStride, pack + (chunk * padded + t) * kChunkStride, (count + 7) / 8,
                             acc + (r * padded + t) * 8, padded);
        }
        for (std::size_t r = 0; r < rows; ++r)
            for (std::size_t t = 0; t < tokens; ++t)
                output(simd::reduce(simd::load<A>(acc + (r * padded + t) * 8)), y.row(t)[block + r]);
    }
}

}  // namespace detail
}  // namespace k3::kernels::inline K3_TARGET
#endif
