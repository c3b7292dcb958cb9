#include "k3/model/state.hpp"

#include "engine/rig.hpp"
#include "support/doctest.hpp"

using namespace k3;
using namespace k3::tests;
using engine::ArchName;
using model::State;

namespace {

constexpr std::size_t kPage = State::kPagePositions;

Loaded& golden_b() {
    static Loaded model(golden_dir("B"));
    return model;
}
/// MLA layers and KDA layers, narrow: for sequences of hundreds of tokens.
Loaded& golden_f() {
    static Loaded model(golden_dir("F"), 5);
    return model;
}

/// The logits of a few tokens more: whatever a state got wrong shows here, or already in its bytes.
Floats next_steps(Sequence& sequence, Runner& runner) {
    const Ids ids = some_ids(5, runner.vocab(), 99);
    REQUIRE_FALSE(sequence.feed(runner, ids, ids.size()));
    Floats all = sequence.logits;
    REQUIRE_FALSE(sequence.feed(runner, part(ids, 0, 1), 1));
    all.insert(all.end(), sequence.logits.begin(), sequence.logits.end());
    return all;
}

}  // namespace

TEST_CASE(
    "model/state: a step of n tokens committed for its first m equals feeding m tokens, bit for bit, all m <= n <= 8") {
    const Ids prompt = some_ids(11, golden_b().vocab(), 1), draft = some_ids(State::kLogTokens, golden_b().vocab(), 2);
    for (const ArchName arch : engine::arches_of_this_cpu()) {
        INFO("arch ", std::string(engine::name(arch)));
        Runner runner(golden_b(), arch, 2);
        for (std::size_t m = 0; m <= State::kLogTokens; ++m) {
            Sequence want(runner);
            REQUIRE_FALSE(want.feed(runner, prompt, 1));
            for (std::size_t i = 0; i < m; ++i) REQUIRE_FALSE(want.feed(runner, {draft[i]}, 1));
            const Floats state = want.snapshot(runner), after = next_steps(want, runner);
            for (std::size_t n = std::max<std::size_t>(m, 1); n <= State::kLogTokens; ++n) {
                CAPTURE(n);
                CAPTURE(m);
                Sequence got(runner);
                REQUIRE_FALSE(got.feed(runner, prompt, 1));
                const Ids step = part(draft, 0, n);
                model::Segment segment = got.segment(runner, step, n);
                REQUIRE_FALSE(runner.run({&segment, 1}));
                REQUIRE_FALSE(segment.fault);
                got.commit(runner, m);
                CHECK(got.state.position() == prompt.size() + m);
                CHECK(same_bits(got.snapshot(runner), state));
                CHECK(same_bits(next_steps(got, runner), after));
            }
        }
    }
}

TEST_CASE(
    "model/state: the first commit of a sequence may be partial too (the conv history is shorter than the taps)") {
    const Ids draft = some_ids(State::kLogTokens, golden_b().vocab(), 5);
    Runner runner(golden_b(), engine::widest_arch(), 1);
    for (std::size_t m = 0; m <= 5; ++m) {
        CAPTURE(m);
        Sequence want(runner), got(runner);
        if (m != 0) REQUIRE_FALSE(want.feed(runner, part(draft, 0, m), 1));
        model::Segment segment = got.segment(runner, draft, 1);
        REQUIRE_FALSE(runner.run({&segment, 1}));
        got.commit(runner, m);
        CHECK(same_bits(got.snapshot(runner), want.snapshot(runner)));
        CHECK(same_bits(next_steps(got, runner), next_steps(want, runner)));
    }
}

