#ifndef K3_LAYERS_MLA_HPP
#define K3_LAYERS_MLA_HPP
// Gated multi-head latent attention without positions, in absorbed form over the latent cache.
#include "k3/kernels/column_dot.hpp"
#include "k3/kernels/elementwise.hpp"
#include "k3/kernels/latent_attention.hpp"
#include "k3/kernels/norm.hpp"
#include "k3/layers/linear.hpp"

namespace k3::layers {

struct MlaShape {
    std::size_t heads, nope, rope, value, q_lora, kv_lora;
    bool output_gate;
    double eps;  // of the two low-rank norms: 1e-6 unless the config says otherwise
    K3_INLINE std::size_t qk_head() const noexcept { return nope + rope; }
};

struct MlaWeights {
    Weight q_a, q_b;  // [q_lora, hidden], [heads * (nope + rope), q_lora]: per head nope rows, then rope rows
    Weight kv_a;      // [kv_lora + rope, hidden]: the latent, then the shared key slot
    Weight kv_b;      // [heads * (nope + value), kv_lora]: per head key rows, then value rows
    Weight g, o;      // [heads * value, hidden], [hidden, heads * value]
    const float *q_a_norm, *kv_a_norm;
};

}  // namespace k3::layers

namespace k3::layers::inline K3_TARGET {

namespace detail {

inline constexpr std::size_t kAttentionTile = 64;  // tokens whose absorbed queries are in memory at once

struct MlaBuffers {
    float *q_a, *q, *kv;         // [T, q_lora], [T, heads * (nope + rope)], [T, kv_lora + rope]
    float *gate, *o;             // [T, heads * value]
    float *absorbed, *attended;  // [tile, heads, kv_lora]
    K3_INLINE MlaBuffers(core::Arena& arena, const MlaShape& s, std::size_t tokens) noexcept {
        const std::size_t tile = tokens < kAttentionTile ? tokens : kAttentionTile;
        q_a = arena.take<float>(tokens * s.q_lora);
        q = arena.take<float>(tokens * s.heads * s.qk_head());
        kv = arena.take<float>(tokens * (s.kv_lora + s.rope));
        gate = arena.take<float>(tokens * s.heads * s.value);
        o = arena.take<float>(tokens * s.heads * s.value);
        absorbed = arena.take<float>(tile * s.heads * s.kv_lora);
        attended = arena.take<float>(tile * s.heads * s.kv_lora);
    }
};

K3_INLINE kernels::LatentCache cache_of(const MlaShape& s, const LatentState& state) noexcept {
    return {state.pages, state.page_positions, s.kv_lora, s.rope};
}

/// Appends the latents of a segment: kv_a rows, the latent part normalised, the key slot as it is, padding +0.
template <simd::Arch A>
void append_latents(const core::Exec& exec, const MlaShape& s, const MlaWeights& w, const SegmentRows& rows,
                    const float* kv) noexcept {
    const kernels::LatentCache cache = cache_of(s, rows.latent);
    const std::size_t latent = kernels::LatentCache::pad(s.kv_lora);
    core::parallel(exec, rows.tokens, 2 * s.kv_lora, [&](std::size_t begin, std::size_t end, unsigned) noexcept {
        for (std::size_t t = begin; t < end; ++t) {
            const float* in = kv + (rows.first + t) * (s.kv_lora + s.rope);
            float* out = cache.row(rows.latent.length + t);
            for (std::size_t i = 0; i < cache.row_floats(); ++i) out[i] = 0.0F;
            kernels::rmsnorm<A>(in, w.kv_a_norm, s.kv_lora, s.eps, out);
            for (std::size_t i = 0; i < s.rope; ++i) out[latent + i] = in[s.kv_lora + i];
        }
    });
}

/// o[t][h] for tokens [begin, end) of a segment (at most a tile): absorb the keys, attend, expand the values.
template <class F, simd::Arch A>
void attend(const core::Exec& exec, const MlaShape& s, const formats::Packed<F>& kv_b, const SegmentRows& rows,
            const MlaBuffers& b, std::size_t begin, std::size_t end) noexcept {
    const std::size_t tokens = end - begin, first = rows.first + begin, latents = s.heads * s.kv_lora;
    const std::size_t head_rows = s.nope + s.value, q_width = s.heads * s.qk_head();
    core::parallel(exec, s.heads, tokens * s.nope * s.kv_lora, [&](std::size_t h0, std::size_t h1, unsigned) noexcept {
        for (std::size_t h = h0; h < h1; ++h) {
            const core::MatView<const float> q(b.q + first * q_width + h * s.qk_head(), tokens, s.nope, q_width);
            kernels::column_dot<F, A>(kv_b.row_range(h * head_rows, s.nope), q,
                                      {b.absorbed + h * s.kv_lora, tokens, s.kv_lora, latents});
        }
    });
    constexpr std::size_t kBlock = kernels::detail::kHeadBlock;
    const std::size_t blocks = (s.heads + kBlock - 1) / kBlock;
    const double scale = kernels::inverse_sqrt(static_cast<double>(s.qk_head()));
    const kernels::LatentCache cache = cache_of(s, rows.latent);
    const std::size_t pairs = kBlock * (rows.latent.length + end);
    core::parallel(exec, tokens * blocks, pairs * 2 * s.kv_lora,
                   [&](std::size_t from, std::size_t to, unsigned thread) noexcept {
        for (std::size_t task = from; task < to; ++task) {
            const std::size_t t = task / blocks, h = task % blocks * kBlock;
            const std::size_t heads = s.heads - h < kBlock ? s.heads - h : kBlock;
            kernels::latent_attention<A>(cache, rows.latent.length + begin + t + 1, heads,
                                         b.absorbed + t * latents + h * s.kv_lora, s.kv_lora,
                                         b.q + (first + t) * q_width + h * s.qk_head() + s.nope, s.qk_head(), scale,
                                         b.attended + t * latents + h * s.kv_lora, s.kv_lora, exec.local_of(thread));
        }
    });
    core::parallel(exec, s.heads, tokens * s.value * s.kv_lora,
                   [&](std::size_t h0, std::size_t h1, unsigned thread) noexcept {
        for (std::size_t h = h0; h < h1; ++h) {
            const core::MatView<const float> a(b.attended + h * s.kv_lora, tokens, s.kv_lora, latents);
            const std::size_t o_width = s.heads * s.value;
            kernels::matmul_on_thread<F, A>(
                exec.local_of(thread), kv_b.row_range(h * head_rows + s.nope, s.value), a,
                core::MatView<float>(b.o + first * o_width + h * s.value, tokens, s.value, o_width));
        }
    });
}

}  // namespace detail

/// Bytes of scratch mla() takes from its arena for T tokens, and each thread from its own for a cache of `positions`.
K3_INLINE std::size_t mla_bytes(const MlaShape& shape, std::size_t tokens) noexcept {
    core::Arena count;
    const detail::MlaBuffers buffers(count, shape, tokens);
    static_cast<void>(buffers);
    return count.used();
}
K3_INLINE std::size_t mla_local_bytes(const MlaShape& s, std::size_t positions) noexcept {
    const kernels::LatentCache cache{nullptr, 1, s.kv_lora, s.rope};
    const std::size_t attention = kernels::latent_attention_scratch(positions, cache.row_floats());
    const kernels::MatmulScratch values = kernels::matmul_scratch(s.kv_lora);
    const std::size_t expand = values.local_bytes + values.shared_bytes;
    return attention > expand ? attention : expand;
}

/// y[t] = MLA(x[t]) for every segment of the step; x: [T, hidden], already normalised. Appends to the latent cache.
///
/// Numerics  NUMERICS, section latent_attention. The score scale is 1/sqrt(nope + rope); the rope slots carry content
///           and are never rotated; the gate comes from the same x, before o_proj.
/// Requires  pages for length + tokens positions in every segment.
/// Threads   rows of the projections; heads; (token, head block) pairs of the attention.
template <simd::Arch A>
[[nodiscard]] core::Fault mla(const Context& context, const MlaShape& s, const MlaWeights& w,
                              core::MatView<const float> x, const SegmentRows* segments, std::size_t segment_count,
                              core::MatView<float> y, core::Arena scratch) noexcept {
    const std::size_t tokens = x.rows, o_width = s.heads * s.value;
    const detail::MlaBuffers b(scratch, s, tokens);
    const auto view = [tokens](float* data, std::size_t cols) noexcept {
        return core::MatView<float>(data, tokens, cols);
    };

    if (const core::Fault fault = linear<A>(context, w.q_a, x, view(b.q_a, s.q_lora))) return fault;
    core::parallel(context.exec, tokens, 2 * s.q_lora, [&](std::size_t begin, std::size_t end, unsigned) noexcept {
        for (std::size_t t = begin; t < end; ++t)
            kernels::rmsnorm<A>(b.q_a + t * s.q_lora, w.q_a_norm, s.q_lora, s.eps, b.q_a + t * s.q_lora);
    });
    if (const core::Fault fault = linear<A>(context, w.q_b, view(b.q_a, s.q_lora), view(b.q, s.heads * s.qk_head())))
        return fault;
    if (const core::Fault fault = linear<A>(context, w.kv_a, x, view(b.kv, s.kv_lora + s.rope))) return fault;
    if (s.output_gate) {
        if (const core::Fault fault = linear<A>(context, w.g, x, view(b.gate, o_width))) return fault;
    }

    Panel panel{w.kv_b.data, w.kv_b.scales, 0, w.kv_b.rows};  // held whole: keys first, values after the attention
    if (w.kv_b.data == nullptr && (context.weights == nullptr || !context.weights->acquire(w.kv_b, 0, true, panel)))
        return {.code = core::FaultCode::weight_failed};
    for (std::size_t i = 0; i < segment_count; ++i) {
        const SegmentRows& rows = segments[i];
        detail::append_latents<A>(context.exec, s, w, rows, b.kv);
        for (std::size_t begin = 0; begin < rows.tokens; begin += detail::kAttentionTile) {
            const std::size_t end =
                rows.tokens - begin < detail::kAttentionTile ? rows.tokens : begin + detail::kAttentionTile;
            if (w.kv_b.format == Format::f32) {
                const formats::Packed<formats::f32> kv_b{panel.data, nullptr, w.kv_b.rows, w.kv_b.cols};
                detail::attend<formats::f32, A>(context.exec, s, kv_b, rows, b, begin, end);
            } else {
                const formats::Packed<formats::bf16> kv_b{panel.data, nullptr, w.kv_b.rows, w.kv_b.cols};
                detail::attend<formats::bf16, A>(context.exec, s, kv_b, rows, b, begin, end);
            }
        }
    }
    if (w.kv_b.data == nullptr) context.weights->release(w.kv_b, panel);

    if (s.output_gate) {
        core::parallel(context.exec, tokens * o_width, 32, [&](std::size_t begin, std::size_t end, unsigned) noexcept {
            kernels::sigmoid_gate<A>(b.o + begin, b.gate + begin, end - begin, b.o + begin);
        });
    }
    return linear<A>(context, w.o, view(b.o, o_width), y);
}

}  // namespace k3::layers::inline K3_TARGET
#endif
