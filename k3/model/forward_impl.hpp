#ifndef K3_MODEL_FORWARD_IMPL_HPP
#define K3_MODEL_FORWARD_IMPL_HPP
// Definitions of Forward. For arch units only: everything here is compiled with the unit's instruction set.
#include "k3/core/fp_env.hpp"
#include "k3/kernels/attention_residual.hpp"
#include "k3/model/forward.hpp"
#include "k3/simd/canary.hpp"

namespace k3::model {

/// Buffers of a step, all [tokens, hidden] unless noted.
template <simd::Arch A>
struct Forward<A>::Buffers {
    float *prefix, *mixed, *normed, *out;
    float* blocks;              // [snapshots, tokens, hidden]
    float* final_rows;          // [wanted, hidden]
    core::Fault* faults;        // [tokens]
    std::int32_t* ids;          // [tokens]
    std::byte* packed;          // embedding rows as stored
    layers::SegmentRows* rows;  // [segments]
    std::size_t tokens;

    K3_INLINE Buffers(core::Arena& arena, const ModelView& m, std::size_t n, std::size_t segments) noexcept
        : tokens(n) {
        const std::size_t hidden = m.config.hidden;
        const std::size_t snapshots = (m.layer_count + m.config.attn_res_block - 1) / m.config.attn_res_block;
        prefix = arena.take<float>(n * hidden);
        mixed = arena.take<float>(n * hidden);
        normed = arena.take<float>(n * hidden);
        out = arena.take<float>(n * hidden);
        blocks = arena.take<float>(snapshots * n * hidden);
        final_rows = arena.take<float>(n * hidden);
        faults = arena.take<core::Fault>(n);
        ids = arena.take<std::int32_t>(n);
        packed = arena.take<std::byte>(n * hidden * sizeof(float));
        rows = arena.take<layers::SegmentRows>(segments);
    }
    K3_INLINE core::MatView<float> view(float* data, std::size_t hidden) const noexcept {
        return {data, tokens, hidden};
    }
};

template <simd::Arch A>
Forward<A>::Forward(const ModelView& model) noexcept : model_(model) {}

template <simd::Arch A>
bool Forward<A>::arithmetic_is_exact() noexcept {
    return simd::arithmetic_is_exact<A>();
}

template <simd::Arch A>
layers::ExpertKernel Forward<A>::expert_kernel() noexcept {
    return &layers::expert_mlp<A>;
}

template <simd::Arch A>
std::int64_t Forward<A>::argmax(const float* logits, std::size_t count) noexcept {
    std::int64_t best = -1;
    core::parallel(core::Exec{}, 1, 1,
                   [&](std::size_t, std::size_t, unsigned) noexcept { best = kernels::argmax<A>(logits, count); });
    return best;
}

template <simd::Arch A>
layers::KdaShape Forward<A>::kda_shape() const noexcept {
    const Config& c = model_.config;
    return {c.kda_heads, c.kda_head_dim, c.conv_kernel, simd::round32(c.gate_lower_bound), c.rms_norm_eps};
}

template <simd::Arch A>
layers::MlaShape Forward<A>::mla_shape() const noexcept {
    const Config& c = model_.config;
    return {c.heads, c.qk_nope, c.qk_rope, c.v_head, c.q_lora, c.kv_lora, c.mla_output_gate, c.mla_norm_eps};
}

template <simd::Arch A>
layers::MoeShape Forward<A>::moe_shape() const noexcept {
    const Config& c = model_.config;
    return {c.experts,        c.experts_per_token,
            c.latent,         c.expert_width,
            c.shared_width(), c.latent_norm,
            c.renormalize,    c.routed_scale,
            c.rms_norm_eps,   {simd::round32(c.situ_beta), simd::round32(c.situ_linear_beta)}};
}

template <simd::Arch A>
StepBytes Forward<A>::step_bytes(std::size_t tokens, std::size_t segments, std::size_t positions) const noexcept {
    const auto larger = [](std::size_t a, std::size_t b) noexcept { return a > b ? a : b; };
    core::Arena count;
    const Buffers buffers(count, model_, tokens, segments);
    static_cast<void>(buffers);
    std::size_t layer_bytes = 0, widest = model_.config.hidden, local = 0;
    bool kda = false, mla = false, moe = false;
    for (std::size_t i = 0; i < model_.layer_count; ++i) {
        const DecoderLayer& layer = model_.layers[i];
        kda = kda || layer.kind == LayerKind::kda;
        mla = mla || layer.kind == LayerKind::mla;
        moe = moe || !layer.dense;
        if (layer.kind == LayerKind::kda)
            layer_bytes = larger(layer_bytes, layers::kda_bytes(kda_shape(), layer.kda.f_a.rows, tokens));
        if (layer.dense) {
            layer_bytes = larger(layer_bytes, layers::mlp_bytes(tokens, layer.mlp.gate.rows));
            widest = larger(widest, layer.mlp.down.cols);
        }
    }
    if (kda) {
        widest = larger(widest, kda_shape().width());
        local = larger(local, layers::kda_local_bytes(kda_shape()));
    }
    if (mla) {
        const layers::MlaShape s = mla_shape();
        layer_bytes = larger(layer_bytes, layers::mla_bytes(s, tokens));
        widest = larger(widest, larger(s.heads * s.value, s.q_lora));
        local = larger(local, layers::mla_local_bytes(s, positions));
    }
    if (moe) {
        const layers::MoeShape s = moe_shape();
        layer_bytes = larger(layer_bytes, layers::moe_bytes(s, model_.config.hidden, tokens));
        widest = larger(widest, larger(larger(s.latent, s.expert_width), s.shared_width));
        local = larger(local, layers::moe_local_bytes(s));
    }
    const kernels::MatmulScratch matmul = kernels::matmul_scratch(widest);
    local = larger(local, matmul.local_bytes);
    local =
        larger(local, (model_.config.layers + 1) * (sizeof(float) + sizeof(const float*)) + 2 * core::Arena::kAlign);
    constexpr std::size_t kAlign = core::Arena::kAlign;
    return {(local + kAlign - 1) / kAlign * kAlign, (matmul.shared_bytes + kAlign - 1) / kAlign * kAlign,
            count.used() + layer_bytes + 16 * kAlign};
}

template <simd::Arch A>
core::Fault Forward<A>::embed(const core::Exec& exec, const Services& services, const Segment* segments,
                              std::size_t count, const Buffers& b) const noexcept {
    const std::size_t hidden = model_.config.hidden;
    const layers::Weight& table = model_.embedding;
    const std::size_t row_bytes = hidden * (table.format == layers::Format::f32 ? 4 : 2);
    std::size_t at = 0;
    for (std::size_t s = 0; s < count; ++s)
        for (std::size_t t = 0; t < segments[s].tokens; ++t) b.ids[at++] = segments[s].ids[t];
    const std::byte* rows = b.packed;
    if (table.data == nullptr &&
        (services.weights == nullptr || !services.weights->read_rows(table, b.ids, b.tokens, b.packed)))
        return {.code = core::FaultCode::weight_failed};
    core::parallel(exec, b.tokens, hidden, [&](std::size_t begin, std::size_t end, unsigned) noexcept {
        for (std::size_t t = begin; t < end; ++t) {
            const std::byte* row = table.data == nullptr ? rows + t * row_bytes
                                                         : table.data + static_cast<std::size_t>(b.ids[t]) * row_bytes;
            float* out = b.prefix + t * hidden;
            for (std::size_t i = 0; i < hidden; ++i) {
                if (table.format == layers::Format::f32)
                    __builtin_memcpy(out + i, row + 4 * i, 4);
                else
                    out[i] = formats::bf16::widen(row + 2 * i);
            }
        }
    });
    at = 0;
    for (std::size_t s = 0; s < count; ++s)
        for (std::size_t t = 0; t < segments[s].tokens; ++t, ++at)
            if (segments[s].rows != nullptr && segments[s].rows[t] != nullptr)
                __builtin_memcpy(b.prefix + at * hidden, segments[s].rows[t], hidden * sizeof(float));
    return {};
}

/// For rows [first, first + tokens): mixed[t] = attention over the snapshots of position t and its running prefix.
template <simd::Arch A>
void Forward<A>::mix(const core::Exec& exec, const Buffers& b, std::size_t blocks, std::size_t first,
                     std::size_t tokens, const float* fold) const noexcept {
    const std::size_t hidden = model_.config.hidden;
    core::parallel(exec, tokens, 4 * (blocks + 1) * hidden,
                   [&](std::size_t begin, std::size_t end, unsigned thread) noexcept {
        core::Arena local = exec.local_of(thread);
        const float** sources = local.take<const float*>(blocks + 1);
        float* scores = local.take<float>(blocks + 1);
        for (std::size_t t = first + begin; t < first + end; ++t) {
            for (std::size_t s = 0; s < blocks; ++s) sources[s] = b.blocks + (s * b.tokens + t) * hidden;
            sources[blocks] = b.prefix + t * hidden;
            kernels::attention_residual<A>(sources, blocks + 1, fold, hidden, model_.config.rms_norm_eps,
                                           b.mixed + t * hidden, scores);
        }
    });
}

template <simd::Arch A>
core::Fault Forward<A>::layer(const layers::Context& context, std::size_t index, const Segment* segments,
                              std::size_t count, const Buffers& b, std::size_t& blocks,
                              core::Arena scratch) const noexcept {
    const DecoderLayer& layer = model_.layers[index];
    const std::size_t hidden = model_.config.hidden, tokens = b.tokens;
    const core::MatView<float> normed = b.view(b.normed, hidden), out = b.view(b.out, hidden);
    const auto norm = [&](const float* in, const float* weight) noexcept {
        core::parallel(context.exec, tokens, 2 * hidden, [&](std::size_t begin, std::size_t end, unsigned) noexcept {
            for (std::size_t t = begin; t < end; ++t)
                kernels::rmsnorm<A>(in + t * hidden, weight, hidden, model_.config.rms_norm_eps, b.normed + t * hidden);
        });
    };

    const bool first = blocks == 0;  // the first mix of layer 0 has nothing to mix
    if (!first) mix(context.exec, b, blocks, 0, tokens, layer.attention_fold);
    norm(first ? b.prefix : b.mixed, layer.input_norm);
    const bool boundary = index % model_.config.attn_res_block == 0;
    if (boundary) {  // INVARIANT 34: the snapshot is the running sum before the mix
        float* const snapshot = b.blocks + blocks * tokens * hidden;
        __builtin_memcpy(snapshot, b.prefix, tokens * hidden * sizeof(float));
        ++blocks;
    }

    std::size_t at = 0;
    for (std::size_t s = 0; s < count; ++s) {
        const StateView& state = segments[s].state;
        layers::SegmentRows& rows = b.rows[s];
        rows = {};
        rows.first = at;
        rows.tokens = segments[s].tokens;
        if (layer.kind == LayerKind::kda) {
            rows.kda = state.kda[layer.kind_index];
            rows.log = state.log[layer.kind_index];
        } else {
            rows.latent = {state.pages[layer.kind_index], state.page_positions, state.position};
        }
        at += segments[s].tokens;
    }
    core::Fault fault = layer.kind == LayerKind::kda
                            ? layers::kda<A>(context, kda_shape(), layer.kda, normed, b.rows, count, out, scratch)
                            : layers::mla<A>(context, mla_shape(), layer.mla, normed, b.rows, count, out, scratch);
    if (fault) return fault;
    core::parallel(context.exec, tokens * hidden, 1, [&](std::size_t begin, std::size_t end, unsigned) noexcept {
        if (boundary)
            __builtin_memcpy(b.prefix + begin, b.out + begin, (end - begin) * sizeof(float));
        else
            kernels::add<A>(b.prefix + begin, b.out + begin, end - begin, b.prefix + begin);
    });

    mix(context.exec, b, blocks, 0, tokens, layer.mlp_fold);
    norm(b.mixed, layer.post_attention_norm);
    fault = layer.dense ? layers::mlp<A>(context, layer.mlp, moe_shape().situ, normed, out, scratch)
                        : layers::moe<A>(context, index, moe_shape(), layer.moe, normed, out, b.faults, scratch);
    if (fault) return fault;
    if (!layer.dense && index + 1 < model_.layer_count)
        layers::look_ahead<A>(context, index + 1, moe_shape(), model_.layers[index + 1].moe, normed, scratch);
    core::parallel(context.exec, tokens * hidden, 1, [&](std::size_t begin, std::size_t end, unsigned) noexcept {
        kernels::add<A>(b.prefix + begin, b.out + begin, end - begin, b.prefix + begin);
    });
    return {};
}

template <simd::Arch A>
core::Fault Forward<A>::logits(const layers::Context& context, Segment* segments, std::size_t count, const Buffers& b,
                               std::size_t blocks) const noexcept {
    const std::size_t hidden = model_.config.hidden, vocab = model_.config.vocab;
    std::size_t wanted = 0;
    for (std::size_t s = 0; s < count; ++s) wanted += segments[s].wanted;
    if (wanted == 0) return {};
    std::size_t at = 0, row = 0;
    for (std::size_t s = 0; s < count; ++s) {
        at += segments[s].tokens;
        const std::size_t first = at - segments[s].wanted;
        mix(context.exec, b, blocks, first, segments[s].wanted, model_.output_fold);
        core::parallel(context.exec, segments[s].wanted, 2 * hidden,
                       [&](std::size_t begin, std::size_t end, unsigned) noexcept {
            for (std::size_t i = begin; i < end; ++i)
                kernels::rmsnorm<A>(b.mixed + (first + i) * hidden, model_.final_norm, hidden,
                                    model_.config.rms_norm_eps, b.final_rows + (row + i) * hidden);
        });
        row += segments[s].wanted;
    }
    // One sweep of lm_head for all segments: each panel is fetched once.
    return layers::for_each_panel<A>(context, model_.lm_head, [&](const layers::Panel& panel) noexcept {
        std::size_t from = 0;
        for (std::size_t s = 0; s < count; ++s) {
            const std::size_t rows = segments[s].wanted;
            if (rows == 0) continue;
            layers::multiply_panel<A>(context, model_.lm_head, panel,
                                      core::MatView<const float>(b.final_rows + from * hidden, rows, hidden),
                                      core::MatView<float>(segments[s].logits, rows, vocab));
            from += rows;
        }
    });
}

template <simd::Arch A>
core::Fault Forward<A>::run(const core::Exec& exec, const Services& services, Segment* segments, std::size_t count,
                            core::Arena workspace) const noexcept {
    const core::FpGuard guard;
    return run_guarded(exec, services, segments, count, workspace);
}

template <simd::Arch A>
core::Fault Forward<A>::run_guarded(const core::Exec& exec, const Services& services, Segment* segments,
                                    std::size_t count, core::Arena workspace) const noexcept {
    std::size_t tokens = 0, positions = 0;
    for (std::size_t s = 0; s < count; ++s) {
        segments[s].fault = {};
        bool bad = segments[s].wanted > segments[s].tokens;
        for (std::size_t other = 0; other < s; ++other)  // two segments may not move one state
            bad = bad || (segments[s].state.kda != nullptr && segments[s].state.kda == segments[other].state.kda);
        if (bad) return {.code = core::FaultCode::bad_step};
        tokens += segments[s].tokens;
        const std::size_t end = segments[s].state.position + segments[s].tokens;
        positions = positions < end ? end : positions;
    }
    if (tokens == 0) return {};
    const StepBytes need = step_bytes(tokens, count, positions);
    if (exec.threads == 0 || exec.local == nullptr || exec.shared == nullptr || workspace.capacity() < need.workspace ||
        exec.local_bytes < need.local || exec.shared_bytes < need.shared)
        return {.code = core::FaultCode::scratch_too_small};
    const Buffers b(workspace, model_, tokens, count);
    for (std::size_t t = 0; t < tokens; ++t) b.faults[t] = {};

    const layers::Context context{exec, services.weights, services.experts};
    if (const core::Fault fault = embed(exec, services, segments, count, b)) return fault;
    std::size_t blocks = 0;
    for (std::size_t index = 0; index < model_.layer_count; ++index) {
        core::Fault fault = layer(context, index, segments, count, b, blocks, workspace);
        if (fault) {
            fault.layer = static_cast<std::int32_t>(index);
            return fault;
        }
        if (services.progress.report != nullptr &&
            !services.progress.report(services.progress.user, index + 1, model_.layer_count))
            return {.code = core::FaultCode::interrupted, .layer = static_cast<std::int32_t>(index)};
    }
    if (const core::Fault fault = logits(context, segments, count, b, blocks)) return fault;
    std::size_t t = 0;
    for (std::size_t s = 0; s < count; ++s)
        for (std::size_t i = 0; i < segments[s].tokens; ++i, ++t)
            if (b.faults[t] && !segments[s].fault) {
                segments[s].fault = b.faults[t];
                segments[s].fault.token = static_cast<std::int32_t>(i);
            }
    return {};
}

template <simd::Arch A>
void Forward<A>::commit(const core::Exec& exec, const StateView& state, std::size_t tokens) const noexcept {
    const core::FpGuard guard;
    commit_guarded(exec, state, tokens);
}

template <simd::Arch A>
void Forward<A>::commit_guarded(const core::Exec& exec, const StateView& state, std::size_t tokens) const noexcept {
    for (std::size_t i = 0; i < model_.layer_count; ++i) {
        const DecoderLayer& layer = model_.layers[i];
        if (layer.kind == LayerKind::kda && state.log[layer.kind_index].k != nullptr)
            layers::kda_commit<A>(exec, kda_shape(), state.kda[layer.kind_index], state.log[layer.kind_index], tokens);
    }
}

}  // namespace k3::model
#endif
