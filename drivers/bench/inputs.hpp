#ifndef K3_DRIVERS_BENCH_INPUTS_HPP
#define K3_DRIVERS_BENCH_INPUTS_HPP
// Inputs of kernels, and the scratch they run on. Every value is an exact function of (seed, index): integers and
// powers of two, no libm, so that a digest of results compares machines and not generators.
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "drivers/kernel_table/kernel_table.hpp"
#include "drivers/synth/values.hpp"
#include "k3/core/buffer.hpp"
#include "k3/core/exec.hpp"

namespace k3::bench {

using kernel_table::Format;
using kernel_table::KernelTable;

inline std::uint64_t word(std::uint64_t seed, std::uint64_t i) { return synth::word(synth::mix(seed), i); }

/// In [-4, 4), multiples of 2^-21; one in seven is 2^-13 times that, so that the order of a sum shows in its bits.
inline float number(std::uint64_t seed, std::uint64_t i) {
    const std::uint64_t w = word(seed, i);
    const float v = static_cast<float>(static_cast<std::int32_t>(w >> 40) - (1 << 23)) * 0x1p-21F;
    return (w & 0xffff) % 7 == 3 ? v * 0x1p-13F : v;
}

/// `n` numbers times `scale`, a power of two.
inline std::vector<float> numbers(std::size_t n, std::uint64_t seed, float scale = 1.0F) {
    std::vector<float> out(n);
    for (std::size_t i = 0; i < n; ++i) out[i] = number(seed, i) * scale;
    return out;
}

/// Numbers whose magnitudes cover 2^-30 .. 2^7: what exp, sigmoid and tanh distinguish.
inline std::vector<float> wide_numbers(std::size_t n, std::uint64_t seed) {
    std::vector<float> out(n);
    for (std::size_t i = 0; i < n; ++i) {
        const auto exponent = static_cast<std::uint32_t>(127 - 30 + word(seed + 1, i) % 38);
        const auto bits = static_cast<std::uint32_t>(word(seed, i));
        out[i] = std::bit_cast<float>((bits & 0x807fffffU) | (exponent << 23));
    }
    return out;
}

/// About normal with a deviation of 2, as gates are: twelve uniform numbers summed, of variance 1/12 each, times two.
inline std::vector<float> gate_numbers(std::size_t n, std::uint64_t seed) {
    std::vector<float> out(n);
    for (std::size_t i = 0; i < n; ++i) {
        std::int32_t sum = -6 * 65536;
        for (std::uint64_t k = 0; k < 3; ++k)
            for (std::uint64_t w = word(seed, 3 * i + k); w != 0; w >>= 16)
                sum += static_cast<std::int32_t>(w & 0xffff);
        out[i] = static_cast<float>(sum) * 0x1p-15F;
    }
    return out;
}

/// In (1/2, 1], 24 bits: decays.
inline std::vector<float> decays(std::size_t n, std::uint64_t seed) {
    std::vector<float> out(n);
    for (std::size_t i = 0; i < n; ++i) out[i] = 1.0F - static_cast<float>(word(seed, i) >> 41) * 0x1p-24F;
    return out;
}

inline constexpr std::size_t row_bytes(Format format, std::size_t cols) {
    return format == kernel_table::kBf16 ? 2 * cols : format == kernel_table::kF32 ? 4 * cols : (cols + 1) / 2;
}
inline constexpr std::size_t scale_bytes(Format format, std::size_t cols) {
    return format == kernel_table::kMxfp4 ? (cols + 31) / 32 : 0;
}

/// Bytes that are moderate bf16 values, the high halves of moderate f32 values, and MXFP4 codes.
inline std::uint64_t weight_word(std::uint64_t seed, std::uint64_t i) {
    return (word(seed, i) & 0x87ff87ff87ff87ffU) | 0x3800380038003800U;
}

/// A small packed matrix of its own, with all codes, scales from 2^-17 to 2^12 and now and then the dead scale 255.
class SmallWeights {
  public:
    enum Scales { kOrdinary, kAllScales };  // the latter: every byte in turn, from 2^-127 up, and the dead one
    SmallWeights(Format format, std::size_t rows, std::size_t cols, std::uint64_t seed, Scales scales = kOrdinary)
        : rows_(rows), cols_(cols) {
        data_.resize(rows * row_bytes(format, cols));
        for (std::size_t i = 0; i < data_.size(); i += 8) {
            const std::uint64_t w = format == kernel_table::kMxfp4 ? word(seed, i) : weight_word(seed, i);
            std::memcpy(data_.data() + i, &w, data_.size() - i < 8 ? data_.size() - i : 8);
        }
        scales_.resize(rows * scale_bytes(format, cols));
        for (std::size_t i = 0; i < scales_.size(); ++i) {
            const std::uint64_t w = word(seed + 1, i);
            scales_[i] = static_cast<std::byte>(scales == kAllScales ? i % 256
                                                : (w >> 8) % 61 == 0 ? 255
                                                                     : 110 + w % 30);
        }
    }
    kernel_table::Bytes bytes() const {
        return {data_.data(), scales_.empty() ? nullptr : scales_.data(), rows_, cols_};
    }

  private:
    std::size_t rows_, cols_;
    std::vector<std::byte> data_{}, scales_{};
};

/// An Exec with its scratch.
class Workspace {
  public:
    Workspace(unsigned threads, kernel_table::Scratch need)
        : local_((need.local_bytes + 63) / 64 * 64),
          shared_((need.shared_bytes + 63) / 64 * 64),
          memory_(threads * local_ + shared_) {
        exec_.threads = threads;
        exec_.local = memory_.data();
        exec_.local_bytes = local_;
        exec_.shared = memory_.data() + threads * local_;
        exec_.shared_bytes = shared_;
    }
    core::Exec& exec() { return exec_; }
    /// All of it as one arena.
    core::Arena arena() const { return {memory_.data(), memory_.size()}; }

  private:
    std::size_t local_, shared_;
    core::Buffer memory_;
    core::Exec exec_{};
};

}  // namespace k3::bench
#endif
