#include "k3/layers/linear.hpp"

#include "engine/panels.hpp"
#include "layers/data.hpp"

using namespace k3;
using namespace k3::tests;
using core::FaultCode;

TEST_CASE(
    "layers/linear: every format within the dot's rounding budget, odd sizes, one digest of bits over arches, threads, "
    "tokens") {
    Ratios ratios("layers/linear");
    Weights made(1);
    for (const Format format : {Format::bf16, Format::f32, Format::mxfp4})
        for (const auto& [rows, cols] : {std::pair{37, 101}, {5, 7}, {130, 64}, {1, 33}, {19, 1}}) {
            const std::size_t r = static_cast<std::size_t>(rows), c = static_cast<std::size_t>(cols), tokens = 70;
            const Pair w = made.make(format, r, c);
            const Floats x = made.rng.normals(tokens * c);
            const Bounded want = oracle::matmul(oracle::exact(mat(x, tokens, c)), w.f64);
            Floats first;
            for (const LayerTable* table : tables())
                for (const unsigned threads : {1U, 2U, 3U})
                    for (const std::size_t step : {std::size_t{1}, std::size_t{2}, std::size_t{7}, tokens}) {
                        const Bench bench(threads);
                        Floats y(tokens * r, -9.0F);
                        for (std::size_t t = 0; t < tokens; t += step) {
                            const std::size_t n = std::min(step, tokens - t);
                            REQUIRE_FALSE(table->linear({bench.exec, nullptr, nullptr}, w.weight,
                                                        {x.data() + t * c, n, c}, {y.data() + t * r, n, r}));
                        }
                        if (first.empty()) {
                            CHECK(ratios.add("y", mat(y, tokens, r), want) <= 1.0);
                            first = y;
                        }
                        CHECK(same_bits(y, first));
                    }
        }
}

TEST_CASE("layers/linear: panels of 1, 3 or all rows from poisoned copies give the bits of the resident weight") {
    Weights made(2);
    for (const Format format : {Format::bf16, Format::f32, Format::mxfp4}) {
        const std::size_t rows = 41, cols = 45, tokens = 13;
        const Pair w = made.make(format, rows, cols);
        const Floats x = made.rng.normals(tokens * cols);
        for (const LayerTable* table : tables()) {
            const Bench bench(2);
            Floats want(tokens * rows), y(tokens * rows);
            REQUIRE_FALSE(table->linear({bench.exec, nullptr, nullptr}, w.weight, {x.data(), tokens, cols},
                                        {want.data(), tokens, rows}));
            for (const std::size_t panel : {std::size_t{1}, std::size_t{3}, PanelSource::kAll}) {
                PanelSource source(panel);
                layers::Weight streamed = w.weight;
                source.take(streamed);
                std::fill(y.begin(), y.end(), -9.0F);
                REQUIRE_FALSE(table->linear({bench.exec, &source, nullptr}, streamed, {x.data(), tokens, cols},
                                            {y.data(), tokens, rows}));
                CHECK(same_bits(y, want));
                CHECK(source.acquired == (panel == PanelSource::kAll ? 1 : (rows + panel - 1) / panel));
                CHECK(source.outstanding == 0);
                CHECK(source.most_outstanding == 1);
                CHECK(source.mistakes == 0);
                PanelSource broken(panel, source.acquired - 1);  // the last panel fails
                layers::Weight lost = w.weight;
                broken.take(lost);
                const core::Fault fault = table->linear({bench.exec, &broken, nullptr}, lost, {x.data(), tokens, cols},
                                                        {y.data(), tokens, rows});
                CHECK(fault.code == FaultCode::weight_failed);
                CHECK(broken.outstanding == 0);
            }
            layers::Weight nowhere = w.weight;
            nowhere.data = nullptr;
            CHECK(table
                      ->linear({bench.exec, nullptr, nullptr}, nowhere, {x.data(), tokens, cols},
                               {y.data(), tokens, rows})
                      .code == FaultCode::weight_failed);
        }
    }
}

namespace {
/// W e_c for every column: the weights as the engine reads them.
Floats columns_of(const LayerTable* table, const layers::Weight& w) {
    const Bench bench(1);
    Floats x(w.cols * w.cols, 0.0F), y(w.cols * w.rows);
    for (std::size_t c = 0; c < w.cols; ++c) x[c * w.cols + c] = 1;
    REQUIRE_FALSE(
        table->linear({bench.exec, nullptr, nullptr}, w, {x.data(), w.cols, w.cols}, {y.data(), w.cols, w.rows}));
    return y;  // [cols][rows]
}
std::vector<std::byte> bytes_of(std::initializer_list<unsigned> values) {
    std::vector<std::byte> out;
    for (const unsigned v : values) out.push_back(static_cast<std::byte>(v));
    return out;
}
}  // namespace

