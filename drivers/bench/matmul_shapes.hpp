#ifndef K3_DRIVERS_BENCH_MATMUL_SHAPES_HPP
#define K3_DRIVERS_BENCH_MATMUL_SHAPES_HPP
// Which matrix products are measured: the released shapes and odd ones, and how many of their rows.
#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

#include "drivers/bench/inputs.hpp"
#include "drivers/bench/options.hpp"

namespace k3::bench {

struct MatmulShape {
    Format format;
    std::size_t rows, cols;
    enum When {
        kQuick,   // always
        kFull,    // not with --quick
        kFewest,  // nor with more tokens than the fewest that are asked for: rows are independent, so that with many a
                  // smaller matrix says what a larger one says
    } when;
};

/// The release's and odd ones. mxfp4: experts; f32 is not stored that large in the release.
inline constexpr MatmulShape kMatmulShapes[] = {
    {kernel_table::kBf16, 12288, 7168, MatmulShape::kQuick},  // q, k, v and gate projections
    {kernel_table::kBf16, 7168, 12288, MatmulShape::kFull},   // output projection
    {kernel_table::kBf16, 7168, 33792, MatmulShape::kFull},   // dense layer, down
    {kernel_table::kBf16, 33792, 7168, MatmulShape::kFull},   // dense layer, gate and up
    {kernel_table::kBf16, 163840, 7168, MatmulShape::kFull},  // lm_head
    {kernel_table::kBf16, 1536, 7168, MatmulShape::kFewest},  // latent attention, queries down
    {kernel_table::kBf16, 576, 7168, MatmulShape::kFewest},   // latent attention, keys and values down
    {kernel_table::kBf16, 896, 7168, MatmulShape::kFewest},   // router
    {kernel_table::kBf16, 3584, 7168, MatmulShape::kFewest},  // into the experts' latent space
    {kernel_table::kBf16, 7168, 3584, MatmulShape::kFewest},  // out of it
    {kernel_table::kBf16, 1001, 7167, MatmulShape::kFull},    // odd
    {kernel_table::kF32, 12288, 7168, MatmulShape::kFull},    //
    {kernel_table::kF32, 1001, 7167, MatmulShape::kFull},     //
    {kernel_table::kMxfp4, 3072, 3584, MatmulShape::kQuick},  // experts' w1 and w3
    {kernel_table::kMxfp4, 3584, 3072, MatmulShape::kFull},   // experts' w2
    {kernel_table::kMxfp4, 1001, 3583, MatmulShape::kFull},   // odd: a partial group and a lone nibble
};

namespace detail {

/// Multiply-adds of one call at most: with many tokens a panel of the rows tells as much as all of them.
inline constexpr double kMostWork = 3e9, kMostQuickWork = 0.5e9;

struct Product {  // what one group computes
    MatmulShape shape;
    std::size_t rows, tokens;  // rows of the panel, the same for all candidates
    unsigned threads;
    double flops(std::size_t r, std::size_t t) const {
        return 2.0 * static_cast<double>(r) * static_cast<double>(shape.cols) * static_cast<double>(t);
    }
    std::string name() const {
        return std::string("matmul ") + kernel_table::kFormatNames[shape.format] + " T=" + std::to_string(tokens) +
               " R=" + std::to_string(shape.rows) + " C=" + std::to_string(shape.cols);
    }
};

}  // namespace detail

/// The products that the options ask for. Those whose panel is the same product as one before are left out: with many
/// tokens, panels of the same width have the same number of rows.
inline std::vector<detail::Product> matmul_products(const Options& options, std::size_t pool) {
    std::vector<detail::Product> products;
    for (const MatmulShape& shape : kMatmulShapes)
        for (const std::size_t tokens : options.tokens)
            for (const unsigned threads : options.threads) {
                const double most = options.quick ? detail::kMostQuickWork : detail::kMostWork;
                const auto panel = static_cast<std::size_t>(most / static_cast<double>(shape.cols * tokens));
                const std::size_t fits = pool / (4 * shape.cols);  // as f32: peers multiply the same rows
                const detail::Product product{shape, std::min({shape.rows, panel, fits}), tokens, threads};
                if (options.quick && shape.when != MatmulShape::kQuick) continue;
                if (shape.when == MatmulShape::kFewest && tokens != options.tokens.front()) continue;
                const auto same = [&](const detail::Product& other) {
                    return other.shape.format == shape.format && other.shape.cols == shape.cols &&
                           other.rows == product.rows && other.tokens == tokens && other.threads == threads;
                };
                if (options.selects(product.name()) && std::none_of(products.begin(), products.end(), same))
                    products.push_back(product);
            }
    return products;
}

}  // namespace k3::bench
#endif
