"""The wrong variants that run.py puts into the code, one at a time. Old texts must occur exactly once in their file."""


class Mutant:
    """One wrong variant.

    traps  numbers of docs/TRAPS.md; empty for a clause of docs/NUMERICS.md, which `wrong` then names
    edits  (file, old text, new text), all applied together
    tests  programs that should notice: FOLDER/test_NAME is the file tests/FOLDER/test_NAME.cpp, FOLDER every test_*.cpp in
           it. Files, not names of meson's tests: run.py makes a program of each file
    flags  compiler flags of the arch units, for what only shows with an instruction set
    """

    def __init__(self, name, traps, wrong, edits, tests, flags=()):
        self.id, self.traps, self.wrong, self.tests, self.flags = name, tuple(traps), wrong, tuple(tests), tuple(flags)
        self.edits = tuple(edits)

    def trap_text(self):
        return "trap " + ", ".join(map(str, self.traps)) if self.traps else "contract"


ELEMENTWISE, NORM, CONV = "k3/kernels/elementwise.hpp", "k3/kernels/norm.hpp", "k3/kernels/short_conv.hpp"
DELTA, TOP_K, ATTENTION = "k3/kernels/delta_rule.hpp", "k3/kernels/top_k.hpp", "k3/kernels/latent_attention.hpp"
RESIDUAL, FEW = "k3/kernels/attention_residual.hpp", "k3/kernels/detail/matmul_few.hpp"
KDA, MLA, MOE, MLP = "k3/layers/kda.hpp", "k3/layers/mla.hpp", "k3/layers/moe.hpp", "k3/layers/mlp.hpp"
FORWARD, BOUND, STATE = "k3/model/forward_impl.hpp", "k3/model/bound_model.hpp", "k3/model/state.hpp"
CONFIG, KINDS, CHECKS = "k3/model/config_reader.hpp", "k3/model/detail/layer_kinds.hpp", "k3/model/detail/config_checks.hpp"
MXFP4, SCALAR, E2M1, MATH = "k3/formats/mxfp4.hpp", "k3/simd/regs_scalar.hpp", "k3/simd/e2m1_table.hpp", "k3/simd/math.hpp"
LANES, FENCE = "k3/simd/lanes.hpp", "k3/simd/fence.hpp"
SESSION, EXPERTS, HEADER = "k3/engine/session.hpp", "k3/stream/expert_places.hpp", "k3/checkpoint/header.hpp"
PATTERN, SPECIALS, TOKENIZER = "k3/text/pre_tokenizer.hpp", "k3/text/special_tokens.hpp", "k3/text/tokenizer.hpp"
STATE_HEADER = "k3/engine/detail/state_header.hpp"
TRUNK, SLOTS, CACHE = "k3/stream/trunk.hpp", "k3/stream/expert_slots.hpp", "k3/stream/expert_cache.hpp"
BPE, RANKS, STREAM, CUTS = "k3/text/bpe.hpp", "k3/text/rank_file.hpp", "k3/text/stream_decoder.hpp", "k3/text/long_input.hpp"
RENDERER, PYTHON_JSON = "k3/text/chat_renderer.hpp", "k3/text/python_json.hpp"
ASCII, PIN = "k3/text/detail/ascii_piece.hpp", "k3/text/unicode_pin.hpp"

FORMAT_TESTS = ("formats", "layers/test_linear", "kernels/test_matmul")
KDA_TESTS = ("layers/test_kda", "kernels/test_kda", "kernels/test_vector", "golden")
MLA_TESTS = ("layers/test_mla", "kernels/test_attention", "golden")
MOE_TESTS = ("layers/test_moe", "kernels/test_top_k", "golden")
SITU_TESTS = ("layers/test_mlp", "kernels/test_vector", "golden")
MODEL_TESTS = ("model/test_forward_traps", "model/test_forward", "golden")
DOT_TESTS = ("kernels/test_matmul", "kernels/test_vector", "golden")
FUSING = ("-fexpensive-optimizations", "-mfma", "-ffp-contract=fast")  # the pass that fuses, at -O1

