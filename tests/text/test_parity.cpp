// Ids against tiktoken's on the corpus of parity_corpus.hpp. parity_ids.json holds what tiktoken gave (parity.mjs):
// full ids of the listed texts, counts and digests of all others. Two sets of ranks are here or made here; o200k_base's
// and the released ones are other people's files, and their tests run where a variable of the environment names them.
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "k3/core/digest.hpp"
#include "k3/text/stream_decoder.hpp"
#include "k3/text/tokenizer.hpp"
#include "support/doctest.hpp"
#include "text/data.hpp"
#include "text/parity_corpus.hpp"

using namespace k3;
using namespace k3::test;
using text::Specials;
using text::Tokenizer;

namespace {

const ParityCorpus& corpus() {
    static const ParityCorpus all(path_of(""));
    return all;
}

const nlohmann::json& expected() {
    static const nlohmann::json all = read_json("text/parity_ids.json");
    return all;
}

std::string hex(const core::Digest& digest) {
    constexpr char kDigits[] = "0123456789abcdef";
    std::string text(16, '0');
    for (std::size_t i = 0; i < 16; ++i) text[i] = kDigits[digest.value() >> (60 - 4 * i) & 15];
    return text;
}

/// A checkpoint's tokenizer files with ranks of the corpus and the released names.
Tokenizer made_tokenizer() {
    namespace fs = std::filesystem;
    const fs::path dir = fs::temp_directory_path() / ("k3_test_parity_" + std::to_string(::getpid()));
    fs::create_directories(dir);
    std::ofstream ranks(dir / "tiktoken.model", std::ios::binary);
    std::size_t rank = 0;
    for (const std::string& token : corpus().made_ranks()) ranks << base64(token) << ' ' << rank++ << '\n';
    ranks.close();
    nlohmann::json config{{"eos_token", "[EOS]"}};
    for (const auto& [id, name] : corpus().cases()["names"].items())
        config["added_tokens_decoder"][id] = {{"content", name}};
    std::ofstream(dir / "tokenizer_config.json") << config;
    Tokenizer tokenizer = Tokenizer::open(dir.string(), 163'840);
    fs::remove_all(dir);
    return tokenizer;
}

/// Token by token, as a run prints them.
std::string streamed(const Tokenizer& tokenizer, const Ids& ids) {
    text::StreamDecoder decoder;
    std::string text;
    for (const TokenId id : ids) text += decoder.push(tokenizer.bytes(id));
    return text + decoder.flush();
}

/// The ids of tiktoken under the ranks that parity_ids.json calls `set`. Returns the number of texts compared.
std::size_t compare(const std::string& set, const Tokenizer& tokenizer) {
    const auto sets = expected()["sets"].get<std::vector<std::string>>();
    const auto which = static_cast<std::size_t>(std::find(sets.begin(), sets.end(), set) - sets.begin());
    REQUIRE(which < sets.size());
    for (const auto& row : expected()["listed"]) {
        const std::string text = row[0];
        CAPTURE(text);
        CHECK(tokenizer.encode(text, Specials::as_text) == row[1 + 2 * which].get<Ids>());
        CHECK(tokenizer.encode(text, Specials::as_ids) == row[2 + 2 * which].get<Ids>());
    }
    std::size_t group = 0, compared = 0;
    corpus().for_each_group([&](const std::string& name, const ParityCorpus::Texts& texts) {
        const auto& row = expected()["groups"].at(group++);
        REQUIRE(row[0] == name);
        core::Digest bytes, ids;
        for (const std::string& text : texts) bytes.add_bytes(text.data(), text.size());
        REQUIRE_MESSAGE(row[3] == hex(bytes), name, ": the texts are not those the oracle saw");
        const auto& count = row[4 + 2 * which];
        if (count == 0) return;
        std::size_t total = 0;
        Ids found;
        for (const std::string& text : texts) {
            found.clear();
            tokenizer.encode(text, Specials::as_text, found);
            if (text.size() < 10'000 && streamed(tokenizer, found) != text)
                FAIL_CHECK(name, ": the stream is another text");
            found.push_back(-1);
            if (text.find_first_of("<[") != std::string::npos) {
                tokenizer.encode(text, Specials::as_ids, found);
                found.push_back(-1);
            }
            total +=
                static_cast<std::size_t>(std::count_if(found.begin(), found.end(), [](TokenId i) { return i >= 0; }));
            ids.add_bytes(found.data(), found.size() * sizeof(TokenId));  // little-endian machines only, like the rest
            ++compared;
        }
        CHECK_MESSAGE(total == count.get<std::size_t>(), set, ", ", name, ": the number of ids");
        CHECK_MESSAGE(hex(ids) == row[5 + 2 * which].get<std::string>(), set, ", ", name, ": the ids");
    });
    CHECK(group == expected()["groups"].size());
    return compared;
}

/// The directory that a variable names. tests/text/with_files.py does not start these cases without it.
std::string directory(const char* variable) {
    const char* const path = std::getenv(variable);
    REQUIRE_MESSAGE(path != nullptr, variable, " names no directory");
    return path;
}

}  // namespace

TEST_CASE("text/parity: the ids of tiktoken on the whole corpus, with the demo's 2,048 ranks") {
    CHECK(compare("demo", demo()) > 10'100);
}

TEST_CASE(
    "text/parity: the ids of tiktoken on the whole corpus, with ranks of the released number, all byte pairs among "
    "them") {
    const Tokenizer tokenizer = made_tokenizer();
    CHECK(tokenizer.ranks() == 163'584);
    CHECK(compare("made", tokenizer) > 10'100 + 8 * 100);
}

TEST_CASE(
    "text/parity: random ids of the released number decode to the same text at once, token by token, and however the "
    "bytes are cut") {
    const Tokenizer tokenizer = made_tokenizer();  // most tokens are parts of characters
    Random random(11);
    std::size_t replaced = 0;
    for (int round = 0; round < 3000; ++round) {
        Ids ids;
        for (std::size_t n = random.below(20); n > 0; --n) {
            const std::size_t limits[] = {256, 65'792, 163'840};
            ids.push_back(static_cast<TokenId>(random.below(limits[random.below(3)])));
        }
        const std::string once = tokenizer.decode(ids), bytes = tokenizer.decode_bytes(ids);
        CHECK(streamed(tokenizer, ids) == once);
        text::StreamDecoder decoder;
        std::string text;
        for (std::size_t at = 0; at < bytes.size();) {
            const std::string part = bytes.substr(at, 1 + random.below(6));
            at += part.size();
            const std::string now = decoder.push(part);
            if (text::find_invalid_utf8(now)) FAIL_CHECK("half a character");
            text += now;
        }
        CHECK(text + decoder.flush() == once);
        replaced += once != bytes;
    }
    CHECK(replaced > 2000);
}

TEST_SUITE_BEGIN("o200k");

TEST_CASE("text/parity: the ids of tiktoken on the whole corpus, with o200k_base's ranks cut to the released number" *
          doctest::skip()) {
    const Tokenizer tokenizer = Tokenizer::open(directory("K3_O200K_FILES"), 163'840);
    CHECK(compare("o200k", tokenizer) > 10'100 + 8 * 100);
}

TEST_SUITE_END();
TEST_SUITE_BEGIN("released");

TEST_CASE("text/parity: the released files give the released tokenizer's ids" * doctest::skip()) {
    const Tokenizer tokenizer = Tokenizer::open(directory("K3_TOK_FILES"), 163'840);
    CHECK(tokenizer.ranks() == 163'584);
    const auto plain = [&](std::string_view text) { return tokenizer.encode(text, Specials::as_text); };
    CHECK(plain("The capital of France is") == Ids{1008, 10484, 318, 15383, 387});
    CHECK(plain("The largest planet in our solar system is") == Ids{1008, 10604, 19645, 306, 1088, 17860, 2403, 387});
    CHECK(plain("Hello, world!") == Ids{19180, 11, 2695, 0});
    CHECK(plain("Hello world") == Ids{19180, 2695});
    CHECK(plain("Hello\n\nworld  ") == Ids{19180, 382, 23617, 256});
    CHECK(plain("I'M we're they'LL 1234567") == Ids{40, 103645, 13810, 1129, 6, 5847, 220, 6694, 12972, 22});
    CHECK(plain("你好世界") == Ids{33845, 2243});
    CHECK(plain("你好，世界！漢字") == Ids{33845, 378, 2243, 856, 1435, 95, 1855});
    CHECK(plain("Привет — café naïve") == Ids{159025, 63694, 4275, 70591, 7915, 44187, 367});
    CHECK(plain("🙂🚀👩\u200D💻") == Ids{5885, 46813, 5885, 40101, 64390, 102, 67963, 66122, 119});
    CHECK(plain("Tabs\tand\r\nlines\u00A0end") == Ids{46154, 58443, 462, 11541, 5406, 517});
    CHECK(plain("a\x1C"
                "b") == Ids{64, 216, 65});
    CHECK(plain(" \x1C a") == Ids{220, 216, 261});
    CHECK(plain("a\u2028"
                "b") == Ids{64, 390, 101, 65});
    CHECK(plain("ＡＢＣ 한국어 हिन्दी العربية") ==
          Ids{320, 94, 320, 95, 320, 96, 78560, 54078, 28763, 25042, 48190, 84837, 10722, 120413, 12441});
    const std::string_view marked = "a <|open|> b [BOS] c";
    CHECK(plain(marked) == Ids{64, 22652, 4454, 91, 29, 291, 793, 33, 4110, 60, 275});
    CHECK(tokenizer.encode(marked, Specials::as_ids) == Ids{64, 220, 163587, 291, 220, 163584, 275});
    CHECK(plain(repeat("a", 25'001)).size() == 3'126);
    CHECK(plain(repeat(" ", 25'001)).size() == 100);
    CHECK(plain(repeat("🙂", 25'001)).size() == 50'002);
    CHECK(plain(repeat("a ", 200'000) + "b").size() == 200'002);
    const std::string text = tokenizer.decode(Ids{17374, 20829, 10, 427, 414, 1008, 606, 142957});
    CHECK(text.starts_with(" Paris.\",\n"));
    CHECK(text.ends_with("The Eiffel"));
    for (const auto& [id, name] : corpus().cases()["names"].items())
        CHECK(tokenizer.bytes(std::stoi(id)) == name.get<std::string>());
}

TEST_SUITE_END();
