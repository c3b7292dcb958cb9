#ifndef K3_DRIVERS_BENCH_MATMUL_BENCH_HPP
#define K3_DRIVERS_BENCH_MATMUL_BENCH_HPP
// Matrix products at the released shapes: k3 on every arch, the seed, Eigen and OpenBLAS, and the limits, in turn.
#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "drivers/bench/digest.hpp"
#include "drivers/bench/limits.hpp"
#include "drivers/bench/options.hpp"
#include "drivers/bench/peers.hpp"
#include "drivers/bench/seed.hpp"

namespace k3::bench {

struct MatmulShape {
    Format format;
    std::size_t rows, cols;
    bool quick;  // measured with --quick too
};

/// The release's, largest first, and odd ones. mxfp4: experts; f32 is not stored that large in the release.
inline constexpr MatmulShape kMatmulShapes[] = {
    {kernel_table::kBf16, 12288, 7168, true},    // q, k, v and gate projections
    {kernel_table::kBf16, 7168, 12288, false},   // output projection
    {kernel_table::kBf16, 7168, 33792, false},   // dense layer, down
    {kernel_table::kBf16, 33792, 7168, false},   // dense layer, gate and up
    {kernel_table::kBf16, 163840, 7168, false},  // lm_head
    {kernel_table::kBf16, 1001, 7167, false},    // odd
    {kernel_table::kF32, 12288, 7168, false},   {kernel_table::kF32, 1001, 7167, false},
    {kernel_table::kMxfp4, 3072, 3584, true},   // experts' w1 and w3
    {kernel_table::kMxfp4, 3584, 3072, false},  // experts' w2
    {kernel_table::kMxfp4, 1001, 3583, false},  // odd: a partial group and a lone nibble
};

namespace detail {

/// Multiply-adds of one call at most: with many tokens a panel of the rows tells as much as all of them.
inline constexpr double kMostWork = 3e9, kMostQuickWork = 0.5e9;

struct Product {  // what one group computes
    MatmulShape shape;
    std::size_t rows, tokens;  // rows of the panel
    unsigned threads;
    std::size_t bytes(std::size_t r) const {
        return r * (row_bytes(shape.format, shape.cols) + scale_bytes(shape.format, shape.cols));
    }
    double flops(std::size_t r, std::size_t t) const {
        return 2.0 * static_cast<double>(r) * static_cast<double>(shape.cols) * static_cast<double>(t);
    }
    std::string name() const {
        return std::string("matmul ") + kernel_table::kFormatNames[shape.format] + " T=" + std::to_string(tokens) +
               " R=" + std::to_string(shape.rows) + " C=" + std::to_string(shape.cols);
    }
};

inline seed::MatvecFn seed_scalar(Format format) {
    return format == kernel_table::kBf16  ? seed::bf16_scalar
           : format == kernel_table::kF32 ? seed::f32_scalar
                                          : seed::mxfp4_scalar;
}

/// Everything a group's candidates work on.
class MatmulGroup {
  public:
    MatmulGroup(const Options& options, const Product& product, Pool& pool, const std::vector<Peer>& peers,
                std::size_t cache_bytes)
        : options_(options),
          p_(product),
          pool_(pool),
          peers_(peers),
          cache_(cache_bytes),
          x_(numbers(p_.tokens * p_.shape.cols, 2, 0x1p-3F)),
          y_(p_.tokens * p_.rows),
          sums_(p_.tokens * p_.rows),
          work_(p_.threads, options.tables[0]->matmul_scratch(p_.shape.cols)) {
        const std::size_t scales = p_.rows * scale_bytes(p_.shape.format, p_.shape.cols);
        // Scales lie in memory of their own, walked in step with the codes.
        scale_pool_.resize(scales == 0 ? 0 : pool.size() / 16 + scales);
        for (std::size_t i = 0; i < scale_pool_.size(); ++i) scale_pool_[i] = static_cast<std::byte>(117 + i * 7 % 10);
    }

