#ifndef K3_ENGINE_PCG32_HPP
#define K3_ENGINE_PCG32_HPP
// The random generator of the sampler: PCG32 (XSH RR 64/32, O'Neill 2014), and splitmix64 to seed it. Integers only:
// the same numbers on every machine.
#include <bit>
#include <cstdint>

namespace k3::engine {

class Pcg32 {
  public:
    struct State {
        std::uint64_t state = 0, increment = 1;  // the increment is odd
        bool operator==(const State&) const = default;
    };

    Pcg32(std::uint64_t seed, std::uint64_t sequence) noexcept : state_{0, sequence << 1 | 1U} {
        next();
        state_.state += seed;
        next();
    }
    explicit Pcg32(const State& state) noexcept : state_(state) {}

    std::uint32_t next() noexcept {
        const std::uint64_t old = state_.state;
        state_.state = old * 6364136223846793005U + state_.increment;
        return std::rotr(static_cast<std::uint32_t>((old >> 18 ^ old) >> 27), static_cast<int>(old >> 59));
    }
    /// 53 bits: all of one output, then the low 21 of the next.
    std::uint64_t next53() noexcept {
        const std::uint64_t high = next();
        return high << 21 | (next() & 0x1fffffU);
    }
    const State& state() const noexcept { return state_; }

  private:
    State state_;
};

/// One output of splitmix64; moves x on.
inline std::uint64_t splitmix64(std::uint64_t& x) noexcept {
    x += 0x9e3779b97f4a7c15U;
    std::uint64_t z = x;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9U;
    z = (z ^ z >> 27) * 0x94d049bb133111ebU;
    return z ^ z >> 31;
}

}  // namespace k3::engine
#endif
