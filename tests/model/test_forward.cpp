#include "k3/model/forward.hpp"

#include <algorithm>
#include <deque>
#include <limits>
#include <thread>

#include "engine/panels.hpp"
#include "engine/rig.hpp"
#include "support/doctest.hpp"
#include "support/no_predictions.hpp"

using namespace k3;
using namespace k3::tests;
using core::FaultCode;
using engine::ArchName;

namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

Loaded& golden_b() {
    static Loaded model(golden_dir("B"));
    return model;
}
Loaded& golden_a() {
    static Loaded model(golden_dir("A"));
    return model;
}

/// A copy of a bound model whose layers, matrices and vectors may be changed.
struct Changed {
    explicit Changed(const Loaded& model)
        : view(model.bound.view()), layers(view.layers, view.layers + view.layer_count) {
        view.layers = layers.data();
    }
    static std::size_t row_bytes(const layers::Weight& w) { return w.cols * (w.format == layers::Format::f32 ? 4 : 2); }
    /// Makes one element NaN.
    void spoil(layers::Weight& w, std::size_t row, std::size_t col) {
        auto& copy = bytes.emplace_back(w.data, w.data + w.rows * row_bytes(w));
        w.data = copy.data();
        const std::size_t size = row_bytes(w) / w.cols, at = row * row_bytes(w) + col * size;
        const std::uint32_t f32 = 0x7fc00000;
        const std::uint16_t bf16 = 0x7fc0;
        if (size == 4)
            std::memcpy(copy.data() + at, &f32, 4);
        else
            std::memcpy(copy.data() + at, &bf16, 2);
    }
    /// A copy of a vector of n, to be changed.
    float* own(const float*& vector, std::size_t n) {
        auto& copy = vectors.emplace_back(vector, vector + n);
        vector = copy.data();
        return copy.data();
    }
    model::ModelView view;
    std::vector<model::DecoderLayer> layers;
    std::deque<std::vector<std::byte>> bytes;
    std::deque<std::vector<float>> vectors;
};

/// Logits of every position of a fresh sequence; `fault` is what came back.
Floats logits_of(Runner& runner, const Ids& ids, core::Fault* fault = nullptr) {
    Sequence sequence(runner);
    const core::Fault got = sequence.feed(runner, ids, ids.size());
    if (fault != nullptr)
        *fault = got;
    else
        REQUIRE_FALSE(got);
    return sequence.logits;
}

std::size_t first_layer(const Loaded& model, model::LayerKind kind, std::size_t from = 0) {
    while (model.bound.view().layers[from].kind != kind) ++from;
    return from;
}

}  // namespace

TEST_CASE("model/forward: segments of one step get the bits they get alone, in every order and on every arch") {
    Floats digest;
    for (const ArchName arch : engine::arches_of_this_cpu())
        for (const unsigned threads : {1U, 3U}) {
            Runner runner(golden_b(), arch, threads, 64, 4);
            const Ids chunk = some_ids(30, runner.vocab(), 1), history = some_ids(17, runner.vocab(), 2), token{5},
                      draft = some_ids(5, runner.vocab(), 3), other = some_ids(9, runner.vocab(), 4);
            struct Part {
                const Ids& history;
                const Ids& ids;
                std::size_t wanted;
            };
            const Ids none;
            const std::vector<Part> parts{
                {none, chunk, 1}, {history, token, 1}, {other, draft, 5}, {history, other, 0}};
            const auto start = [&](const Part& p) {
                auto sequence = std::make_unique<Sequence>(runner);
                if (!p.history.empty()) REQUIRE_FALSE(sequence->feed(runner, p.history, 1));
                return sequence;
            };
            std::vector<Floats> logits, states;
            for (const Part& p : parts) {
                auto alone = start(p);
                REQUIRE_FALSE(alone->feed(runner, p.ids, p.wanted));
                logits.push_back(alone->logits);
                states.push_back(alone->snapshot(runner));
            }
            if (digest.empty()) digest = logits[0];
            CHECK(same_bits(logits[0], digest));
            std::vector<std::size_t> order{0, 1, 2, 3};
            do {
                std::vector<std::unique_ptr<Sequence>> sequences;
                std::vector<model::Segment> segments;
                for (const std::size_t i : order) {
                    sequences.push_back(start(parts[i]));
                    segments.push_back(sequences.back()->segment(runner, parts[i].ids, parts[i].wanted));
                }
                REQUIRE_FALSE(runner.run(segments));
                for (std::size_t i = 0; i < order.size(); ++i) {
                    REQUIRE_FALSE(segments[i].fault);
                    sequences[i]->commit(runner, parts[order[i]].ids.size());
                    CHECK(same_bits(sequences[i]->logits, logits[order[i]]));
                    CHECK(same_bits(sequences[i]->snapshot(runner), states[order[i]]));
                }
            } while (std::next_permutation(order.begin(), order.end()));
        }
}