TEST_CASE("model/state: an abandoned step leaves nothing, short (logged) or long (a copy kept)") {
    for (const ArchName arch : engine::arches_of_this_cpu()) {
        Runner runner(golden_b(), arch, 2);
        const Ids prompt = some_ids(13, runner.vocab(), 1);
        for (const std::size_t n : {1, 3, 8, 9, 20, 64}) {
            CAPTURE(n);
            Sequence want(runner), got(runner);
            REQUIRE_FALSE(want.feed(runner, prompt, 1));
            REQUIRE_FALSE(got.feed(runner, prompt, 1));
            const Floats before = got.snapshot(runner);
            const Ids wrong = some_ids(n, runner.vocab(), 3);
            for (int again = 0; again < 2; ++again) {
                model::Segment segment = got.segment(runner, wrong, 1);
                REQUIRE_FALSE(runner.run({&segment, 1}));
                got.state.abandon();
                CHECK(got.state.position() == prompt.size());
                CHECK(same_bits(got.snapshot(runner), before));
            }
            got.state.abandon();  // with no step under way: nothing happens
            CHECK(same_bits(got.snapshot(runner), before));
            CHECK(same_bits(next_steps(got, runner), next_steps(want, runner)));
        }
    }
}

TEST_CASE("model/state: an abandon after a later short step does not bring an older copy back") {
    Runner runner(golden_b(), engine::widest_arch(), 1);
    Sequence got(runner), want(runner);
    const Ids prompt = some_ids(30, runner.vocab(), 1), more = some_ids(2, runner.vocab(), 7);
    REQUIRE_FALSE(got.feed(runner, prompt, 1));  // makes a copy
    REQUIRE_FALSE(got.feed(runner, more, 1));    // logged
    REQUIRE_FALSE(want.feed(runner, prompt, 1));
    REQUIRE_FALSE(want.feed(runner, more, 1));
    model::Segment segment = got.segment(runner, more, 1);
    REQUIRE_FALSE(runner.run({&segment, 1}));
    got.state.abandon();
    CHECK(same_bits(got.snapshot(runner), want.snapshot(runner)));
    got.state.abandon();
    CHECK(same_bits(got.snapshot(runner), want.snapshot(runner)));
    CHECK(same_bits(next_steps(got, runner), next_steps(want, runner)));
}

TEST_CASE("model/state: positions 255, 256, 257 and a step over a page border give the bits of any other cut") {
    for (const ArchName arch : engine::arches_of_this_cpu()) {
        INFO("arch ", std::string(engine::name(arch)));
        Runner runner(golden_f(), arch, 2, 2 * kPage + 10);
        const Ids ids = some_ids(2 * kPage + 6, runner.vocab(), 4);
        Sequence whole(runner);  // every border inside one step
        const Floats want = whole.feed_all(runner, ids, ids.size());
        REQUIRE(all_finite(want));
        const std::vector<std::vector<std::size_t>> cuts{
            {kPage - 1, 1, 1, 1, kPage - 4, 1, 1, 1, 1, 1,
             3},                           // single tokens at positions 255, 256, 257 and 511, 512, 513
            {kPage, kPage, 6},             // steps that end on the border
            {kPage - 3, 8, kPage - 8, 9},  // a logged step over the border, and a long one
        };
        for (const auto& cut : cuts) {
            Sequence sequence(runner);
            std::size_t at = 0;
            bool same = true;
            for (const std::size_t n : cut) {
                REQUIRE_FALSE(sequence.feed(runner, part(ids, at, n), n));
                same = same &&
                       same_bits(sequence.logits, std::span(want).subspan(at * runner.vocab(), n * runner.vocab()));
                at += n;
            }
            REQUIRE(at == ids.size());
            CHECK(same);
            CHECK(same_bits(sequence.snapshot(runner), whole.snapshot(runner)));
        }
    }
}

