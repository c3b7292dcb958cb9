#ifndef K3_DRIVERS_BENCH_DIGEST_CASES_HPP
#define K3_DRIVERS_BENCH_DIGEST_CASES_HPP
// What --digest computes: every kernel at small shapes, odd ones among them. A kernel with an output policy is hashed
// before rounding to f32, since wrong orders of a sum survive that rounding. The set is the same on every machine and
// small enough for an emulator.
#include <bit>
#include <cstdint>
#include <functional>
#include <iterator>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "drivers/bench/inputs.hpp"
#include "k3/core/digest.hpp"

namespace k3::bench {

struct DigestCase {
    std::string name{};  // kernel, format, shape: one line of the file, without the digest
    // Ways to compute it that must agree; the first is hashed into the file, the others (threads, single-thread entry)
    // are only compared with it.
    std::size_t variants = 1;
    std::function<std::uint64_t(const KernelTable&, std::size_t variant)> run{};
};

namespace detail {

inline constexpr unsigned kDigestThreads = 3;  // does not divide the rows, and is more than many machines have

template <class... T>
std::string name_of(const char* kernel, const char* format, const T&... parts) {
    std::string name = std::string(kernel) + " " + format;
    const auto add = [&name](const std::string& part) { name += " " + part; };
    (add(parts), ...);
    return name;
}
inline std::string dim(const char* letter, std::size_t n) { return std::string(letter) + "=" + std::to_string(n); }

template <class T>
std::uint64_t digest_of(const std::vector<T>& values) {
    core::Digest d;
    d.add(values.data(), values.size());
    return d.value();
}

/// A case that multiplies w by x and hashes the f64 sums: one thread, three threads, the single-thread entry.
template <class MakeW, class MakeX>
DigestCase matmul_case(std::string name, std::size_t f, std::size_t tokens, MakeW make_w, MakeX make_x) {
    const auto run = [=](const KernelTable& table, std::size_t variant) {
        const SmallWeights weights = make_w();
        const kernel_table::Bytes w = weights.bytes();
        const std::vector<float> x = make_x();
        std::vector<double> y(tokens * w.rows);
        Workspace work(variant == 1 ? kDigestThreads : 1, table.matmul_scratch(w.cols));
        work.exec().least_work = 0;  // split the smallest work too
        const kernel_table::In in(x.data(), tokens, w.cols);
        const core::MatView<double> out(y.data(), tokens, w.rows);
        if (variant < 2)
            table.matmul_sums[f](work.exec(), w, in, out);
        else
            table.matmul_on_thread_sums[f](work.arena(), w, in, out);
        return digest_of(y);
    };
    return {std::move(name), 3, run};
}

inline void add_matmul(std::vector<DigestCase>& all) {
    struct Shape {
        std::size_t rows, cols;
    };
    // Odd, one and many column chunks, the released widths with few rows.
    constexpr Shape kShapes[] = {{3, 1}, {13, 321}, {50, 513}, {96, 3584}, {24, 7168}};
    constexpr std::size_t kTokens[] = {1, 2, 3, 4, 16, 65};
    for (std::size_t f = 0; f < kernel_table::kFormats; ++f)
        for (const Shape shape : kShapes)
            for (const std::size_t tokens : kTokens) {
                all.push_back(matmul_case(
                    name_of("matmul", kernel_table::kFormatNames[f], dim("T", tokens), dim("R", shape.rows),
                            dim("C", shape.cols)),
                    f, tokens, [=] { return SmallWeights(static_cast<Format>(f), shape.rows, shape.cols, 11 + f); },
                    [=] { return numbers(tokens * shape.cols, 12); }));
            }
}

/// What a value can be besides ordinary: by token subnormals, zeros of both signs, infinities, NaN; the last token is
/// ordinary, and nothing of its neighbours may show in it.
inline std::vector<float> special_tokens(std::size_t cols) {
    constexpr float kInf = std::numeric_limits<float>::infinity(), kNan = std::numeric_limits<float>::quiet_NaN();
    std::vector<float> x = numbers(5 * cols, 13);
    for (std::size_t i = 0; i < cols; ++i) {
        const auto w = word(14, i);
        const auto subnormal = std::bit_cast<float>(static_cast<std::uint32_t>(w) & 0x807fffffU);
        if (i % 2 == 0) x[i] = subnormal;
        x[cols + i] = w % 2 == 0 ? 0.0F : -0.0F;
        if (i % 97 == 5) x[2 * cols + i] = w % 8 == 0 ? -kInf : kInf;
        if (i % 97 == 6) x[3 * cols + i] = kNan;
    }
    return x;
}

inline void add_matmul_edges(std::vector<DigestCase>& all) {
    for (const std::size_t tokens : {1U, 3U, 16U})  // 16 x 512: each of the 256 scale bytes once
        all.push_back(matmul_case(
            name_of("matmul", "mxfp4", "all scales", dim("T", tokens), dim("R", 16), dim("C", 512)),
            kernel_table::kMxfp4, tokens,
            [] { return SmallWeights(kernel_table::kMxfp4, 16, 512, 15, SmallWeights::kAllScales); },
            [=] { return numbers(tokens * 512, 16); }));
    for (std::size_t f = 0; f < kernel_table::kFormats; ++f)
        all.push_back(matmul_case(
            name_of("matmul", kernel_table::kFormatNames[f], "specials", dim("T", 5), dim("R", 13), dim("C", 321)), f,
            5, [=] { return SmallWeights(static_cast<Format>(f), 13, 321, 17 + f); },
            [] { return special_tokens(321); }));
}

inline void add_sums(std::vector<DigestCase>& all) {
    for (const std::size_t n : {1U, 7U, 64U, 1001U, 7168U}) {
        const auto run = [n](const KernelTable& table, std::size_t) {
            const auto x = numbers(n, 21), y = numbers(n, 22);
            core::Digest d;
            d.add(table.dot64(x.data(), y.data(), n));
            return d.value();
        };
        all.push_back({name_of("dot64", "f32", dim("n", n)), 1, run});
    }
    for (std::size_t f = 0; f < kernel_table::kMxfp4; ++f)  // bf16 and f32
        for (const std::size_t tokens : {1U, 9U})
            for (const auto& [rows, cols] : {std::pair<std::size_t, std::size_t>{128, 512}, {13, 37}}) {
                const auto run = [=, rows = rows, cols = cols](const KernelTable& table, std::size_t) {
                    const SmallWeights w(static_cast<Format>(f), rows, cols, 31 + f);
                    const auto x = numbers(tokens * rows, 32);
                    std::vector<float> y(tokens * cols);
                    table.column_dot[f](w.bytes(), {x.data(), tokens, rows}, {y.data(), tokens, cols});
                    return digest_of(y);
                };
                all.push_back({name_of("column_dot", kernel_table::kFormatNames[f], dim("T", tokens), dim("R", rows),
                                       dim("C", cols)),
                               1, run});
            }
}

}  // namespace detail
}  // namespace k3::bench
#endif