TEST_CASE("model/forward: wanted logits are those of the last positions, in order; none may be wanted (trap 64)") {
    Runner runner(golden_b(), engine::widest_arch(), 2);
    const Ids ids = some_ids(12, runner.vocab(), 6);
    const Floats all = logits_of(runner, ids);
    for (std::size_t wanted = 0; wanted <= ids.size(); ++wanted) {
        Sequence sequence(runner);
        REQUIRE_FALSE(sequence.feed(runner, ids, wanted));
        CHECK(same_bits(sequence.logits, part(all, (ids.size() - wanted) * runner.vocab(), wanted * runner.vocab())));
    }
    for (std::size_t n = 1; n <= ids.size(); ++n) {  // causal: a prompt's logits do not know what follows
        Sequence sequence(runner);
        REQUIRE_FALSE(sequence.feed(runner, part(ids, 0, n), 1));
        CHECK(same_bits(sequence.logits, part(all, (n - 1) * runner.vocab(), runner.vocab())));
    }
}

TEST_CASE("model/forward: a row override replaces the embedding row, null entries do not (trap 83)") {
    Runner runner(golden_b(), engine::widest_arch(), 2);
    const std::size_t hidden = golden_b().config.shape.hidden;
    const Ids ids = some_ids(12, runner.vocab(), 6);
    Ids hidden_ids = ids;  // other ids where rows are overridden: the last position too
    for (const std::size_t t : {2, 5, 11}) hidden_ids[t] = (ids[t] + 1) % static_cast<std::int32_t>(runner.vocab());
    const layers::Weight& table = runner.view().embedding;
    std::vector<std::byte> packed(ids.size() * hidden * 4);
    REQUIRE(golden_b().embedding.read_rows(table, ids.data(), ids.size(), packed.data()));
    Floats rows(ids.size() * hidden);
    for (std::size_t i = 0; i < rows.size(); ++i) {
        if (table.format == layers::Format::f32)
            std::memcpy(&rows[i], packed.data() + 4 * i, 4);
        else
            rows[i] = formats::bf16::widen(packed.data() + 2 * i);
    }
    std::vector<const float*> overrides(ids.size(), nullptr);
    for (const std::size_t t : {2, 5, 11}) overrides[t] = rows.data() + t * hidden;

    const Floats want = logits_of(runner, ids);
    Sequence sequence(runner);
    model::Segment segment = sequence.segment(runner, hidden_ids, ids.size());
    segment.rows = overrides.data();
    REQUIRE_FALSE(runner.run({&segment, 1}));
    CHECK(same_bits(sequence.logits, want));
    CHECK_FALSE(same_bits(logits_of(runner, hidden_ids), want));
    Sequence second(runner);  // overrides belong to their segment: this one comes second in its step
    Sequence first(runner);
    model::Segment both[2] = {first.segment(runner, hidden_ids, 1), second.segment(runner, hidden_ids, ids.size())};
    both[1].rows = overrides.data();
    REQUIRE_FALSE(runner.run(both));
    CHECK(same_bits(second.logits, want));
}

TEST_CASE("model/forward: a step without tokens does nothing, and an empty segment does not disturb the others") {
    Runner runner(golden_b(), engine::widest_arch(), 2);
    CHECK_FALSE(runner.run({}));
    const Ids ids = some_ids(6, runner.vocab(), 6), none;
    const Floats want = logits_of(runner, ids);
    Sequence empty(runner);
    REQUIRE_FALSE(empty.feed(runner, ids, 1));
    const Floats before = empty.snapshot(runner);
    model::Segment alone = empty.segment(runner, none, 0);
    CHECK_FALSE(runner.run({&alone, 1}));
    CHECK_FALSE(alone.fault);
    empty.commit(runner, 0);
    CHECK(same_bits(empty.snapshot(runner), before));
    for (const bool first : {true, false}) {
        Sequence sequence(runner);
        std::vector<model::Segment> segments{sequence.segment(runner, ids, ids.size()), empty.segment(runner, none, 0)};
        if (first) std::swap(segments[0], segments[1]);
        REQUIRE_FALSE(runner.run(segments));
        CHECK(same_bits(sequence.logits, want));
        CHECK(same_bits(empty.snapshot(runner), before));
    }
    model::Segment stale = empty.segment(runner, none, 0);  // a fault of an earlier step must not stay in the segment
    stale.fault.code = FaultCode::router_nan;
    CHECK_FALSE(runner.run({&stale, 1}));
    CHECK_FALSE(stale.fault);
}

