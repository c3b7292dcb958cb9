#ifndef K3_TESTS_SUPPORT_KERNEL_TABLE_DATA_HPP
#define K3_TESTS_SUPPORT_KERNEL_TABLE_DATA_HPP
// Inputs and comparisons for kernel tests. Every value is a function of (seed, index): the same on every machine.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <sstream>
#include <string>
#include <vector>

#include "support/kernel_table.hpp"

namespace k3::tests {

inline constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
inline constexpr float kInf = std::numeric_limits<float>::infinity();

inline std::uint64_t hash(std::uint64_t seed, std::uint64_t i) {  // splitmix64
    std::uint64_t z = seed * 0xd1342543de82ef95U + (i + 1) * 0x9e3779b97f4a7c15U;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9U;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebU;
    return z ^ (z >> 31);
}
/// In (-1, 1), 24 bits: exact in binary32.
inline float uniform(std::uint64_t seed, std::uint64_t i) {
    return std::ldexp(static_cast<float>(hash(seed, i) >> 40) - 8388607.5F, -23);
}

/// What a stretch of inputs is made of.
enum class Kind { plain, wide, subnormal, huge, cancelling, special };
inline constexpr Kind kFinite[] = {Kind::plain, Kind::wide, Kind::subnormal, Kind::huge, Kind::cancelling};
inline constexpr Kind kKinds[] = {Kind::plain,      Kind::wide,    Kind::subnormal, Kind::huge,
                                  Kind::cancelling, Kind::special, Kind::special};  // special: one in sixteen is odd

inline float value(Kind kind, std::uint64_t seed, std::uint64_t i) {
    const std::uint64_t h = hash(seed ^ 0x5bd1e995U, i);
    const float u = uniform(seed, i);
    switch (kind) {
        case Kind::plain: return 3 * u;
        case Kind::wide:  // any finite exponent
            return std::ldexp(u, static_cast<int>(h % 250) - 125);
        case Kind::subnormal: return h % 3 == 0 ? u : std::ldexp(u, -126 - static_cast<int>(h % 20));
        case Kind::huge: return std::ldexp(u, 120 + static_cast<int>(h % 8));
        case Kind::cancelling: {  // i and i ^ 1 nearly cancel, magnitudes vary
            const float base = std::ldexp(uniform(seed, i | 1U), static_cast<int>(hash(seed, i | 1U) % 40) - 20);
            return (i & 1U) != 0 ? base : -base * (1 + std::ldexp(static_cast<float>(h % 3), -22));
        }
        case Kind::special:
            switch (h % 96) {
                case 0: return kNaN;
                case 1: return kInf;
                case 2: return -kInf;
                case 3: return -0.0F;
                case 4: return 0.0F;
                case 5: return std::numeric_limits<float>::denorm_min();
                default: return 3 * u;
            }
    }
    return u;
}

/// `n` floats that start `shift` floats into their memory, which ends right behind them (for the address sanitizer).
/// What lies before is NaN.
class Floats {
  public:
    explicit Floats(std::size_t n, std::size_t shift = 0) : shift_(shift), data_(n + shift, kNaN) {}
    Floats(std::size_t n, Kind kind, std::uint64_t seed, std::size_t shift = 0) : Floats(n, shift) {
        for (std::size_t i = 0; i < n; ++i) data_[i + shift] = value(kind, seed, i);
    }
    float* data() { return data_.data() + shift_; }
    const float* data() const { return data_.data() + shift_; }
    std::size_t size() const { return data_.size() - shift_; }
    float& operator[](std::size_t i) { return data()[i]; }
    float operator[](std::size_t i) const { return data()[i]; }
    operator const float*() const { return data(); }
    operator float*() { return data(); }
    void fill(float v) { std::fill(data(), data() + size(), v); }

