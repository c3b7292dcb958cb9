// matmul, matmul_on_thread, column_dot, dot64: the same bits on every arch of this CPU, for every length, number of
// tokens and number of threads, and equal to the contract as plain loops (kernel_table_twin.hpp).
#include "support/doctest.hpp"
#include "support/kernel_table.hpp"
#include "support/kernel_table_data.hpp"
#include "support/kernel_table_twin.hpp"

using namespace k3;
using namespace k3::tests;

namespace {

struct Case {
    Format format;
    std::size_t cols, tokens, rows;
    Kind kind;
    std::uint64_t seed;
    std::string name() const {
        std::ostringstream text;
        text << kFormatNames[format] << ", " << tokens << " tokens, " << rows << " x " << cols << ", kind "
             << static_cast<int>(kind);
        return text.str();
    }
};

/// All formats, lengths and token counts; kinds and row counts in turn, so that each meets each length.
std::vector<Case> matmul_cases() {
    std::vector<std::size_t> cols = lengths();
    for (const std::size_t more : {511U, 512U, 513U, 519U}) cols.push_back(more);
    const std::size_t tokens[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 63, 64, 65, 66, 130};
    const std::size_t rows[] = {1, 2, 3, 4, 5, 6, 7, 11, 23, 24, 25, 31, 49};
    std::vector<Case> all;
    for (std::size_t f = 0; f < kFormats; ++f)
        for (std::size_t c = 0; c < cols.size(); ++c)
            for (std::size_t t = 0; t < std::size(tokens); ++t)
                all.push_back({static_cast<Format>(f), cols[c], tokens[t], rows[(c + 5 * t + f) % std::size(rows)],
                               kKinds[(c + t) % std::size(kKinds)], 1000 * f + 100 * c + t});
    return all;
}

/// x with a stride longer than its rows; the columns between are NaN.
struct Activations {
    Activations(const Case& c) : memory(c.tokens * (c.cols + 3), 1 + c.seed % 7) {
        for (std::size_t t = 0; t < c.tokens; ++t)
            for (std::size_t i = 0; i < c.cols; ++i)
                memory[t * (c.cols + 3) + i] = value(c.kind, c.seed + 77, t * c.cols + i);
        view = {memory.data(), c.tokens, c.cols, c.cols + 3};
    }
    Floats memory;
    core::MatView<const float> view;
};

/// y with two columns more than rows; they must keep their mark.
template <class T>
struct Result {
    explicit Result(const Case& c) : rows(c.rows), memory(c.tokens * (c.rows + 2), T{-7}), tokens(c.tokens) {}
    core::MatView<T> view() { return {memory.data(), tokens, rows, rows + 2}; }
    bool pads_kept() const {
        for (std::size_t t = 0; t < tokens; ++t)
            for (std::size_t i = rows; i < rows + 2; ++i)
                if (memory[t * (rows + 2) + i] != T{-7}) return false;
        return true;
    }
    std::size_t rows;
    std::vector<T> memory;
    std::size_t tokens;
};

/// The sums of the plain loops.
std::vector<double> plain_sums(const Case& c, const Bytes& w, In x) {
    std::vector<double> weights(c.rows * c.cols), sums(c.tokens * (c.rows + 2), -7.0);
    for (std::size_t r = 0; r < c.rows; ++r)
        for (std::size_t i = 0; i < c.cols; ++i) weights[r * c.cols + i] = twin::weight(c.format, w, r, i);
    for (std::size_t t = 0; t < c.tokens; ++t)
        for (std::size_t r = 0; r < c.rows; ++r)
            sums[t * (c.rows + 2) + r] = twin::dot64(
                c.cols, [&](std::size_t i) { return twin::f64(x.row(t)[i]); },
                [&](std::size_t i) { return weights[r * c.cols + i]; });
    return sums;
}
std::vector<float> rounded(const std::vector<double>& sums) {
    std::vector<float> out;
    for (const double v : sums) out.push_back(twin::rn(v));
    return out;
}

}  // namespace