TEST_CASE("model/forward: scratch that is too small is refused by a fault and nothing is touched") {
    for (const ArchName arch : engine::arches_of_this_cpu()) {
        INFO("arch ", std::string(engine::name(arch)));
        Runner runner(golden_b(), arch, 2, 30, 1, 40);
        const Ids ids = some_ids(30, runner.vocab(), 6);
        const Floats want = logits_of(runner, ids);
        const model::StepBytes need = runner.forward().step_bytes(ids.size(), 1, ids.size());
        const auto refused = [&](const core::Exec& exec, std::size_t workspace) {
            Sequence sequence(runner);
            const Floats before = sequence.snapshot(runner);
            model::Segment segment = sequence.segment(runner, ids, ids.size());
            constexpr std::size_t kGuard = 1 << 20;  // whatever lies behind the scratch belongs to somebody else
            core::Buffer memory(need.workspace + kGuard);
            std::memset(memory.data() + workspace, 0x5a, need.workspace + kGuard - workspace);
            const core::Fault fault =
                runner.forward().run(exec, runner.services, &segment, 1, {memory.data(), workspace});
            for (std::size_t i = workspace; i < need.workspace + kGuard; ++i)
                if (memory.data()[i] != std::byte{0x5a}) return std::string("wrote beyond the workspace");
            if (!fault) return std::string(same_bits(sequence.logits, want) ? "" : "ran, with other bits");
            if (fault.code != FaultCode::scratch_too_small) return std::string("another fault");
            for (const float v : sequence.logits)
                if (v != -77.0F) return std::string("refused, but logits were written");
            sequence.state.abandon();
            if (!same_bits(sequence.snapshot(runner), before)) return std::string("refused, but the state moved");
            return std::string("refused");
        };
        CHECK(refused(runner.exec, need.workspace) == "");
        for (const std::size_t workspace : {std::size_t{0}, std::size_t{64}, need.workspace / 2, need.workspace * 3 / 4,
                                            need.workspace - 20 * 64, need.workspace - 64}) {
            CAPTURE(need.workspace - workspace);
            const std::string outcome =
                refused(runner.exec, workspace);  // slack may let it run: with the right bits, inside
            CHECK_MESSAGE((outcome == "refused" || outcome.empty()), outcome);
            if (workspace <= need.workspace / 2) CHECK(outcome == "refused");
        }
        core::Exec exec = runner.exec;
        exec.local_bytes = need.local - 64;
        CHECK(refused(exec, need.workspace) == "refused");
        exec = runner.exec;
        exec.shared_bytes = need.shared - 64;
        CHECK(refused(exec, need.workspace) == "refused");
    }
}

TEST_CASE("model/forward: step_bytes suffices to the byte for every number of tokens (guards behind all three parts)") {
    Loaded& model = golden_b();
    model.experts.use(engine::make_forward(engine::widest_arch(), model.bound.view())->expert_kernel());
    for (const ArchName arch : engine::arches_of_this_cpu()) {
        Runner runner(model, arch, 3, 130, 1, 130);
        for (const std::size_t n : {1, 2, 3, 5, 8, 9, 33, 65, 130}) {
            CAPTURE(n);
            const Ids ids = some_ids(n, runner.vocab(), 6);
            const Floats want = logits_of(runner, ids);
            const model::StepBytes need = runner.forward().step_bytes(n, 1, n);
            constexpr std::size_t kGuard = 4096;
            std::vector<std::byte> raw[3];
            const auto part_of = [&](std::size_t i, std::size_t bytes) {
                raw[i].assign(bytes + kGuard + 64, std::byte{0x5a});
                return raw[i].data() + (64 - reinterpret_cast<std::size_t>(raw[i].data()) % 64) % 64;
            };
            core::Exec exec{3, part_of(0, 3 * need.local), need.local, part_of(1, need.shared), need.shared, 0};
            std::byte* const workspace = part_of(2, need.workspace);
            Sequence sequence(runner);
            model::Segment segment = sequence.segment(runner, ids, n);
            REQUIRE_FALSE(runner.forward().run(exec, runner.services, &segment, 1, {workspace, need.workspace}));
            CHECK(same_bits(sequence.logits, want));
            const auto clean = [&](std::size_t i, const std::byte* from) {
                return std::all_of(from, static_cast<const std::byte*>(raw[i].data() + raw[i].size()),
                                   [](std::byte b) { return b == std::byte{0x5a}; });
            };
            CHECK(clean(0, exec.local + 3 * need.local));
            CHECK(clean(1, exec.shared + need.shared));
            CHECK(clean(2, workspace + need.workspace));
        }
    }
}

TEST_CASE("model/forward: a NaN in a router gate row is a fault of that layer, naming the token") {
    Changed changed(golden_b());
    const std::size_t at = 4;
    changed.spoil(changed.layers[at].moe.gate, 2, 7);
    for (const ArchName arch : engine::arches_of_this_cpu()) {
        Runner runner(golden_b(), changed.view, arch, 2);
        core::Fault fault;
        logits_of(runner, some_ids(6, runner.vocab(), 6), &fault);
        CHECK(fault.code == FaultCode::router_nan);
        CHECK(fault.layer == static_cast<std::int32_t>(at));
        CHECK(fault.token == 0);
    }
}

TEST_CASE("model/forward: a NaN in the selection bias is a fault as well") {
    Changed changed(golden_b());
    changed.own(changed.layers[3].moe.bias, golden_b().config.shape.experts)[6] = kNan;
    Runner runner(golden_b(), changed.view, engine::widest_arch(), 1);
    core::Fault fault;
    logits_of(runner, some_ids(6, runner.vocab(), 6), &fault);
    CHECK(fault.code == FaultCode::router_nan);
    CHECK(fault.layer == 3);
}

