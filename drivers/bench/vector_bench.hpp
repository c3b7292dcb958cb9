#ifndef K3_DRIVERS_BENCH_VECTOR_BENCH_HPP
#define K3_DRIVERS_BENCH_VECTOR_BENCH_HPP
// The kernels that work in a cache: elementary functions beside libm's, norms, gates, attention over the latent cache,
// routing; and what an empty parallel region costs. One thread each, as the layers call them.
#include <algorithm>
#include <cmath>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "drivers/bench/digest.hpp"
#include "drivers/bench/limits.hpp"

namespace k3::bench {
namespace detail {

inline constexpr const char* kGates = "4096 gates";  // arguments as the model's gates have them

struct VectorCase {
    const char *kernel, *format;
    std::string shape;
    double elements;   // what ns per element counts
    double bytes = 0;  // of weights or cache read
    double flops = 0;  // f64 multiply-adds times two; 0: no limit is claimed
    std::function<std::function<void()>(const KernelTable&)> make;  // a call on one arch
    std::function<void()> libm{};                                   // the same by libm
    std::string name() const { return std::string(kernel) + " " + format + " " + shape; }
};

/// Inputs that all of these share; they live as long as the cases.
struct VectorData {
    std::vector<float> x = numbers(163840, 301), w = numbers(33792, 302, 0.25F), y = numbers(163840, 303);
    std::vector<float> wide = wide_numbers(4096, 304), gates = gate_numbers(4096, 309),
                       sources = numbers(9 * 7168, 305);
    std::vector<float> scratch = std::vector<float>(16384), history = numbers(3 * 12288, 306);
    std::vector<std::int32_t> ids = std::vector<std::int32_t>(16);
    SmallWeights keys{kernel_table::kBf16, 128, 512, 307}, keys_f32{kernel_table::kF32, 128, 512, 310};
    std::vector<float> cache = numbers(4096 * 576, 308, 0x1p-3F);
    std::vector<const float*> rows{};
    std::vector<float*> pages{};
    Workspace work{1, {std::size_t{1} << 20, 0}};
    VectorData() {
        for (std::size_t s = 0; s < 9; ++s) rows.push_back(sources.data() + s * 7168);
        for (std::size_t p = 0; p < 4096; p += 256) pages.push_back(cache.data() + p * 576);
    }
};

template <class Fn>
std::function<void()> by_libm(VectorData& d, const std::vector<float>& x, Fn fn) {
    return [&d, &x, fn] {
        for (std::size_t i = 0; i < x.size(); ++i) d.y[i] = fn(x[i]);
        asm volatile("" : : : "memory");
    };
}

inline std::vector<VectorCase> vector_cases(VectorData& d) {
    using T = const KernelTable&;
    using F = std::function<void()>;
    float *const y = d.y.data(), *const s = d.scratch.data();
    const float *const x = d.x.data(), *const w = d.w.data();
    constexpr std::size_t kHeads = 8, kPositions = 4096;
    std::vector<VectorCase> all;
    const auto add = [&](const char* kernel, const char* format, std::string shape, double elements, double bytes,
                         double flops, auto make, F libm = {}) {
        all.push_back({kernel, format, std::move(shape), elements, bytes, flops, make, std::move(libm)});
    };
    for (const auto& [shape, of] :
         {std::pair<const char*, const std::vector<float>*>{kGates, &d.gates}, {"4096 wide", &d.wide}}) {
        const float* const a = of->data();
        add(
            "exp", "f32", shape, 4096, 0, 0, [=](T t) -> F { return [=, f = t.exp] { f(a, 4096, y); }; },
            by_libm(d, *of, [](float v) { return std::exp(v); }));
        add(
            "sigmoid", "f32", shape, 4096, 0, 0, [=](T t) -> F { return [=, f = t.sigmoid] { f(a, 4096, y); }; },
            by_libm(d, *of, [](float v) { return 1.0F / (1.0F + std::exp(-v)); }));
        add(
            "tanh", "f32", shape, 4096, 0, 0, [=](T t) -> F { return [=, f = t.tanh] { f(a, 4096, y); }; },
            by_libm(d, *of, [](float v) { return std::tanh(v); }));
    }
    add(
        "silu", "f32", kGates, 4096, 0, 0,
        [=, a = d.gates.data()](T t) -> F { return [=, f = t.silu] { f(a, 4096, y); }; },
        by_libm(d, d.gates, [](float v) { return v / (1.0F + std::exp(-v)); }));
    add("dot64", "f32", "7168", 7168, 0, 0,
        [=](T t) -> F { return [=, f = t.dot64] { y[0] = static_cast<float>(f(x, x + 7168, 7168)); }; });
    add("rmsnorm", "f32", "7168", 7168, 0, 0, [=](T t) -> F { return [=, f = t.rmsnorm] { f(x, w, 7168, 1e-5, y); }; });
    add("l2norm", "f32", "128", 128, 0, 0, [=](T t) -> F { return [=, f = t.l2norm] { f(x, 128, y); }; });
    add("l2norm_scaled", "f32", "128", 128, 0, 0,
        [=](T t) -> F { return [=, f = t.l2norm_scaled] { f(x, 128, 0x1.6a09e6p-4F, y); }; });
    add("add", "f32", "7168", 7168, 0, 0, [=](T t) -> F { return [=, f = t.add] { f(x, w, 7168, y); }; });
    add("sigmoid_gate", "f32", "12288", 12288, 0, 0,
        [=](T t) -> F { return [=, f = t.sigmoid_gate] { f(x, w, 12288, y); }; });
    add("scaled_add", "f32", "3584", 3584, 0, 0,
        [=](T t) -> F { return [=, f = t.scaled_add] { f(0x1p-20F, x, 3584, s); }; });
    add("situ_glu", "f32", "3072", 3072, 0, 0,
        [=](T t) -> F { return [=, f = t.situ_glu] { f(x, w, 3072, 4.0F, 25.0F, y); }; });
    add("decay", "f32", "128", 128, 0, 0, [=](T t) -> F { return [=, f = t.decay] { f(x, w, 128, 1.5F, -5.0F, y); }; });
    add("short_conv", "f32", "1x12288", 12288, 0, 0, [=, h = d.history.data()](T t) -> F {
        return [=, f = t.short_conv] { f({x, 1, 12288}, x, 4, h, 0, 12288, {y, 1, 12288}); };
    });
    add("shift_history", "f32", "1x12288", 12288, 0, 0, [=](T t) -> F {
        return [=, f = t.shift_history] { f({x, 1, 12288}, 1, 4, 0, 12288, y); };
    });
    add("attention_residual", "f32", "9x7168", 9 * 7168, 0, 0,
        [=, r = d.rows.data()](T t) -> F { return [=, f = t.attention_residual] { f(r, 9, w, 7168, 1e-5, y, s); }; });
    add("route", "f32", "896 top 16", 896, 0, 0, [=, ids = d.ids.data()](T t) -> F {
        return [=, f = t.route] { f(x, w, 896, {16, true, 2.5}, ids, y, s); };
    });
    add("argmax", "f32", "163840", 163840, 0, 0,
        [=](T t) -> F { return [=, f = t.argmax] { y[0] = static_cast<float>(f(x, 163840)); }; });
    for (const std::size_t tokens : {1U, 16U})
        add("column_dot", "bf16", std::to_string(tokens) + "x128x512", static_cast<double>(tokens) * 128 * 512,
            128 * 512 * 2, static_cast<double>(tokens) * 128 * 512 * 2, [=, keys = d.keys.bytes()](T t) -> F {
                return [=, f = t.column_dot[kernel_table::kBf16]] { f(keys, {x, tokens, 128}, {y, tokens, 512}); };
            });
    add("column_dot", "f32", "1x128x512", 128 * 512, 128 * 512 * 4, 128 * 512 * 2,
        [=, keys = d.keys_f32.bytes()](T t) -> F {
            return [=, f = t.column_dot[kernel_table::kF32]] { f(keys, {x, 1, 128}, {y, 1, 512}); };
        });
    add("latent_attention", "f32", "8 heads x 4096", kHeads * kPositions, kPositions * 576 * 4,
        2.0 * kHeads * kPositions * (576 + 512), [=, &d](T t) -> F {
            const kernel_table::Cache cache{d.pages.data(), 256, 512, 64};
            return [=, &d, f = t.latent_attention] {
                f(cache, kPositions, kHeads, x, 512, x + 8192, 64, 0x1.279a74590331cp-4, y, 512, d.work.arena());
            };
        });
    return all;
}

}  // namespace detail

inline void run_vector_case(const detail::VectorCase& c, detail::VectorData& data, const Options& options,
                            std::size_t cache_bytes, Results& results) {
    std::vector<Candidate> candidates;
    if (c.flops > 0)
        for (const KernelTable* table : options.tables) add_peak_probe(candidates, *table, Width::f64, 1);
    std::vector<std::string> digests;
    for (const KernelTable* table : options.tables) {
        candidates.push_back({table->name, c.make(*table)});
        std::fill(data.y.begin(), data.y.end(), 0.0F);
        std::fill(data.scratch.begin(), data.scratch.end(), 0.0F);  // also what scaled_add adds to
        candidates.back().run();
        core::Digest digest;
        digest.add(data.y.data(), 12288);
        digest.add(data.scratch.data(), data.scratch.size());
        digests.push_back(hex(digest.value()));
        if (digests.back() != digests[0]) {
            results.differences.push_back(c.name() + ": " + table->name + " gives " + digests.back() + ", " +
                                          options.tables[0]->name + " gives " + digests[0]);
        }
    }
    if (c.libm) candidates.push_back({"libm", c.libm});
    take_turns(candidates, options.repeats);
    const Limits limits(candidates, 1, results);
    std::size_t next = 0;
    for (const Candidate& candidate : candidates) {
        if (candidate.role != Role::kernel) continue;
        Row row = row_of(candidate);
        row.kernel = c.kernel;
        row.format = c.format;
        row.shape = c.shape;
        row.elements = c.elements;
        row.bytes = c.bytes;
        row.flops = c.flops;
        row.cached = fits_cache(std::max(c.bytes, 12 * c.elements), cache_bytes);  // at most two inputs and a result
        if (next < digests.size()) row.digest = digests[next++];
        if (c.flops > 0) limits.judge(row, 0, "-", limits.peak(Width::f64, candidate.name.c_str()), "f64");
        results.rows.push_back(row);
    }
}

/// An empty parallel region: waking the team and the barrier at its end.
inline void run_region(unsigned threads, const Options& options, Results& results) {
    std::vector<Candidate> candidates;
    candidates.push_back({"OpenMP", [threads] {
                              core::parallel(threads_only(threads), threads, 1,
                                             [](std::size_t, std::size_t, unsigned) noexcept {});
                          }});
    take_turns(candidates, options.repeats);
    Row row = row_of(candidates[0]);
    row.kernel = "region";
    row.format = "-";
    row.shape = "empty";
    row.threads = threads;
    row.cached = true;  // touches no memory of its own
    results.rows.push_back(row);
}

}  // namespace k3::bench
#endif