TEST_CASE("kernels/matmul: every arch and thread count gives the plain loops' sums and floats bit for bit") {
    const auto tables = tables_of_this_cpu();
    for (const Case& c : matmul_cases()) {
        const Weights w(c.format, c.rows, c.cols, c.kind, c.seed);
        const Activations x(c);
        const std::vector<double> sums = plain_sums(c, w.bytes(), x.view);
        const std::vector<float> floats = rounded(sums);
        for (const KernelTable* table : tables) {
            CAPTURE(std::string(table->name));
            CAPTURE(c.name());
            for (unsigned threads = 1; threads <= 3; ++threads) {
                CAPTURE(threads);
                const Run run(threads, table->matmul_scratch(c.cols));
                Result<double> y64(c);
                Result<float> y32(c);
                table->matmul_sums[c.format](run.exec, w.bytes(), x.view, y64.view());
                table->matmul[c.format](run.exec, w.bytes(), x.view, y32.view());
                REQUIRE(difference(y64.memory, sums) == "");
                REQUIRE(difference(y32.memory, floats) == "");
            }
            const Run run(1, table->matmul_scratch(c.cols));
            Result<double> y64(c);
            Result<float> y32(c);
            table->matmul_on_thread_sums[c.format](run.arena(), w.bytes(), x.view, y64.view());
            REQUIRE(difference(y64.memory, sums) == "");
            table->matmul_on_thread[c.format](run.arena(), w.bytes(), x.view, y32.view());
            REQUIRE(difference(y32.memory, floats) == "");
        }
    }
}

TEST_CASE("kernels/matmul: a token's result does not depend on how many tokens come with it") {
    for (const KernelTable* table : tables_of_this_cpu())
        for (std::size_t f = 0; f < kFormats; ++f) {
            CAPTURE(std::string(table->name));
            CAPTURE(std::string(kFormatNames[f]));
            const std::size_t rows = 29, cols = 289, tokens = 130;
            const Weights w(static_cast<Format>(f), rows, cols, Kind::wide, 3);
            const Floats x(tokens * cols, Kind::wide, 4);
            std::vector<double> one_by_one(tokens * rows), together(tokens * rows);
            const Run run(2, table->matmul_scratch(cols));
            for (const std::size_t step : {1U, 2U, 3U, 7U, 64U, 130U}) {
                std::vector<double>& y = step == 1 ? one_by_one : together;
                for (std::size_t t = 0; t < tokens; t += step) {
                    const std::size_t n = std::min<std::size_t>(step, tokens - t);
                    table->matmul_sums[f](run.exec, w.bytes(), In(x + t * cols, n, cols),
                                          core::MatView<double>(y.data() + t * rows, n, rows));
                }
                if (step > 1) CHECK(difference(together, one_by_one) == "");
            }
        }
}

TEST_CASE("kernels/matmul: an mxfp4 product is that of the dequantised weights in f32, where they fit") {
    const std::size_t rows = 13, cols = 321, tokens = 5;
    const Weights packed(kMxfp4, rows, cols, Kind::plain, 9);
    Weights plain(kF32, rows, cols, Kind::plain, 9);
    for (std::size_t r = 0; r < rows; ++r)
        for (std::size_t i = 0; i < cols; ++i) {
            const float v = static_cast<float>(twin::weight(kMxfp4, packed.bytes(), r, i));
            std::memcpy(plain.data() + 4 * (r * cols + i), &v, 4);
        }
    const Floats x(tokens * cols, Kind::wide, 10);
    for (const KernelTable* table : tables_of_this_cpu())
        for (const std::size_t t : {std::size_t{1}, tokens}) {
            const Run run(1, table->matmul_scratch(cols));
            std::vector<double> a(t * rows), b(t * rows);
            table->matmul_sums[kMxfp4](run.exec, packed.bytes(), In(x, t, cols), {a.data(), t, rows});
            table->matmul_sums[kF32](run.exec, plain.bytes(), In(x, t, cols), {b.data(), t, rows});
            CHECK(difference(a, b) == "");
        }
}