TEST_CASE("model/forward: a NaN in a layer's norm is caught by the first router behind it") {
    const std::size_t hidden = golden_b().config.shape.hidden;
    const std::size_t mla = first_layer(golden_b(), model::LayerKind::mla, 4);
    for (const auto& place : {std::pair{std::size_t{3}, false},
                              {mla, true},
                              {std::size_t{3}, true},
                              {std::size_t{0}, true},
                              {std::size_t{0}, false}}) {
        const auto [layer, mixer] = place;
        CAPTURE(place.first);
        Changed changed(golden_b());
        model::DecoderLayer& l = changed.layers[layer];
        changed.own(mixer ? l.input_norm : l.post_attention_norm, hidden)[hidden - 1] = kNan;
        Runner runner(golden_b(), changed.view, engine::widest_arch(), 2);
        core::Fault fault;
        logits_of(runner, some_ids(6, runner.vocab(), 6), &fault);
        CHECK(fault.code == FaultCode::router_nan);
        CHECK(fault.layer == static_cast<std::int32_t>(layer == 0 ? 1 : layer));  // layer 0 is dense: no router
    }
}

TEST_CASE("model/forward: a NaN in the final norm makes all logits NaN, one in lm_head its own logit; argmax says -1") {
    for (const ArchName arch : engine::arches_of_this_cpu()) {
        Changed norm(golden_b()), head(golden_b());
        norm.own(norm.view.final_norm, golden_b().config.shape.hidden)[3] = kNan;
        head.spoil(head.view.lm_head, 300, 99);
        const Ids ids = some_ids(4, golden_b().vocab(), 6);
        Runner good(golden_b(), arch, 2), bad_norm(golden_b(), norm.view, arch, 2),
            bad_head(golden_b(), head.view, arch, 2);
        const Floats want = logits_of(good, ids);
        for (const float v : logits_of(bad_norm, ids)) CHECK(std::isnan(v));
        const Floats got = logits_of(bad_head, ids);
        for (std::size_t i = 0; i < got.size(); ++i) {
            if (i % good.vocab() == 300)
                CHECK(std::isnan(got[i]));
            else
                CHECK(got[i] == want[i]);
        }
        CHECK(good.forward().argmax(got.data(), good.vocab()) == -1);
        CHECK(good.forward().argmax(got.data(), 300) >= 0);
        const float ties[] = {1, 5, -2, 5, 5}, infinite[] = {1, std::numeric_limits<float>::infinity(), 3};
        CHECK(good.forward().argmax(ties, 5) == 1);
        CHECK(good.forward().argmax(infinite, 3) == 1);
        const float none[] = {-std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity()};
        CHECK(good.forward().argmax(none, 2) == 0);
    }
}

TEST_CASE(
    "model/forward: a NaN in one segment's token faults that segment alone and names the token; others keep their "
    "bits") {
    const std::size_t hidden = golden_b().config.shape.hidden;
    Floats poison(hidden, kNan);
    for (const ArchName arch : engine::arches_of_this_cpu()) {
        Runner runner(golden_b(), arch, 2);
        const Ids a = some_ids(9, runner.vocab(), 6), b = some_ids(12, runner.vocab(), 7),
                  c = some_ids(1, runner.vocab(), 8);
        const Floats want_a = logits_of(runner, a), want_c = logits_of(runner, c);
        std::vector<const float*> rows(b.size(), nullptr);
        rows[5] = poison.data();
        Sequence sa(runner), sb(runner), sc(runner);
        model::Segment s[3] = {sa.segment(runner, a, a.size()), sb.segment(runner, b, 1), sc.segment(runner, c, 1)};
        s[1].rows = rows.data();
        REQUIRE_FALSE(runner.run(s));
        CHECK_FALSE(s[0].fault);
        CHECK_FALSE(s[2].fault);
        CHECK(s[1].fault.code == FaultCode::router_nan);
        CHECK(s[1].fault.token == 5);
        CHECK(s[1].fault.layer == 1);
        CHECK(same_bits(sa.logits, want_a));
        CHECK(same_bits(sc.logits, want_c));
    }
}

TEST_CASE("model/forward: poison in the padding of A_log changes nothing (trap 1: A_log read per channel)") {
    for (Loaded* model : {&golden_b(), &golden_a()}) {
        Changed changed(*model);
        std::size_t padded = 0;
        for (std::size_t n = 0; n < changed.layers.size(); ++n) {
            if (changed.layers[n].kind != model::LayerKind::kda) continue;
            const std::size_t stored = model->index.find(model::names::layer(n, model::names::kda::kALog))->shape[0];
            float* const a = changed.own(changed.layers[n].kda.a_log, stored);
            for (std::size_t h = model->config.shape.kda_heads; h < stored; ++h, ++padded) a[h] = kNan;
        }
        CHECK(padded > 0);
        const Ids ids = some_ids(20, model->vocab(), 6);
        for (const ArchName arch : engine::arches_of_this_cpu()) {
            Runner good(*model, arch, 2), bad(*model, changed.view, arch, 2);
            CHECK(same_bits(logits_of(good, ids), logits_of(bad, ids)));
        }
    }
}