TEST_CASE("model/state: a partial commit and an abandon at a page border leave the latents sound") {
    Runner runner(golden_f(), engine::widest_arch(), 2, 2 * kPage);
    const Ids prompt = some_ids(kPage - 2, runner.vocab(), 4), draft = some_ids(6, runner.vocab(), 5);
    for (std::size_t m = 0; m <= draft.size(); ++m) {
        CAPTURE(m);
        Sequence got(runner), want(runner);
        REQUIRE_FALSE(got.feed(runner, prompt, 1));
        REQUIRE_FALSE(want.feed(runner, prompt, 1));
        if (m != 0) REQUIRE_FALSE(want.feed(runner, part(draft, 0, m), 1));
        model::Segment segment = got.segment(runner, draft, 1);
        REQUIRE_FALSE(runner.run({&segment, 1}));
        if (m == 0)
            got.state.abandon();
        else
            got.commit(runner, m);
        CHECK(same_bits(got.snapshot(runner), want.snapshot(runner)));
        CHECK(same_bits(next_steps(got, runner), next_steps(want, runner)));
    }
}

TEST_CASE("model/state: after a reset a sequence is a new one, also when it had several pages or an unfinished step") {
    Runner runner(golden_f(), engine::widest_arch(), 2, kPage + 20);
    const Ids ids = some_ids(20, runner.vocab(), 8);
    Sequence fresh(runner), used(runner);
    REQUIRE_FALSE(used.feed(runner, some_ids(kPage + 9, runner.vocab(), 3), 1));
    used.state.reset();
    CHECK(used.state.position() == 0);
    CHECK(same_bits(used.snapshot(runner), fresh.snapshot(runner)));
    const Floats want = fresh.feed_all(runner, ids, 7);
    CHECK(same_bits(used.feed_all(runner, ids, 7), want));
    model::Segment segment = used.segment(runner, ids, 1);  // a long step that nobody finishes
    REQUIRE_FALSE(runner.run({&segment, 1}));
    used.state.reset();
    used.state.abandon();  // too late: must not bring anything back
    CHECK(same_bits(used.feed_all(runner, ids, 5), want));
}

TEST_CASE("model/state: bytes() counts whole pages, the log, and the copy only for steps that need one") {
    const model::ModelView& view = golden_b().bound.view();
    const model::Config& c = view.config;  // 5 KDA layers of 3 x 20, 4 taps; 4 MLA layers with rows of 32 + 8
    const std::size_t kda = 5, mla = 4, state = 3 * 20 * 20 + 3 * 3 * 60, token = 6 * 60 + 3, page = kPage * (32 + 8);
    CHECK(c.kda_width() == 60);
    CHECK(State::bytes(view, 1, 8) == 4 * (kda * (state + 8 * token) + mla * page));
    CHECK(State::bytes(view, kPage, 8) == State::bytes(view, 1, 8));
    CHECK(State::bytes(view, kPage + 1, 8) == State::bytes(view, 1, 8) + 4 * mla * page);
    CHECK(State::bytes(view, 1, 9) == State::bytes(view, 1, 8) + 4 * kda * state);
}

TEST_CASE(
    "model/state: a clone goes its own way from the same position, over page borders too; a begun step is taken back "
    "by the next") {
    Runner runner(golden_f(), engine::widest_arch(), 2, kPage + 20);
    const Ids prompt = some_ids(kPage - 1, runner.vocab(), 4), a = some_ids(20, runner.vocab(), 5),
              b = some_ids(20, runner.vocab(), 6);
    Sequence want(runner), original(runner);
    REQUIRE_FALSE(want.feed(runner, prompt, 1));
    REQUIRE_FALSE(original.feed(runner, prompt, 1));
    Sequence copy(original.state.clone());
    CHECK(copy.state.position() == kPage - 1);
    const Floats start = original.snapshot(runner);
    copy.state.begin(1);  // a state shows its pages from its first step on
    copy.state.abandon();
    CHECK(same_bits(copy.snapshot(runner), start));
    REQUIRE_FALSE(original.feed(runner, b, 1));  // must not reach the copy
    REQUIRE_FALSE(copy.feed(runner, a, a.size()));
    REQUIRE_FALSE(want.feed(runner, a, a.size()));
    CHECK(same_bits(copy.logits, want.logits));
    CHECK(same_bits(copy.snapshot(runner), want.snapshot(runner)));
    CHECK(same_bits(next_steps(copy, runner), next_steps(want, runner)));
    Sequence empty(Sequence(runner).state.clone());
    CHECK(empty.state.position() == 0);
    CHECK(all_finite(empty.feed_all(runner, a, 7)));

    const Floats before = copy.snapshot(runner);
    const Ids more = some_ids(12, runner.vocab(), 9);
    model::Segment left = copy.segment(runner, more, 1);  // in place, with a copy kept; nobody ends it
    REQUIRE_FALSE(runner.run({&left, 1}));
    copy.state.begin(1);
    CHECK(same_bits(copy.snapshot(runner), before));
    copy.state.abandon();
    CHECK(same_bits(copy.snapshot(runner), before));
}

