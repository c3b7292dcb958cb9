// Saved states. The file's bytes are read here by code of their own, after docs/FORMATS.md.
#include "k3/engine/state_file.hpp"

#include <sys/stat.h>

#include <filesystem>
#include <functional>

#include "engine/rewrite.hpp"
#include "engine/rig.hpp"
#include "engine/small_work.hpp"
#include "k3/core/digest.hpp"
#include "k3/engine/session.hpp"
#include "k3/text/tokenizer.hpp"
#include "support/doctest.hpp"

using namespace k3;
using namespace k3::tests;
using engine::ArchName;
using engine::Options;
using engine::SavedRun;
using engine::Session;
using engine::StateFile;

namespace {

Options options_for(const std::string& dir, std::size_t chunk = 5, unsigned threads = 1,
                    ArchName arch = engine::widest_arch()) {
    return small_work(dir, chunk, threads, arch);
}
Options with_little_memory(Options options) {
    options.memory.trunk = 0;
    options.memory.ring = 1;
    options.memory.cache = std::uint64_t{1} << 20;
    return options;
}

struct Refusal {
    Code code = Code::internal;
    std::string line{}, next{};  // empty: nothing was refused
};
Refusal refused(const std::function<void()>& action) {
    try {
        action();
    } catch (const Error& error) {
        return {error.code(), error.what(), error.next()};
    }
    return {};
}

Floats floats(std::span<const float> values) { return {values.begin(), values.end()}; }

bool same(const std::vector<Floats>& a, const std::vector<Floats>& b) {
    return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                      [](const Floats& x, const Floats& y) { return same_bits(x, y); });
}

/// A greedy run that may stop and go on: what a driver does.
struct Run {
    SavedRun saved{};
    std::vector<Floats> rows{};  // the logits each id was chosen from

    void choose(const Session& session, std::span<const float> logits) {
        core::Digest digest(saved.digest);
        digest.add(logits.data(), logits.size());
        saved.digest = digest.value();
        rows.push_back(floats(logits));
        saved.ids.push_back(session.argmax(logits, rows.size()));
    }
    /// Feeds what is not fed yet and chooses, until there are `total` ids.
    void go_on(Session& session, std::size_t total) {
        while (saved.ids.size() < total) {
            const std::span<const std::int32_t> left = std::span(saved.ids).subspan(session.position());
            choose(session, left.empty() ? session.logits() : session.feed(left));
        }
    }
};

// Words of the header, by their place in docs/FORMATS.md.
enum Word : std::size_t {
    kVersion = 1,
    kFlags = 2,
    kIds = 3,
    kFed = 4,
    kDigest = 5,
    kGenerator = 6,
    kTurn = 8,
    kConfig = 9,
    kLayers = 38,
    kKinds = 39,
    kIndex = 40,
    kVectors = 41,
    kTokenizer = 42,
    kHeaderSum = 43,
    kHeaderWords = 44
};
constexpr std::size_t kHeaderBytes = kHeaderWords * 8;

std::uint64_t word(const std::string& file, std::size_t number) {
    std::uint64_t value;
    std::memcpy(&value, file.data() + 8 * number, 8);
    return value;
}
void set_word(std::string& file, std::size_t number, std::uint64_t value) {
    std::memcpy(file.data() + 8 * number, &value, 8);
}
std::uint64_t checksum(std::string_view bytes) {
    core::Checksum sum;
    sum.add(std::as_bytes(std::span(bytes)));
    return sum.value();
}
/// Both checksums as if the file had always been so.
std::string sealed(std::string file) {
    set_word(file, kHeaderSum, checksum(std::string_view(file).substr(0, 8 * kHeaderSum)));
    const std::uint64_t sum = checksum(std::string_view(file).substr(0, file.size() - 8));
    std::memcpy(file.data() + file.size() - 8, &sum, 8);
    return file;
}
std::string sealed_with(std::string file, std::size_t number, std::uint64_t value) {
    set_word(file, number, value);
    return sealed(std::move(file));
}

