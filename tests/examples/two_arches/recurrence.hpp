// What each arch unit computes: 40 steps of the delta rule. A sum of exact products could not see a fused multiply-add;
// a binary32 recurrence does. Only k3's kernels and plain arrays are used here: a std::vector would leave weak
// functions behind that were compiled with wide flags, and the linker may keep those for the whole program.
#include <cstdint>

#include "k3/core/digest.hpp"
#include "k3/kernels/delta_rule.hpp"

template <k3::simd::Arch A>
static std::uint64_t recurrence() noexcept {
    constexpr std::size_t keys = 16, values = 24;
    float state[keys * values] = {}, q[keys], k[keys], v[values], alpha[keys], out[values];
    std::uint32_t bits = 1;
    const auto next = [&bits]() noexcept {  // in [0, 1), exact
        bits = bits * 1664525U + 1013904223U;
        return static_cast<float>(bits >> 8) * 0x1p-24F;
    };
    k3::core::Digest digest;
    for (int token = 0; token < 40; ++token) {
        for (float& value : q) value = next() - 0.5F;
        for (float& value : k) value = next() - 0.5F;
        for (float& value : v) value = next() - 0.5F;
        for (float& value : alpha) value = next();
        k3::kernels::delta_rule<A>(state, keys, values, {q, k, v, alpha, next()}, out);
        digest.add(out, values);
    }
    return digest.value();
}