MUTANTS = [
    # ------------------------------------------------------------------------------------------------------------ KDA
    Mutant("kda-a-log-per-channel", [1], "A_log is indexed by the channel inside a head; heads share one list",
           [(KDA, "kernels::decay<A>(alpha, w.dt_bias + at, dim, a, shape.lower_bound, alpha);",
             """for (std::size_t i = 0; i < dim; ++i) {
            kernels::exp<A>(w.a_log + i, 1, &a);
            kernels::decay<A>(alpha + i, w.dt_bias + at + i, 1, a, shape.lower_bound, alpha + i);
        }""")], KDA_TESTS + ("model/test_forward",)),
    Mutant("decay-softplus", [2], "the decay is exp(-a softplus(z + dt_bias)), that of Kimi Linear",
           [(ELEMENTWISE, "simd::store<A>(alpha + i, simd::exp<A>(simd::mul(bound, simd::sigmoid<A>(u))), n - i);",
             """float g[8];
        simd::store<A>(g, simd::load<A>(z + i, n - i) + simd::load<A>(dt_bias + i, n - i));
        for (float& v : g) v = -a * static_cast<float>(__builtin_log1p(__builtin_exp(static_cast<double>(v))));
        simd::store<A>(alpha + i, simd::exp<A>(simd::load<A>(g)), n - i);""")], KDA_TESTS),
    Mutant("decay-clamped", [2], "the softplus form, clamped to the lower bound, instead of a sigmoid scaled by it",
           [(ELEMENTWISE, "simd::store<A>(alpha + i, simd::exp<A>(simd::mul(bound, simd::sigmoid<A>(u))), n - i);",
             """float g[8];
        simd::store<A>(g, simd::load<A>(z + i, n - i) + simd::load<A>(dt_bias + i, n - i));
        for (float& v : g) v = -a * static_cast<float>(__builtin_log1p(__builtin_exp(static_cast<double>(v))));
        for (float& v : g) v = v < lower_bound ? lower_bound : v;
        simd::store<A>(alpha + i, simd::exp<A>(simd::load<A>(g)), n - i);""")], KDA_TESTS),
    Mutant("decay-dt-bias-outside", [3], "dt_bias is added after exp(A_log) has multiplied",
           [(ELEMENTWISE, "simd::mul(scale, simd::load<A>(z + i, n - i) + simd::load<A>(dt_bias + i, n - i));",
             "simd::mul(scale, simd::load<A>(z + i, n - i)) + simd::load<A>(dt_bias + i, n - i);")], KDA_TESTS),
    Mutant("l2norm-mean", [4], "the mean of the squares for their sum",
           [(NORM, "dot64<A>(x, x, n) + 1e-6", "dot64<A>(x, x, n) / static_cast<double>(n) + 1e-6")], KDA_TESTS),
    Mutant("l2norm-eps-max", [4], "x / max(norm, 1e-6): epsilon outside the root",
           [(NORM, "return simd::round32(1.0 / __builtin_sqrt(dot64<A>(x, x, n) + 1e-6));",
             "const double norm = __builtin_sqrt(dot64<A>(x, x, n));\n    return simd::round32(1.0 / (norm < 1e-6 ? 1e-6 : norm));")],
           KDA_TESTS),
    Mutant("kda-v-normalised", [4], "v is normalised like q and k",
           [(KDA, "kernels::l2norm<A>(k, dim, k);", "kernels::l2norm<A>(k, dim, k);\n        kernels::l2norm<A>(v, dim, v);")],
           KDA_TESTS),
    Mutant("kda-q-scale-omitted", [5], "q without 1/sqrt(dim)",
           [(KDA, "kernels::l2norm_scaled<A>(q, dim, scale, q);", "kernels::l2norm<A>(q, dim, q);")], KDA_TESTS),
    Mutant("kda-q-scale-twice", [5], "1/sqrt(dim) applied twice",
           [(KDA, "kernels::l2norm_scaled<A>(q, dim, scale, q);", "kernels::l2norm_scaled<A>(q, dim, scale * scale, q);")],
           KDA_TESTS),
    Mutant("kda-k-scaled", [5], "1/sqrt(dim) applied to k instead of q",
           [(KDA, "kernels::l2norm_scaled<A>(q, dim, scale, q);\n        kernels::l2norm<A>(k, dim, k);",
             "kernels::l2norm<A>(q, dim, q);\n        kernels::l2norm_scaled<A>(k, dim, scale, k);")], KDA_TESTS),
    Mutant("delta-read-before-decay", [6], "the prediction is read from the state before its decay",
           [(DELTA, "simd::mul_then_add(sum[n], k, simd::mul(simd::load<A>(row + 8 * n, live(n)), alpha));",
             "simd::mul_then_add(sum[n], k, simd::load<A>(row + 8 * n, live(n)));")], KDA_TESTS),
    Mutant("delta-output-before-update", [6], "the output is read from the state before the update",
           [(DELTA, "sum[n] = simd::mul_then_add(sum[n], q, next);", "sum[n] = simd::mul_then_add(sum[n], q, decayed);")],
           KDA_TESTS),
    Mutant("delta-decay-by-value", [6], "the decay runs along the value axis",
           [(DELTA, "sum[n], k, simd::mul(simd::load<A>(row + 8 * n, live(n)), alpha)",
             "sum[n], k, simd::mul(simd::load<A>(row + 8 * n, live(n)), simd::load<A>(in.alpha + (j + 8 * n) % keys, live(n)))"),
            (DELTA, "const V decayed = simd::mul(simd::load<A>(row + 8 * n, live(n)), alpha);",
             "const V decayed = simd::mul(simd::load<A>(row + 8 * n, live(n)), simd::load<A>(in.alpha + (j + 8 * n) % keys, live(n)));")],
           KDA_TESTS),
    Mutant("delta-beta-zero-exit", [7], "beta = 0 leaves the update after the first row has decayed",
           [(DELTA, "for (std::size_t i = 0; i < keys; ++i) {  // S_ij",
             "for (std::size_t i = 0; i < keys && (i == 0 || in.beta != 0.0F); ++i) {  // S_ij")], KDA_TESTS),
    Mutant("conv-taps-reversed", [8], "the first stored tap multiplies the current input",
           [(CONV, "simd::load<A>(w + (taps - 1) * channels + c, count)", "simd::load<A>(w + c, count)"),
            (CONV, "simd::load<A>(w + j * channels + c, count)", "simd::load<A>(w + (taps - 1 - j) * channels + c, count)")],
           KDA_TESTS),
    Mutant("conv-taps-bound-reversed", [8], "the stored taps are bound newest first",
           [(BOUND, "values[j * channels + c] = stored[c * taps + j];",
             "values[j * channels + c] = stored[c * taps + taps - 1 - j];")], ("model/test_bound_model", "golden")),
    Mutant("conv-no-silu", [8], "no SiLU after the convolution",
           [(CONV, "simd::silu<A>(acc)", "acc")], KDA_TESTS),
    Mutant("conv-silu-first", [8], "SiLU of the inputs instead of the sum",
           [(CONV, "simd::load<A>(u.row(t) + c, count));", "simd::silu<A>(simd::load<A>(u.row(t) + c, count)));"),
            (CONV, "simd::load<A>(input(t, taps - 1 - j) + c, count));",
             "simd::silu<A>(simd::load<A>(input(t, taps - 1 - j) + c, count)));"),
            (CONV, "simd::silu<A>(acc)", "acc")], KDA_TESTS),
    Mutant("conv-silu-not-on-v", [8], "SiLU on q and k only",
           [(CONV, "std::size_t end, core::MatView<float> y) noexcept {",
             "std::size_t end, core::MatView<float> y, bool activate = true) noexcept {"),
            (CONV, "simd::silu<A>(acc)", "activate ? simd::silu<A>(acc) : acc"),
            (KDA, "view(b.qkv[i], width).row_range(rows.first, rows.tokens));",
             "view(b.qkv[i], width).row_range(rows.first, rows.tokens), i < 2);")], KDA_TESTS),
    Mutant("conv-history-not-carried", [8], "the inputs before a step are forgotten",
           [(KDA, "kernels::shift_history<A>(in, rows.tokens, shape.taps, begin, end, rows.kda.conv[i]);", ";"),
            (KDA, "kernels::shift_history<A>(core::MatView<const float>(log.conv[i], tokens, width), tokens, shape.taps, at,\n"
             "                                          at + dim, state.conv[i]);", "static_cast<void>(i);")], KDA_TESTS),
    Mutant("conv-history-long-steps-only", [9], "a step shorter than the history takes all of it from its own inputs",
           [(CONV, "const float* source = from + 1 < taps ? history + from * channels : u.row(from + 1 - taps);",
             "const float* source = u.row(from + 1 < taps ? 0 : from + 1 - taps);")], KDA_TESTS),
    Mutant("conv-history-row", [9], "inputs before the step are looked up as if every token were the first",
           [(CONV, "history + (taps - 1 + t - back) * channels", "history + (taps - 1 - back) * channels")], KDA_TESTS),
    Mutant("kda-gate-before-norm", [10], "the gate multiplies before the output norm",
           [(KDA, "kernels::rmsnorm<A>(o, w.o_norm, dim, shape.eps, o);  // norm first, gate second\n"
             "        kernels::sigmoid_gate<A>(o, b.gate + row, dim, o);",
             "kernels::sigmoid_gate<A>(o, b.gate + row, dim, o);\n"
             "        kernels::rmsnorm<A>(o, w.o_norm, dim, shape.eps, o);")], KDA_TESTS),
    Mutant("kda-norm-all-heads", [11], "the output norm over all channels instead of per head",
           [(KDA, "kernels::rmsnorm<A>(o, w.o_norm, dim, shape.eps, o);  // norm first, gate second\n"
             "        kernels::sigmoid_gate<A>(o, b.gate + row, dim, o);", ""),
            (KDA, "return linear<A>(context, w.o, view(b.mixed, width), y);",
             """for (std::size_t t = 0; t < tokens; ++t) {
        float* const o = b.mixed + t * width;
        const float inv = kernels::rms_factor<A>(o, width, shape.eps);
        for (std::size_t c = 0; c < width; ++c) o[c] = o[c] * inv * w.o_norm[c % shape.dim];
        kernels::sigmoid_gate<A>(o, b.gate + t * width, width, o);
    }
    return linear<A>(context, w.o, view(b.mixed, width), y);""")], KDA_TESTS),
    Mutant("kda-gate-silu", [12], "the output gate is SiLU instead of sigmoid",
           [(KDA, "kernels::sigmoid_gate<A>(o, b.gate + row, dim, o);",
             "kernels::sigmoid_gate<A>(o, b.gate + row, dim, o);\n"
             "        for (std::size_t i = 0; i < dim; ++i) o[i] *= b.gate[row + i];")], KDA_TESTS),

    # ------------------------------------------------------------------------------------------------------------ MLA
    Mutant("mla-rope-dropped", [13], "the rope slots are left out of the score",
           [(ATTENTION, "simd::mul(content[h] + simd::reduce(acc[h]), scale)", "simd::mul(content[h], scale)")], MLA_TESTS),
    Mutant("mla-rope-rotated", [14], "rotary embedding on the rope slots of query and key",
           [(MLA, "for (std::size_t i = 0; i < s.rope; ++i) out[latent + i] = in[s.kv_lora + i];",
             """for (std::size_t i = 0; i < s.rope; ++i) out[latent + i] = in[s.kv_lora + i];
            for (std::size_t i = 0; i + 1 < s.rope; i += 2) {
                const double angle = static_cast<double>(rows.latent.length + t) * __builtin_pow(1e4, -double(i) / double(s.rope));
                const float a = out[latent + i], c = out[latent + i + 1];
                out[latent + i] = static_cast<float>(a * __builtin_cos(angle) - c * __builtin_sin(angle));
                out[latent + i + 1] = static_cast<float>(a * __builtin_sin(angle) + c * __builtin_cos(angle));
            }"""),
            (MLA, "const std::size_t heads = s.heads - h < kBlock ? s.heads - h : kBlock;",
             """const std::size_t heads = s.heads - h < kBlock ? s.heads - h : kBlock;
            for (std::size_t g = h; g < h + heads; ++g)
                for (std::size_t i = 0; i + 1 < s.rope; i += 2) {
                    float* const r = b.q + (first + t) * q_width + g * s.qk_head() + s.nope + i;
                    const double angle = static_cast<double>(rows.latent.length + begin + t) * __builtin_pow(1e4, -double(i) / double(s.rope));
                    const float a = r[0], c = r[1];
                    r[0] = static_cast<float>(a * __builtin_cos(angle) - c * __builtin_sin(angle));
                    r[1] = static_cast<float>(a * __builtin_sin(angle) + c * __builtin_cos(angle));
                }""")], MLA_TESTS),
    Mutant("config-rope-accepted", [14], "a config with mla_use_nope false is accepted and read as if it were true",
           [(CHECKS, 'fields.expect(text, {"mla_use_nope"}, true, need);  // anything else means RoPE', "")],
           ("model/test_config_reader",)),
    Mutant("mla-norm-over-key-slot", [15], "the low-rank norm over latent and key slot together",
           [(MLA, "kernels::rmsnorm<A>(in, w.kv_a_norm, s.kv_lora, s.eps, out);",
             "const float inv = kernels::rms_factor<A>(in, s.kv_lora + s.rope, s.eps);\n"
             "            for (std::size_t i = 0; i < s.kv_lora; ++i) out[i] = in[i] * inv * w.kv_a_norm[i];")], MLA_TESTS),
    Mutant("mla-scale-nope", [16], "score scale 1/sqrt(nope)",
           [(MLA, "kernels::inverse_sqrt(static_cast<double>(s.qk_head()))",
             "kernels::inverse_sqrt(static_cast<double>(s.nope))")], MLA_TESTS),
    Mutant("mla-kv-b-all-keys-first", [17], "kv_b read as the keys of all heads, then the values of all heads",
           [(MLA, "kv_b.row_range(h * head_rows, s.nope)", "kv_b.row_range(h * s.nope, s.nope)"),
            (MLA, "kv_b.row_range(h * head_rows + s.nope, s.value)", "kv_b.row_range(s.heads * s.nope + h * s.value, s.value)")],
           MLA_TESTS),
    Mutant("mla-kv-b-value-first", [17], "kv_b read with the values of a head before its keys",
           [(MLA, "kv_b.row_range(h * head_rows, s.nope)", "kv_b.row_range(h * head_rows + s.value, s.nope)"),
            (MLA, "kv_b.row_range(h * head_rows + s.nope, s.value)", "kv_b.row_range(h * head_rows, s.value)")], MLA_TESTS),
    Mutant("mla-key-per-head", [18], "each head sees the shared key from an offset of its own",
           [(ATTENTION, "queries[h * width + latent + c] =", "queries[h * width + latent + (c + h) % cache.rope] =")], MLA_TESTS),
    Mutant("mla-no-causal-mask", [18], "a token sees the later tokens of its chunk",
           [(MLA, "rows.latent.length + begin + t + 1, heads", "rows.latent.length + rows.tokens, heads")], MLA_TESTS),
    Mutant("mla-gate-after-o", [18], "the output gate after o_proj",
           [(MLA, "kernels::sigmoid_gate<A>(b.o + begin, b.gate + begin, end - begin, b.o + begin);", ""),
            (MLA, "return linear<A>(context, w.o, view(b.o, o_width), y);",
             """if (const core::Fault fault = linear<A>(context, w.o, view(b.o, o_width), y)) return fault;
    for (std::size_t t = 0; s.output_gate && t < tokens; ++t)
        for (std::size_t i = 0; i < y.cols; ++i)
            kernels::sigmoid_gate<A>(y.row(t) + i, b.gate + t * o_width + i % o_width, 1, y.row(t) + i);
    return {};""")], MLA_TESTS),
    Mutant("session-past-its-plan", [19], "more tokens than were planned for are fed without an error",
           [(SESSION, "if (position() + ids.size() > positions_)", "if (false)")], ("engine/test_session",)),
    Mutant("state-last-page", [19], "the cache page for the last positions of a step is not made",
           [(STATE, "const std::size_t page_count = (positions + kPagePositions - 1) / kPagePositions;",
             "const std::size_t page_count = std::max<std::size_t>(1, positions / kPagePositions);")],
           ("model/test_state",)),
    Mutant("mla-raw-latent-cached", [20], "the cache holds the latent before its norm",
           [(MLA, "kernels::rmsnorm<A>(in, w.kv_a_norm, s.kv_lora, s.eps, out);",
             "for (std::size_t i = 0; i < s.kv_lora; ++i) out[i] = in[i];")], MLA_TESTS),

    # ---------------------------------------------------------------------------------------------- router, MoE, SiTU
    Mutant("router-biased-weights", [21], "weights from the biased scores",
           [(TOP_K, "sum += static_cast<double>(scratch[ids[j]]);", "sum += static_cast<double>(scratch[ids[j]] + bias[ids[j]]);"),
            (TOP_K, "const double s = static_cast<double>(scratch[ids[j]]);",
             "const double s = static_cast<double>(scratch[ids[j]] + bias[ids[j]]);")], MOE_TESTS),
    Mutant("router-no-bias", [22], "the bias is left out of the choice",
           [(TOP_K, "const float c = scratch[e] + bias[e];", "const float c = scratch[e];")], MOE_TESTS),
    Mutant("router-softmax", [23], "softmax instead of sigmoid scores",
           [(TOP_K, "simd::sigmoid<A>(simd::load<A>(logits + e, experts - e))", "simd::exp<A>(simd::load<A>(logits + e, experts - e))"),
            (TOP_K, "std::size_t chosen = 0;",
             "double z = 0.0;\n    for (std::size_t e = 0; e < experts; ++e) z += static_cast<double>(scratch[e]);\n"
             "    for (std::size_t e = 0; e < experts; ++e) scratch[e] = static_cast<float>(static_cast<double>(scratch[e]) / z);\n"
             "    std::size_t chosen = 0;")], MOE_TESTS),
    Mutant("router-no-renormalisation", [23], "the weights are not renormalised",
           [(TOP_K, "rule.renormalize && rule.top_k > 1 ?", "false ?")], MOE_TESTS),
    Mutant("router-scale-skipped", [23], "routed_scaling_factor is left out",
           [(TOP_K, "simd::round32(simd::mul(w, rule.scale))", "simd::round32(w)")], MOE_TESTS),
    Mutant("router-scale-twice", [23], "routed_scaling_factor is applied twice",
           [(TOP_K, "simd::round32(simd::mul(w, rule.scale))", "simd::round32(simd::mul(simd::mul(w, rule.scale), rule.scale))")],
           MOE_TESTS),
    Mutant("router-fed-latent", [24], "the router sees the latent instead of the hidden vector",
           [(MOE, "if (const core::Fault fault = linear<A>(context, w.gate, x, {b.logits, tokens, s.experts})) return fault;",
             """if (const core::Fault fault = linear<A>(context, w.down, x, latent)) return fault;
    for (std::size_t t = 0; t < tokens; ++t)
        for (std::size_t i = 0; i < hidden; ++i) b.shared[t * hidden + i] = i < s.latent ? latent.row(t)[i] : 0.0F;
    if (const core::Fault fault = linear<A>(context, w.gate, {b.shared, tokens, hidden}, {b.logits, tokens, s.experts})) return fault;""")],
           MOE_TESTS),
    Mutant("router-ties-high", [25], "equal keys go to the highest id",
           [(TOP_K, "!(weights[chosen - 1] < c)", "!(weights[chosen - 1] <= c)"),
            (TOP_K, "at > 0 && weights[at - 1] < c", "at > 0 && weights[at - 1] <= c")], MOE_TESTS),
    Mutant("argmax-ties-high", [25], "equal logits give the highest id",
           [(TOP_K, "x[best] < x[i]", "x[best] <= x[i]")], ("kernels/test_top_k", "model/test_forward")),
    Mutant("moe-norm-per-expert", [26], "the latent norm of each expert's output instead of their sum's",
           [(MOE, "kernels::scaled_add<A>(b.weights[t * s.top_k + j], outputs.row(t * s.top_k + j), s.latent, acc);",
             """{
                    float* const e = outputs.row(t * s.top_k + j);
                    if (s.latent_norm) kernels::rmsnorm<A>(e, w.norm, s.latent, s.eps, e);
                    kernels::scaled_add<A>(b.weights[t * s.top_k + j], e, s.latent, acc);
                }"""),
            (MOE, "if (s.latent_norm) kernels::rmsnorm<A>(acc, w.norm, s.latent, s.eps, acc);", "")], MOE_TESTS),
    Mutant("moe-shared-fed-latent", [27], "the shared expert sees the latent instead of the hidden vector",
           [(MOE, "if (const core::Fault fault = mlp<A>(context, w.shared, s.situ, x, shared, scratch)) return fault;",
             """if (const core::Fault fault = linear<A>(context, w.down, x, latent)) return fault;
    for (std::size_t t = 0; t < tokens; ++t)
        for (std::size_t i = 0; i < hidden; ++i)
            const_cast<float*>(x.row(t))[i] = i < s.latent ? latent.row(t)[i] : 0.0F;
    if (const core::Fault fault = mlp<A>(context, w.shared, s.situ, x, shared, scratch)) return fault;""")], MOE_TESTS),
    Mutant("moe-shared-weighted", [27], "the shared expert is multiplied by a router weight",
           [(MOE, "kernels::add<A>(y.row(t), shared.row(t), hidden, y.row(t));",
             "kernels::scaled_add<A>(b.weights[t * s.top_k], shared.row(t), hidden, y.row(t));")], MOE_TESTS),
    Mutant("situ-sigmoid-of-capped", [28], "the sigmoid takes the capped gate",
           [(ELEMENTWISE, "simd::sigmoid<A>(g));", "simd::sigmoid<A>(simd::mul(beta, simd::tanh<A>(g / beta))));")],
           SITU_TESTS),
    Mutant("situ-no-caps", [28], "the caps are left out: silu(gate) * up",
           [(ELEMENTWISE, "simd::mul(simd::mul(beta, simd::tanh<A>(g / beta)), simd::sigmoid<A>(g))", "simd::silu<A>(g)"),
            (ELEMENTWISE, "simd::mul(linear_beta, simd::tanh<A>(u / linear_beta))", "u")], SITU_TESTS),
    Mutant("situ-caps-exchanged", [28], "the two caps are exchanged",
           [(ELEMENTWISE, "(b1), linear_beta = simd::broadcast<simd::f32x8, A>(b2)",
             "(b2), linear_beta = simd::broadcast<simd::f32x8, A>(b1)")], SITU_TESTS),
    Mutant("mlp-gate-up-exchanged", [28], "gate and up are exchanged",
           [(MLP, "kernels::situ_glu<A>(gate.data + begin, up.data + begin,", "kernels::situ_glu<A>(up.data + begin, gate.data + begin,")],
           SITU_TESTS),
    Mutant("expert-w1-w3-exchanged", [28], "w3 is bound as the gate of a routed expert, w1 as up",
           [(EXPERTS, "matrix(ExpertMatrix::gate, load.weights.gate);", "matrix(ExpertMatrix::up, load.weights.gate);"),
            (EXPERTS, "matrix(ExpertMatrix::up, load.weights.up);", "matrix(ExpertMatrix::gate, load.weights.up);")],
           ("stream/test_expert_places", "golden")),
    Mutant("config-beta-default", [29], "a missing beta is 4",
           [(CONFIG, 'c.situ_beta = fields.real(in.text, {"activation_situ_beta", "situ_beta"}, Sign::positive);',
             'const auto beta = fields.find(in.text, {"activation_situ_beta", "situ_beta"}, Need::optional);\n'
             '    c.situ_beta = beta.value != nullptr ? fields.real(beta, Sign::positive) : 4.0;')], ("model/test_config_reader",)),
    Mutant("forward-fault-lost", [30], "the fault of a token is not passed on: the step counts as done",
           [(FORWARD, "if (b.faults[t] && !segments[s].fault) {", "if (false) {")], ("model/test_forward",)),
    Mutant("session-fault-lost", [30], "the session does not look at the fault of its segment",
           [(SESSION, "if (!fault) fault = segment.fault;", "")], ("engine/test_session",)),
    Mutant("moe-failed-token-routed", [31], "a token that failed keeps the ids that were in the buffer",
           [(MOE, "for (std::size_t j = 0; j < s.top_k; ++j) ids[j] = -1;", ";")],
           ("layers/test_moe", "model/test_forward")),
    Mutant("moe-sum-by-id", [32], "experts are added in the order of their ids, as they arrive, instead of by rank",
           [(MOE, "for (std::size_t j = 0; j < s.top_k; ++j)\n                kernels::scaled_add",
             """std::int32_t last = -1;
            for (std::size_t k = 0; k < s.top_k; ++k) {
                std::size_t j = s.top_k;
                for (std::size_t i = 0; i < s.top_k; ++i)
                    if (b.ids[t * s.top_k + i] > last && (j == s.top_k || b.ids[t * s.top_k + i] < b.ids[t * s.top_k + j])) j = i;
                last = b.ids[t * s.top_k + j];
                kernels::scaled_add"""),
            (MOE, "outputs.row(t * s.top_k + j), s.latent, acc);", "outputs.row(t * s.top_k + j), s.latent, acc);\n            }")],
           MOE_TESTS),

    # ------------------------------------------------------------------------------ attention residual and layer map
    Mutant("residual-normalised-values", [33], "the normalised sources are mixed",
           [(RESIDUAL, "simd::load<A>(sources[s] + i, n - i));",
             "simd::mul(simd::load<A>(sources[s] + i, n - i), simd::broadcast<simd::f32x8, A>(rms_factor<A>(sources[s], n, eps))));")],
           ("kernels/test_attention",) + MODEL_TESTS),
    Mutant("snapshot-of-the-mix", [34], "the snapshot holds the mix instead of the running sum",
           [(FORWARD, "__builtin_memcpy(snapshot, b.prefix, tokens", "__builtin_memcpy(snapshot, first ? b.prefix : b.mixed, tokens")],
           MODEL_TESTS),
    Mutant("prefix-not-cleared", [35], "the running sum goes on across a boundary",
           [(FORWARD, "if (boundary) __builtin_memcpy(b.prefix + begin, b.out + begin, (end - begin) * sizeof(float));\n        else ", "")],
           MODEL_TESTS),
    Mutant("prefix-cleared-first", [35], "the running sum is cleared before its snapshot",
           [(FORWARD, "__builtin_memcpy(snapshot, b.prefix, tokens * hidden * sizeof(float));",
             "__builtin_memset(snapshot, 0, tokens * hidden * sizeof(float));")], MODEL_TESTS),
    Mutant("boundary-after-block", [36], "boundaries at (N + 1) % block",
           [(FORWARD, "index % model_.config.attn_res_block == 0", "(index + 1) % model_.config.attn_res_block == 0")], MODEL_TESTS),
    Mutant("boundary-by-sublayer", [36], "the block is counted in sublayers: twice as many snapshots",
           [(FORWARD, "index % model_.config.attn_res_block == 0", "index % ((model_.config.attn_res_block + 1) / 2) == 0"),
            (FORWARD, "(m.layer_count + m.config.attn_res_block - 1) / m.config.attn_res_block", "m.layer_count")], MODEL_TESTS),
    Mutant("first-mix-skipped", [37], "the mix before attention is skipped in every layer",
           [(FORWARD, "const bool first = blocks == 0;", "const bool first = true;")], MODEL_TESTS),
    Mutant("second-mix-skipped-at-0", [37], "the mix before the MLP is skipped in layer 0",
           [(FORWARD, "norm(b.mixed, layer.post_attention_norm);", "norm(index == 0 ? b.prefix : b.mixed, layer.post_attention_norm);")],
           MODEL_TESTS),
    Mutant("output-added-to-mix", [38], "the attention's output is added to the mix",
           [(FORWARD, "else kernels::add<A>(b.prefix + begin, b.out + begin, end - begin, b.prefix + begin);",
             "else kernels::add<A>(b.mixed + begin, b.out + begin, end - begin, b.prefix + begin);")], MODEL_TESTS),
    Mutant("output-mix-skipped", [39], "the mix before the final norm is left out",
           [(FORWARD, "mix(context.exec, b, blocks, first, segments[s].wanted, model_.output_fold);",
             "__builtin_memcpy(b.mixed + first * hidden, b.prefix + first * hidden, segments[s].wanted * hidden * sizeof(float));")], MODEL_TESTS),
    Mutant("folds-exchanged", [40], "the residual projections of attention and MLP are exchanged",
           [(FORWARD, "tokens, layer.attention_fold);", "tokens, layer.mlp_fold);"),
            (FORWARD, "tokens, layer.mlp_fold);\n    norm(b.mixed", "tokens, layer.attention_fold);\n    norm(b.mixed")],
           MODEL_TESTS),
    Mutant("layer-lists-zero-based", [41], "the layer lists are read as zero-based",
           [(KINDS, "is_full[number - 1] = 1", "is_full[number % layers] = 1"), (KINDS, "is_kda[number - 1] = 1", "is_kda[number % layers] = 1")],
           ("model/test_config_reader", "model/test_bound_model", "golden")),
    Mutant("layer-list-missing", [42], "a missing full_attn_layers means all KDA",
           [(KINDS, 'fields.find(scopes, {"full_attn_layers"});', 'fields.find(scopes, {"full_attn_layers"}, Need::optional);')],
           ("model/test_config_reader",)),
    Mutant("layer-list-empty", [42], "an empty list is accepted",
           [(KINDS, "!field.value->is_array() || field.value->empty()", "!field.value->is_array()")], ("model/test_config_reader",)),
    Mutant("mla-eps-rms", [43], "the two MLA low-rank norms take rms_norm_eps",
           [(FORWARD, "c.mla_output_gate, c.mla_norm_eps};", "c.mla_output_gate, c.rms_norm_eps};")], MODEL_TESTS),
    Mutant("mla-eps-default", [43], "the MLA epsilon is 1e-5 where the config has none",
           [(CONFIG, "fields.real(mla_norm_eps, Sign::positive) : 1e-6;", "fields.real(mla_norm_eps, Sign::positive) : 1e-5;")],
           ("model/test_config_reader", "golden")),
    Mutant("residual-eps-mla", [43], "the residual mixes take the MLA epsilon",
           [(FORWARD, "model_.config.rms_norm_eps, b.mixed + t * hidden, scores", "model_.config.mla_norm_eps, b.mixed + t * hidden, scores")],
           MODEL_TESTS),
    Mutant("kda-eps-mla", [43], "the KDA output norm takes the MLA epsilon",
           [(FORWARD, "simd::round32(c.gate_lower_bound), c.rms_norm_eps};", "simd::round32(c.gate_lower_bound), c.mla_norm_eps};")],
           MODEL_TESTS),

    # ------------------------------------------------------------------------------------------ weights and arithmetic
    Mutant("mxfp4-nibbles", [44], "the high nibble is the even column",
           [(SCALAR, "out[2 * i] = values[codes & 15U];", "out[2 * i] = values[codes >> 4];"),
            (SCALAR, "out[2 * i + 1] = values[codes >> 4];", "out[2 * i + 1] = values[codes & 15U];")],
           FORMAT_TESTS),
    Mutant("mxfp4-nibbles-tail", [44], "the same in the last group of a row alone",
           [(MXFP4, "i % 2 == 0 ? pair & 15U : pair >> 4", "i % 2 == 0 ? pair >> 4 : pair & 15U")], FORMAT_TESTS),
    Mutant("mxfp4-scale-255", [45], "scale byte 255 is 2^128",
           [(E2M1, "scale = 0; scale < 255;", "scale = 0; scale < 256;")], FORMAT_TESTS),
    Mutant("mxfp4-scale-0", [45], "scale byte 0 is flushed to zero",
           [(E2M1, "scale = 0; scale < 255;", "scale = 1; scale < 255;")], FORMAT_TESTS),
    Mutant("mxfp4-dead-minus-zero", [45], "negative codes of a dead group are -0, not +0",
           [(E2M1, "return table;  // 255 stays +0", "for (std::size_t code = 8; code < 16; ++code) table.of[255][code] = -0.0;\n    return table;")], FORMAT_TESTS),
    Mutant("flush-to-zero", [45], "the arithmetic runs with subnormals flushed",
           [("k3/core/fp_env.hpp", "kContract = 0x1f80;", "kContract = 0x9fc0;")], ("core", "kernels/test_matmul", "kernels/test_vector", "simd")),
    Mutant("mxfp4-group-by-rows", [46], "one scale for 32 rows instead of 32 columns",
           [(MXFP4, "scales + r * scale_bytes(cols)", "scales + r / 32 * scale_bytes(cols)")], FORMAT_TESTS),
    Mutant("config-group-size", [46], "a group size other than 32 is accepted",
           [(CHECKS, 'fields.expect(scheme, {"group_size"}, 32);', "")], ("model/test_config_reader",)),
    Mutant("e2m1-twos-complement", [47], "codes 8 to 15 count down from the largest",
           [(E2M1, "-0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0};", "-6.0, -6.0, -4.0, -3.0, -2.0, -1.5, -1.0, -0.5};")], FORMAT_TESTS),
    Mutant("vector-f32-as-bf16", [48], "F32 vectors are read as BF16",
           [(BOUND, "if (info.dtype == checkpoint::Dtype::f32) std::memcpy(&values[i], bytes.data() + 4 * i, 4);\n            else ", "")],
           ("model/test_bound_model", "golden")),
    Mutant("vector-f32-downcast", [48], "F32 vectors lose their low half",
           [(BOUND, "std::memcpy(&values[i], bytes.data() + 4 * i, 4);", "values[i] = formats::bf16::widen(bytes.data() + 4 * i + 2);")],
           ("model/test_bound_model", "golden")),
    Mutant("matrix-f32-as-bf16", [48], "F32 matrices are read as BF16",
           [(BOUND, "return dtype == checkpoint::Dtype::f32 ? layers::Format::f32 : layers::Format::bf16;", "return layers::Format::bf16;")],
           ("model/test_bound_model", "golden")),
    Mutant("expert-neighbours-assumed", [50], "the tensors of an expert are read as one run wherever they are",
           [(EXPERTS, "piece->place.offset + piece->place.bytes == part.place.offset", "true")], ("stream/test_expert_places", "golden")),
    Mutant("offsets-from-file-start", [51], "tensor offsets count from the start of the file",
           [(HEADER, "for (HeaderTensor& tensor : tensors_) tensor.info.offset += data_begin_;", "")], ("checkpoint/test_header", "checkpoint")),
    Mutant("truncated-shard-accepted", [54], "a shard that ends early is accepted",
           [(HEADER, "if (covered == available) return;", "if (covered >= available) return;")], ("checkpoint/test_header", "checkpoint")),
    Mutant("missing-shard-accepted", [54], "a missing shard of a numbered set is not noticed",
           [("k3/checkpoint/detail/shard_files.hpp", "if (numbers.size() == total) continue;", "continue;")],
           ("checkpoint/test_shard_index",)),
    Mutant("threads-share-scratch", [60], "all threads of the attention use one scratch",
           [(MLA, "s.kv_lora, exec.local_of(thread));", "s.kv_lora, exec.local_of(0));")], MLA_TESTS),
    Mutant("threads-split-state", [60], "all threads of the recurrence use one copy of the state",
           [(KDA, "detail::kda_head<A>(shape, w, rows, b, head, context.exec.local_of(thread));",
             "detail::kda_head<A>(shape, w, rows, b, head, context.exec.local_of(0));")], KDA_TESTS),
    Mutant("budget-pinned-at-window", [60], "matrices that stay begin at their window, not at the tensor: the budget decides which",
           [(TRUNK, "settle(*reads[k], io::window_of(reads[k]->offset, reads[k]->bytes).skip)", "reads[k]->window")],
           ("engine/test_streaming", "stream/test_trunk")),
    Mutant("chunks-uncommitted", [60], "only the last step of a feed is committed: the chunk, and so the budget, decides",
           [(SESSION, "forward_->commit(exec_, segment.state, ids.size());",
             "if (last) forward_->commit(exec_, segment.state, ids.size());")], ("engine/test_streaming", "engine/test_session")),

    # ------------------------------------------------------------------------------------------------------- streaming
    Mutant("slot-given-out-while-filled", [55], "a slot that a wasted look-ahead is still being read into is read into again",
           [(CACHE, "if (flight_of_[slot] != kNoFlight) arrive(slot);",
             "if (flight_of_[slot] != kNoFlight) free_flights_.insert(free_flights_.begin(), flight_of_[slot]);")],
           ("stream/test_expert_cache",)),
    Mutant("expert-ready-before-read", [56], "an expert is computed as soon as it has a slot, its bytes there or not",
           [(CACHE, "if (f == kNoFlight || there(flights_[f])) return work_[i];", "return work_[i];"),
            (CACHE, "const bool there = land(work.key, work.slot, !work.guessed);",
             """const std::uint32_t flight = flight_of_[work.slot];
            const bool there = (flight != kNoFlight && !this->there(flights_[flight])) ||
                               land(work.key, work.slot, !work.guessed);""")],
           ("stream/test_expert_cache", "engine/test_streaming")),
    Mutant("expert-in-use-evicted", [57], "a pin does not keep an expert that is still used from being evicted",
           [(SLOTS, "replacement_.pin(slot);", ""), (SLOTS, "replacement_.unpin(slot);", "")],
           ("stream/test_expert_slots",)),
    Mutant("cache-below-one-token", [57], "a cache of fewer slots than a token needs is accepted",
           [(CACHE, "const std::size_t least = least_slots(places.top_k(), places.count()); options.slots < least",
             "const std::size_t least = least_slots(places.top_k(), places.count()); least == 0")],
           ("stream/test_expert_cache",)),
    Mutant("ring-overwrites-panel-in-use", [58], "a panel goes to the start of the ring when those before it are in use, not gone",
           [(TRUNK, "if (count_ == 0) return need <= capacity", "if (count_ == acquired_) return need <= capacity")],
           ("stream/test_trunk", "engine/test_streaming")),
    Mutant("guess-counted-as-resident", [59], "the first use of an expert that a look-ahead loaded counts as a resident hit",
           [(SLOTS, "++(unused ? counters_.lookahead_hits : counters_.resident_hits);", "++counters_.resident_hits;")],
           ("stream/test_expert_slots",)),
    Mutant("batch-hit-counted-as-resident", [59], "a request for an expert that its own batch loads counts as a resident hit",
           [(SLOTS, "++(seen_[key] != 0 ? counters_.prefetched_hits : counters_.misses);",
             "++(seen_[key] != 0 ? counters_.resident_hits : counters_.misses);")], ("stream/test_expert_slots",)),

    # ----------------------------------------------------------------------------------------------------------- state
    Mutant("logits-of-first-chunk", [64], "the logits are those of the first chunk of the prompt",
           [(SESSION, "segment.wanted = wanted;", "segment.wanted = done == 0 ? 1 : 0;")],
           ("engine/test_session", "golden")),
    Mutant("logits-of-first-rows", [64], "wanted logits are those of the first positions of a segment",
           [(FORWARD, "const std::size_t first = at - segments[s].wanted;", "const std::size_t first = at - segments[s].tokens;")],
           MODEL_TESTS),
    Mutant("abandon-keeps-step", [62], "a long step that failed stays in the recurrent state",
           [(STATE, "if (step_tokens_ != 0 && !logged_) std::memcpy(memory_.data(), undo_.data(), memory_.size());", "")],
           ("model/test_state",)),
    Mutant("commit-all-tokens", [62], "a partial commit moves the history over one token too many",
           [(KDA, "kernels::shift_history<A>(core::MatView<const float>(log.conv[i], tokens, width), tokens, shape.taps, at,",
             "kernels::shift_history<A>(core::MatView<const float>(log.conv[i], tokens + 1, width), tokens + 1, shape.taps, at,")],
           ("model/test_state",)),
    Mutant("state-last-id-fed", [61], "a restored state counts the id that was chosen last and not fed",
           [(STATE, "        position_ = positions;\n", "        position_ = positions + 1;\n")],
           ("engine/test_state_file",)),
    Mutant("state-of-any-config", [63], "the numbers of a saved state's config are not compared",
           [(STATE_HEADER, "if (there != number.bits)", "if (false)")], ("engine/test_state_file",)),
    Mutant("state-of-any-layers", [63], "a saved state of another number of layers is taken",
           [(STATE_HEADER, "if (file.layers != mine.layers)", "if (false)")], ("engine/test_state_file",)),
    Mutant("state-of-any-weights", [63], "a saved state of other weights of the same shape is taken",
           [(STATE_HEADER, "if (file.vectors != mine.vectors)", "if (false)")], ("engine/test_state_file",)),

    # ------------------------------------------------------------------------------------------------------------ chat
    Mutant("chat-segments-joined", [71], "a conversation is rendered to one string and encoded once",
           [(RENDERER, """    for (const ChatSegment& segment : segments)
        tokenizer.encode(segment.text, segment.markup ? Specials::as_ids : Specials::as_text, ids);
""", """    std::string all;
    for (const ChatSegment& segment : segments) all += segment.text;
    tokenizer.encode(all, Specials::as_ids, ids);
""")], ("text/test_chat_renderer",)),
    Mutant("chat-text-as-markup", [70], "what a user wrote is encoded with special names as ids",
           [(RENDERER, "segment.markup ? Specials::as_ids : Specials::as_text", "Specials::as_ids")],
           ("text/test_chat_renderer",)),
    Mutant("chat-arguments-sorted", [73], "the arguments of a call are sorted by their names",
           [(PYTHON_JSON, "using OrderedJson = nlohmann::ordered_json;", "using OrderedJson = nlohmann::json;")],
           ("text/test_chat_renderer",)),

    # ------------------------------------------------------------------------------------------------------- tokenizer
    Mutant("bpe-leftmost-first", [65], "pairs are merged from the left instead of by rank",
           [(BPE, "pair.rank << 8 | static_cast<int>(pair.at);", "static_cast<int>(pair.at) << 23 | pair.rank;"),
            (BPE, "RankedPair{key >> 8, static_cast<std::uint32_t>(key & 255)};", "RankedPair{key & 0x7fffff, static_cast<std::uint32_t>(key >> 23)};")],
           ("text/test_bpe", "text/test_tokenizer")),
    Mutant("bpe-no-whole-piece", [65], "a piece that is a token is still merged from its bytes",
           [(BPE, "whole != kNoToken) {", "false) {")], ("text/test_bpe", "text/test_tokenizer")),
    Mutant("rank-keys-as-text", [65], "keys are read as byte-to-letter text: a space is the letter U+0120",
           [(RANKS, "file.longest_ = std::max(file.longest_, file.blob_.size() - before);",
             "if (file.blob_.size() - before > 1 && file.blob_[before] == ' ') {\n"
             "            file.blob_[before] = '\\xC4';\n"
             "            file.blob_.insert(file.blob_.begin() + static_cast<std::ptrdiff_t>(before) + 1, '\\xA0');\n        }\n"
             "        file.longest_ = std::max(file.longest_, file.blob_.size() - before);")],
           ("text/test_rank_file", "text/test_tokenizer")),
    Mutant("pattern-no-han", [66], "neither a Han branch nor words without Han",
           [(PATTERN, 'R"([\\p{sc:Han}]+)"', 'R"((?!))"'),
            (PATTERN, '#define K3_TEXT_UPPER R"([^\\p{Ll}\\p{N}\\p{P}\\p{S}\\p{Z}\\p{C}\\p{sc:Han}])"', '#define K3_TEXT_UPPER R"([^\\p{Ll}\\p{N}\\p{P}\\p{S}\\p{Z}\\p{C}])"'),
            (PATTERN, '#define K3_TEXT_LOWER R"([^\\p{Lu}\\p{Lt}\\p{N}\\p{P}\\p{S}\\p{Z}\\p{C}\\p{sc:Han}])"', '#define K3_TEXT_LOWER R"([^\\p{Lu}\\p{Lt}\\p{N}\\p{P}\\p{S}\\p{Z}\\p{C}])"')],
           ("text/test_pre_tokenizer", "text/test_tokenizer")),
    Mutant("pattern-han-in-words", [66], "a Han branch, but words may go on into Han",
           [(PATTERN, '#define K3_TEXT_LOWER R"([^\\p{Lu}\\p{Lt}\\p{N}\\p{P}\\p{S}\\p{Z}\\p{C}\\p{sc:Han}])"', '#define K3_TEXT_LOWER R"([^\\p{Lu}\\p{Lt}\\p{N}\\p{P}\\p{S}\\p{Z}\\p{C}])"')],
           ("text/test_pre_tokenizer", "text/test_parity")),
    Mutant("pattern-script-extensions", [66], "Han by script extensions, as newer PCRE2 reads a bare name",
           [(PATTERN, 'R"([\\p{sc:Han}]+)"', 'R"([\\p{Han}]+)"')], ("text/test_pre_tokenizer",)),
    Mutant("pattern-ascii-space", [67], "whitespace is that of ASCII",
           [(PATTERN, '#define K3_TEXT_SPACE R"(\\x09-\\x0D\\x{85}\\p{Z})"', '#define K3_TEXT_SPACE R"(\\x09-\\x0D\\x20)"')],
           ("text/test_pre_tokenizer",)),
    Mutant("contraction-case", [66], "contractions are matched as they are written",
           [(PATTERN, "(?i:'s|'t", "(?:'s|'t"), (ASCII, "| (kind(i) == Ascii::upper ? 0x20 : 0)", "| 0")],
           ("text/test_parity",)),
    Mutant("digits-by-four", [66], "numbers are cut after four digits",
           [(PATTERN, r'\p{N}{1,3}', r'\p{N}{1,4}'), (ASCII, 'while (end < at + 3 &&', 'while (end < at + 4 &&'),
            (ASCII, 'return end < at + 3 &&', 'return end < at + 4 &&')], ("text/test_parity",)),
    Mutant("short-cut-ignores-marks", [67], "a word of ASCII letters ends before a letter or mark beyond ASCII",
           [(ASCII, "        if (is(Ascii::other, end)) return kUnknown;  // perhaps a letter or a mark\n", "")],
           ("text/test_parity",)),
    Mutant("unicode-of-pcre2", [67], "categories are those of the installed PCRE2",
           [(PIN, "at->first <= scalar ? at : nullptr;", "at->first <= scalar && false ? at : nullptr;")], ("text/test_parity",)),
    Mutant("cuts-count-on", [67], "a cut does not start the count of a long run again",
           [(CUTS, "        if (run_ends) in_run = 0;\n", "")], ("text/test_parity", "text/test_long_input")),
    Mutant("cuts-run-over-blocks", [67], "a run is counted on over the border of a block",
           [(CUTS, "in_block = in_run = 0;", "in_block = 0;")], ("text/test_parity", "text/test_long_input")),
    Mutant("cuts-pattern-space", [67], "long runs are counted with the pattern's whitespace instead of Python's",
           [(CUTS, "(scalar >= 0x1C && scalar <= 0x20)", "scalar == 0x20")], ("text/test_long_input", "text/test_parity")),
    Mutant("specials-unknown", [68], "names of special tokens are ordinary text in every mode",
           [(TOKENIZER, "while (mode == Specials::as_ids) {", "while (false) {")], ("text/test_tokenizer",)),
    Mutant("specials-of-k2", [69], "the third slot has the name it has in the older model",
           [(SPECIALS, "names_[static_cast<std::size_t>(slot)] = std::move(content);",
             'names_[static_cast<std::size_t>(slot)] = slot == 2 ? std::string("<|im_end|>") : std::move(content);')],
           ("text/test_special_tokens", "text/test_tokenizer")),
    Mutant("specials-in-user-text", [70], "names of special tokens are ids in text that a user wrote",
           [(TOKENIZER, "while (mode == Specials::as_ids) {", "while (true) {")], ("text/test_tokenizer",)),
    Mutant("one-end-id", [72], "[EOS] does not end a message",
           [(SPECIALS, '{std::string_view("[EOS]"), ', "{")], ("text/test_special_tokens", "text/test_tokenizer")),
    Mutant("half-a-character", [75], "the stream decoder does not wait for the rest of a character",
           [(STREAM, "if (step.kind == Utf8::cut) break;", "")], ("text/test_stream_decoder", "text/test_tokenizer")),

    # -------------------------------------------------------------------------------- clauses of the numeric contract
    Mutant("dot-four-lanes", [], "dot: four lanes instead of eight",
           [("k3/kernels/dot.hpp", "    return simd::reduce(acc);",
             "    double four[4] = {};\n    for (std::size_t i = 0; i < n; ++i)\n"
             "        four[i % 4] = simd::madd_exact(static_cast<double>(x[i]), static_cast<double>(y[i]), four[i % 4]);\n"
             "    return (four[0] + four[2]) + (four[1] + four[3]);")], DOT_TESTS),
    Mutant("matmul-four-lanes", [], "matmul: four lanes instead of eight",
           [(FEW, "for (std::size_t t = 0; t < T; ++t) output(simd::reduce(acc[r][t]), y.row(t)[rows[r]]);",
             """for (std::size_t t = 0; t < T; ++t) {
            double four[4] = {}, weights[F::kBlock];
            for (std::size_t col = 0; col < w.cols; col += F::kBlock) {
                const std::size_t count = w.cols - col < F::kBlock ? w.cols - col : F::kBlock;
                F::decode_tail(row[r], col, count, weights);
                for (std::size_t i = 0; i < count; ++i)
                    four[i % 4] = simd::madd_exact(static_cast<double>(x.row(t)[col + i]), weights[i], four[i % 4]);
            }
            output((four[0] + four[2]) + (four[1] + four[3]), y.row(t)[rows[r]]);
        }""")], DOT_TESTS),
    Mutant("reduce-order", [], "dot: lanes are added pairwise from the left",
           [(SCALAR, "return (a + c) + (b + d);", "return (a + b) + (c + d);")], ("simd",) + DOT_TESTS),
    Mutant("fence-lanes", [], "products of lanes lose their fence, in a unit that has fused multiply-add",
           [(SCALAR, "K3_INLINE static void fence(f32& v) noexcept { simd::fence(v); }", "K3_INLINE static void fence(f32&) noexcept {}"),
            (SCALAR, "K3_INLINE static void fence(f64& v) noexcept { simd::fence(v); }", "K3_INLINE static void fence(f64&) noexcept {}")],
           ("kernels/test_kda", "kernels/test_vector", "simd"), FUSING),
    Mutant("fence-f32-lanes", [], "the same for binary32 alone: the recurrences, not the elementary functions",
           [(SCALAR, "K3_INLINE static void fence(f32& v) noexcept { simd::fence(v); }", "K3_INLINE static void fence(f32&) noexcept {}")],
           ("kernels/test_kda", "kernels/test_vector"), FUSING),
    Mutant("fence-single", [], "products of single values lose their fence",
           [(FENCE, "T product = x * y;\n    fence(product);", "T product = x * y;")], ("kernels/test_kda", "kernels/test_top_k", "simd", "kernels/test_attention"), FUSING),
    Mutant("rmsnorm-order", [], "rmsnorm: x * (inv * w)",
           [(NORM, "simd::mul(simd::mul(simd::load<A>(x + i, count), inv), simd::load<A>(w + i, count))",
             "simd::mul(simd::load<A>(x + i, count), simd::mul(inv, simd::load<A>(w + i, count)))")], ("kernels/test_vector", "golden")),
    Mutant("rmsnorm-factor-unrounded", [], "rmsnorm: the factor stays in binary64",
           [(NORM, "        const std::size_t count = n - i;\n        simd::store<A>(y + i, simd::mul(simd::mul(",
             """        const double wide = 1.0 / __builtin_sqrt(dot64<A>(x, x, n) / static_cast<double>(n) + eps);
        if (y != x) {
            for (std::size_t k = i; k < n && k < i + 8; ++k)
                y[k] = simd::round32(simd::mul(static_cast<double>(x[k]), wide)) * w[k];
            continue;
        }
        const std::size_t count = n - i;
        simd::store<A>(y + i, simd::mul(simd::mul(""")], ("kernels/test_vector", "golden")),
    Mutant("rmsnorm-eps-outside", [], "rmsnorm: epsilon outside the root",
           [(NORM, "__builtin_sqrt(dot64<A>(x, x, n) / static_cast<double>(n) + eps)", "(__builtin_sqrt(dot64<A>(x, x, n) / static_cast<double>(n)) + eps)")],
           ("kernels/test_vector", "golden")),
    Mutant("conv-current-last", [], "short_conv: oldest first, the current input last",
           [(CONV, "simd::mul(simd::load<A>(w + (taps - 1) * channels + c, count), simd::load<A>(u.row(t) + c, count))",
             "simd::mul(simd::load<A>(w + c, count), simd::load<A>(input(t, taps - 1) + c, count))"),
            (CONV, "for (std::size_t j = 0; j + 1 < taps; ++j)\n                acc", "for (std::size_t j = 1; j < taps; ++j)\n                acc")],
           ("kernels/test_kda", "golden")),
    Mutant("residual-prefix-first", [], "attention_residual: the running prefix before the blocks",
           [(FORWARD, "sources[s] = b.blocks + (s * b.tokens + t) * hidden;", "sources[s + 1] = b.blocks + (s * b.tokens + t) * hidden;"),
            (FORWARD, "sources[blocks] = b.prefix + t * hidden;", "sources[0] = b.prefix + t * hidden;")], MODEL_TESTS),
    Mutant("residual-f32-denominator", [], "attention_residual: the denominator in binary32",
           [(RESIDUAL, "double z = 0.0;", "float z = 0.0F;"), (RESIDUAL, "z += static_cast<double>(scratch[i]);", "z += scratch[i];"),
            (RESIDUAL, "static_cast<double>(scratch[s]) / z", "static_cast<double>(scratch[s]) / static_cast<double>(z)")],
           ("kernels/test_attention", "golden")),
    Mutant("residual-score-order", [], "attention_residual: inv times the dot instead of the dot of the scaled key",
           [(RESIDUAL, "const auto key = simd::mul(simd::load<A>(v + i, n - i), inv);", "const auto key = simd::load<A>(v + i, n - i);"),
            (RESIDUAL, "scratch[s] = simd::round32(simd::reduce(acc));",
             "scratch[s] = simd::round32(simd::mul(simd::reduce(acc), static_cast<double>(rms_factor<A>(v, n, eps))));")],
           ("kernels/test_attention", "golden")),
    Mutant("attention-f32-denominator", [], "latent_attention: the denominator in binary32",
           [(ATTENTION, "z = z + e;", "z = simd::widen(simd::narrow(z + e));")], ("kernels/test_attention", "golden")),
    Mutant("attention-online", [], "latent_attention: online softmax, rescaled at each new maximum",
           [(ATTENTION, "    double total[kBlock];\n    simd::store<A>(total, z);",
             """    double total[kBlock];
    simd::store<A>(total, z);
    const auto one = [](float v) noexcept {
        float lanes[8];
        simd::store<A>(lanes, simd::exp<A>(simd::broadcast<simd::f32x8, A>(v)));
        return static_cast<double>(lanes[0]);
    };
    for (std::size_t h = 0; h < heads; ++h) {
        float m = scores[h];
        double* const sums = acc + h * latent;
        total[h] = 0.0;
        for (std::size_t c = 0; c < latent; ++c) sums[c] = 0.0;
        for (std::size_t s = 0; s < positions; ++s) {
            const float score = scores[s * kBlock + h];
            if (m < score) {
                const double factor = one(m - score);
                total[h] *= factor;
                for (std::size_t c = 0; c < latent; ++c) sums[c] *= factor;
                m = score;
            }
            const double weight = one(score - m);
            total[h] += weight;
            for (std::size_t c = 0; c < latent; ++c) sums[c] += static_cast<double>(cache.row(s)[c]) * weight;
        }
    }""")], ("kernels/test_attention", "golden")),
    Mutant("attention-f32-scale", [], "latent_attention: the score scale rounded to binary32",
           [(MLA, "const double scale = kernels::inverse_sqrt(static_cast<double>(s.qk_head()));",
             "const double scale = simd::round32(kernels::inverse_sqrt(static_cast<double>(s.qk_head())));")], MLA_TESTS),
    Mutant("delta-association", [], "delta_rule: k (beta (v - u)) instead of (k beta) (v - u)",
           [(DELTA, "error[n] = simd::load<A>(in.v + j + 8 * n, live(n)) - sum[n];",
             "error[n] = simd::mul(simd::load<A>(in.v + j + 8 * n, live(n)) - sum[n], simd::broadcast<simd::f32x8, A>(in.beta));"),
            (DELTA, "simd::broadcast<simd::f32x8, A>(simd::mul(in.k[i], in.beta))", "simd::broadcast<simd::f32x8, A>(in.k[i])")],
           ("kernels/test_kda", "golden")),
    Mutant("situ-association", [], "situ_glu: b1 (tanh sigmoid) instead of (b1 tanh) sigmoid",
           [(ELEMENTWISE, "simd::mul(simd::mul(beta, simd::tanh<A>(g / beta)), simd::sigmoid<A>(g))",
             "simd::mul(beta, simd::mul(simd::tanh<A>(g / beta), simd::sigmoid<A>(g)))")], ("kernels/test_vector", "golden")),
    Mutant("router-f32-sum", [], "router: the sum of the chosen scores in binary32",
           [(TOP_K, "double sum = 0.0;", "float sum = 0.0F;"), (TOP_K, "sum += static_cast<double>(scratch[ids[j]]);", "sum += scratch[ids[j]];")],
           ("kernels/test_top_k", "golden")),
    Mutant("router-rounds-twice", [], "router: the normalised weight is rounded before it is scaled",
           [(TOP_K, "s / (sum + 1e-20) : s;", "static_cast<double>(simd::round32(s / (sum + 1e-20))) : s;")], ("kernels/test_top_k", "golden")),
    Mutant("router-single-renormalised", [], "router: a single chosen expert is renormalised too",
           [(TOP_K, "rule.renormalize && rule.top_k > 1 ?", "rule.renormalize ?")], ("kernels/test_top_k", "layers/test_moe")),
    Mutant("router-no-1e-20", [], "router: no 1e-20 under the sum",
           [(TOP_K, "s / (sum + 1e-20)", "s / sum")], ("kernels/test_top_k",)),
    Mutant("router-nan-passes", [], "router: NaN in a choice key is no error",
           [(TOP_K, "if (c != c) return false;", "")], ("kernels/test_top_k", "model/test_forward")),
    Mutant("argmax-nan-passes", [], "argmax: NaN is no error",
           [(TOP_K, "if (x[i] != x[i]) return -1;", "")], ("kernels/test_top_k", "model/test_forward")),
    Mutant("exp-short-series", [], "exp: the series ends four terms early",
           [(MATH, "mul_then_add(mul_then_add(b0, b1, r4), b2, r8)", "mul_then_add(b0, b1, r4)")], ("simd", "kernels/test_vector")),
    Mutant("exp-nan-clamped", [], "exp: the clamp turns NaN into its lower bound",
           [(MATH, "select_lt(v, lo, lo, v)", "select_lt(lo, v, v, lo)")], ("simd", "kernels/test_vector")),
    Mutant("tanh-minus-zero", [], "tanh: small arguments take the long way, and -0 becomes +0",
           [(MATH, "narrow(select_lt(wide, tiny, select_lt(minus_tiny, wide, wide, value), value))", "narrow(value)")], ("simd", "kernels/test_vector")),
    Mutant("narrow-truncates", [], "round32 dropped: sums are cut to 24 bits instead of rounded",
           [(FENCE, "    fence(rounded);\n    return rounded;",
             "    if ((x > 0 && static_cast<double>(rounded) > x) || (x < 0 && static_cast<double>(rounded) < x))\n"
             "        rounded = __builtin_nextafterf(rounded, 0.0F);\n    fence(rounded);\n    return rounded;")], ("simd", "kernels/test_vector")),
]

NOT_APPLICABLE = {
    49: "no mutant yet; stream/expert_places and io/reader read at any offset",
    52: "no mutant yet; io/reader reads tails of any length, and short reads",
    53: "no container with fp16 scales is read",
    74: "the drivers' prompt reader; the tests of tests/drivers are not run here",
    76: "no vision yet", 77: "no vision yet", 78: "no vision yet", 79: "no vision yet", 80: "no vision yet", 81: "no vision yet",
    82: "no vision yet", 83: "no vision yet; model/forward shows that a row override replaces the embedding row", 84: "no vision yet",
    85: "about the making of fixtures", 86: "about the making of fixtures",
}