/// The first four layers of golden A (three KDA, one MLA) after `tokens` tokens, and its saved state.
struct Small {
    explicit Small(std::size_t tokens = 6, std::size_t layers = 4)
        : options([&] {
              Options o = options_for(golden_dir("A"));
              o.layers = layers;
              return o;
          }()),
          session(Session::open(options)),
          path(folder / "state") {
        session.load(40);
        run.ids = some_ids(tokens, 256, 3);
        session.feed(run.ids);
        run.ids.push_back(17);
        run.digest = 0x123456789abcdef0U;
        run.sampler = engine::SavedSampler{{11, ~std::uint64_t{0}}, 13};
        session.save_state(path, run, 77);
        file = io::File::read_text(path);
    }
    Refusal open(const std::string& bytes, std::uint64_t tokenizer = 77) const {
        const std::string other = folder.write("other", bytes);
        return refused([&] { (void)session.open_state(other, tokenizer); });
    }
    TempFolder folder;
    Options options;
    Session session;
    SavedRun run{};
    std::string path, file;
};

}  // namespace

TEST_CASE("engine/state_file: stopped and gone on at every position, a run is the same run: ids, logits, digest") {
    const TempFolder folder;
    const std::size_t prompt = 12, total = prompt + 9;
    const std::string path = folder / "state";
    std::vector<Options> settings = {
        options_for(golden_dir("A"), 5, 1, ArchName::scalar), options_for(golden_dir("A"), 7, 2),
        with_little_memory(options_for(golden_dir("A"), 1, 3)), options_for(golden_dir("A"), 512, 1)};
    for (const ArchName arch : engine::arches_of_this_cpu())
        settings.push_back(options_for(golden_dir("A"), 4, 2, arch));
    const Ids ids = some_ids(prompt, 256, 1);

    Run want{{ids}};
    Session whole = Session::open(options_for(golden_dir("A"), 6, 2));
    whole.load(total);
    want.go_on(whole, total);
    REQUIRE(want.rows.size() == total - prompt);

    std::size_t turn = 0;
    for (std::size_t fed = 0; fed < total; ++fed)
        for (const bool chosen : {false, true}) {  // stopped before, or after, an id was chosen from the last logits
            if (chosen && fed < prompt) continue;
            CAPTURE(fed);
            CAPTURE(chosen);
            Run first{{ids}};
            {
                Session session = Session::open(settings[turn++ % settings.size()]);
                session.load(total);
                if (fed < prompt) {
                    session.feed(std::span(ids).first(fed));  // as if the prompt had been interrupted there
                } else {
                    first.go_on(session, fed);
                    session.feed(std::span(first.saved.ids).subspan(session.position()));
                    if (chosen) first.choose(session, session.logits());
                }
                REQUIRE(session.position() == fed);
                session.save_state(path, first.saved);
            }
            Session session = Session::open(settings[(turn + turn / settings.size()) % settings.size()]);
            const StateFile file = session.open_state(path);
            CHECK(file.fed() == fed);
            CHECK(file.has_logits() == (fed >= prompt && !chosen));
            CHECK(file.run().ids == first.saved.ids);
            CHECK_FALSE(file.run().sampler);
            session.load(total);
            session.load_state(file);
            CHECK(session.position() == fed);
            Run second{file.run(), first.rows};
            second.go_on(session, total);
            CHECK(second.saved.ids == want.saved.ids);
            CHECK(second.saved.digest == want.saved.digest);
            CHECK(same(second.rows, want.rows));
        }
}

