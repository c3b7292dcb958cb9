#ifndef K3_KERNELS_LATENT_ATTENTION_HPP
#define K3_KERNELS_LATENT_ATTENTION_HPP
// Attention over the latent cache, absorbed: keys and values are the cached latents themselves, shared by all heads.
// The only form in this project, for prefill, decode and recompute alike, so all three agree bit for bit.
#include <cstdint>

#include "k3/core/exec.hpp"
#include "k3/simd/math.hpp"

namespace k3::kernels::inline K3_TARGET {

/// The latent cache of one sequence and layer: pages of positions, a row a position: the normalised latent, then the
/// shared key slot, each padded with +0 to a multiple of eight (padding both operands of a dot is equivalent to none).
struct LatentCache {
    float* const* pages;
    std::size_t page_positions;
    std::size_t latent, rope;  // floats before padding

    K3_INLINE static constexpr std::size_t pad(std::size_t n) noexcept { return (n + 7) / 8 * 8; }
    K3_INLINE std::size_t row_floats() const noexcept { return pad(latent) + pad(rope); }
    K3_INLINE float* row(std::size_t position) const noexcept {
        return pages[position / page_positions] + position % page_positions * row_floats();
    }
};

namespace detail {

inline constexpr std::size_t kHeadBlock = 8;  // heads that share one sweep over the cache: one f32x8 of scores
inline constexpr std::size_t kPositionBlock = 64;

/// RN32((dot64(qa, latent) + dot64(q_rope, key)) * scale) of `H` heads from `h0` at one position.
template <simd::Arch A, std::size_t H>
K3_INLINE void scores_at(const LatentCache& cache, const double* queries, std::size_t h0, const float* row,
                         double scale, float* out) noexcept {
    const std::size_t latent = LatentCache::pad(cache.latent), width = cache.row_floats();
    simd::f64x8<A> acc[H];
    double content[H];
    const auto sweep = [&](std::size_t from, std::size_t to) __attribute__((always_inline)) {
        simd::unroll<H>([&](auto h) __attribute__((always_inline)) { acc[h] = simd::broadcast<simd::f64x8, A>(0.0); });
        for (std::size_t i = from; i < to; i += 8) {
            const auto cached = simd::load_widened<A>(row + i);
            simd::unroll<H>([&](auto h) __attribute__((always_inline)) {
                acc[h] = simd::madd_exact(simd::load<A>(queries + (h0 + h) * width + i), cached, acc[h]);
            });
        }
    };
    sweep(0, latent);
    simd::unroll<H>([&](auto h) __attribute__((always_inline)) { content[h] = simd::reduce(acc[h]); });
    sweep(latent, width);
    simd::unroll<H>([&](auto h) __attribute__((always_inline)) {
        out[h0 + h] = simd::round32(simd::mul(content[h] + simd::reduce(acc[h]), scale));
    });
}

/// acc[h][col .. col+8) += sum over `count` positions of latent[col] * e[h], positions ascending, for `H` heads from
/// `h0`.
template <simd::Arch A, std::size_t H>
K3_INLINE void add_weighted(const float* row, std::size_t stride, std::size_t count, const double* e, std::size_t h0,
                            double* acc, std::size_t acc_stride) noexcept {
    simd::f64x8<A> sum[H];
    simd::unroll<H>([&](auto h)
                        __attribute__((always_inline)) { sum[h] = simd::load<A>(acc + (h0 + h) * acc_stride); });
    for (std::size_t s = 0; s < count; ++s, row += stride) {
        const auto cached = simd::load_widened<A>(row);
        simd::unroll<H>([&](auto h) __attribute__((always_inline)) {
            sum[h] = simd::madd_exact(cached, simd::broadcast<simd::f64x8, A>(e[s * kHeadBlock + h0 + h]), sum[h]);
        });
    }
    simd::unroll<H>([&](auto h)
                        __attribute__((always_inline)) { simd::store<A>(acc + (h0 + h) * acc_stride, sum[h]); });
}

/// Calls fn(first, count, rows) for runs of positions that are neighbours in memory: at most kPositionBlock, so that
/// the rows of a run stay in the cache while every column of them is visited.
template <class Fn>
K3_INLINE void for_each_run(const LatentCache& cache, std::size_t positions, Fn&& fn) noexcept {
    for (std::size_t s = 0; s < positions;) {
        const std::size_t page = cache.page_positions - s % cache.page_positions;
        std::size_t count = positions - s < kPositionBlock ? positions - s : kPositionBlock;
        count = count < page ? count : page;
        fn(s, count, cache.row(s));
        s += count;
    }
}

}  // namespace detail

/// Scratch of latent_attention for one thread.
K3_INLINE constexpr std::size_t latent_attention_scratch(std::size_t positions, std::size_t row_floats) noexcept {
    return detail::kHeadBlock *
               (positions * sizeof(float) + (2 * row_floats + detail::kPositionBlock) * sizeof(double)) +
           4 * core::Arena::kAlign;
}

/// Up to eight heads of one token against positions 0 .. positions-1.
///
///   score_s = RN32((dot64(qa, latent_s) + dot64(q_rope, key_s)) * scale)    sum, product and scale in f64
///   e_s = exp(score_s - max)    z = f64 sum of e_s, s ascending    out_c = RN32((sum over s of latent_s,c * e_s) / z)
///
/// Shapes    qa: heads rows of [latent], stride qa_stride; q_rope: heads rows of [rope]; out: heads rows of [latent].
/// Numerics  no online rescaling: positions ascend whatever the chunk. Heads are independent.
/// Requires  1 <= heads <= 8, positions >= 1, scratch of latent_attention_scratch.
/// Errors    none; a NaN score makes its head's output NaN, so do scores that are all -inf or contain +inf.
template <simd::Arch A>
void latent_attention(const LatentCache& cache, std::size_t positions, std::size_t heads, const float* qa,
                      std::size_t qa_stride, const float* q_rope, std::size_t rope_stride, double scale, float* out,
                      std::size_t out_stride, core::Arena scratch) noexcept {
    constexpr std::size_t kBlock = detail::kHeadBlock;
    constexpr std::size_t kHeads = simd::f64x8<A>::kRegs == 1 ? 8 : (simd::f64x8<A>::kRegs == 2 ? 4 : 2);
    const std::size_t width = cache.row_floats(), latent = LatentCache::pad(cache.latent);
    double* const queries = scratch.take<double>(kBlock * width);
    double* const acc = scratch.take<double>(kBlock * latent);
    double* const weights = scratch.take<double>(kBlock * detail::kPositionBlock);
    float* const scores = scratch.take<float>(kBlock * positions);
    for (std::size_t i = 0; i < kBlock * width; ++i) queries[i] = 0.0;
    for (std::size_t h = 0; h < heads; ++h) {
        for (std::size_t c = 0; c < cache.latent; ++c)
            queries[h * width + c] = static_cast<double>(qa[h * qa_stride + c]);
        for (std::size_t c = 0; c < cache.rope; ++c)
            queries[h * width + latent + c] = static_cast<double>(q_rope[h * rope_stride + c]);
    }

    auto max = simd::broadcast<simd::f32x8, A>(0.0F);
    detail::for_each_run(cache, positions, [&](std::size_t first, std::size_t count, const float* row) noexcept {
        for (std::size_t s = first; s < first + count; ++s, row += width) {
            for (std::size_t h = 0; h < kBlock; h += kHeads)
                detail::scores_at<A, kHeads>(cache, queries, h, row, scale, scores + s * kBlock);
            const auto now = simd::load<A>(scores + s * kBlock);
            max = s == 0 ? now : simd::select_lt(max, now, now, max);
        }
    });
    for (std::size_t i = 0; i < kBlock * latent; ++i) acc[i] = 0.0;
    auto z = simd::broadcast<simd::f64x8, A>(0.0);
    detail::for_each_run(cache, positions, [&](std::size_t first, std::size_t count, const float* row) noexcept {
        for (std::size_t i = 0; i < count; ++i) {
            const auto e = simd::widen(simd::exp<A>(simd::load<A>(scores + (first + i) * kBlock) - max));
            simd::store<A>(weights + i * kBlock, e);
            z = z + e;
        }
        for (std::size_t col = 0; col < cache.latent; col += 8)
            for (std::size_t h = 0; h < heads; h += kHeads)
                detail::add_weighted<A, kHeads>(row + col, width, count, weights, h, acc + col, latent);
    });
    double total[kBlock];
    simd::store<A>(total, z);
    for (std::size_t h = 0; h < heads; ++h) {
        const auto divisor = simd::broadcast<simd::f64x8, A>(total[h]);
        for (std::size_t col = 0; col < cache.latent; col += 8)
            simd::store<A>(out + h * out_stride + col, simd::narrow(simd::load<A>(acc + h * latent + col) / divisor),
                           cache.latent - col);
    }
}

}  // namespace k3::kernels::inline K3_TARGET
#endif
