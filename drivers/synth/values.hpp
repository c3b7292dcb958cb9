#ifndef K3_DRIVERS_SYNTH_VALUES_HPP
#define K3_DRIVERS_SYNTH_VALUES_HPP
// The numbers of a synthetic checkpoint. Every 8 bytes of a tensor are a function of (seed, tensor name, their index)
// and of nothing else, so any byte range can be made alone, by any thread, in any order, and layers or experts can be
// added without changing what is there.
//
// The same bytes on every machine: integers throughout; the few steps in double are exact, or one IEEE division,
// multiplication or square root, and no libm. tests/drivers/test_synth.py holds a digest.
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>

#include "k3/checkpoint/dtype.hpp"
#include "k3/core/digest.hpp"

namespace k3::synth {

using checkpoint::Dtype;

/// What a tensor is filled with. `a` and `b` are explained per kind.
struct Rule {
    enum class Kind : std::uint8_t {
        normal,    ///< approximately N(0, a^2), cut at 3.5 deviations
        near_one,  ///< 1 + normal(a)
        ramp,      ///< a .. b over the first `count` elements, then zeros; a and b multiples of 1/2
        uniform,   ///< [a, b), both integers
        bytes,     ///< every byte value equally often (MXFP4 pairs: every code equally often)
        exponents  ///< E8M0 bytes so that scale * random MXFP4 code has mean square a^2
    };
    Kind kind;
    double a = 0, b = 0;
    std::uint64_t count = 0;
};

/// splitmix64's finaliser: every output bit depends on every input bit.
constexpr std::uint64_t mix(std::uint64_t z) noexcept {
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9U;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebU;
    return z ^ (z >> 31);
}

inline std::uint64_t key_of(std::uint64_t seed, std::string_view tensor_name) noexcept {
    core::Digest digest;
    digest.add_bytes(tensor_name.data(), tensor_name.size());
    return mix(digest.value() ^ mix(seed + 0x9e3779b97f4a7c15U));
}

constexpr std::uint64_t word(std::uint64_t key, std::uint64_t index) noexcept {
    return mix(key + (index + 1) * 0x9e3779b97f4a7c15U);
}

/// Round to nearest even; `value` is finite and far from overflow.
inline std::uint16_t to_bf16(float value) noexcept {
    const auto bits = std::bit_cast<std::uint32_t>(value);
    return static_cast<std::uint16_t>((bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16);
}

/// 4096 equally likely values of the sum of eight integers in 0..127, minus its mean 508: a normal shape out of
/// counting alone. Standard deviation sqrt(8 * (128^2 - 1) / 12) = 104.508.
class NormalTable {
  public:
    static constexpr std::size_t kSize = 4096;
    static constexpr double kVariance = 10922.0;

    static const NormalTable& get() {
        static const NormalTable table;
        return table;
    }
    double operator[](std::size_t i) const noexcept { return values_[i]; }

  private:
    NormalTable() {
        std::array<std::uint64_t, 1017> ways{};  // of reaching each sum; all of them are 2^56
        ways[0] = 1;
        for (int term = 0; term < 8; ++term) {
            std::array<std::uint64_t, 1017> next{};
            for (std::size_t sum = 0; sum < ways.size(); ++sum) {
                for (std::size_t v = 0; v < 128 && sum + v < next.size(); ++v) next[sum + v] += ways[sum];
            }
            ways = next;
        }
        std::uint64_t below = ways[0];
        for (std::size_t i = 0, sum = 0; i < kSize; ++i) {
            const std::uint64_t middle = (std::uint64_t{2} * i + 1) << 43;  // (2i + 1) / (2 * kSize) of 2^56
            while (below <= middle) below += ways[++sum];
            values_[i] = static_cast<std::int16_t>(static_cast<int>(sum) - 508);
        }
    }
    std::array<std::int16_t, kSize> values_{};
};

/// Makes byte ranges of one tensor. Cheap to make per range; one per thread.
class Filler {
  public:
    Filler(Rule rule, Dtype dtype, std::uint64_t key) : rule_(rule), dtype_(dtype), key_(key) {
        if (rule.kind == Rule::Kind::exponents) make_exponents();
        if (rule.kind == Rule::Kind::normal || rule.kind == Rule::Kind::near_one) make_normal();
    }

    /// Fills `out` with the tensor's bytes from byte `first` on.
    void fill(std::uint64_t first, std::span<std::byte> out) const {
        const std::uint64_t key = key_;
        if (rule_.kind == Rule::Kind::bytes) {
            words(first, out, [key](std::uint64_t i) { return word(key, i); });
        } else if (rule_.kind == Rule::Kind::exponents) {
            const std::uint8_t* table = exponents_.data();
            words(first, out, [key, table](std::uint64_t i) {
                std::uint64_t bits = word(key, i), result = 0;
                for (int byte = 0; byte < 64; byte += 8) result |= std::uint64_t{table[(bits >> byte) & 255U]} << byte;
                return result;
            });
        } else if (dtype_ == Dtype::bf16) {
            const std::uint16_t* table = bf16_.data();
            words(first, out, [key, table](std::uint64_t i) {
                const std::uint64_t bits = word(key, i);
                return std::uint64_t{table[(bits >> 4) & 4095U]} | std::uint64_t{table[(bits >> 20) & 4095U]} << 16 |
                       std::uint64_t{table[(bits >> 36) & 4095U]} << 32 | std::uint64_t{table[bits >> 52]} << 48;
            });
        } else {
            words(first, out, [this](std::uint64_t i) {
                const std::uint64_t bits = word(key_, i);
                const auto low = std::bit_cast<std::uint32_t>(f32(2 * i, static_cast<std::uint32_t>(bits)));
                const auto high = std::bit_cast<std::uint32_t>(f32(2 * i + 1, static_cast<std::uint32_t>(bits >> 32)));
                return std::uint64_t{low} | std::uint64_t{high} << 32;
            });
        }
    }

  private:
    template <class Word>
    static void words(std::uint64_t first, std::span<std::byte> out, Word make) {
        std::uint64_t index = first / 8;
        std::size_t done = 0;
        if (const auto skip = static_cast<std::size_t>(first % 8); skip != 0 && !out.empty()) {
            const std::uint64_t bits = make(index++);
            done = std::min(8 - skip, out.size());
            std::memcpy(out.data(), reinterpret_cast<const std::byte*>(&bits) + skip, done);
        }
        for (; done + 8 <= out.size(); done += 8) {
            const std::uint64_t bits = make(index++);
            std::memcpy(out.data() + done, &bits, 8);
        }
        if (done < out.size()) {
            const std::uint64_t bits = make(index);
            std::memcpy(out.data() + done, &bits, out.size() - done);
        }
    }

    float normal(std::size_t i) const noexcept {
        const auto scaled = static_cast<float>(NormalTable::get()[i] * scale_);
        return rule_.kind == Rule::Kind::near_one ? 1.0F + scaled : scaled;
    }

    float f32(std::uint64_t index, std::uint32_t bits) const noexcept {
        if (rule_.kind == Rule::Kind::ramp) {
            if (index >= rule_.count) return 0.0F;
            const auto last = static_cast<double>(std::max<std::uint64_t>(rule_.count - 1, 1));
            return static_cast<float>((rule_.a * last + (rule_.b - rule_.a) * static_cast<double>(index)) / last);
        }
        if (rule_.kind == Rule::Kind::uniform) {
            return static_cast<float>(rule_.a + (rule_.b - rule_.a) * static_cast<double>(bits) / 4294967296.0);
        }
        return normal(bits >> 20);
    }

    void make_normal() {
        scale_ = rule_.a / std::sqrt(NormalTable::kVariance);
        if (dtype_ != Dtype::bf16) return;
        for (std::size_t i = 0; i < bf16_.size(); ++i) bf16_[i] = to_bf16(normal(i));
    }

    // Three neighbouring powers of two, the lowest for 1 group in 8, in shares that meet the mean square. Uniform
    // MXFP4 codes have mean square 68.5 / 8.
    void make_exponents() {
        double ratio = rule_.a * rule_.a / 8.5625;
        int middle = 127;
        for (; ratio < 1.0; ratio *= 4) --middle;
        for (; ratio >= 4.0; ratio /= 4) ++middle;
        const double share = (ratio - 1.0 + 0.09375) / 3.0;
        const auto high = static_cast<std::size_t>(std::min(share, 0.875) * 256.0);
        for (std::size_t i = 0; i < exponents_.size(); ++i) {
            const int step = i < 32 ? -1 : i >= 256 - high ? 1 : 0;
            exponents_[i] = static_cast<std::uint8_t>(std::clamp(middle + step, 1, 254));
        }
    }

    Rule rule_;
    Dtype dtype_;
    std::uint64_t key_;
    double scale_ = 0;
    std::array<std::uint16_t, NormalTable::kSize> bf16_;
    std::array<std::uint8_t, 256> exponents_;
};

}  // namespace k3::synth
#endif