TEST_CASE(
    "model/forward: poison in layer 0's self_attention_res_* changes nothing; in its mlp_res_* it does (trap 37)") {
    const std::size_t hidden = golden_b().config.shape.hidden;
    const Ids ids = some_ids(20, golden_b().vocab(), 6);
    Runner good(golden_b(), engine::widest_arch(), 2);
    const Floats want = logits_of(good, ids);
    Changed changed(golden_b());
    std::fill_n(changed.own(changed.layers[0].attention_fold, hidden), hidden, kNan);
    Runner same(golden_b(), changed.view, engine::widest_arch(), 2);
    CHECK(same_bits(logits_of(same, ids), want));
    Changed second(golden_b());
    std::fill_n(second.own(second.layers[0].mlp_fold, hidden), hidden,
                0.125F);  // the second mix of layer 0 is a real one
    Runner other(golden_b(), second.view, engine::widest_arch(), 2);
    CHECK_FALSE(same_bits(logits_of(other, ids), want));
    Changed exchanged(golden_b());  // trap 40: the two sides' vectors are different things
    std::swap(exchanged.layers[3].attention_fold, exchanged.layers[3].mlp_fold);
    Runner third(golden_b(), exchanged.view, engine::widest_arch(), 2);
    CHECK_FALSE(same_bits(logits_of(third, ids), want));
    Changed output(golden_b());  // trap 39: the output mix is not skipped
    std::fill_n(output.own(output.view.output_fold, hidden), hidden, 0.0F);
    Runner fourth(golden_b(), output.view, engine::widest_arch(), 2);
    CHECK_FALSE(same_bits(logits_of(fourth, ids), want));
}

TEST_CASE("model/forward: a weight that cannot be read is a fault of the whole step, and abandon leaves nothing") {
    struct Broken final : layers::WeightSource {
        layers::WeightSource* good = nullptr;
        bool rows_fail = false;
        bool acquire(const layers::Weight&, std::size_t, bool, layers::Panel&) noexcept override { return false; }
        void release(const layers::Weight&, const layers::Panel&) noexcept override {}
        bool read_rows(const layers::Weight& w, const std::int32_t* rows, std::size_t n,
                       std::byte* out) noexcept override {
            return !rows_fail && good->read_rows(w, rows, n, out);
        }
    } source;
    source.good = &golden_b().embedding;
    const std::size_t mla = first_layer(golden_b(), model::LayerKind::mla, 4);
    for (const std::size_t step : {std::size_t{3}, std::size_t{20}}) {  // logged, and with a copy
        for (const int which : {0, 1, 2, 3, 4}) {
            CAPTURE(which);
            Changed changed(golden_b());
            std::int32_t layer = -1;
            source.rows_fail = which == 0;
            if (which == 1) changed.layers[layer = 3].kda.o.data = nullptr;
            if (which == 2) changed.layers[layer = static_cast<std::int32_t>(mla)].mla.kv_b.data = nullptr;
            if (which == 3) changed.layers[layer = 5].moe.shared.down.data = nullptr;
            if (which == 4) changed.view.lm_head.data = nullptr;
            Runner good(golden_b(), engine::widest_arch(), 2), bad(golden_b(), changed.view, engine::widest_arch(), 2);
            bad.services.weights = &source;
            Sequence sequence(good), want(good);
            const Ids prompt = some_ids(10, good.vocab(), 1), ids = some_ids(step, good.vocab(), 2);
            REQUIRE_FALSE(sequence.feed(good, prompt, 1));
            REQUIRE_FALSE(want.feed(good, prompt, 1));
            model::Segment segment = sequence.segment(bad, ids, 1);
            const core::Fault fault = bad.run({&segment, 1});
            CHECK(fault.code == FaultCode::weight_failed);
            CHECK(fault.layer == layer);
            sequence.state.abandon();
            CHECK(same_bits(sequence.snapshot(good), want.snapshot(good)));
            REQUIRE_FALSE(sequence.feed(good, ids, ids.size()));
            REQUIRE_FALSE(want.feed(good, ids, ids.size()));
            CHECK(same_bits(sequence.logits, want.logits));
        }
    }
}

TEST_CASE("model/forward: progress is reported once a layer, in order, on the calling thread") {
    Runner runner(golden_b(), engine::widest_arch(), 2);
    std::vector<std::size_t> seen;
    runner.services.progress = {[](void* user, std::size_t layer, std::size_t) noexcept {
        static_cast<std::vector<std::size_t>*>(user)->push_back(layer);
        return true;
                                },
                                &seen};
    logits_of(runner, some_ids(3, runner.vocab(), 1));
    CHECK(seen == std::vector<std::size_t>{1, 2, 3, 4, 5, 6, 7, 8, 9});
}

TEST_CASE("model/forward: every arch's arithmetic passes its canary") {
    for (const ArchName arch : engine::arches_of_this_cpu())
        CHECK(engine::make_forward(arch, golden_b().bound.view())->arithmetic_is_exact());
}

