#ifndef K3_CORE_DIGEST_HPP
#define K3_CORE_DIGEST_HPP
// FNV-1a-64 over the little-endian bytes of values. NaN becomes one pattern, -0 stays -0: equal digests mean equal bits
// up to the payload of a NaN.
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "k3/core/check.hpp"

namespace k3::core {

class Digest {
  public:
    K3_INLINE constexpr Digest() noexcept = default;
    /// Continues from a value() saved earlier.
    K3_INLINE constexpr explicit Digest(std::uint64_t value) noexcept : hash_(value) {}

    K3_INLINE void add_bytes(const void* data, std::size_t count) noexcept {
        const auto* bytes = static_cast<const unsigned char*>(data);
        for (std::size_t i = 0; i < count; ++i) hash_ = (hash_ ^ bytes[i]) * kPrime;
    }
    K3_INLINE void add(float value) noexcept {
        std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
        if ((bits & 0x7fffffffU) > 0x7f800000U) bits = 0x7fc00000U;
        add_bits(bits, 4);
    }
    K3_INLINE void add(double value) noexcept {
        std::uint64_t bits = std::bit_cast<std::uint64_t>(value);
        if ((bits & 0x7fffffffffffffffU) > 0x7ff0000000000000U) bits = 0x7ff8000000000000U;
        add_bits(bits, 8);
    }
    template <class T>
    K3_INLINE void add(const T* values, std::size_t count) noexcept {
        for (std::size_t i = 0; i < count; ++i) add(values[i]);
    }
    K3_INLINE constexpr std::uint64_t value() const noexcept { return hash_; }

  private:
    K3_INLINE void add_bits(std::uint64_t bits, int bytes) noexcept {
        for (int i = 0; i < bytes; ++i) hash_ = (hash_ ^ ((bits >> (8 * i)) & 0xffU)) * kPrime;
    }
    static constexpr std::uint64_t kPrime = 0x100000001b3U;
    std::uint64_t hash_ = 0xcbf29ce484222325U;  // the offset basis: the digest of nothing
};

}  // namespace k3::core
#endif