TEST_CASE("kernels/matmul: the order is eight lanes; four lanes, one sum and pairs are other bits in the f64 sum") {
    // A wrong order that survives rounding to f32 must still show: lanes of very different size, then cancellation.
    const std::size_t cols = 64;
    const Floats x(cols, Kind::plain, 21);
    Weights w(kF32, 1, cols, Kind::cancelling, 22);
    const auto at = [&](std::size_t i) { return twin::f64(x[i]) * twin::weight(kF32, w.bytes(), 0, i); };
    double four[4] = {}, one = 0;
    for (std::size_t i = 0; i < cols; ++i) {
        four[i % 4] += at(i);
        one += at(i);
    }
    const double eight = twin::matmul64(kF32, w.bytes(), 0, x);
    REQUIRE_FALSE(same((four[0] + four[2]) + (four[1] + four[3]), eight));
    REQUIRE_FALSE(same(one, eight));
    for (const KernelTable* table : tables_of_this_cpu()) {
        const Run run(1, table->matmul_scratch(cols));
        double y = 0;
        table->matmul_sums[kF32](run.exec, w.bytes(), In(x, 1, cols), {&y, 1, 1});
        CHECK(same(y, eight));
    }
}

TEST_CASE("kernels/matmul: trap 45, scale 255 is +0 in every path, never 2^128 or NaN, and scale 0 is 2^-127, not 0") {
    const std::size_t cols = 96;
    Weights w(kMxfp4, 1, cols, Kind::plain, 1);
    for (std::size_t i = 0; i < cols / 2; ++i) w.data()[i] = std::byte{0xe2};  // 1, -4
    w.scales()[0] = std::byte{255};
    w.scales()[1] = std::byte{0};
    w.scales()[2] = std::byte{254};
    for (const KernelTable* table : tables_of_this_cpu())
        for (const std::size_t tokens : {1U, 2U, 5U}) {
            CAPTURE(std::string(table->name));
            CAPTURE(tokens);
            const Run run(1, table->matmul_scratch(cols));
            const auto first = [&](std::size_t begin, float x0) {  // x0 at column `begin`, zero elsewhere
                Floats x(tokens * cols, 0);
                x.fill(0.0F);
                for (std::size_t t = 0; t < tokens; ++t) x[t * cols + begin] = x0;
                std::vector<double> y(tokens);
                table->matmul_sums[kMxfp4](run.exec, w.bytes(), In(x, tokens, cols), {y.data(), tokens, 1});
                for (const double v : y) REQUIRE(same(v, y[0]));
                return y[0];
            };
            CHECK(first(0, 1e30F) == 0.0);
            CHECK(first(1, 1e30F) == 0.0);
            CHECK(first(32, 1.0F) == 0x1p-127);
            CHECK(first(33, 1.0F) == -0x1p-125);
            CHECK(first(64, 1.0F) == 0x1p+127);
            CHECK(first(65, 1.0F) == -0x1p+129);  // outside binary32, exact in the sum
        }
}

TEST_CASE(
    "kernels/matmul: a NaN or infinite activation against a dead group is NaN: skipping the group would hide it") {
    for (const std::size_t cols : {32U, 33U, 40U, 64U}) {
        Weights w(kMxfp4, 2, cols, Kind::plain, 1);
        for (std::size_t i = 0; i < 2 * ((cols + 31) / 32); ++i) w.scales()[i] = std::byte{255};
        for (const KernelTable* table : tables_of_this_cpu())
            for (const std::size_t tokens : {1U, 2U, 4U, 5U})
                for (const float odd : {kNaN, kInf, -kInf}) {
                    CAPTURE(std::string(table->name));
                    CAPTURE(cols);
                    const Run run(1, table->matmul_scratch(cols));
                    Floats x(tokens * cols, 0);
                    x.fill(1.0F);
                    x[cols - 1] = odd;  // token 0 only, the last column: the tail where there is one
                    std::vector<double> y(tokens * 2);
                    table->matmul_sums[kMxfp4](run.exec, w.bytes(), In(x, tokens, cols), {y.data(), tokens, 2});
                    CHECK(y[0] != y[0]);
                    CHECK(y[1] != y[1]);
                    for (std::size_t i = 2; i < y.size(); ++i) CHECK(same(y[i], 0.0));
                }
    }
}