namespace {

/// Every matrix of a model handed over to a panel source.
void stream_all(Changed& changed, PanelSource& source) {
    for (model::DecoderLayer& l : changed.layers) {
        if (l.kind == model::LayerKind::kda)
            for (layers::Weight* w :
                 {&l.kda.q, &l.kda.k, &l.kda.v, &l.kda.g, &l.kda.o, &l.kda.f_a, &l.kda.f_b, &l.kda.b})
                source.take(*w);
        else
            for (layers::Weight* w : {&l.mla.q_a, &l.mla.q_b, &l.mla.kv_a, &l.mla.kv_b, &l.mla.g, &l.mla.o})
                source.take(*w);
        if (l.dense)
            for (layers::Weight* w : {&l.mlp.gate, &l.mlp.up, &l.mlp.down}) source.take(*w);
        else
            for (layers::Weight* w :
                 {&l.moe.gate, &l.moe.down, &l.moe.up, &l.moe.shared.gate, &l.moe.shared.up, &l.moe.shared.down})
                source.take(*w);
    }
    source.take(changed.view.lm_head);
}

/// Computes as the resident service does, then fails chosen experts and poisons what they would have delivered.
struct FailingExperts final : NoPredictions {
    layers::ExpertService* inner = nullptr;
    std::size_t at_layer = 0;
    std::int32_t expert = -1;
    std::size_t failed = 0, asked_after_failure = 0;
    void submit(const core::Exec& exec, std::size_t layer, const layers::Routes& routes, core::MatView<const float> z,
                core::MatView<float> e, core::Fault* faults, core::Arena scratch) noexcept override {
        inner->submit(exec, layer, routes, z, e, faults, scratch);
        for (std::size_t t = 0; t < routes.tokens; ++t)
            for (std::size_t j = 0; j < routes.top_k; ++j) {
                if (faults[t] && layer > at_layer && routes.ids[t * routes.top_k + j] != -1) ++asked_after_failure;
                if (layer != at_layer || routes.ids[t * routes.top_k + j] != expert || faults[t]) continue;
                faults[t] = {.code = FaultCode::expert_failed,
                             .layer = static_cast<std::int32_t>(layer),
                             .token = static_cast<std::int32_t>(t),
                             .expert = expert};
                for (std::size_t i = 0; i < e.cols; ++i) e.row(t * routes.top_k + j)[i] = kNan;
                ++failed;
            }
    }
};

}  // namespace

TEST_CASE(
    "model/forward: all weights streamed in panels of 1, 3 or all rows: the bits of the resident model; kv_b comes "
    "whole") {
    const Ids ids = some_ids(10, golden_b().vocab(), 6);
    for (const ArchName arch : engine::arches_of_this_cpu()) {
        Runner resident(golden_b(), arch, 2);
        const Floats want = logits_of(resident, ids);
        for (const std::size_t rows : {std::size_t{1}, std::size_t{3}, PanelSource::kAll}) {
            Changed changed(golden_b());
            PanelSource source(rows);
            source.embedding = &golden_b().embedding;
            stream_all(changed, source);
            Runner streamed(golden_b(), changed.view, arch, 2);
            streamed.services.weights = &source;
            CHECK(same_bits(logits_of(streamed, ids), want));
            CHECK(source.whole_acquired == 4);  // one kv_b for each MLA layer
            CHECK(source.outstanding == 0);
            CHECK(source.most_outstanding == 1);
            CHECK(source.mistakes == 0);
        }
    }
}

TEST_CASE(
    "model/forward: whichever read fails, the fault names its layer, no panel stays held, and the next step is right") {
    const Ids prompt = some_ids(9, golden_b().vocab(), 1), ids = some_ids(3, golden_b().vocab(), 6);
    Runner resident(golden_b(), engine::widest_arch(), 2);
    Sequence want(resident);
    REQUIRE_FALSE(want.feed(resident, prompt, 1));
    const Floats before = want.snapshot(resident);
    std::size_t total = PanelSource::kAll;
    std::int32_t last_layer = 0;
    for (std::size_t fail_at = 0; fail_at < total; ++fail_at) {
        Changed changed(golden_b());
        PanelSource source(PanelSource::kAll, fail_at);
        source.embedding = &golden_b().embedding;
        stream_all(changed, source);
        Runner streamed(golden_b(), changed.view, engine::widest_arch(), 2);
        streamed.services.weights = &source;
        Sequence sequence(resident);
        REQUIRE_FALSE(sequence.feed(resident, prompt, 1));
        model::Segment segment = sequence.segment(streamed, ids, 1);
        const core::Fault fault = streamed.run({&segment, 1});
        CHECK(source.outstanding == 0);
        if (!fault) {
            total = fail_at;
            break;
        }
        CHECK(fault.code == FaultCode::weight_failed);
        CHECK((fault.layer == last_layer || fault.layer == last_layer + 1 || fault.layer == -1));
        if (fault.layer >= 0) last_layer = fault.layer;
        sequence.state.abandon();
        CHECK(same_bits(sequence.snapshot(resident), before));
    }
    CHECK(last_layer == 8);
    CHECK(total > 80);
}

