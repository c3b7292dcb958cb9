#ifndef K3_TESTS_LAYERS_DATA_HPP
#define K3_TESTS_LAYERS_DATA_HPP
// Random weights in every format with their float64 twins, scratch with guards, and the arches of this CPU.
#include <bit>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <deque>
#include <limits>
#include <vector>

#include "engine/rig.hpp"
#include "layers/table.hpp"
#include "oracle/model_f64.hpp"
#include "support/doctest.hpp"

namespace k3::tests {

using layers::Format;
using oracle::Bounded;
using oracle::Index;
using oracle::Mat;

inline std::vector<const LayerTable*> tables() {
    std::vector<const LayerTable*> all;
    for (const engine::ArchName arch : engine::arches_of_this_cpu()) {
        switch (arch) {
#if defined(__x86_64__)
            case engine::ArchName::sse42: all.push_back(&layers_sse42); break;
            case engine::ArchName::avx2: all.push_back(&layers_avx2); break;
            case engine::ArchName::avx512: all.push_back(&layers_avx512); break;
#elif defined(__aarch64__)
            case engine::ArchName::neon: all.push_back(&layers_neon); break;
#endif
            default: all.push_back(&layers_scalar); break;
        }
    }
    return all;
}

class Rng {
  public:
    explicit Rng(std::uint64_t seed) : state_(seed * 2 + 1) {}
    std::uint64_t bits() {
        std::uint64_t z = state_ += 0x9e3779b97f4a7c15U;
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9U;
        z = (z ^ (z >> 27)) * 0x94d049bb133111ebU;
        return z ^ (z >> 31);
    }
    double uniform() { return static_cast<double>(bits() >> 11) * 0x1p-53; }
    /// Near normal, of standard deviation `sd`.
    float normal(double sd = 1) {
        double sum = 0;
        for (int i = 0; i < 6; ++i) sum += uniform() - 0.5;
        return static_cast<float>(sum * std::sqrt(2.0) * sd);
    }
    Floats normals(std::size_t n, double sd = 1) {
        Floats v(n);
        for (float& x : v) x = normal(sd);
        return v;
    }

  private:
    std::uint64_t state_;
};

inline Mat mat(const float* data, std::size_t rows, std::size_t cols) {
    return Eigen::Map<const Eigen::Matrix<float, -1, -1, Eigen::RowMajor>>(data, static_cast<Index>(rows),
                                                                           static_cast<Index>(cols))
        .cast<double>();
}
inline Mat mat(const Floats& data, std::size_t rows, std::size_t cols) { return mat(data.data(), rows, cols); }
inline oracle::Vec vec(const Floats& data) { return mat(data, data.size(), 1).col(0); }

/// A weight as the engine and as the oracle see it.
struct Pair {
    layers::Weight weight;
    oracle::Weight f64;
};

/// Owns the bytes of weights.
class Weights {
  public:
    explicit Weights(std::uint64_t seed) : rng(seed) {}