TEST_CASE("engine/state_file: the same state is the same file under every arch, thread count, chunk and budget") {
    const TempFolder folder;
    const Ids ids = some_ids(300, 301, 1);  // more than a page of positions; widths that need padding
    std::vector<Options> settings;
    for (const ArchName arch : engine::arches_of_this_cpu())
        settings.push_back(options_for(golden_dir("B"), 64, 1, arch));
    settings.push_back(options_for(golden_dir("B"), 7, 2));
    settings.push_back(with_little_memory(options_for(golden_dir("B"), 512, 3)));
    std::string want;
    for (const Options& options : settings) {
        Session session = Session::open(options);
        session.load(400);
        session.feed(ids);
        session.save_state(folder / "state", {ids});
        const std::string file = io::File::read_text(folder / "state");
        if (want.empty()) want = file;
        CHECK(file == want);
        CHECK(file.size() == session.state_file_bytes(300));
    }
    // 5 KDA layers of 3 heads of 20 x 20 and three histories of 3 x 60; 4 MLA layers of 28 + 6 a position.
    CHECK(want.size() == kHeaderBytes + 4 * 300 + 4 * 301 + 4 * (5 * (1200 + 540) + 4 * 300 * 34) + 8);
    const std::string path = folder / "state";
    Session on = Session::open(settings[0]);
    on.load(400);
    on.feed(ids);
    const Floats next = floats(on.feed(Ids{5}));
    for (const Options& options : settings) {
        Session session = Session::open(options);
        const StateFile file = session.open_state(path);
        session.load(400);
        session.load_state(file);
        session.save_state(folder / "again", file.run());
        CHECK(io::File::read_text(folder / "again") == want);
        CHECK(same_bits(session.feed(Ids{5}), next));
    }
}

TEST_CASE("engine/state_file: the bytes are those of FORMATS") {
    Small s;
    CHECK(s.file.substr(0, 8) == "k3-state");
    CHECK(word(s.file, kVersion) == 1);
    CHECK(word(s.file, kFlags) == 2);
    CHECK(word(s.file, kIds) == 7);
    CHECK(word(s.file, kFed) == 6);
    CHECK(word(s.file, kDigest) == 0x123456789abcdef0U);
    CHECK(word(s.file, kGenerator) == 11);
    CHECK(word(s.file, kGenerator + 1) == ~std::uint64_t{0});
    CHECK(word(s.file, kTurn) == 13);
    CHECK(word(s.file, kConfig) == 128);                                      // hidden_size
    CHECK(word(s.file, kConfig + 3) == std::bit_cast<std::uint64_t>(1e-5));   // rms_norm_eps
    CHECK(word(s.file, kConfig + 28) == std::bit_cast<std::uint64_t>(25.0));  // activation_situ_linear_beta
    CHECK(word(s.file, kLayers) == 4);
    CHECK(word(s.file, kKinds) == checksum(std::string("\0\0\0\1", 4)));
    CHECK(word(s.file, kIndex) == s.session.index().checksum());
    // Part of the format: a change of it is a new version.
    CHECK(word(s.file, kVectors) == 0xb4e83385ba31dd63U);
    CHECK(word(s.file, kTokenizer) == 77);
    CHECK(sealed(s.file) == s.file);
    std::int32_t ids[7];
    std::memcpy(ids, s.file.data() + kHeaderBytes, sizeof ids);
    CHECK(Ids(ids, ids + 7) == s.run.ids);
    // The floats, against the state below the session.
    Loaded model(golden_dir("A"), 4);
    Runner runner(model, engine::widest_arch(), 1);
    Sequence sequence(runner);
    sequence.feed(runner, part(s.run.ids, 0, 6), 1);
    const Floats want = sequence.snapshot(runner);  // golden A needs no padding
    REQUIRE(s.file.size() == kHeaderBytes + sizeof ids + want.size() * 4 + 8);
    CHECK(std::memcmp(s.file.data() + kHeaderBytes + sizeof ids, want.data(), want.size() * 4) == 0);
    // With logits, and without a sampler: they stand between ids and state.
    s.run.ids.pop_back();
    s.run.sampler.reset();
    s.session.save_state(s.path, s.run, 0);
    const std::string file = io::File::read_text(s.path);
    CHECK(word(file, kFlags) == 1);
    CHECK(word(file, kGenerator + 1) == 0);
    CHECK(word(file, kTokenizer) == 0);
    CHECK(std::memcmp(file.data() + kHeaderBytes + 24, sequence.logits.data(), 1024) == 0);
    CHECK(std::memcmp(file.data() + kHeaderBytes + 24 + 1024, want.data(), want.size() * 4) == 0);
}