    void run(Results& results) {
        std::vector<Candidate> candidates;
        add_read_probes(candidates, pool_, p_.threads);
        for (const KernelTable* table : options_.tables) add_peak_probe(candidates, *table, Width::f64, p_.threads);
        for (const Peer& peer : peers_) add_peak_probe(candidates, *peer.arch, Width::f32, p_.threads);
        std::vector<Plan> plans;  // of each candidate that is not a probe, in their order
        add_k3(candidates, plans, results);
        add_seed(candidates, plans);
        add_peers(candidates, plans);
        take_turns(candidates, options_.repeats);

        std::vector<const KernelTable*> arches = kernel_table::tables_of_this_cpu();
        const Limits limits(candidates, arches, p_.threads, results);
        std::size_t next = 0;
        double seed_rate = 0;
        std::vector<Row> rows;
        for (const Candidate& candidate : candidates) {
            if (Limits::is_probe(candidate)) continue;
            const Plan& plan = plans[next++];
            Row row = row_of(candidate);
            row.kernel = "matmul";
            row.format = kernel_table::kFormatNames[p_.shape.format];
            row.shape = std::to_string(p_.shape.rows) + "x" + std::to_string(p_.shape.cols);
            row.tokens = p_.tokens;
            row.threads = p_.threads;
            row.panel = plan.rows;
            row.digest = plan.digest;
            row.seconds *= plan.passes;
            row.least *= plan.passes;
            row.most *= plan.passes;
            row.bytes = plan.bytes * plan.passes;
            row.flops = p_.flops(plan.rows, p_.tokens);
            row.cached = pool_.size() < 2 * cache_;
            limits.judge(row, limits.read(), "read", limits.peak(plan.width, plan.arch),
                         plan.width == Width::f64 ? "f64" : "f32");
            if (row.who.rfind("seed", 0) == 0) seed_rate = std::max(seed_rate, row.flops / row.seconds);
            rows.push_back(row);
        }
        for (Row& row : rows) {
            if (seed_rate > 0) row.of_seed = row.flops / row.seconds / seed_rate;
            results.rows.push_back(row);
        }
    }

  private:
    kernel_table::Bytes at(const std::byte* data, std::size_t rows) const {
        const std::byte* scales = nullptr;
        if (!scale_pool_.empty()) scales = scale_pool_.data() + static_cast<std::size_t>(data - pool_.first()) / 16;
        return {data, scales, rows, p_.shape.cols};
    }
    std::size_t weight_bytes(std::size_t rows) const { return rows * row_bytes(p_.shape.format, p_.shape.cols); }
    struct Plan {
        const char* arch;  // whose peak bounds it
        Width width;
        std::size_t rows;
        double bytes;       // of weights, one pass
        double passes = 1;  // over the weights, for all tokens; one is timed
        std::string digest{};
    };

    void add_k3(std::vector<Candidate>& candidates, std::vector<Plan>& plans, Results& results) {
        const kernel_table::In x(x_.data(), p_.tokens, p_.shape.cols);
        const core::MatView<float> y(y_.data(), p_.tokens, p_.rows);
        std::string first;
        for (const KernelTable* table : options_.tables) {
            const auto f = static_cast<std::size_t>(p_.shape.format);
            table->matmul_sums[f](work_.exec(), at(pool_.first(), p_.rows), x, {sums_.data(), p_.tokens, p_.rows});
            core::Digest digest;
            digest.add(sums_.data(), sums_.size());
            const std::string text = hex(digest.value());
            plans.push_back({table->name, Width::f64, p_.rows, static_cast<double>(p_.bytes(p_.rows)), 1, text});
            if (first.empty()) first = text;
            if (text != first) {
                results.differences.push_back(p_.name() + ": " + table->name + " gives " + text + ", " +
                                              options_.tables[0]->name + " gives " + first);
            }
            const auto product = [this, table, f, x, y] {
                table->matmul[f](work_.exec(), at(pool_.next(weight_bytes(p_.rows)), p_.rows), x, y);
            };
            candidates.push_back({table->name, product});
        }
    }