TEST_CASE(
    "model/forward: a failed expert is the fault of the segments that wanted it; the others keep every bit (trap 30)") {
    for (const ArchName arch : engine::arches_of_this_cpu()) {
        Runner runner(golden_b(), arch, 2);
        std::vector<Ids> ids;
        std::vector<Floats> want;
        for (std::uint64_t i = 0; i < 4; ++i) {
            ids.push_back(some_ids(i == 0 ? 5 : 1, runner.vocab(), 20 + i));
            want.push_back(logits_of(runner, ids.back()));
        }
        std::size_t mixed = 0;
        for (std::int32_t expert = 0; expert < 7; ++expert) {
            FailingExperts service;
            service.inner = &golden_b().experts;
            service.at_layer = 4;
            service.expert = expert;
            runner.services.experts = &service;
            std::vector<std::unique_ptr<Sequence>> sequences;
            std::vector<model::Segment> segments;
            for (const Ids& list : ids) {
                sequences.push_back(std::make_unique<Sequence>(runner));
                segments.push_back(sequences.back()->segment(runner, list, list.size()));
            }
            REQUIRE_FALSE(runner.run(segments));
            std::size_t bad = 0;
            for (std::size_t i = 0; i < segments.size(); ++i) {
                if (segments[i].fault) {
                    ++bad;
                    CHECK(segments[i].fault.code == FaultCode::expert_failed);
                    CHECK(segments[i].fault.layer == 4);
                    CHECK(segments[i].fault.expert == expert);
                    CHECK(segments[i].fault.token >= 0);
                    CHECK(segments[i].fault.token < static_cast<std::int32_t>(ids[i].size()));
                } else {
                    CHECK(same_bits(sequences[i]->logits, want[i]));
                }
            }
            CHECK((bad > 0) == (service.failed > 0));
            CHECK(service.asked_after_failure == 0);  // a token that failed asks for no more experts
            mixed += bad > 0 && bad < segments.size();
            for (auto& sequence : sequences) sequence->state.abandon();
            for (auto& sequence : sequences)
                CHECK(same_bits(sequence->snapshot(runner), Sequence(runner).snapshot(runner)));
        }
        CHECK(mixed > 0);
        runner.services.experts = nullptr;  // no service at all: a fault, not a crash
        core::Fault fault;
        logits_of(runner, ids[0], &fault);
        CHECK(fault.code == FaultCode::expert_failed);
    }
}

TEST_CASE("model/forward: two callers at once, each with its own scratch, on one model: the bits of each alone") {
    const Ids a = some_ids(30, golden_b().vocab(), 6), b = some_ids(30, golden_b().vocab(), 7);
    Runner first(golden_b(), engine::widest_arch(), 2), second(golden_b(), engine::widest_arch(), 1);
    const Floats want_a = logits_of(first, a), want_b = logits_of(second, b);
    stream::ExpertCache other(golden_b().places, stream::situ_of(golden_b().config.shape), golden_b().reader,
                              {.slots = golden_b().places.count()});
    other.use(second.forward().expert_kernel());
    stream::EmbeddingRows rows(golden_b().index, golden_b().bound.embedding_info());
    second.services = {&rows, &other, {}};
    bool same = true;
    std::thread helper([&] {
        for (int i = 0; i < 10; ++i) {
            Sequence sequence(second);
            model::Segment s = sequence.segment(second, b, b.size());
            same = same &&
                   !second.forward().run(second.exec, second.services, &s, 1,
                                         {second.workspace(), second.need.workspace}) &&
                   same_bits(sequence.logits, want_b);
        }
    });
    for (int i = 0; i < 10; ++i) {
        Sequence sequence(first);
        model::Segment s = sequence.segment(first, a, a.size());
        CHECK_FALSE(first.forward().run(first.exec, first.services, &s, 1, {first.workspace(), first.need.workspace}));
        CHECK(same_bits(sequence.logits, want_a));
    }
    helper.join();
    CHECK(same);
}

TEST_CASE(
    "model/forward: a step that makes no sense is a fault and touches nothing: wants beyond its tokens, one state "
    "twice") {
    Runner runner(golden_b(), engine::widest_arch(), 2);
    const Ids ids = some_ids(4, runner.vocab(), 6);
    Sequence a(runner), b(runner);
    REQUIRE_FALSE(a.feed(runner, ids, 1));
    const Floats before = a.snapshot(runner);
    model::Segment wants = a.segment(runner, ids, 5);
    CHECK(runner.run({&wants, 1}).code == FaultCode::bad_step);
    model::Segment twice[3] = {a.segment(runner, ids, 1), b.segment(runner, ids, 1), {}};
    twice[2] = twice[0];
    CHECK(runner.run(twice).code == FaultCode::bad_step);
    for (const float v : a.logits) CHECK(v == -77.0F);
    CHECK(same_bits(a.snapshot(runner), before));
    core::Exec none = runner.exec;
    none.threads = 0;
    model::Segment good = a.segment(runner, ids, 1);
    CHECK(runner.forward().run(none, runner.services, &good, 1, {runner.workspace(), runner.need.workspace}).code ==
          FaultCode::scratch_too_small);
    a.state.abandon();
    CHECK(same_bits(a.snapshot(runner), before));
}

TEST_CASE(
    "model/forward: progress that answers false ends the step with the fault interrupted; abandon leaves nothing") {
    const Ids prompt = some_ids(11, golden_b().vocab(), 1);
    for (const std::size_t n : {std::size_t{3}, std::size_t{20}})
        for (std::size_t stop = 1; stop <= 9; ++stop) {
            Runner runner(golden_b(), engine::widest_arch(), 2);
            const Ids ids = some_ids(n, runner.vocab(), 2);
            Sequence got(runner), want(runner);
            REQUIRE_FALSE(got.feed(runner, prompt, 1));
            REQUIRE_FALSE(want.feed(runner, prompt, 1));
            runner.services.progress = {[](void* user, std::size_t layer, std::size_t) noexcept {
                return layer < *static_cast<std::size_t*>(user);
                                        },
                                        &stop};
            model::Segment segment = got.segment(runner, ids, 1);
            CHECK(runner.run({&segment, 1}).code == FaultCode::interrupted);
            runner.services.progress = {};
            got.state.abandon();
            CHECK(same_bits(got.snapshot(runner), want.snapshot(runner)));
            REQUIRE_FALSE(got.feed(runner, ids, 1));
            REQUIRE_FALSE(want.feed(runner, ids, 1));
            CHECK(same_bits(got.logits, want.logits));
        }
}