TEST_CASE("engine/state_file: any one byte changed, any length cut, anything added is refused; the whole file is not") {
    const Small s(1);
    REQUIRE(s.open(s.file).line == "");
    REQUIRE(s.file.size() < 25000);
    const auto is_refusal = [](const Refusal& refusal) {
        return refusal.code == Code::state && !refusal.next.empty() && !holds(refusal.line, "\n");
    };
    std::size_t flips = 0, cuts = 0;
    const std::string other = s.folder.write("other", s.file);
    std::fstream stream(other, std::ios::binary | std::ios::in | std::ios::out);
    const auto put = [&](std::size_t at, char byte) {
        stream.seekp(static_cast<std::streamoff>(at));
        stream.put(byte).flush();
    };
    const auto opened = [&] { return refused([&] { (void)s.session.open_state(other, 77); }); };
    for (std::size_t at = 0; at < s.file.size(); ++at) {
        put(at, static_cast<char>(s.file[at] ^ (1 << at % 8)));
        flips += is_refusal(opened());
        put(at, s.file[at]);
    }
    CHECK(flips == s.file.size());
    CHECK(opened().line == "");
    for (std::size_t size = s.file.size(); size-- > 0;) {
        REQUIRE(::truncate(other.c_str(), static_cast<off_t>(size)) == 0);
        cuts += is_refusal(opened());
    }
    CHECK(cuts == s.file.size());
    for (const std::size_t more : {1, 7, 8, 4096}) CHECK(is_refusal(s.open(s.file + std::string(more, '\0'))));
    CHECK(holds(s.open(s.file.substr(0, s.file.size() - 1)).line, "is cut short"));
    CHECK(holds(s.open(s.file + "x").line, "goes on after its end"));
    CHECK(is_refusal(s.open(s.file + s.file)));
    // A byte that is 0 in a number that counts: refused for what it then says, or for the checksum.
    for (const std::size_t number : {kIds, kFed})
        CHECK(holds(s.open([&] {
                         std::string file = s.file;
                         set_word(file, number, word(file, number) + 1);
                         return file;
                     }())
                        .line,
                    "is damaged"));
}

TEST_CASE("engine/state_file: what is no state, of another version or by another engine is called so") {
    const Small s(1);
    const auto line = [&](const std::string& bytes) {
        const Refusal refusal = s.open(bytes);
        CHECK(refusal.code == Code::state);
        CHECK(holds(refusal.line, s.folder / "other"));
        return refusal.line;
    };
    CHECK(holds(line(""), "has 0 bytes"));
    CHECK(holds(line("k3-st"), "cut short"));
    CHECK(holds(line("PK\x03\x04" + std::string(1000, 'x')), "zip archive"));
    CHECK(holds(line(std::string("K3ST\1\0\0\0", 8) + std::string(1000, '\0')), "state of another engine"));
    CHECK(holds(line(std::string(1000, 'x')), "not a state file"));
    CHECK(holds(line(sealed_with(s.file, kVersion, 2)), "version 2"));
    CHECK(holds(line(s.file.substr(0, 16)), "cut short"));
    const auto path_refused = [&](const std::string& path, const std::string& words) {
        const Refusal refusal = refused([&] { (void)s.session.open_state(path); });
        CHECK(refusal.code == Code::state);
        CHECK(holds(refusal.line, words));
        CHECK(holds(refusal.line, path));
    };
    path_refused(s.folder / "nothing", "No such file");
    path_refused(s.folder.path(), "directory");
    path_refused("/dev/zero", "not a regular file");
    REQUIRE(::mkfifo((s.folder / "fifo").c_str(), 0600) == 0);
    path_refused(s.folder / "fifo", "not a regular file");
}

