#ifndef K3_KERNELS_SHORT_CONV_HPP
#define K3_KERNELS_SHORT_CONV_HPP
// Depthwise causal convolution over a few tokens, then SiLU.
#include "k3/core/view.hpp"
#include "k3/simd/math.hpp"

namespace k3::kernels::inline K3_TARGET {

/// y[t][c] = silu(w[K-1][c] * u[t][c] + w[0][c] * u[t-K+1][c] + ... + w[K-2][c] * u[t-1][c]), channels [begin, end).
///
/// Shapes    u, y: [T, P]; w: [K, P], oldest tap first; history: [K-1, P], the inputs before u, oldest first. y != u.
/// Numerics  acc = w[K-1] * u_t; then acc = acc + w[j] * (input K-1-j tokens ago) for j = 0 .. K-2; every product
///           rounded; then silu. Inputs before the sequence are +0 and their taps are applied.
/// Requires  K >= 1; K = 1 has no history.
/// Threads   safe for distinct channels.
template <simd::Arch A>
void short_conv(core::MatView<const float> u, const float* w, std::size_t taps, const float* history, std::size_t begin,
                std::size_t end, core::MatView<float> y) noexcept {
    const std::size_t channels = u.cols;
    const auto input = [&](std::size_t t, std::size_t back) noexcept {  // the row `back` tokens before token t
        return t >= back ? u.row(t - back) : history + (taps - 1 + t - back) * channels;
    };
    for (std::size_t t = 0; t < u.rows; ++t) {
        for (std::size_t c = begin; c < end; c += 8) {
            const std::size_t count = end - c;
            auto acc =
                simd::mul(simd::load<A>(w + (taps - 1) * channels + c, count), simd::load<A>(u.row(t) + c, count));
            for (std::size_t j = 0; j + 1 < taps; ++j)
                acc = simd::mul_then_add(acc, simd::load<A>(w + j * channels + c, count),
                                         simd::load<A>(input(t, taps - 1 - j) + c, count));
            simd::store<A>(y.row(t) + c, simd::silu<A>(acc), count);
        }
    }
}

/// Moves the history over the first `tokens` rows of u: the last K-1 inputs of (history, u).
template <simd::Arch A>
void shift_history(core::MatView<const float> u, std::size_t tokens, std::size_t taps, std::size_t begin,
                   std::size_t end, float* history) noexcept {
    const std::size_t channels = u.cols;
    for (std::size_t j = 0; j + 1 < taps;
         ++j) {  // ascending: row j + tokens of the joined inputs is read before written
        const std::size_t from = j + tokens;
        const float* source = from + 1 < taps ? history + from * channels : u.row(from + 1 - taps);
        for (std::size_t c = begin; c < end; ++c) history[j * channels + c] = source[c];
    }
}

}  // namespace k3::kernels::inline K3_TARGET
#endif