TEST_CASE(
    "model/forward: look-ahead asks for a layer before that layer's turn, in decode only, with ids of the router that "
    "layer has; it moves no bit, whatever the service does with it") {
    struct Watch final : layers::ExpertService {
        layers::ExpertService* inner = nullptr;
        std::size_t wanted = 2, submitted = 0, wrong = 0;
        std::vector<std::size_t> predicted;
        std::size_t wants_prediction(std::size_t) const noexcept override { return wanted; }
        void predict(std::size_t layer, const std::int32_t* ids, std::size_t count) noexcept override {
            predicted.push_back(layer);
            wrong += layer != submitted + 1 || count != 2 || ids[0] == ids[1];
            for (std::size_t i = 0; i < count; ++i) wrong += ids[i] < 0 || ids[i] >= 7;
        }
        void submit(const core::Exec& exec, std::size_t layer, const layers::Routes& routes,
                    core::MatView<const float> z, core::MatView<float> e, core::Fault* faults,
                    core::Arena scratch) noexcept override {
            submitted = layer;
            inner->submit(exec, layer, routes, z, e, faults, scratch);
        }
    };
    const Ids ids = some_ids(9, golden_b().vocab(), 6);
    for (const ArchName arch : engine::arches_of_this_cpu()) {
        Runner runner(golden_b(), arch, 2);
        golden_b().experts.use(runner.forward().expert_kernel());
        Sequence plain(runner), watched(runner);
        REQUIRE_FALSE(plain.feed(runner, part(ids, 0, 8), 1));
        REQUIRE_FALSE(plain.feed(runner, part(ids, 8, 1), 1));
        Watch watch;
        watch.inner = &golden_b().experts;
        runner.services.experts = &watch;
        REQUIRE_FALSE(watched.feed(runner, part(ids, 0, 8), 1));
        CHECK(watch.predicted.empty());  // eight tokens at once: every expert is wanted anyway
        REQUIRE_FALSE(watched.feed(runner, part(ids, 8, 1), 1));
        CHECK(watch.predicted == std::vector<std::size_t>{2, 3, 4, 5, 6, 7, 8});
        CHECK(watch.wrong == 0);
        CHECK(same_bits(watched.logits, plain.logits));
        watch.wanted = 0;
        watch.predicted.clear();
        REQUIRE_FALSE(watched.feed(runner, part(ids, 0, 1), 1));
        CHECK(watch.predicted.empty());
    }
}

TEST_CASE(
    "model/forward: services and progress run under the contract's environment; the caller's own comes back after the "
    "step") {
    struct Watch final : NoPredictions {
        layers::ExpertService* inner = nullptr;
        bool right = true;
        std::size_t calls = 0;
        void submit(const core::Exec& exec, std::size_t layer, const layers::Routes& routes,
                    core::MatView<const float> z, core::MatView<float> e, core::Fault* faults,
                    core::Arena scratch) noexcept override {
            ++calls;
            right = right && (core::FpGuard::read() & ~decltype(core::FpGuard::read()){0x3f}) ==
                                 core::FpGuard::kContract;  // without sticky flags
            inner->submit(exec, layer, routes, z, e, faults, scratch);
        }
    } watch;
    watch.inner = &golden_b().experts;
    const Ids ids = some_ids(9, golden_b().vocab(), 6);
    for (const ArchName arch : engine::arches_of_this_cpu()) {
        Runner runner(golden_b(), arch, 2);
        const Floats want = logits_of(runner, ids);
        runner.services.experts = &watch;
        Sequence sequence(runner);
        model::Segment segment = sequence.segment(runner, ids, ids.size());
        golden_b().experts.use(runner.forward().expert_kernel());
        const auto own = core::FpGuard::read();
#if defined(__x86_64__)
        const auto odd =
            core::FpGuard::kContract | 0x8040U | 0x6000U;  // flush to zero, denormals are zero, round to zero
#else
        const auto odd = core::FpGuard::kContract | (std::uint64_t{1} << 24) | (std::uint64_t{3} << 22);
#endif
        core::FpGuard::write(odd);
        const core::Fault fault = runner.forward().run(runner.exec, runner.services, &segment, 1,
                                                       {runner.workspace(), runner.need.workspace});
        const auto after = core::FpGuard::read();
        core::FpGuard::write(own);
        CHECK_FALSE(fault);
#if defined(__x86_64__)
        CHECK((after & ~0x3fU) == odd);  // the sticky flags may have moved
#else
        CHECK(after == odd);
#endif
        CHECK(same_bits(sequence.logits, want));
        CHECK(watch.calls > 0);
    }
    CHECK_MESSAGE(watch.right, "an expert service was called under the caller's environment");
}