TEST_CASE("engine/state_file: a state of another model is refused, naming what differs") {
    const Small s(1);
    const auto differs = [&](std::size_t number, std::uint64_t value, const std::string& words) {
        const Refusal refusal = s.open(sealed_with(s.file, number, value));
        CHECK(refusal.code == Code::state);
        CHECK(holds(refusal.line, words));
    };
    std::size_t i = 0;
    for (const engine::detail::ConfigNumber& number : engine::detail::config_numbers(s.session.config().shape)) {
        REQUIRE(word(s.file, kConfig + i) == number.bits);
        differs(kConfig + i, number.bits + 1, " " + std::string(number.name) + " is ");
        ++i;
    }
    CHECK(i == kLayers - kConfig);
    differs(kConfig, 7168, "hidden_size is 7168, here it is 128");
    differs(kConfig + 3, std::bit_cast<std::uint64_t>(1e-6), "rms_norm_eps is 9.9999999999999995e-07, here");
    differs(kLayers, 3, "first 3 layers, here 4");
    differs(kKinds, 1, "KDA layers");
    differs(kIndex, 1, "names, types or shapes");
    differs(kVectors, 1, "norm weights");
    differs(kTokenizer, 78, "another tokenizer");
    CHECK(s.open(s.file, 0).line == "");                               // this run has none
    CHECK(s.open(sealed_with(s.file, kTokenizer, 0), 77).line == "");  // that run had none
    // Contradictions that no writer of ours makes.
    differs(kFlags, 8 | 2, "contradicts itself");
    differs(kFlags, 1 | 2, "contradicts itself");  // logits, but an id that is not fed
    differs(kFlags, 0, "contradicts itself");      // a generator without a sampler
    differs(kFed, 3, "contradicts itself");
    differs(kIds, (std::uint64_t{1} << 20) + 2, "more than the model's 1048576 positions");
    differs(kIds, ~std::uint64_t{0}, "more than the model's");
    differs(kIds, 1, "bytes instead of");
    for (const std::int32_t id : {256, -1}) {
        std::string file = s.file;
        std::memcpy(file.data() + kHeaderBytes + 4, &id, 4);
        CHECK(holds(s.open(sealed(file)).line, "id " + std::to_string(id)));
    }
}

TEST_CASE("engine/state_file: real checkpoints that differ in one thing refuse each other's states") {
    const TempFolder same, wide, norm, cut, config;
    std::vector<MiniTensor> tensors = tensors_of(golden_dir("A"));
    write_checkpoint(same, golden_dir("A"), tensors);
    std::swap(tensors.front(), tensors.back());
    write_checkpoint(cut, golden_dir("A"), tensors);  // other offsets only
    for (MiniTensor& t : tensors)
        if (ends_with(t.name, "layers.2.self_attn.o_proj.weight")) {
            const MiniTensor kept = t;
            t = widened_to_f32(kept);
            write_checkpoint(wide, golden_dir("A"), tensors);
            t = kept;
        }
    for (MiniTensor& t : tensors)
        if (ends_with(t.name, "layers.2.input_layernorm.weight")) t.data[0] = static_cast<char>(t.data[0] ^ 1);
    write_checkpoint(norm, golden_dir("A"), tensors);
    write_checkpoint(config, golden_dir("A"), tensors_of(golden_dir("A")));
    std::string text = io::File::read_text(golden_dir("A") + "/config.json");
    const std::size_t at = text.find("\"max_position_embeddings\": 1048576");
    REQUIRE(at != std::string::npos);
    config.write("config.json", text.replace(at, 34, "\"max_position_embeddings\": 1048575"));

    const Small a(3, 0);
    const auto in = [&](const std::string& dir, std::size_t layers = 0) {
        Options options = options_for(dir);
        options.layers = layers;
        const Session session = Session::open(options);
        return refused([&] { (void)session.open_state(a.path, 0); }).line;
    };
    CHECK(in(same.path()) == "");
    CHECK(in(cut.path()) == "");
    CHECK(in(config.path()) == "");  // a limit, not a number of the model
    CHECK(holds(in(wide.path()), "names, types or shapes"));
    CHECK(holds(in(norm.path()), "norm weights"));
    CHECK(holds(in(golden_dir("A"), 12), "first 13 layers, here 12"));
    CHECK(holds(in(golden_dir("B")), "hidden_size is 128, here it is 100"));
    CHECK(text::Tokenizer::open(golden_dir("B"), 301).checksum() !=
          text::Tokenizer::open(golden_dir("F"), 272).checksum());
    // Opened for one model, read into another.
    Session b = Session::open(options_for(golden_dir("B")));
    b.load(20);
    const Ids ids = some_ids(4, 301, 1);
    b.feed(ids);
    const StateFile file = a.session.open_state(a.path);
    CHECK(holds(refused([&] { b.load_state(file); }).line, "hidden_size"));
    CHECK(b.position() == 4);
}

