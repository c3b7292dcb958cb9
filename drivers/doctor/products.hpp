#ifndef K3_DRIVERS_DOCTOR_PRODUCTS_HPP
#define K3_DRIVERS_DOCTOR_PRODUCTS_HPP
// How fast the cores multiply one vector with weights that are in memory, in bytes of weights a second: the arch's own
// products at the model's own widths, over more memory than the caches hold. That is the speed of memory where the
// product keeps up with it, and of the product where it does not.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "drivers/bench/bandwidth.hpp"
#include "drivers/bench/inputs.hpp"
#include "drivers/bench/pool.hpp"
#include "drivers/kernel_table/cpu.hpp"
#include "k3/io/memory_limits.hpp"
#include "k3/model/config.hpp"

namespace k3::doctor {

/// Bytes a second: median, least and most of the rounds.
struct Rate {
    double median = 0, least = 0, most = 0;
};

inline Rate rate_of(std::vector<double> samples) {
    if (samples.empty()) return {};
    std::sort(samples.begin(), samples.end());
    return {samples[samples.size() / 2], samples.front(), samples.back()};
}

struct Products {
    Rate read{}, trunk{}, experts{};  // memory read and summed; BF16 with `hidden` columns; MXFP4 with `latent`
    std::size_t bytes = 0;            // of memory walked round; 0: there was no room to measure
};

namespace detail {

inline const kernel_table::KernelTable& table_of(std::string_view arch) {
    for (const kernel_table::KernelTable* table : kernel_table::tables_of_this_cpu())
        if (arch == table->name) return *table;
    return *kernel_table::tables_of_this_cpu().front();
}

/// A matrix of about `bytes` from the pool, walked round; the scales of MXFP4 from a part of their own.
class Panels {
  public:
    Panels(bench::Format format, std::size_t cols, std::size_t bytes, bench::Pool& pool,
           const kernel_table::KernelTable& table, unsigned threads)
        : format_(format),
          cols_(cols),
          rows_(std::max<std::size_t>(1, bytes / bench::row_bytes(format, cols))),
          pool_(pool),
          table_(table),
          scales_(rows_ * bench::scale_bytes(format, cols), std::byte{120}),
          x_(bench::numbers(cols, 2, 0x1p-3F)),
          y_(rows_),
          work_(threads, table.matmul_scratch(cols)) {}
    std::size_t bytes() const { return rows_ * bench::row_bytes(format_, cols_) + scales_.size(); }
    void multiply() {
        const std::byte* const data = pool_.next(rows_ * bench::row_bytes(format_, cols_));
        table_.matmul[format_](work_.exec(), {data, scales_.empty() ? nullptr : scales_.data(), rows_, cols_},
                               {x_.data(), 1, cols_, cols_}, {y_.data(), 1, rows_, rows_});
    }

  private:
    bench::Format format_;
    std::size_t cols_, rows_;
    bench::Pool& pool_;
    const kernel_table::KernelTable& table_;
    std::vector<std::byte> scales_;
    std::vector<float> x_, y_;
    bench::Workspace work_;
};

}  // namespace detail

/// Takes about half a second. Uses at most an eighth of the memory there is.
inline Products measure_products(const model::Config& shape, std::string_view arch, unsigned threads,
                                 std::size_t cache_bytes) {
    constexpr std::size_t kLeast = std::size_t{64} << 20, kMost = std::size_t{512} << 20;
    const std::uint64_t room = io::memory_limit().bytes / 8;
    Products products;
    const std::size_t wish = std::clamp(2 * cache_bytes, 2 * kLeast, kMost);
    products.bytes = static_cast<std::size_t>(std::min<std::uint64_t>(wish, room));
    if (products.bytes < kLeast) return {};
    bench::Pool pool(products.bytes, threads);
    const kernel_table::KernelTable& table = detail::table_of(arch);
    constexpr std::size_t kTrunkMatrix = std::size_t{32} << 20;
    detail::Panels trunk(kernel_table::kBf16, shape.hidden, kTrunkMatrix, pool, table, threads);
    detail::Panels experts(kernel_table::kMxfp4, shape.latent, shape.expert_width * shape.latent / 2, pool, table,
                           threads);
    std::vector<double> read, trunk_rates, expert_rates;
    const auto timed = [&](auto& panels, std::vector<double>& rates) {
        const double start = bench::seconds_now();
        std::size_t bytes = 0;
        for (; bytes < products.bytes / 4; bytes += panels.bytes()) panels.multiply();
        rates.push_back(static_cast<double>(bytes) / (bench::seconds_now() - start));
    };
    trunk.multiply();  // starts the threads
    for (int round = 0; round < 5; ++round) {
        read.push_back(bench::read_bandwidth(pool.first(), pool.size() / 4, threads, 1));
        timed(trunk, trunk_rates);
        timed(experts, expert_rates);
    }
    products.read = rate_of(std::move(read));
    products.trunk = rate_of(std::move(trunk_rates));
    products.experts = rate_of(std::move(expert_rates));
    return products;
}

}  // namespace k3::doctor
#endif
