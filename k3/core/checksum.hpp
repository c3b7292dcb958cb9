#ifndef K3_CORE_CHECKSUM_HPP
#define K3_CORE_CHECKSUM_HPP
// A fast 64-bit checksum against accidents: words of 8 little-endian bytes, h = (h ^ word) * odd, h ^= h >> 32, the
// last word padded with zeros, then the number of bytes as one more word.
//
// Each step is one-to-one in h for a given word and in the word for a given h. So of two inputs of one length that
// differ inside one word only, the values differ always, not just probably; a CRC-32 promises the same of 4 bytes. What
// differs more escapes with about 2^-64 (a CRC-32: 2^-32), as the shift brings high bits, which a product only moves
// up, down again: without it, two flipped signs would cancel. One multiplication a word keeps up with any disk, where
// FNV-1a's one a byte does not. Not against forgers: whoever can write the file can write its checksum.
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>

namespace k3::core {

class Checksum {
  public:
    /// May be called with pieces of any size: only the bytes and their order count.
    void add(std::span<const std::byte> bytes) noexcept {
        static_assert(std::endian::native == std::endian::little);
        bytes_ += bytes.size();
        if (pending_ != 0) {
            const std::size_t count = bytes.size() < 8 - pending_ ? bytes.size() : 8 - pending_;
            if (count != 0) std::memcpy(last_ + pending_, bytes.data(), count);
            pending_ += count;
            bytes = bytes.subspan(count);
            if (pending_ < 8) return;
            pending_ = 0;
            hash_ = step(hash_, word(last_));
        }
        std::uint64_t hash = hash_;
        std::size_t at = 0;
        for (; bytes.size() - at >= 8; at += 8) hash = step(hash, word(bytes.data() + at));
        hash_ = hash;
        pending_ = bytes.size() - at;
        if (pending_ != 0) std::memcpy(last_, bytes.data() + at, pending_);
    }

    template <class T>
    void add_value(const T& value) noexcept {
        static_assert(std::has_unique_object_representations_v<T>);
        add(std::as_bytes(std::span(&value, 1)));
    }

    std::uint64_t value() const noexcept {
        std::byte padded[8] = {};
        std::memcpy(padded, last_, pending_);
        return step(pending_ == 0 ? hash_ : step(hash_, word(padded)), bytes_);
    }

  private:
    static std::uint64_t word(const std::byte* at) noexcept {
        std::uint64_t value;
        std::memcpy(&value, at, 8);
        return value;
    }
    static constexpr std::uint64_t step(std::uint64_t hash, std::uint64_t word) noexcept {
        hash = (hash ^ word) * kOdd;
        return hash ^ hash >> 32;
    }
    static constexpr std::uint64_t kOdd = 0x9e3779b97f4a7c15U;
    std::uint64_t hash_ = kOdd, bytes_ = 0;  // from 0, zeros would lead nowhere
    std::byte last_[8] = {};                 // of a word that is not whole yet
    std::size_t pending_ = 0;
};

}  // namespace k3::core
#endif
