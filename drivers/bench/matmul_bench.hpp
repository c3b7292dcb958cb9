#ifndef K3_DRIVERS_BENCH_MATMUL_BENCH_HPP
#define K3_DRIVERS_BENCH_MATMUL_BENCH_HPP
// Matrix products at the released shapes: k3 on every arch, the seed, Eigen and OpenBLAS, and the limits, in turn.
#include <string>
#include <string_view>
#include <vector>

#include "drivers/bench/digest.hpp"
#include "drivers/bench/limits.hpp"
#include "drivers/bench/matmul_shapes.hpp"
#include "drivers/bench/options.hpp"
#include "drivers/bench/peers.hpp"
#include "drivers/bench/seed.hpp"

namespace k3::bench {
namespace detail {

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

        const Limits limits(candidates, p_.threads, results);
        std::vector<Row> rows;
        for (const Candidate& candidate : candidates) {
            if (candidate.role != Role::kernel) continue;
            const Plan& plan = plans[rows.size()];
            Row row = row_of(candidate);
            row.kernel = "matmul";
            row.format = kernel_table::kFormatNames[p_.shape.format];
            row.shape = std::to_string(p_.shape.rows) + "x" + std::to_string(p_.shape.cols);
            row.tokens = p_.tokens;
            row.threads = p_.threads;
            row.panel = p_.rows;
            row.cut = p_.rows != p_.shape.rows;
            row.digest = plan.digest;
            row.seconds *= plan.passes;
            row.least *= plan.passes;
            row.most *= plan.passes;
            row.bytes = plan.bytes;
            row.passes = plan.passes;
            row.flops = p_.flops(p_.rows, p_.tokens);
            row.cached = fits_cache(static_cast<double>(pool_.size()), cache_);
            limits.judge(row, limits.read(), "read", limits.peak(plan.width, plan.arch),
                         plan.width == Width::f64 ? "f64" : "f32");
            rows.push_back(row);
        }
        compare_with_seed(rows, plans);
        results.rows.insert(results.rows.end(), rows.begin(), rows.end());
    }

  private:
    kernel_table::Bytes at(const std::byte* data, std::size_t rows) const {
        const std::byte* scales = nullptr;
        if (!scale_pool_.empty()) scales = scale_pool_.data() + static_cast<std::size_t>(data - pool_.first()) / 16;
        return {data, scales, rows, p_.shape.cols};
    }
    double weights_and_scales() const {
        return static_cast<double>(
            p_.rows * (row_bytes(p_.shape.format, p_.shape.cols) + scale_bytes(p_.shape.format, p_.shape.cols)));
    }
    std::size_t weight_bytes(std::size_t rows) const { return rows * row_bytes(p_.shape.format, p_.shape.cols); }
    enum class Side { k3, seed, seed_auto, peer };
    struct Plan {
        const char* arch;  // whose peak bounds it
        Width width;
        Side side;
        double bytes;       // of weights, one pass
        double passes = 1;  // over the weights, for all tokens; one is timed
        std::string digest{};
    };

    /// All compute the same product, so a ratio of times is one of speeds. The last of the seed's documented kernels is
    /// its best: the AVX2 one where it has one.
    static void compare_with_seed(std::vector<Row>& rows, const std::vector<Plan>& plans) {
        double seed_seconds = 0;
        for (std::size_t i = 0; i < rows.size(); ++i)
            if (plans[i].side == Side::seed) seed_seconds = rows[i].seconds;
        for (std::size_t i = 0; i < rows.size(); ++i) {
            rows[i].of_seed = seed_seconds / rows[i].seconds;
            for (std::size_t j = 0; j < rows.size(); ++j)
                if (plans[j].side == Side::seed_auto && std::string_view(plans[j].arch) == plans[i].arch)
                    rows[i].of_auto = rows[j].seconds / rows[i].seconds;
        }
    }

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
            plans.push_back({table->name, Width::f64, Side::k3, weights_and_scales(), 1, text});
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
        const auto add = [&](const std::string& name, const char* arch, Side side, seed::MatvecFn matvec) {
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
            plans.push_back({arch, Width::f64, side, weights_and_scales(), static_cast<double>(p_.tokens)});
        };
        const auto f = static_cast<std::size_t>(p_.shape.format);
        for (const KernelTable* table : options_.tables)
            add(std::string("seed auto ") + table->name, table->name, Side::seed_auto,
                seed::auto_loops(table->name).matvec[f]);
        add("seed scalar", "scalar", Side::seed, seed::kScalar.matvec[f]);
#if defined(__x86_64__)
        for (const KernelTable* table : kernel_table::tables_of_this_cpu())
            if (std::string_view(table->name) == "avx2" && p_.shape.format != kernel_table::kMxfp4)
                add("seed avx2", "avx2", Side::seed,
                    p_.shape.format == kernel_table::kBf16 ? seed::bf16_avx2 : seed::f32_avx2);
#endif
    }

    /// Peers take f32 weights: four bytes each, whatever the format beside them.
    void add_peers(std::vector<Candidate>& candidates, std::vector<Plan>& plans) {
        const std::size_t cols = p_.shape.cols, rows = p_.rows;
        for (const Peer& peer : peers_) {
            const auto call = [this, product = peer.product, rows, cols] {
                const auto* w = reinterpret_cast<const float*>(pool_.next(4 * rows * cols));
                core::parallel(work_.exec(), rows, cols * p_.tokens,
                               [&](std::size_t begin, std::size_t end, unsigned) noexcept {
                    product(w + begin * cols, end - begin, cols, x_.data(), p_.tokens, y_.data() + begin, p_.rows);
                });
            };
            candidates.push_back({peer.name, call});
            plans.push_back({peer.arch->name, Width::f32, Side::peer, 4.0 * static_cast<double>(rows * cols)});
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

}  // namespace k3::bench
#endif
