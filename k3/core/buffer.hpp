#ifndef K3_CORE_BUFFER_HPP
#define K3_CORE_BUFFER_HPP
// Owned memory for weights, states and scratch: zero-filled, page-aligned, on huge pages where the system gives them
// and the caller does not object.
// Not for arch units.
#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "k3/core/error.hpp"

namespace k3::core {

/// What pages a Buffer wishes for. `ordinary` refuses huge pages even where the system would give them unasked: they
/// cost time when memory is fragmented, and a partly used one counts whole.
enum class Pages : std::uint8_t { huge, ordinary };

class Buffer {
  public:
    Buffer() noexcept = default;
    /// Errors: Code::plan if the system refuses the memory.
    explicit Buffer(std::size_t bytes, Pages pages = Pages::huge) : bytes_(bytes) {
        if (bytes == 0) return;
        const bool huge = pages == Pages::huge && bytes >= kHugePage;
        mapped_ = huge ? bytes + kHugePage : bytes;  // room to start on a huge-page boundary
        void* const at =
            ::mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (at == MAP_FAILED) {
            throw Error(Code::plan, "the system refused " + std::to_string(bytes) + " bytes of memory",
                        "free memory or ask for a smaller budget");
        }
        base_ = static_cast<std::byte*>(at);
        data_ = base_;
        if (pages == Pages::ordinary) ::madvise(base_, bytes, MADV_NOHUGEPAGE);
        if (huge) {
            const std::size_t past = reinterpret_cast<std::size_t>(base_) % kHugePage;
            data_ = past == 0 ? base_ : base_ + (kHugePage - past);
            ::madvise(data_, bytes, MADV_HUGEPAGE);  // a wish: ordinary pages do as well
        }
    }
    Buffer(Buffer&& other) noexcept { swap(other); }
    Buffer& operator=(Buffer&& other) noexcept {
        swap(other);
        return *this;
    }
    ~Buffer() {
        if (base_ != nullptr) ::munmap(base_, mapped_);
    }

    static constexpr std::size_t kHugePage = std::size_t{2} << 20;
    /// The most that a buffer of so many bytes may hold resident: on huge pages, the rest of the last one too.
    static constexpr std::size_t most_resident(std::size_t bytes) noexcept {
        return bytes < kHugePage ? bytes : (bytes + kHugePage - 1) / kHugePage * kHugePage;
    }

    std::byte* data() const noexcept { return data_; }
    std::size_t size() const noexcept { return bytes_; }
    template <class T>
    T* as() const noexcept {
        return reinterpret_cast<T*>(data_);
    }

  private:
    void swap(Buffer& other) noexcept {
        std::swap(base_, other.base_);
        std::swap(data_, other.data_);
        std::swap(bytes_, other.bytes_);
        std::swap(mapped_, other.mapped_);
    }
    std::byte *base_ = nullptr, *data_ = nullptr;
    std::size_t bytes_ = 0, mapped_ = 0;
};

}  // namespace k3::core
#endif