    /// The seed has one-token kernels and makes a pass for each token: one pass is timed.
    void add_seed(std::vector<Candidate>& candidates, std::vector<Plan>& plans) {
        const auto add = [&](const char* name, const char* arch, seed::MatvecFn matvec) {
            const auto pass = [this, matvec] {
                const kernel_table::Bytes w = at(pool_.next(weight_bytes(p_.rows)), p_.rows);
                core::parallel(work_.exec(), p_.rows, p_.shape.cols,
                               [&](std::size_t begin, std::size_t end, unsigned) noexcept {
                    const std::size_t scales = begin * scale_bytes(p_.shape.format, p_.shape.cols);
                    matvec(w.data + begin * row_bytes(p_.shape.format, p_.shape.cols),
                           w.scales == nullptr ? nullptr : w.scales + scales, end - begin, p_.shape.cols, x_.data(),
                           y_.data() + begin);
                });
            };
            candidates.push_back({name, pass});
            plans.push_back(
                {arch, Width::f64, p_.rows, static_cast<double>(p_.bytes(p_.rows)), static_cast<double>(p_.tokens)});
        };
        add("seed scalar", "scalar", seed_scalar(p_.shape.format));
#if defined(__x86_64__)
        for (const KernelTable* table : kernel_table::tables_of_this_cpu())
            if (std::string(table->name) == "avx2" && p_.shape.format != kernel_table::kMxfp4)
                add("seed avx2", "avx2", p_.shape.format == kernel_table::kBf16 ? seed::bf16_avx2 : seed::f32_avx2);
#endif
    }

    /// Peers take f32 weights: four bytes each, whatever the format beside them.
    void add_peers(std::vector<Candidate>& candidates, std::vector<Plan>& plans) {
        const std::size_t cols = p_.shape.cols, rows = std::min(p_.rows, pool_.size() / (4 * cols));
        for (const Peer& peer : peers_) {
            const auto call = [this, product = peer.product, rows, cols] {
                const auto* w = reinterpret_cast<const float*>(pool_.next(4 * rows * cols));
                core::parallel(work_.exec(), rows, cols * p_.tokens,
                               [&](std::size_t begin, std::size_t end, unsigned) noexcept {
                    product(w + begin * cols, end - begin, cols, x_.data(), p_.tokens, y_.data() + begin, p_.rows);
                });
            };
            candidates.push_back({peer.name, call});
            plans.push_back({peer.arch->name, Width::f32, rows, 4.0 * static_cast<double>(rows * cols)});
        }
    }

    const Options& options_;
    Product p_;
    Pool& pool_;
    const std::vector<Peer>& peers_;
    std::size_t cache_;
    std::vector<float> x_, y_;
    std::vector<double> sums_;
    Workspace work_;
    std::vector<std::byte> scale_pool_{};
};

}  // namespace detail

/// The products that the options ask for, smallest number of tokens first.
inline std::vector<detail::Product> matmul_products(const Options& options, std::size_t pool) {
    std::vector<detail::Product> products;
    for (const MatmulShape& shape : kMatmulShapes)
        for (const std::size_t tokens : options.tokens)
            for (const unsigned threads : options.threads) {
                const double most = options.quick ? detail::kMostQuickWork : detail::kMostWork;
                const auto panel = static_cast<std::size_t>(most / static_cast<double>(shape.cols * tokens));
                const std::size_t fits = pool / row_bytes(shape.format, shape.cols);
                detail::Product product{shape, std::min({shape.rows, panel, fits}), tokens, threads};
                if ((!options.quick || shape.quick) && options.selects(product.name())) products.push_back(product);
            }
    return products;
}

}  // namespace k3::bench
#endif
