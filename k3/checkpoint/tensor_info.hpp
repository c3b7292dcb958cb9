#ifndef K3_CHECKPOINT_TENSOR_INFO_HPP
#define K3_CHECKPOINT_TENSOR_INFO_HPP
// Where a tensor lies and what it looks like: dtype, shape, shard, absolute offset, bytes.
#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "k3/checkpoint/dtype.hpp"

namespace k3::checkpoint {

/// Dimensions of a tensor. Rank 0 is a scalar: one element. The format sets no limit on the rank; ours is kMaxRank,
/// so that a shape needs no allocation (the released model has rank 1 to 4).
class Shape {
  public:
    static constexpr std::size_t kMaxRank = 8;

    constexpr Shape() noexcept = default;
    constexpr Shape(std::initializer_list<std::uint64_t> dims) noexcept {
        for (const std::uint64_t dim : dims) push(dim);
    }

    /// Adds a dimension at the end; false, and no change, beyond kMaxRank.
    constexpr bool push(std::uint64_t dim) noexcept {
        if (rank_ == kMaxRank) return false;
        dims_[rank_++] = dim;
        return true;
    }
    constexpr std::size_t rank() const noexcept { return rank_; }
    constexpr std::uint64_t operator[](std::size_t i) const noexcept { return dims_[i]; }
    constexpr std::span<const std::uint64_t> dims() const noexcept { return {dims_.data(), rank_}; }
    friend constexpr bool operator==(const Shape&, const Shape&) noexcept = default;

  private:
    std::array<std::uint64_t, kMaxRank> dims_{};
    std::uint8_t rank_ = 0;
};

/// The number of elements, or nothing if it does not fit 64 bits. A zero anywhere makes it 0, whatever the rest.
constexpr std::optional<std::uint64_t> element_count(const Shape& shape) noexcept {
    for (const std::uint64_t dim : shape.dims()) {
        if (dim == 0) return 0;
    }
    std::uint64_t count = 1;
    for (const std::uint64_t dim : shape.dims()) {
        if (__builtin_mul_overflow(count, dim, &count)) return std::nullopt;
    }
    return count;
}

/// The bytes of a tensor, or nothing if they do not fit 64 bits or are not a whole number (types below 8 bits).
constexpr std::optional<std::uint64_t> byte_count(Dtype dtype, const Shape& shape) noexcept {
    const std::optional<std::uint64_t> count = element_count(shape);
    std::uint64_t total = 0;
    if (!count || __builtin_mul_overflow(*count, std::uint64_t{bits(dtype)}, &total)) {
        // The bit count may overflow where the byte count does not.
        if (!count || bits(dtype) % 8 != 0) return std::nullopt;
        if (__builtin_mul_overflow(*count, std::uint64_t{element_bytes(dtype)}, &total)) return std::nullopt;
        return total;
    }
    if (total % 8 != 0) return std::nullopt;
    return total / 8;
}

struct TensorInfo {
    Dtype dtype;
    Shape shape;
    std::uint32_t shard;   // index into ShardIndex::shards()
    std::uint64_t offset;  // bytes from the start of the file, not of its data section
    std::uint64_t bytes;
};

/// "[3072, 1792]", for messages and listings.
inline std::string to_string(const Shape& shape) {
    std::string text = "[";
    for (std::size_t i = 0; i < shape.rank(); ++i) {
        if (i != 0) text += ", ";
        text += std::to_string(shape[i]);
    }
    return text + "]";
}

/// A name from a file, made fit for a one-line message: control bytes become '?', long names are cut.
inline std::string printable(std::string_view name) {
    constexpr std::size_t kLongest = 160;
    std::string text(name.substr(0, kLongest));
    for (char& c : text) {
        if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = '?';
    }
    if (name.size() > kLongest) text += "...";
    return text;
}

}  // namespace k3::checkpoint
#endif