TEST_CASE("kernels/matmul: trap 44 and 46, byte 0x10 is columns 0, 0.5, and a scale serves 32 columns of one row") {
    const std::size_t rows = 3,
                      cols = 65;  // three groups, the last of one column; the last high nibble is not a weight
    Weights w(kMxfp4, rows, cols, Kind::plain, 1);
    for (std::size_t i = 0; i < rows * 33; ++i) w.data()[i] = std::byte{0x10};
    for (std::size_t r = 0; r < rows; ++r) {
        w.data()[r * 33 + 32] = std::byte{0xf2};  // column 64 is 1; its neighbour would be -6
        for (std::size_t g = 0; g < 3; ++g) w.scales()[r * 3 + g] = static_cast<std::byte>(127 + 10 * r + g);
    }
    for (const KernelTable* table : tables_of_this_cpu())
        for (const std::size_t tokens : {1U, 65U}) {
            CAPTURE(std::string(table->name));
            const Run run(1, table->matmul_scratch(cols));
            for (std::size_t at = 0; at < cols; ++at) {
                Floats x(tokens * cols, 0);
                x.fill(0.0F);
                for (std::size_t t = 0; t < tokens; ++t) x[t * cols + at] = 1.0F;
                std::vector<float> y(tokens * rows);
                table->matmul[kMxfp4](run.exec, w.bytes(), In(x, tokens, cols), {y.data(), tokens, rows});
                for (std::size_t t = 0; t < tokens; ++t)
                    for (std::size_t r = 0; r < rows; ++r) {
                        const float code = at == 64 ? 1.0F : (at % 2 == 0 ? 0.0F : 0.5F);
                        REQUIRE(same(y[t * rows + r], std::ldexp(code, static_cast<int>(10 * r + at / 32))));
                    }
            }
        }
}

TEST_CASE("kernels/matmul: rows are independent: NaN and infinite weights of one row stay in it") {
    for (const std::size_t tokens : {1U, 2U, 3U, 9U}) {
        const std::size_t rows = 27, cols = 40;
        Weights w(kF32, rows, cols, Kind::plain, 2);
        const Floats x(tokens * cols, Kind::plain, 3);
        const Weights clean = w;
        for (std::size_t i = 0; i < cols; ++i) std::memcpy(w.data() + 4 * (12 * cols + i), i % 2 ? &kNaN : &kInf, 4);
        for (const KernelTable* table : tables_of_this_cpu()) {
            const Run run(2, table->matmul_scratch(cols));
            std::vector<double> y(tokens * rows), want(tokens * rows);
            table->matmul_sums[kF32](run.exec, w.bytes(), In(x, tokens, cols), {y.data(), tokens, rows});
            table->matmul_sums[kF32](run.exec, clean.bytes(), In(x, tokens, cols), {want.data(), tokens, rows});
            for (std::size_t i = 0; i < y.size(); ++i) CHECK((i % rows == 12 ? y[i] != y[i] : same(y[i], want[i])));
        }
    }
}

