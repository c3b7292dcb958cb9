// Prints one line per kernel and arch: digests of fixed inputs. tests/meta/flags.py builds this with many flags; the
// lines must be those of expected.txt. Inputs are exact steps from integers (a rounded sum here would itself change
// with the flags); nothing uses libm. The canary decides first: a build whose arithmetic is not the contract's prints
// "canary failed" and exits with 3. -DK3_DIGEST_SCALAR leaves the other arches out.
#include <cstdio>

#include "k3/kernels.hpp"

namespace {

using namespace k3;

/// In [-2, 2), 2^-22 apart, from a linear congruence; `tiny` scales some of them far down.
struct Numbers {
    unsigned state;
    float next() {
        state = state * 1664525U + 1013904223U;
        return static_cast<float>(static_cast<int>(state >> 9) - (1 << 22)) * 0x1p-21F;
    }
    void fill(float* p, std::size_t n, float scale = 1.0F) {
        for (std::size_t i = 0; i < n; ++i) p[i] = next() * (i % 7 == 3 ? scale * 0x1p-13F : scale);
    }
};

constexpr std::size_t kMost = 640;

template <simd::Arch A>
struct Digests {
    static void print(const char* what, const core::Digest& d) {
        std::printf("%s %016llx\n", what, static_cast<unsigned long long>(d.value()));
    }
    static void dot_lanes() {
        static float x[kMost], y[kMost];
        Numbers numbers{1};
        numbers.fill(x, kMost);
        numbers.fill(y, kMost);
        core::Digest d;
        for (std::size_t n = 0; n <= kMost; n += 13) {
            auto acc = simd::broadcast<simd::f64x8, A>(0.0);
            for (std::size_t i = 0; i + 8 <= n; i += 8)
                acc = simd::madd_exact(simd::load_widened<A>(x + i), simd::load_widened<A>(y + i), acc);
            double lanes[8];
            simd::store<A>(lanes, acc);
            d.add(lanes, 8);
            d.add(kernels::dot64<A>(x, y, n));
        }
        print("dot64", d);
    }
    static void matmul() {
        constexpr std::size_t kRows = 7, kCols = 321, kTokens = 6;
        static float x[kTokens * kCols];
        static std::byte packed[kRows * 161], scales[kRows * 11];
        static double y[kTokens * kRows];
        static float rounded[kTokens * kRows];
        constexpr kernels::MatmulScratch need = kernels::matmul_scratch(kCols);
        alignas(64) static std::byte scratch[need.local_bytes + need.shared_bytes];
        Numbers numbers{2};
        numbers.fill(x, kTokens * kCols);
        for (std::byte& b : packed) b = static_cast<std::byte>((numbers.next(), numbers.state >> 24));
        for (std::byte& b : scales) b = static_cast<std::byte>((numbers.next(), 100 + (numbers.state >> 24) % 40));
        scales[3] = std::byte{255};
        const formats::Packed<formats::mxfp4> w{packed, scales, kRows, kCols};
        core::Digest d;
        for (const std::size_t tokens : {1, 2, 6}) {
            const core::Arena arena(scratch, sizeof scratch);
            kernels::matmul_on_thread<formats::mxfp4, A>(arena, w, core::MatView<const float>(x, tokens, kCols),
                                                         core::MatView<double>(y, tokens, kRows));
            kernels::matmul_on_thread<formats::mxfp4, A>(arena, w, core::MatView<const float>(x, tokens, kCols),
                                                         core::MatView<float>(rounded, tokens, kRows));
            d.add(y, tokens * kRows);
            d.add(rounded, tokens * kRows);
        }
        print("matmul", d);
    }
    static void delta() {
        constexpr std::size_t kKeys = 13, kValues = 75;
        static float state[kKeys * kValues], q[kKeys], k[kKeys], v[kValues], alpha[kKeys], out[kValues];
        Numbers numbers{3};
        numbers.fill(state, kKeys * kValues);
        core::Digest d;
        for (int t = 0; t < 6; ++t) {
            numbers.fill(q, kKeys, 0.25F);
            numbers.fill(k, kKeys, 0.25F);
            numbers.fill(v, kValues);
            for (float& a : alpha) a = 0.5F + 0.125F * numbers.next();  // 24 bits: exact
            kernels::delta_rule<A>(state, kKeys, kValues, {q, k, v, alpha, 0.125F * static_cast<float>(t + 1)}, out);
            d.add(out, kValues);
        }
        d.add(state, kKeys * kValues);
        print("delta_rule", d);
    }
    static void conv() {
        constexpr std::size_t kTokens = 9, kChannels = 37, kTaps = 4;
        static float u[kTokens * kChannels], w[kTaps * kChannels], history[(kTaps - 1) * kChannels],
            y[kTokens * kChannels];
        Numbers numbers{4};
        numbers.fill(u, kTokens * kChannels);
        numbers.fill(w, kTaps * kChannels);
        numbers.fill(history, (kTaps - 1) * kChannels);
        kernels::short_conv<A>({u, kTokens, kChannels}, w, kTaps, history, 0, kChannels, {y, kTokens, kChannels});
        core::Digest d;
        d.add(y, kTokens * kChannels);
        print("short_conv", d);
    }
    static void elementary() {
        static float x[kMost], y[kMost];
        core::Digest e, t, s;
        Numbers numbers{5};
        for (const float scale : {0x1p-30F, 0x1p-12F, 0.3F, 1.0F, 9.0F, 30.0F, 60.0F}) {
            numbers.fill(x, kMost, scale);
            kernels::exp<A>(x, kMost, y);
            e.add(y, kMost);
            kernels::sigmoid<A>(x, kMost, y);
            s.add(y, kMost);
            for (std::size_t i = 0; i < kMost; i += 8) simd::store<A>(y + i, simd::tanh<A>(simd::load<A>(x + i)));
            t.add(y, kMost);
        }
        print("exp", e);
        print("sigmoid", s);
        print("tanh", t);
    }
    static void layers() {
        static float g[kMost], u[kMost], y[kMost];
        Numbers numbers{6};
        core::Digest situ, norm, decay;
        for (const float scale : {0.01F, 1.0F, 20.0F}) {
            numbers.fill(g, kMost, scale);
            numbers.fill(u, kMost, scale);
            kernels::situ_glu<A>(g, u, kMost - 3, 4.0F, 25.0F, y);
            situ.add(y, kMost - 3);
            kernels::rmsnorm<A>(g, u, kMost - 5, 1e-5, y);
            norm.add(y, kMost - 5);
            kernels::l2norm_scaled<A>(g, 128, simd::round32(kernels::inverse_sqrt(128.0)), y);
            norm.add(y, 128);
            kernels::decay<A>(g, u, kMost - 1, 1.7F, -5.0F, y);
            decay.add(y, kMost - 1);
        }
        print("situ_glu", situ);
        print("norm", norm);
        print("decay", decay);
    }
    static void residual() {
        constexpr std::size_t kSources = 9;
        static float sources[kSources][kMost], fold[kMost], out[kMost], scratch[kSources];
        const float* views[kSources];
        Numbers numbers{7};
        for (std::size_t s = 0; s < kSources; ++s) numbers.fill(sources[s], kMost, 1.0F);
        for (std::size_t s = 0; s < kSources; ++s) views[s] = sources[s];
        numbers.fill(fold, kMost, 0.05F);
        core::Digest d;
        for (std::size_t count = 1; count <= kSources; ++count) {
            kernels::attention_residual<A>(views, count, fold, kMost - count, 1e-5, out, scratch);
            d.add(out, kMost - count);
            d.add(scratch, count);
        }
        print("attention_residual", d);
    }
    static void attention() {
        constexpr std::size_t kLatent = 20, kRope = 6, kPositions = 17, kHeads = 5, kRow = 32;
        static float page[kPositions * kRow], qa[kHeads * kLatent], qr[kHeads * kRope], out[kHeads * kLatent];
        alignas(64) static std::byte scratch[kernels::latent_attention_scratch(kPositions, kRow)];
        Numbers numbers{8};
        for (std::size_t s = 0; s < kPositions; ++s) {
            numbers.fill(page + s * kRow, kLatent);
            numbers.fill(page + s * kRow + 24, kRope);
        }
        numbers.fill(qa, kHeads * kLatent);
        numbers.fill(qr, kHeads * kRope);
        float* const pages[1] = {page};
        kernels::latent_attention<A>({pages, kPositions, kLatent, kRope}, kPositions, kHeads, qa, kLatent, qr, kRope,
                                     kernels::inverse_sqrt(26.0), out, kLatent, core::Arena(scratch, sizeof scratch));
        core::Digest d;
        d.add(out, kHeads * kLatent);
        print("latent_attention", d);
    }
    static void route() {
        constexpr std::size_t kExperts = 61, kChosen = 8;
        static float logits[kExperts], bias[kExperts], weights[kChosen], scratch[kExperts];
        std::int32_t ids[kChosen];
        Numbers numbers{9};
        numbers.fill(logits, kExperts);
        numbers.fill(bias, kExperts, 0.2F);
        core::Digest d;
        kernels::route<A>(logits, bias, kExperts, {kChosen, true, 2.827}, ids, weights, scratch);
        for (const std::int32_t id : ids) d.add(static_cast<float>(id));
        d.add(weights, kChosen);
        print("route", d);
    }
    static void softmax() {
        static float x[kMost];
        static std::uint64_t w[kMost];
        Numbers numbers{10};
        core::Digest weights, sums;
        for (const float scale : {0x1p-10F, 1.0F, 9.0F, 200.0F}) {
            numbers.fill(x, kMost, scale);
            x[77] = -__builtin_inff();
            x[99] = 2.0F * scale;  // the largest
            for (const double temperature : {0.3, 1.0, 0x1p+100}) {
                kernels::softmax_weights<A>(x, kMost - 3, x[99], temperature, w);
                weights.add_bytes(w, (kMost - 3) * sizeof w[0]);
            }
            for (std::size_t i = 100; i < kMost; i += 7) sums.add(kernels::log_softmax<A>(x, i, x[99], i - 3));
        }
        print("softmax_weights", weights);
        print("log_softmax", sums);
    }
    static int all() {
        std::printf("[%s]\n", A::name);
        if (!simd::arithmetic_is_exact<A>()) {
            std::printf("canary failed\n");
            return 3;
        }
        dot_lanes();
        matmul();
        delta();
        conv();
        elementary();
        layers();
        residual();
        attention();
        route();
        softmax();
        return 0;
    }
};

}  // namespace

int main() {
    int result = Digests<simd::scalar>::all();
#if !defined(K3_DIGEST_SCALAR)
#if K3_HAS_SSE42
    if (result == 0) result = Digests<simd::sse42>::all();
#endif
#if K3_HAS_AVX2
    if (result == 0) result = Digests<simd::avx2>::all();
#endif
#if K3_HAS_AVX512
    if (result == 0) result = Digests<simd::avx512>::all();
#endif
#if K3_HAS_NEON
    if (result == 0) result = Digests<simd::neon>::all();
#endif
#endif
    return result;
}
