#ifndef K3_CORE_EXEC_HPP
#define K3_CORE_EXEC_HPP
// What a kernel runs on: a number of threads and scratch memory. Kernels never allocate.
#include <cassert>
#include <cstddef>
#include <cstdint>

#include "k3/core/check.hpp"

namespace k3::core {

/// A bump allocator over memory somebody else owns. With a null base it only counts, so the very code that carves
/// buffers also tells how many bytes they need.
class Arena {
  public:
    static constexpr std::size_t kAlign = 64;
    K3_INLINE Arena() noexcept = default;
    K3_INLINE Arena(std::byte* base, std::size_t bytes) noexcept : base_(base), capacity_(bytes) {}

    template <class T>
    K3_INLINE T* take(std::size_t count) noexcept {
        const std::size_t at = used_;
        used_ += (count * sizeof(T) + kAlign - 1) / kAlign * kAlign;
        assert(!overflowed() && "scratch is smaller than the *_bytes function of its user says");
        return base_ == nullptr ? nullptr : reinterpret_cast<T*>(base_ + at);
    }
    K3_INLINE std::size_t used() const noexcept { return used_; }
    K3_INLINE std::size_t capacity() const noexcept { return capacity_; }
    K3_INLINE bool overflowed() const noexcept { return base_ != nullptr && used_ > capacity_; }

  private:
    std::byte* base_ = nullptr;
    std::size_t capacity_ = 0;
    std::size_t used_ = 0;
};

/// Threads and scratch for one caller at a time. Two callers that run at once need two Execs; the threads may be
/// shared.
struct Exec {
    unsigned threads = 1;         // at most this many, the calling thread included
    std::byte* local = nullptr;   // threads * local_bytes, 64-byte aligned: one part per thread
    std::size_t local_bytes = 0;  // per thread, a multiple of 64
    std::byte* shared = nullptr;  // read by all threads between two parallel steps, 64-byte aligned
    std::size_t shared_bytes = 0;
    // Fewer multiply-adds than this are not worth waking another thread for (a region costs about a microsecond, far
    // more when another process holds the core). 0 splits everything; no value moves a bit.
    std::size_t least_work = 32768;

    K3_INLINE Arena local_of(unsigned thread) const noexcept { return {local + thread * local_bytes, local_bytes}; }
    K3_INLINE Arena shared_arena() const noexcept { return {shared, shared_bytes}; }
};

}  // namespace k3::core
#endif
