#ifndef K3_SIMD_LANES_HPP
#define K3_SIMD_LANES_HPP
// Eight lanes on every arch, built from as many registers as it takes. The order of a sum over lanes is therefore in
// the type, not in the machine. There is no operator* on purpose: a product is either fenced (mul, mul_then_add) or
// guaranteed exact by the caller (madd_exact).
#include <cstddef>
#include <utility>

#include "k3/simd/regs.hpp"

namespace k3::simd::inline K3_TARGET {

/// Calls fn(std::integral_constant<0>) ... fn(<N-1>), unrolled, so that arrays of registers stay in registers.
template <std::size_t N, class Fn>
K3_INLINE void unroll(Fn&& fn) noexcept {
    [&]<std::size_t... I>(std::index_sequence<I...>) __attribute__((always_inline)) {
        (fn(std::integral_constant<std::size_t, I>{}), ...);
    }
    (std::make_index_sequence<N>{});
}

template <Arch A>
struct f64x8 {
    static constexpr std::size_t kRegs = Regs<A>::kF64;
    using Element = double;
    using Reg = typename Regs<A>::f64;
    Reg r[kRegs];
};

template <Arch A>
struct f32x8 {
    static constexpr std::size_t kRegs = Regs<A>::kF32;
    using Element = float;
    using Reg = typename Regs<A>::f32;
    Reg r[kRegs];
};

namespace detail {
template <class L, class Fn>
K3_INLINE L map(Fn&& fn) noexcept {
    L out;
    unroll<L::kRegs>([&](auto i) __attribute__((always_inline)) { out.r[i] = fn(i); });
    return out;
}
}  // namespace detail

// ---------------------------------------------------------------------------------------------- make, load, store

template <template <Arch> class L, Arch A>
K3_INLINE L<A> broadcast(typename L<A>::Element value) noexcept {
    return detail::map<L<A>>([&](auto) __attribute__((always_inline)) { return Regs<A>::set1(value); });
}

template <Arch A>
K3_INLINE f64x8<A> load(const double* p) noexcept {
    return detail::map<f64x8<A>>([&](auto i) __attribute__((always_inline)) {
        return Regs<A>::load(p + i * (8 / f64x8<A>::kRegs));
    });
}
template <Arch A>
K3_INLINE f32x8<A> load(const float* p) noexcept {
    return detail::map<f32x8<A>>([&](auto i) __attribute__((always_inline)) {
        return Regs<A>::load(p + i * (8 / f32x8<A>::kRegs));
    });
}
template <Arch A>
K3_INLINE void store(double* p, const f64x8<A>& v) noexcept {
    unroll<f64x8<A>::kRegs>([&](auto i) __attribute__((always_inline)) {
        Regs<A>::store(p + i * (8 / f64x8<A>::kRegs), v.r[i]);
    });
}
template <Arch A>
K3_INLINE void store(float* p, const f32x8<A>& v) noexcept {
    unroll<f32x8<A>::kRegs>([&](auto i) __attribute__((always_inline)) {
        Regs<A>::store(p + i * (8 / f32x8<A>::kRegs), v.r[i]);
    });
}

/// Loads `count` (1..8) floats; the other lanes are +0.
template <Arch A>
K3_INLINE f32x8<A> load(const float* p, std::size_t count) noexcept {
    if (count >= 8) return load<A>(p);
    float padded[8] = {};
    for (std::size_t i = 0; i < count; ++i) padded[i] = p[i];
    return load<A>(padded);
}
/// Stores the first `count` (1..8) lanes.
template <Arch A>
K3_INLINE void store(float* p, const f32x8<A>& v, std::size_t count) noexcept {
    if (count >= 8) return store<A>(p, v);
    float padded[8];
    store<A>(padded, v);
    for (std::size_t i = 0; i < count; ++i) p[i] = padded[i];
}

// ---------------------------------------------------------------------------------------------- arithmetic

template <template <Arch> class L, Arch A>
K3_INLINE L<A> operator+(const L<A>& a, const L<A>& b) noexcept {
    return detail::map<L<A>>([&](auto i) __attribute__((always_inline)) { return a.r[i] + b.r[i]; });
}
template <template <Arch> class L, Arch A>
K3_INLINE L<A> operator-(const L<A>& a, const L<A>& b) noexcept {
    return detail::map<L<A>>([&](auto i) __attribute__((always_inline)) { return a.r[i] - b.r[i]; });
}
template <template <Arch> class L, Arch A>
K3_INLINE L<A> operator/(const L<A>& a, const L<A>& b) noexcept {
    return detail::map<L<A>>([&](auto i) __attribute__((always_inline)) { return Regs<A>::div(a.r[i], b.r[i]); });
}

/// RN(x * y), never fused with what follows.
template <template <Arch> class L, Arch A>
K3_INLINE L<A> mul(const L<A>& x, const L<A>& y) noexcept {
    return detail::map<L<A>>([&](auto i) __attribute__((always_inline)) {
        typename L<A>::Reg product = x.r[i] * y.r[i];
        Regs<A>::fence(product);
        return product;
    });
}
/// RN(acc + RN(x * y)): two roundings.
template <template <Arch> class L, Arch A>
K3_INLINE L<A> mul_then_add(const L<A>& acc, const L<A>& x, const L<A>& y) noexcept {
    return acc + mul(x, y);
}
/// RN(acc + x * w) where the caller guarantees exact products, so that fusing cannot show.
template <Arch A>
K3_INLINE f64x8<A> madd_exact(const f64x8<A>& x, const f64x8<A>& w, const f64x8<A>& acc) noexcept {
    return detail::map<f64x8<A>>([&](auto i) __attribute__((always_inline)) {
        return Regs<A>::madd(x.r[i], w.r[i], acc.r[i]);
    });
}
/// a < b ? x : y in every lane; y where a or b is NaN.
template <template <Arch> class L, Arch A>
K3_INLINE L<A> select_lt(const L<A>& a, const L<A>& b, const L<A>& x, const L<A>& y) noexcept {
    return detail::map<L<A>>([&](auto i) __attribute__((always_inline)) {
        return Regs<A>::select_lt(a.r[i], b.r[i], x.r[i], y.r[i]);
    });
}
template <Arch A>
K3_INLINE f64x8<A> sqrt(const f64x8<A>& v) noexcept {
    return detail::map<f64x8<A>>([&](auto i) __attribute__((always_inline)) { return Regs<A>::sqrt(v.r[i]); });
}
/// 2^n from the sum n + 1.5 * 2^52 that rounded a value to the integer n.
template <Arch A>
K3_INLINE f64x8<A> exponent(const f64x8<A>& t) noexcept {
    return detail::map<f64x8<A>>([&](auto i) __attribute__((always_inline)) { return Regs<A>::exponent(t.r[i]); });
}

// ---------------------------------------------------------------------------------------------- f32 and f64

template <Arch A>
K3_INLINE f64x8<A> widen(const f32x8<A>& v) noexcept {
    f64x8<A> out;
    Regs<A>::widen(v.r, out.r);
    return out;
}
/// RN32 of every lane.
template <Arch A>
K3_INLINE f32x8<A> narrow(const f64x8<A>& v) noexcept {
    f32x8<A> out;
    Regs<A>::narrow(v.r, out.r);
    return out;
}
template <Arch A>
K3_INLINE f64x8<A> load_widened(const float* p) noexcept {
    return widen(load<A>(p));
}

/// The sum of the lanes in the contract's order: j += j+4 for j < 4, j += j+2 for j < 2, then 0 + 1.
template <Arch A>
K3_INLINE double reduce(const f64x8<A>& v) noexcept {
    return Regs<A>::reduce(v.r);
}

}  // namespace k3::simd::inline K3_TARGET
#endif
