// k3-bench: measures every kernel on every arch of this CPU beside the machine's limits and others' kernels, or
// compares the kernels' digests.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>
#include <vector>

#include "drivers/bench/chart.hpp"
#include "drivers/bench/digest.hpp"
#include "drivers/bench/kda_bench.hpp"
#include "drivers/bench/matmul_bench.hpp"
#include "drivers/bench/options.hpp"
#include "drivers/bench/report.hpp"
#include "drivers/bench/vector_bench.hpp"
#include "drivers/exit_code.hpp"
#include "drivers/run/output.hpp"
#include "drivers/run/waiting_threads.hpp"
#include "k3/core/error.hpp"
#include "k3/io/memory_limits.hpp"

namespace {

namespace bench = k3::bench;
using k3::Code;
using k3::Error;

/// A build whose arithmetic is not the contract's would print digests of something else.
void check_arithmetic(const bench::Options& options) {
    for (const auto* table : options.tables) {
        if (table->canary()) continue;
        throw Error(Code::internal,
                    std::string("the ") + table->name + " kernels of this build do not round as written",
                    "rebuild without flags that change floating-point results");
    }
}

/// What is touched at once: the pool, or the states of the delta rule before it, and the activations.
void check_memory(std::size_t pool_bytes) {
    const std::uint64_t need = std::max<std::uint64_t>(pool_bytes, 500'000'000) + 300'000'000;
    const k3::io::MemoryLimit limit = k3::io::memory_limit();
    if (need <= limit.bytes) return;
    throw Error(Code::plan,
                "this needs " + k3::drivers::show_bytes(need) + " of memory, and there are " +
                    k3::drivers::show_bytes(limit.bytes) + " (" + limit.source + ")",
                "free memory, or try --quick or a --filter without matmul");
}

class Progress {
  public:
    explicit Progress(std::size_t all) : all_(all) {}
    void next(const std::string& what, unsigned threads) {
        std::fprintf(stderr, "k3-bench: %zu of %zu: %s, %u thread%s\n", ++done_, all_, what.c_str(), threads,
                     threads == 1 ? "" : "s");
    }

  private:
    std::size_t all_, done_ = 0;
};

bench::Report measure(const bench::Options& options) {
    bench::Report report;
    report.machine = bench::this_machine();
    const std::size_t cache = report.machine.cache_bytes, pool_bytes = bench::pool_bytes(options.quick, cache);
    const auto products = bench::matmul_products(options, pool_bytes);
    bench::detail::VectorData data;
    auto vectors = bench::detail::vector_cases(data);
    std::erase_if(vectors, [&](const auto& c) { return !options.selects(c.name()); });
    const bool kda = options.selects(bench::KdaGroup::name()), region = options.selects("region - empty");
    const std::size_t with_threads = options.threads.size() * (std::size_t{kda} + std::size_t{region});
    Progress progress(products.size() + vectors.size() + with_threads);
    if (products.empty() && vectors.empty() && !kda && !region) {
        throw Error(Code::usage, "no kernel has " + k3::drivers::in_quotes(options.filter) + " in its name",
                    "k3-bench --digest lists the names");
    }
    check_memory(products.empty() ? 0 : pool_bytes);
    for (const unsigned threads : options.threads) {
        if (!region) break;
        progress.next("region - empty", threads);
        bench::run_region(threads, options, report.results);
    }
    for (const auto& c : vectors) {
        progress.next(c.name(), 1);
        bench::run_vector_case(c, data, options, cache, report.results);
    }
    for (const unsigned threads : options.threads) {
        if (!kda) break;
        progress.next(bench::KdaGroup::name(), threads);
        bench::KdaGroup(options, threads).run(report.results, cache);
    }
    if (!products.empty()) {
        report.pool_bytes = pool_bytes;
        const auto peers = bench::find_peers(k3::kernel_table::tables_of_this_cpu());
        for (const auto& peer : peers) report.peers.push_back(peer.name);
        bench::Pool pool(pool_bytes, options.threads.back());
        for (const auto& product : products) {
            progress.next(product.name(), product.threads);
            bench::detail::MatmulGroup(options, product, pool, peers, cache).run(report.results);
        }
    }
    report.targets = bench::judge_targets(report.results, options);
    return report;
}

int run(int argc, char** argv) {
    const std::optional<bench::Options> options = bench::parse_options(argc, argv);
    if (!options) return k3::drivers::kSuccess;
    k3::run::limit_spinning(argv);  // as k3 does: measured is what it runs with
    check_arithmetic(*options);
    if (options->digest) {
        const int code = bench::run_digests(*options);
        if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) {
            throw Error(Code::write, "standard output could not be written", "check where it goes");
        }
        return code;
    }
    std::optional<k3::run::OutputFile> chart;
    if (!options->chart.empty()) chart.emplace(k3::run::OutputFile::open(options->chart));
    const bench::Report report = measure(*options);
    (options->json ? bench::print_json : bench::print_text)(report, *options);
    if (chart) chart->write(bench::chart_of(report));
    if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) {
        throw Error(Code::write, "standard output could not be written", "check where it goes");
    }
    for (const std::string& difference : report.results.differences)
        std::fprintf(stderr, "k3-bench: %s\n", difference.c_str());
    return report.results.differences.empty() ? k3::drivers::kSuccess : k3::drivers::kFailed;
}

}  // namespace

int main(int argc, char** argv) {
    return k3::drivers::guarded_main("k3-bench", [&] { return run(argc, argv); });
}
