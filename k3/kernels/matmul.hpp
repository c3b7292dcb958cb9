#ifndef K3_KERNELS_MATMUL_HPP
#define K3_KERNELS_MATMUL_HPP
// y = x W^T for packed weights of any format; a matvec is the one-token case. Two bodies, one per bottleneck
// (detail/matmul_few.hpp: memory, detail/matmul_many.hpp: arithmetic), one order of operations.
#include <cassert>

#include "k3/core/parallel.hpp"
#include "k3/kernels/detail/matmul_many.hpp"

namespace k3::kernels::inline K3_TARGET {

/// Scratch of matmul for `cols` columns: what each thread needs, and what all share.
struct MatmulScratch {
    std::size_t local_bytes, shared_bytes;
};
K3_INLINE constexpr MatmulScratch matmul_scratch(std::size_t cols) noexcept {
    const std::size_t few = detail::few_local_bytes(cols), many = detail::kManyLocalBytes;
    return {(few > many ? few : many) + 2 * core::Arena::kAlign,
            detail::pack_size(detail::kTokenTile, cols) * sizeof(double) + core::Arena::kAlign};
}

/// y[t][r] = dot(x[t], W[r]).
///
/// Shapes    w: [R, C] packed; x: [T, C]; y: [T, R]. Out float: RN32 of the sum; Out double: the sum itself.
/// Numerics  every output is the contract's dot64 (dot.hpp): eight binary64 lanes, columns ascending. Weights are exact
///           values and products are exact, so a packed MXFP4 product equals that of the dequantised weights bit for
///           bit. Rows and tokens are independent: neither T nor the number of threads changes a bit.
/// Requires  exec scratch of matmul_scratch(C); y does not overlap x. T may be 0.
/// Threads   splits rows.
template <class F, simd::Arch A, class Out>
void matmul(const core::Exec& exec, const formats::Packed<F>& w, core::MatView<const float> x,
            core::MatView<Out> y) noexcept {
    assert(x.cols == w.cols && y.cols == w.rows && x.rows == y.rows);
    if (x.rows <= detail::kFewTokens<A>) {
        if (x.rows == 0) return;
        core::parallel(exec, w.rows, w.cols * x.rows,
                       [&](std::size_t begin, std::size_t end, unsigned thread) noexcept {
            detail::few<F, A>(w, begin, end, x, y, exec.local_of(thread));
        });
        return;
    }
    for (std::size_t first = 0; first < x.rows; first += detail::kTokenTile) {
        const std::size_t tokens = x.rows - first < detail::kTokenTile ? x.rows - first : detail::kTokenTile;
        const std::size_t padded = detail::padded_tokens(tokens);
        double* const pack = exec.shared_arena().take<double>(detail::pack_size(tokens, w.cols));
        core::parallel(exec, padded, w.cols, [&](std::size_t begin, std::size_t end, unsigned) noexcept {
            for (std::size_t t = begin; t < end; ++t)
                detail::pack_token<A>(t < tokens ? x.row(first + t) : nullptr, w.cols, t, padded, pack);
        });
        core::parallel(exec, w.rows, w.cols * tokens,
                       [&](std::size_t begin, std::size_t end, unsigned thread) noexcept {
            detail::many<F, A>(w, begin, end, pack, tokens, y.row_range(first, tokens), exec.local_of(thread));
        });
    }
}

/// The same on the calling thread alone, for callers that split their work otherwise (over heads). `scratch` needs
/// matmul_scratch(C).local_bytes + matmul_scratch(C).shared_bytes.
template <class F, simd::Arch A, class Out>
void matmul_on_thread(core::Arena scratch, const formats::Packed<F>& w, core::MatView<const float> x,
                      core::MatView<Out> y) noexcept {
    assert(x.cols == w.cols && y.cols == w.rows && x.rows == y.rows);
    if (x.rows <= detail::kFewTokens<A>) {
        if (x.rows != 0) detail::few<F, A>(w, 0, w.rows, x, y, scratch);
        return;
    }
    for (std::size_t first = 0; first < x.rows; first += detail::kTokenTile) {
        const std::size_t tokens = x.rows - first < detail::kTokenTile ? x.rows - first : detail::kTokenTile;
        const std::size_t padded = detail::padded_tokens(tokens);
        core::Arena tile = scratch;
        double* const pack = tile.take<double>(detail::pack_size(tokens, w.cols));
        for (std::size_t t = 0; t < padded; ++t)
            detail::pack_token<A>(t < tokens ? x.row(first + t) : nullptr, w.cols, t, padded, pack);
        detail::many<F, A>(w, 0, w.rows, pack, tokens, y.row_range(first, tokens), tile);
    }
}

}  // namespace k3::kernels::inline K3_TARGET
#endif