TEST_CASE("kernels/matmul: scratch_bytes is enough: the bytes behind it keep their mark") {
    for (const KernelTable* table : tables_of_this_cpu())
        for (const std::size_t cols : {1U, 256U, 257U, 700U}) {
            const std::size_t rows = 30, tokens = 67;
            const Scratch need = table->matmul_scratch(cols);
            CHECK(need.local_bytes % 64 == 0);
            const Weights w(kMxfp4, rows, cols, Kind::plain, 2);
            const Floats x(tokens * cols, Kind::plain, 3);
            std::vector<float> y(tokens * rows);
            Run run(2, need.local_bytes, need.shared_bytes + 256);
            std::byte* const behind = run.exec.shared + need.shared_bytes;
            std::memset(behind, 0x5a, 256);
            run.exec.shared_bytes = need.shared_bytes;
            table->matmul[kMxfp4](run.exec, w.bytes(), In(x, tokens, cols), {y.data(), tokens, rows});
            for (std::size_t i = 0; i < 256; ++i) REQUIRE(behind[i] == std::byte{0x5a});

            Run one(1, need.local_bytes + need.shared_bytes, 256);
            std::byte* const past = one.exec.local + need.local_bytes + need.shared_bytes;
            std::memset(past, 0x5a, 256);
            table->matmul_on_thread[kMxfp4](core::Arena(one.exec.local, need.local_bytes + need.shared_bytes),
                                            w.bytes(), In(x, tokens, cols), {y.data(), tokens, rows});
            for (std::size_t i = 64; i < 256; ++i) REQUIRE(past[i] == std::byte{0x5a});
        }
}

TEST_CASE("kernels/dot: every arch gives the plain loop's dot64, every length and misalignment") {
    for (const Kind kind : kKinds)
        for (const std::size_t n : lengths())
            for (const std::size_t shift : {0U, 1U, 3U, 7U}) {
                const Floats x(n, kind, n + 1, shift), y(n, kind, n + 2, (3 * shift) % 8);
                const double want = twin::dot64(x, y, n);
                for (const KernelTable* table : tables_of_this_cpu()) {
                    CAPTURE(std::string(table->name));
                    CAPTURE(n);
                    REQUIRE(same(table->dot64(x, y, n), want));
                }
            }
}

TEST_CASE(
    "kernels/column_dot: every arch gives the plain loop's columns, rows ascending, every width and token count") {
    const auto tables = tables_of_this_cpu();
    std::uint64_t seed = 0;
    for (const Format format : {kBf16, kF32})
        for (const std::size_t cols : lengths())
            for (const std::size_t tokens : {0U, 1U, 2U, 3U, 4U, 5U, 7U, 8U, 9U, 17U}) {
                const Kind kind = kKinds[++seed % std::size(kKinds)];
                const std::size_t rows = seed % 11 == 0 ? 0 : 1 + seed % 19;
                const Weights w(format, rows, cols, kind, seed);
                const Floats x(tokens * (rows + 1), kind, seed + 5, 1);
                std::vector<float> want(tokens * (cols + 1), -7.0F);
                for (std::size_t t = 0; t < tokens; ++t)
                    for (std::size_t c = 0; c < cols; ++c)
                        want[t * (cols + 1) + c] = twin::column_dot(format, w.bytes(), c, x + t * (rows + 1));
                for (const KernelTable* table : tables) {
                    CAPTURE(std::string(table->name));
                    CAPTURE(rows);
                    CAPTURE(cols);
                    CAPTURE(tokens);
                    std::vector<float> y(tokens * (cols + 1), -7.0F);
                    table->column_dot[format](w.bytes(), In(x, tokens, rows, rows + 1),
                                              {y.data(), tokens, cols, cols + 1});
                    REQUIRE(difference(y, want) == "");
                }
            }
}

TEST_CASE("kernels/column_dot: it sums down the columns, not along the rows") {
    Weights w(kF32, 2, 2, Kind::plain, 1);
    const float values[4] = {1, 2, 30, 40};  // [R=2][C=2]
    std::memcpy(w.data(), values, sizeof values);
    const float x[2] = {1, 10};
    for (const KernelTable* table : tables_of_this_cpu()) {
        float y[2];
        table->column_dot[kF32](w.bytes(), In(x, 1, 2), {y, 1, 2});
        CHECK(y[0] == 301.0F);  // by rows it would be 21
        CHECK(y[1] == 402.0F);
    }
}
