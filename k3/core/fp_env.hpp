#ifndef K3_CORE_FP_ENV_HPP
#define K3_CORE_FP_ENV_HPP
// The floating-point environment the numeric contract needs: round to nearest even, subnormals kept, no traps.
#include <cstdint>

#include "k3/core/check.hpp"

namespace k3::core {

/// Sets the environment for a scope and restores the caller's at its end. The arithmetic in between must sit behind a
/// K3_OPAQUE call: compilers move floating-point operations across a write of the control register.
class FpGuard {
  public:
    K3_INLINE FpGuard() noexcept : saved_(read()) { write(kContract); }
    K3_INLINE ~FpGuard() { write(saved_); }
    FpGuard(const FpGuard&) = delete;
    FpGuard& operator=(const FpGuard&) = delete;

#if defined(__x86_64__)
    using Word = std::uint32_t;
    static constexpr Word kContract = 0x1f80;  // MXCSR: all exceptions masked, nearest even, no FTZ, no DAZ
    K3_INLINE static Word read() noexcept { return __builtin_ia32_stmxcsr(); }
    K3_INLINE static void write(Word word) noexcept { __builtin_ia32_ldmxcsr(word); }
#elif defined(__aarch64__)
    using Word = std::uint64_t;
    static constexpr Word kContract = 0;  // FPCR: no traps, nearest even, no FZ, no default NaN
    K3_INLINE static Word read() noexcept {
        Word word;
        asm volatile("mrs %0, fpcr" : "=r"(word));
        return word;
    }
    K3_INLINE static void write(Word word) noexcept { asm volatile("msr fpcr, %0" : : "r"(word) : "memory"); }
#else
#error "k3: no floating-point environment for this target; add one to k3/core/fp_env.hpp"
#endif

  private:
    Word saved_;
};

}  // namespace k3::core
#endif
