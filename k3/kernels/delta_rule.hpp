#ifndef K3_KERNELS_DELTA_RULE_HPP
#define K3_KERNELS_DELTA_RULE_HPP
// The gated delta rule of KDA, one token of one head.
#include "k3/simd/lanes.hpp"

namespace k3::kernels::inline K3_TARGET {

/// Inputs of one token of one head.
struct DeltaInput {
    const float* q;      // [K], L2-normalised and times RN32(1/sqrt(K))
    const float* k;      // [K], L2-normalised
    const float* v;      // [V]
    const float* alpha;  // [K], the decay itself, in (0, 1]
    float beta;          // sigmoid of its logit
};

namespace detail {

/// N vectors of eight value columns at column j; only `count` columns are live when N is 1.
template <simd::Arch A, std::size_t N>
K3_INLINE void delta_columns(float* state, std::size_t keys, std::size_t values, const DeltaInput& in, std::size_t j,
                             std::size_t count, float* out, const float* next_state) noexcept {
    using V = simd::f32x8<A>;
    const auto zero = simd::broadcast<simd::f32x8, A>(0.0F);
    const auto live = [count](auto n) __attribute__((always_inline)) { return N == 1 ? count : 8 + 0 * n; };
    V sum[N];
    simd::unroll<N>([&](auto n) __attribute__((always_inline)) { sum[n] = zero; });
    for (std::size_t i = 0; i < keys; ++i) {  // u_j = sum of k_i * (S_ij * alpha_i)
        const float* row = state + i * values + j;
        const V alpha = simd::broadcast<simd::f32x8, A>(in.alpha[i]), k = simd::broadcast<simd::f32x8, A>(in.k[i]);
        simd::unroll<N>([&](auto n) __attribute__((always_inline)) {
            sum[n] = simd::mul_then_add(sum[n], k, simd::mul(simd::load<A>(row + 8 * n, live(n)), alpha));
        });
    }
    V error[N];
    simd::unroll<N>([&](auto n) __attribute__((always_inline)) {
        error[n] = simd::load<A>(in.v + j + 8 * n, live(n)) - sum[n];
        sum[n] = zero;
    });
    for (std::size_t i = 0; i < keys; ++i) {  // S_ij = S_ij * alpha_i + (k_i * beta) * (v_j - u_j); o_j += q_i * S_ij
        float* row = state + i * values + j;
        const V alpha = simd::broadcast<simd::f32x8, A>(in.alpha[i]), q = simd::broadcast<simd::f32x8, A>(in.q[i]);
        const V write = simd::broadcast<simd::f32x8, A>(simd::mul(in.k[i], in.beta));
        // What is read from memory after this: the same row of the next columns, at last that of the next state.
        const float* const ahead =
            j + 16 * N <= values ? row + 8 * N : (next_state == nullptr ? row : next_state + i * values);
        simd::unroll<(N + 1) / 2>([&](auto n) __attribute__((always_inline)) { __builtin_prefetch(ahead + 16 * n); });
        simd::unroll<N>([&](auto n) __attribute__((always_inline)) {
            const V decayed = simd::mul(simd::load<A>(row + 8 * n, live(n)), alpha);
            const V next = simd::mul_then_add(decayed, write, error[n]);
            simd::store<A>(row + 8 * n, next, live(n));
            sum[n] = simd::mul_then_add(sum[n], q, next);
        });
    }
    simd::unroll<N>([&](auto n) __attribute__((always_inline)) { simd::store<A>(out + j + 8 * n, sum[n], live(n)); });
}

}  // namespace detail

/// One step of the gated delta rule for one head.
///
///   R_ij = S_ij * alpha_i                      decay first, by key row
///   u_j  = sum over i of k_i * R_ij            read the decayed state
///   S_ij = R_ij + (k_i * beta) * (v_j - u_j)   write what it failed to predict
///   o_j  = sum over i of q_i * S_ij            read the new state
///
/// Shapes    state: [K, V] row-major; out: [V]. next_state: a [K, V] that the caller will read after this, or null: a
/// hint. Numerics  binary32; every product rounded; sums over i ascending from +0. Two passes over S: R is formed
/// again, not
///           stored. Value columns are independent.
/// Requires  out, state and inputs do not overlap.
/// Threads   safe for distinct heads.
/// Source    Kimi Linear report, recurrent form.
template <simd::Arch A>
void delta_rule(float* state, std::size_t keys, std::size_t values, const DeltaInput& in, float* out,
                const float* next_state = nullptr) noexcept {
    // A block of columns is read twice and should stay in the first-level cache: 128 bytes of 128 rows.
    constexpr std::size_t kVectors = simd::f32x8<A>::kRegs <= 2 ? 4 : 2;
    std::size_t j = 0;
    for (; j + 8 * kVectors <= values; j += 8 * kVectors)
        detail::delta_columns<A, kVectors>(state, keys, values, in, j, 8, out, next_state);
    for (; j < values; j += 8)
        detail::delta_columns<A, 1>(state, keys, values, in, j, values - j < 8 ? values - j : 8, out, next_state);
}

}  // namespace k3::kernels::inline K3_TARGET
#endif