    Pair make(Format format, std::size_t rows, std::size_t cols, double sd = -1) {
        if (sd < 0) sd = 1 / std::sqrt(static_cast<double>(cols));
        if (format == Format::mxfp4) {
            std::vector<std::byte> packed(rows * ((cols + 1) / 2)), scales(rows * ((cols + 31) / 32));
            for (std::byte& b : packed) b = static_cast<std::byte>(rng.bits());
            const int centre = 127 + static_cast<int>(std::lround(std::log2(sd / 2.2)));
            for (std::byte& b : scales) b = static_cast<std::byte>(centre - 2 + static_cast<int>(rng.bits() % 5));
            return mxfp4(rows, cols, std::move(packed), std::move(scales));
        }
        Floats values = rng.normals(rows * cols, sd);
        return from(format, rows, cols, std::move(values));
    }
    Pair mxfp4(std::size_t rows, std::size_t cols, std::vector<std::byte> packed, std::vector<std::byte> scales) {
        const auto& p = bytes_.emplace_back(std::move(packed));
        const auto& s = bytes_.emplace_back(std::move(scales));
        return {{Format::mxfp4, rows, cols, p.data(), s.data(), 0},
                oracle::Weight::mxfp4({reinterpret_cast<const std::uint8_t*>(p.data()), p.size()},
                                      {reinterpret_cast<const std::uint8_t*>(s.data()), s.size()},
                                      static_cast<Index>(rows), static_cast<Index>(cols))};
    }
    /// f32, or bf16 by truncation.
    Pair from(Format format, std::size_t rows, std::size_t cols, const Floats& values) {
        auto& raw = bytes_.emplace_back(values.size() * (format == Format::f32 ? 4 : 2));
        for (std::size_t i = 0; i < values.size(); ++i) {
            const auto bits = std::bit_cast<std::uint32_t>(values[i]);
            const auto half = static_cast<std::uint16_t>(bits >> 16);
            if (format == Format::f32)
                std::memcpy(raw.data() + 4 * i, &bits, 4);
            else
                std::memcpy(raw.data() + 2 * i, &half, 2);
        }
        const auto r = static_cast<Index>(rows), c = static_cast<Index>(cols);
        if (format == Format::f32)
            return {{format, rows, cols, raw.data(), nullptr, 0},
                    oracle::Weight::f32({reinterpret_cast<const float*>(raw.data()), values.size()}, r, c)};
        return {{format, rows, cols, raw.data(), nullptr, 0},
                oracle::Weight::bf16({reinterpret_cast<const std::uint16_t*>(raw.data()), values.size()}, r, c)};
    }
    /// [rows, cols] with ones at (i, first + i): picks columns out of x.
    Pair pick(std::size_t rows, std::size_t cols, std::size_t first) {
        Floats values(rows * cols, 0.0F);
        for (std::size_t i = 0; i < rows && first + i < cols; ++i) values[i * cols + first + i] = 1;
        return from(Format::f32, rows, cols, values);
    }
    const float* vector(Floats values) { return vectors_.emplace_back(std::move(values)).data(); }

    Rng rng;

  private:
    std::deque<std::vector<std::byte>> bytes_;
    std::deque<Floats> vectors_;
};

/// Threads and generous scratch, and an arena of exactly the bytes asked for with a guard behind it.
class Bench {
  public:
    explicit Bench(unsigned threads, std::size_t arena_bytes = 0)
        : local_(threads * kLocal), shared_(kShared), arena_bytes_(arena_bytes), arena_(arena_bytes + kGuard) {
        exec = {threads, local_.data(), kLocal, shared_.data(), kShared, 0};  // 0: splits even tiny work
        std::memset(arena_.data() + arena_bytes, 0x5a, kGuard);
    }
    core::Arena arena() const { return {arena_.data(), arena_bytes_}; }
    bool guard_is_clean() const {
        for (std::size_t i = 0; i < kGuard; ++i)
            if (arena_.data()[arena_bytes_ + i] != std::byte{0x5a}) return false;
        return true;
    }
    core::Exec exec;

  private:
    static constexpr std::size_t kLocal = std::size_t{1} << 20, kShared = std::size_t{4} << 20, kGuard = 4096;
    core::Buffer local_, shared_;
    std::size_t arena_bytes_;
    core::Buffer arena_;
};

/// Worst |engine - oracle| / budget of each stage, printed once at the end of a test.
class Ratios {
  public:
    explicit Ratios(const char* what) : what_(what) {}
    ~Ratios() {
        std::printf("%s: worst share of the rounding budget:", what_);
        for (const auto& [stage, ratio] : worst_) std::printf(" %s %.2f", stage.c_str(), ratio);
        std::printf("\n");
    }
    Ratios(const Ratios&) = delete;
    Ratios& operator=(const Ratios&) = delete;
    double add(const std::string& stage, const Mat& got, const Bounded& want) {
        const double ratio = oracle::worst_ratio(got, want);
        double& worst = worst_[stage];
        worst = std::max(worst, ratio);
        return ratio;
    }

  private:
    const char* what_;
    std::map<std::string, double> worst_;
};

}  // namespace k3::tests
#endif
