#ifndef K3_TESTS_SUPPORT_KERNEL_TABLE_TWIN_HPP
#define K3_TESTS_SUPPORT_KERNEL_TABLE_TWIN_HPP
// The numeric contract as plain loops, written from its text and from nothing in k3/: one value at a time, left to
// right. The scalar arch must equal it bit for bit. rn() and rn64() go through volatile: no compiler may fuse or keep
// more bits.
#include <bit>
#include <cmath>
#include <cstdint>
#include <vector>

#include "support/kernel_table.hpp"

namespace k3::twin {

using Index = std::size_t;

inline float rn(double v) {
    volatile float r = static_cast<float>(v);
    return r;
}
inline double rn64(double v) {
    volatile double r = v;
    return r;
}
inline float mul(float a, float b) {
    volatile float r = a * b;
    return r;
}
inline float add(float a, float b) {
    volatile float r = a + b;
    return r;
}
inline double f64(float v) { return static_cast<double>(v); }

// ---- elementary functions

/// exp and tanh are the correctly rounded values: long double leaves 2^-40 of an ulp of doubt, which test_simd settles.
inline float exp(float x) { return static_cast<float>(std::exp(static_cast<long double>(x))); }
inline float tanh(float x) { return static_cast<float>(std::tanh(static_cast<long double>(x))); }

/// sigmoid(x) = RN32(1 / ((1 + s) + s p)) with s (1 + p) = exp(-x): the listed binary64 sequence. n = round(v log2 e);
/// r = (v - n ln2_high) - n ln2_low; p = r + r^2 (1/2! + r/3! + ... + r^11/13!), Estrin: pairs, then r^2, then r^4,
/// r^8.
inline float sigmoid(float x) {
    double v = rn64(0.0 - f64(x));
    v = v < -104.0 ? -104.0 : v;
    v = 104.0 < v ? 104.0 : v;
    if (v != v) return x;
    const double n = std::nearbyint(rn64(v * 1.44269504088896338700e+00));
    const double r = rn64(rn64(v - rn64(n * 6.93147180369123816490e-01)) - rn64(n * 1.90821492927058770002e-10));
    double c[14], factorial = 1.0;  // exact to 13!
    for (int k = 1; k <= 13; ++k) {
        factorial *= k;
        c[k] = 1.0 / factorial;
    }
    const double r2 = rn64(r * r), r4 = rn64(r2 * r2), r8 = rn64(r4 * r4);
    double pair[6];
    for (int k = 0; k < 6; ++k) pair[k] = rn64(c[2 + 2 * k] + rn64(r * c[3 + 2 * k]));
    double four[3];
    for (int k = 0; k < 3; ++k) four[k] = rn64(pair[2 * k] + rn64(pair[2 * k + 1] * r2));
    const double tail = rn64(rn64(four[0] + rn64(four[1] * r4)) + rn64(four[2] * r8));
    const double p = rn64(r + rn64(r2 * tail));
    const double s = std::ldexp(1.0, static_cast<int>(n));
    return rn(rn64(1.0 / rn64(rn64(1.0 + s) + rn64(s * p))));
}
inline float silu(float x) { return mul(x, sigmoid(x)); }

// ---- weights

inline double weight(tests::Format format, const tests::Bytes& w, Index r, Index c) {
    const auto byte = [](std::byte b) { return static_cast<unsigned>(b); };
    if (format == tests::kBf16) {
        const std::byte* p = w.data + 2 * (r * w.cols + c);
        return f64(std::bit_cast<float>((byte(p[0]) << 16) | (byte(p[1]) << 24)));
    }
    if (format == tests::kF32) {
        const std::byte* p = w.data + 4 * (r * w.cols + c);
        return f64(std::bit_cast<float>(byte(p[0]) | (byte(p[1]) << 8) | (byte(p[2]) << 16) | (byte(p[3]) << 24)));
    }
    static const double kCode[8] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
    const unsigned scale = byte(w.scales[r * ((w.cols + 31) / 32) + c / 32]);
    if (scale == 255) return 0.0;
    const unsigned pair = byte(w.data[r * ((w.cols + 1) / 2) + c / 2]), code = c % 2 == 0 ? pair % 16 : pair / 16;
    const double magnitude = std::ldexp(kCode[code % 8], static_cast<int>(scale) - 127);
    return code >= 8 ? -magnitude : magnitude;
}

// ---- sums

/// Eight lanes from +0, i ascending; 4 to 4, 2 to 2, 1 to 1. Products are exact.
template <class X, class W>
double dot64(Index n, X x, W w) {
    double lane[8] = {0, 0, 0, 0, 0, 0, 0, 0};
    for (Index i = 0; i < n; ++i) lane[i % 8] = rn64(lane[i % 8] + rn64(x(i) * w(i)));
    for (Index j = 0; j < 4; ++j) lane[j] = rn64(lane[j] + lane[j + 4]);
    for (Index j = 0; j < 2; ++j) lane[j] = rn64(lane[j] + lane[j + 2]);
    return rn64(lane[0] + lane[1]);
}
inline double dot64(const float* x, const float* w, Index n) {
    return dot64(
        n, [&](Index i) { return f64(x[i]); }, [&](Index i) { return f64(w[i]); });
}
template <class X, class W>
double column64(Index n, X x, W w) {
    double acc = 0;
    for (Index i = 0; i < n; ++i) acc = rn64(acc + rn64(x(i) * w(i)));
    return acc;
}
inline double matmul64(tests::Format format, const tests::Bytes& w, Index r, const float* x) {
    return dot64(
        w.cols, [&](Index i) { return f64(x[i]); }, [&](Index i) { return weight(format, w, r, i); });
}
inline float column_dot(tests::Format format, const tests::Bytes& w, Index c, const float* x) {
    return rn(column64(
        w.rows, [&](Index r) { return f64(x[r]); }, [&](Index r) { return weight(format, w, r, c); }));
}

// ---- layer arithmetic

inline double inverse_sqrt(double v) { return rn64(1.0 / rn64(std::sqrt(v))); }
inline float rms_factor(const float* x, Index n, double eps) {
    return rn(inverse_sqrt(rn64(rn64(dot64(x, x, n) / static_cast<double>(n)) + eps)));
}
inline float l2_factor(const float* x, Index n) { return rn(inverse_sqrt(rn64(dot64(x, x, n) + 1e-6))); }

inline float situ(float g, float u, float b1, float b2) {
    const float a = mul(mul(b1, tanh(g / b1)), sigmoid(g));
    return mul(a, mul(b2, tanh(u / b2)));
}
inline float decay(float z, float dt_bias, float a, float lower_bound) {
    return exp(mul(lower_bound, sigmoid(mul(a, add(z, dt_bias)))));
}
/// input(back): the input `back` tokens ago; w(j): tap j, oldest first.
template <class Input, class Tap>
float short_conv(Index taps, Input input, Tap w) {
    float acc = mul(w(taps - 1), input(0));
    for (Index j = 0; j + 1 < taps; ++j) acc = add(acc, mul(w(j), input(taps - 1 - j)));
    return silu(acc);
}
inline void delta_rule(float* s, Index dk, Index dv, const tests::Delta& in, float* out) {
    std::vector<float> next(dk * dv);
    for (Index j = 0; j < dv; ++j) {
        float u = 0;
        for (Index i = 0; i < dk; ++i) u = add(u, mul(in.k[i], mul(s[i * dv + j], in.alpha[i])));
        float o = 0;
        for (Index i = 0; i < dk; ++i) {
            const float decayed = mul(s[i * dv + j], in.alpha[i]);
            next[i * dv + j] = add(decayed, mul(mul(in.k[i], in.beta), add(in.v[j], -u)));
            o = add(o, mul(in.q[i], next[i * dv + j]));
        }
        out[j] = o;
    }
    for (Index i = 0; i < dk * dv; ++i) s[i] = next[i];
}
inline void attention_residual(const float* const* sources, Index count, const float* fold, Index n, double eps,
                               float* out) {
    std::vector<float> score(count);
    for (Index s = 0; s < count; ++s) {
        const float inv = rms_factor(sources[s], n, eps);
        score[s] = rn(dot64(
            n, [&](Index i) { return f64(mul(sources[s][i], inv)); }, [&](Index i) { return f64(fold[i]); }));
    }
    float m = score[0];
    for (const float v : score) m = m < v ? v : m;
    double z = 0;
    for (float& v : score) z = rn64(z + f64(v = exp(add(v, -m))));
    for (float& v : score) v = rn(f64(v) / z);
    for (Index i = 0; i < n; ++i) {
        float acc = 0;
        for (Index s = 0; s < count; ++s) acc = add(acc, mul(score[s], sources[s][i]));
        out[i] = acc;
    }
}
/// One head. latent(s, c), key(s, c): the cached row of position s.
template <class Latent, class Key>
void latent_attention(Index positions, Index rank, Index rope, Latent latent, Key key, const float* qa, const float* qr,
                      double scale, float* out) {
    std::vector<float> e(positions);
    for (Index s = 0; s < positions; ++s) {
        const double content = dot64(
            rank, [&](Index c) { return f64(qa[c]); }, [&](Index c) { return f64(latent(s, c)); });
        const double shared = dot64(
            rope, [&](Index c) { return f64(qr[c]); }, [&](Index c) { return f64(key(s, c)); });
        e[s] = rn(rn64(rn64(content + shared) * scale));
    }
    float m = e[0];
    for (const float v : e) m = m < v ? v : m;
    double z = 0;
    for (float& v : e) z = rn64(z + f64(v = exp(add(v, -m))));
    for (Index c = 0; c < rank; ++c)
        out[c] =
            rn(rn64(column64(
                        positions, [&](Index s) { return f64(e[s]); }, [&](Index s) { return f64(latent(s, c)); }) /
                    z));
}
/// False if a key is NaN. Repeated maximum, strict: ties go to the lower id.
inline bool route(const float* logits, const float* bias, Index experts, const tests::Router& rule, std::int32_t* ids,
                  float* weights) {
    std::vector<float> s(experts), c(experts);
    std::vector<bool> used(experts, false);
    for (Index e = 0; e < experts; ++e) {
        s[e] = sigmoid(logits[e]);
        c[e] = add(s[e], bias[e]);
        if (c[e] != c[e]) return false;
    }
    double sum = 0;
    for (Index j = 0; j < rule.top_k; ++j) {
        Index best = experts;
        for (Index e = 0; e < experts; ++e)
            if (!used[e] && (best == experts || c[best] < c[e])) best = e;
        used[best] = true;
        ids[j] = static_cast<std::int32_t>(best);
        sum = rn64(sum + f64(s[best]));
    }
    for (Index j = 0; j < rule.top_k; ++j) {
        const double v = f64(s[static_cast<Index>(ids[j])]);
        const bool renormalise = rule.renormalize && rule.top_k > 1;
        weights[j] = rn(rn64((renormalise ? rn64(v / rn64(sum + 1e-20)) : v) * rule.scale));
    }
    return true;
}

}  // namespace k3::twin
#endif