TEST_CASE("engine/state_file: positions must fit the plan; a session takes one state after another and starts anew") {
    Small s(6);
    const StateFile file = s.session.open_state(s.path, 77);
    CHECK(file.run().sampler == s.run.sampler);
    CHECK(file.run().digest == s.run.digest);
    Session fresh = Session::open(s.options);
    CHECK(refused([&] { fresh.load_state(file); }).code == Code::plan);  // not loaded
    fresh.load(5);
    const Refusal refusal = refused([&] { fresh.load_state(file); });
    CHECK(refusal.code == Code::plan);
    CHECK(holds(refusal.line, "holds 6 positions, this run was planned for 5"));
    fresh.load(6);
    fresh.load_state(file);
    CHECK(fresh.position() == 6);
    fresh.load(7);
    fresh.load_state(file);
    CHECK(fresh.logits().empty());
    const Floats want = floats(s.session.feed(std::span(s.run.ids).last(1)));
    CHECK(same_bits(fresh.feed(std::span(s.run.ids).last(1)), want));
    CHECK(same_bits(fresh.logits(), want));
    CHECK(refused([&] { fresh.feed(Ids{1}); }).code == Code::plan);
    // Over a longer sequence, whose rows and histories must be gone; then from the start.
    const Ids other = some_ids(30, 256, 9);
    s.session.recompute(other);
    s.session.load_state(file);
    CHECK(s.session.position() == 6);
    CHECK(s.session.logits().empty());
    CHECK(same_bits(s.session.feed(std::span(s.run.ids).last(1)), want));
    s.session.recompute(part(other, 0, 6));  // logits of as many positions, but of another sequence
    s.session.load_state(file);
    CHECK(s.session.logits().empty());
    const Floats again = floats(s.session.recompute(other));
    Session plain = Session::open(s.options);
    plain.load(40);
    CHECK(same_bits(plain.feed(other), again));
}

TEST_CASE("engine/state_file: the logits are those of the last token or none") {
    Small s(6);
    const Ids ids = some_ids(11, 256, 9);
    CHECK(s.session.logits().size() == 256);
    s.session.reset();
    CHECK(s.session.logits().empty());
    s.session.save_state(s.path, {});  // nothing fed, no ids
    CHECK(s.session.open_state(s.path).run().ids.empty());
    CHECK_FALSE(s.session.open_state(s.path).has_logits());
    const Floats want = floats(s.session.feed(ids));
    s.session.save_state(s.path, {ids});
    const auto stop = [](std::size_t done, std::size_t, std::size_t layer, std::size_t) {
        return !(done == 5 && layer == 2);
    };
    CHECK(refused([&] { s.session.feed(some_ids(8, 256, 2), stop); }).code == Code::interrupted);
    CHECK(s.session.position() == 16);
    CHECK(s.session.logits().empty());
    Ids longer = ids;
    for (const std::int32_t id : some_ids(8, 256, 2)) longer.push_back(id);
    const std::string partly = s.folder / "partly";
    s.session.save_state(partly, {longer});  // 5 of the 8 stand
    CHECK_FALSE(s.session.open_state(partly).has_logits());
    CHECK(s.session.open_state(partly).fed() == 16);
    CHECK(refused([&] { s.session.save_state(s.folder / "x", {ids}); }).code == Code::internal);  // fewer ids than fed
    CHECK_FALSE(std::filesystem::exists(s.folder / "x"));
    // A step that was begun has spoilt them, also if the position is the same again.
    const auto at_once = [](std::size_t, std::size_t, std::size_t, std::size_t) { return false; };
    s.session.recompute(part(ids, 0, 5));
    CHECK(s.session.logits().size() == 256);
    CHECK(refused([&] { s.session.feed(Ids{1}, at_once); }).code == Code::interrupted);
    CHECK(s.session.position() == 5);
    CHECK(s.session.logits().empty());
    s.session.recompute(part(ids, 0, 5));
    CHECK(refused([&] { s.session.recompute(some_ids(11, 256, 4), stop); }).code == Code::interrupted);
    CHECK(s.session.position() == 5);
    CHECK(s.session.logits().empty());
    s.session.load_state(s.session.open_state(s.path));
    CHECK(s.session.position() == 11);
    CHECK(same_bits(s.session.logits(), want));
}