  private:
    std::size_t shift_;
    std::vector<float> data_;
};

/// A packed matrix whose bytes start at an odd place where the format allows it and end with their memory.
class Weights {
  public:
    Weights(Format format, std::size_t rows, std::size_t cols, Kind kind, std::uint64_t seed, std::size_t shift = 1)
        : rows_(rows), cols_(cols), shift_(format == kF32 ? 4 * shift : shift) {
        if (format == kBf16 || format == kF32) {
            const std::size_t width = format == kF32 ? 4 : 2;
            data_.resize(shift_ + rows * cols * width);
            for (std::size_t i = 0; i < rows * cols; ++i) {
                const auto bits = std::bit_cast<std::uint32_t>(value(kind, seed, i));
                const std::uint16_t half = static_cast<std::uint16_t>(bits >> 16);
                if (width == 4) std::memcpy(data_.data() + shift_ + 4 * i, &bits, 4);
                if (width == 2) std::memcpy(data_.data() + shift_ + 2 * i, &half, 2);
            }
        } else {
            data_.resize(shift_ + rows * ((cols + 1) / 2));
            scales_.resize(shift_ + rows * ((cols + 31) / 32));
            for (std::size_t i = shift_; i < data_.size(); ++i) data_[i] = static_cast<std::byte>(hash(seed, i) >> 13);
            for (std::size_t i = shift_; i < scales_.size(); ++i)
                scales_[i] = static_cast<std::byte>(scale_byte(kind, hash(seed + 1, i)));
        }
    }
    Bytes bytes() const {
        return {data_.data() + shift_, scales_.empty() ? nullptr : scales_.data() + shift_, rows_, cols_};
    }
    std::byte* data() { return data_.data() + shift_; }
    std::byte* scales() { return scales_.data() + shift_; }

  private:
    static unsigned scale_byte(Kind kind, std::uint64_t h) {
        const auto pick = static_cast<unsigned>(h >> 20);
        switch (kind) {
            case Kind::plain: return 117 + pick % 10;
            case Kind::subnormal: return pick % 3;
            case Kind::huge: return 250 + pick % 5;
            default: return pick % 256;  // 255 included
        }
    }
    std::size_t rows_, cols_, shift_;
    std::vector<std::byte> data_, scales_;
};

/// Threads and scratch for an Exec, all of it filled with NaN: a kernel that reads what it did not write shows.
class Run {
  public:
    Run(unsigned threads, std::size_t local, std::size_t shared)
        : local_((local + 63) / 64 * 64), shared_((shared + 63) / 64 * 64), memory_(threads * local_ + shared_ + 64) {
        std::memset(memory_.data(), 0xff, memory_.size());
        std::byte* base = memory_.data();
        base += (64 - reinterpret_cast<std::uintptr_t>(base) % 64) % 64;
        exec.threads = threads;
        exec.least_work = 0;  // split the smallest work too
        exec.least_work = 0;  // splits even tiny work
        exec.local = base;
        exec.local_bytes = local_;
        exec.shared = base + threads * local_;
        exec.shared_bytes = shared_;
    }
    Run(unsigned threads, Scratch need) : Run(threads, need.local_bytes, need.shared_bytes) {}
    /// All of it as one arena.
    core::Arena arena() const { return {exec.local, exec.threads * local_ + shared_}; }
    core::Exec exec;

  private:
    std::size_t local_, shared_;
    std::vector<std::byte> memory_;
};

// ---- comparison: bits, with NaN equal to NaN

inline bool same(float a, float b) {
    return (a != a && b != b) || std::bit_cast<std::uint32_t>(a) == std::bit_cast<std::uint32_t>(b);
}
inline bool same(double a, double b) {
    return (a != a && b != b) || std::bit_cast<std::uint64_t>(a) == std::bit_cast<std::uint64_t>(b);
}
/// "" if all n are the same; else which is not.
template <class T>
std::string difference(const T* got, const T* want, std::size_t n) {
    if (n == 0 || std::memcmp(got, want, n * sizeof(T)) == 0) return "";
    for (std::size_t i = 0; i < n; ++i)
        if (!same(got[i], want[i])) {
            std::ostringstream text;
            text << std::hexfloat << "[" << i << " of " << n << "] " << got[i] << " is not " << want[i];
            return text.str();
        }
    return "";
}
template <class T>
std::string difference(const std::vector<T>& got, const std::vector<T>& want) {
    if (got.size() != want.size()) return "sizes differ";
    return difference(got.data(), want.data(), got.size());
}
inline std::string difference(const Floats& got, const Floats& want) {
    if (got.size() != want.size()) return "sizes differ";
    return difference(got.data(), want.data(), got.size());
}

/// Every length from 0 past two registers of eight, then the neighbours of what kernels block by.
inline const std::vector<std::size_t>& lengths() {
    static const std::vector<std::size_t> all{0,  1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11,  12,  13,  14, 15,
                                              16, 17, 23, 24, 25, 31, 32, 33, 63, 64, 65, 255, 256, 257, 264};
    return all;
}

}  // namespace k3::tests
#endif