TEST_CASE("layers/linear: trap 44, the low nibble is the even column; trap 47, codes 8..15 are sign and magnitude") {
    Weights made(3);
    const Pair w = made.mxfp4(1, 16, bytes_of({0x10, 0x32, 0x54, 0x76, 0x98, 0xba, 0xdc, 0xfe}), bytes_of({127}));
    const Floats want{0, 0.5F, 1, 1.5F, 2, 3, 4, 6, 0, -0.5F, -1, -1.5F, -2, -3, -4, -6};
    for (const LayerTable* table : tables()) {
        const Floats got = columns_of(table, w.weight);
        for (std::size_t i = 0; i < want.size(); ++i) CHECK(got[i] == want[i]);
    }
}

TEST_CASE(
    "layers/linear: trap 45, scale 255 contributes nothing yet meets Inf and NaN; 0 is 2^-127; 254 does not overflow "
    "in f32") {
    Weights made(4);
    std::vector<std::byte> packed(2 * 64, std::byte{0x77});  // all sixes
    const Pair w = made.mxfp4(2, 128, std::move(packed), bytes_of({255, 127, 0, 254, 254, 254, 255, 0}));
    for (const LayerTable* table : tables()) {
        const Bench bench(1);
        const auto product = [&](const Floats& x) {
            Floats y(2);
            REQUIRE_FALSE(
                table->linear({bench.exec, nullptr, nullptr}, w.weight, {x.data(), 1, 128}, {y.data(), 1, 2}));
            return y;
        };
        Floats x(128, 0.0F);
        x[3] = 5;   // under scale 255 in row 0: nothing; under 254 in row 1: 30 * 2^127 is beyond f32
        x[32] = 1;  // 6 in row 0
        Floats y = product(x);
        CHECK(y[0] == 6.0F);
        CHECK(std::isinf(y[1]));
        x.assign(128, 0.0F);
        x[3] = 0x1p-20F;  // row 1: 6 * 2^127 * 2^-20 is finite though the weight itself is not an f32
        CHECK(product(x)[1] == 6 * 0x1p107F);
        x.assign(128, 0.0F);
        x[64] = 1;  // row 0: 6 * 2^-127, a subnormal result that flush-to-zero would lose
        CHECK(product(x)[0] == 6 * 0x1p-127F);
        x.assign(128, 0.0F);
        x[5] = std::numeric_limits<float>::infinity();
        CHECK(std::isnan(product(x)[0]));  // +0 times Inf
        x[5] = std::numeric_limits<float>::quiet_NaN();
        CHECK(std::isnan(product(x)[0]));
    }
}

TEST_CASE("layers/linear: trap 46, a scale covers 32 columns of one row, and the last group may be partial") {
    Weights made(5);
    const std::size_t rows = 3, cols = 71;  // 36 bytes a row, the last high nibble unused; groups of 32, 32, 7
    std::vector<std::byte> packed(rows * 36, std::byte{0x22}), scales;
    for (std::size_t r = 0; r < rows; ++r) packed[r * 36 + 35] = std::byte{0xf2};  // junk in the unused nibble
    for (unsigned i = 0; i < 9; ++i) scales.push_back(static_cast<std::byte>(120 + i));
    const Pair w = made.mxfp4(rows, cols, std::move(packed), std::move(scales));
    for (const LayerTable* table : tables()) {
        const Floats got = columns_of(table, w.weight);
        for (std::size_t c = 0; c < cols; ++c)
            for (std::size_t r = 0; r < rows; ++r)
                CHECK(got[c * rows + r] == std::ldexp(1.0F, static_cast<int>(r * 3 + c / 32) - 7));
        const Bench bench(1);
        Floats ones(cols, 1.0F), y(rows);
        REQUIRE_FALSE(
            table->linear({bench.exec, nullptr, nullptr}, w.weight, {ones.data(), 1, cols}, {y.data(), 1, rows}));
        for (std::size_t r = 0; r < rows; ++r) {
            const float unit = std::ldexp(1.0F, static_cast<int>(r * 3) - 7);
            CHECK(y[r] == unit * (32 + 64 + 28));
        }
    }
}