TEST_CASE("engine/state_file: a file that changes after it was opened leaves an empty sequence that works") {
    Small s(6);
    const Ids ids = some_ids(9, 256, 9);
    Session plain = Session::open(s.options);
    plain.load(40);
    const Floats want = floats(plain.feed(ids));
    const auto changed = [&](const std::function<void()>& change) {
        s.folder.write("state", s.file);
        const StateFile file = s.session.open_state(s.path, 77);
        change();
        const Refusal refusal = refused([&] { s.session.load_state(file); });
        CHECK(refusal.code == Code::state);
        CHECK(s.session.position() == 0);
        CHECK(s.session.logits().empty());
        CHECK(same_bits(s.session.feed(ids), want));
        return refusal.line;
    };
    const auto overwrite = [&](const std::string& bytes) {
        std::fstream(s.path, std::ios::binary | std::ios::in | std::ios::out) << bytes;  // the same file
    };
    std::string damaged = s.file, other = s.file;
    damaged[damaged.size() / 2] = static_cast<char>(damaged[damaged.size() / 2] ^ 4);
    CHECK(holds(changed([&] { overwrite(damaged); }), "changed while"));
    CHECK(holds(changed([&] { overwrite(sealed(damaged)); }), "changed while"));
    CHECK(holds(changed([&] { std::filesystem::resize_file(s.path, s.file.size() - 100); }), "ended early"));
    // Another file under the name is none of its business.
    s.folder.write("state", s.file);
    const StateFile file = s.session.open_state(s.path, 77);
    std::filesystem::remove(s.path);
    s.folder.write("state", "new");
    s.session.load_state(file);
    CHECK(s.session.position() == 6);
}

TEST_CASE("engine/state_file: what cannot be written is said, and an older file stays") {
    Small s(2);
    const auto unwritten = [&](const std::string& path) {
        const Refusal refusal = refused([&] { s.session.save_state(path, s.run); });
        CHECK(refusal.code == Code::write);
        CHECK(holds(refusal.line, path));
        return refusal.line;
    };
    unwritten(s.folder / "nowhere/state");
    unwritten(s.path + "/state");
    unwritten(s.folder.path());
    const std::string fifo = s.folder / "fifo";  // renaming would put a file in its place
    REQUIRE(::mkfifo(fifo.c_str(), 0600) == 0);
    unwritten(fifo);
    CHECK(std::filesystem::is_fifo(fifo));
    std::filesystem::remove(fifo);
    CHECK(io::File::read_text(s.path) == s.file);
    // Temporary files that others left neither disturb nor are taken for the state.
    const std::string stray = s.path + ".tmp." + std::to_string(::getpid());
    s.folder.write("state.tmp." + std::to_string(::getpid()), "stray");
    s.session.save_state(s.path, s.run, 77);
    CHECK(io::File::read_text(s.path) == s.file);
    CHECK(io::File::read_text(stray) == "stray");
    CHECK(std::distance(std::filesystem::directory_iterator(s.folder.path()), {}) == 2);
}