TEST_CASE("model/state: its parts, written into another state, are that state; they are what part_floats() counts") {
    for (Loaded* const model : {&golden_b(), &golden_f()}) {
        Runner runner(*model, engine::widest_arch(), 2, kPage + 20);
        const model::Config& c = runner.view().config;
        Sequence want(runner), got(runner);
        REQUIRE_FALSE(got.feed(runner, some_ids(9, runner.vocab(), 3), 1));  // to be overwritten
        for (const std::size_t more : {std::size_t{0}, kPage - 1, std::size_t{2}}) {
            if (more != 0) REQUIRE_FALSE(want.feed(runner, some_ids(more, runner.vocab(), 4), 1));
            Floats all;
            std::size_t calls = 0;
            want.state.for_each_part([&](const float* part, std::size_t count) {
                all.insert(all.end(), part, part + count);
                ++calls;
            });
            const std::size_t position = want.state.position();
            CHECK(all.size() == State::part_floats(runner.view(), position));
            std::size_t mla = 0;
            for (std::size_t i = 0; i < runner.view().layer_count; ++i)
                mla += runner.view().layers[i].kind == model::LayerKind::mla;
            CHECK(calls == 4 * (runner.view().layer_count - mla) + 2 * mla * position);
            CHECK(all.size() == (runner.view().layer_count - mla) *
                                        (c.kda_heads * c.kda_head_dim * c.kda_head_dim + 9 * c.kda_width()) +
                                    mla * position * (c.kv_lora + c.qk_rope));
            std::size_t at = 0;
            got.state.restore(position, [&](float* part, std::size_t count) {
                std::memcpy(part, all.data() + at, count * sizeof(float));
                at += count;
            });
            CHECK(at == all.size());
            CHECK(got.state.position() == position);
            CHECK(same_bits(got.snapshot(runner), want.snapshot(runner)));  // with the padding
            Sequence copy(want.state.clone());
            CHECK(same_bits(next_steps(got, runner), next_steps(copy, runner)));
        }
    }
}

TEST_CASE("model/state: a restore that fails half way leaves the state of no tokens") {
    Runner runner(golden_b(), engine::widest_arch(), 1);
    const Ids ids = some_ids(20, runner.vocab(), 8);
    Sequence used(runner), fresh(runner);
    REQUIRE_FALSE(used.feed(runner, ids, 1));
    for (const int last : {1, 7, 30}) {
        int parts = 0;
        CHECK_THROWS_AS(used.state.restore(
                            20,
                            [&](float* part, std::size_t count) {
            if (++parts == last) throw Error(Code::state, "no", "no");
            std::fill_n(part, count, 3.0F);
                            }),
                        Error);
        CHECK(used.state.position() == 0);
        CHECK(same_bits(used.snapshot(runner), Sequence(runner).snapshot(runner)));
    }
    const Floats want = fresh.feed_all(runner, ids, 7);
    CHECK(same_bits(used.feed_all(runner, ids, 7), want));
}
