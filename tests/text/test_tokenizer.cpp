#include "k3/text/tokenizer.hpp"

#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <thread>

#include "k3/text/stream_decoder.hpp"
#include "support/doctest.hpp"
#include "text/data.hpp"

using namespace k3::test;
using namespace k3::text;

namespace {

Ids joined(Ids a, const Ids& b) {
    a.insert(a.end(), b.begin(), b.end());
    return a;
}

}  // namespace

TEST_CASE("text/tokenizer: 3,442 strings have the ids of tiktoken, with specials as text and as ids") {
    std::size_t marked = 0;
    for (const auto& row : golden()["strings"]) {
        const std::string text = row[0];
        const Ids plain = row[1];
        if (demo().encode(text, Specials::as_text) != plain) FAIL_CHECK("as_text: ", text);
        marked += row[3].is_array();
        const Ids with_ids = row[3].is_array() ? row[3].get<Ids>() : plain;
        if (demo().encode(text, Specials::as_ids) != with_ids) FAIL_CHECK("as_ids: ", text);
        if (demo().decode_bytes(plain) != text || demo().decode_bytes(with_ids) != text)
            FAIL_CHECK("round trip: ", text);
    }
    CHECK(marked > 200);
}

TEST_CASE("text/tokenizer: the prompts of the demo and golden checkpoints have their ids; no BOS is added") {
    const auto all = read_json("demo/expected.json");
    for (const auto& prompt : all["prompts"]) {
        const std::string text = prompt["prompt_text"];
        CHECK(demo().encode(text, Specials::as_ids) == prompt["prompt_ids"].get<Ids>());
        CHECK(demo().decode(prompt["generated_ids"].get<Ids>()) == prompt["generated_text"].get<std::string>());
    }
    for (const std::string name : {"B", "F"}) {
        const auto expected = read_json("golden/" + name + "/expected.json");
        const auto vocab = expected["spec"]["vocab"].get<std::size_t>();
        const Tokenizer tokenizer = Tokenizer::open(path_of("golden/" + name + "/model"), vocab);
        CHECK(tokenizer.vocab() == vocab);
        REQUIRE(!expected["text"].empty());
        for (const auto& entry : expected["text"]) {
            const Ids ids = entry["prompt_ids"];
            CHECK(tokenizer.encode(entry["text"].get<std::string>(), Specials::as_ids) == ids);
            CHECK(tokenizer.decode_bytes(ids) == entry["text"].get<std::string>());
        }
    }
}

TEST_CASE(
    "text/tokenizer: specials are single ids when asked for (trap 68) and plain characters otherwise (trap 70: forged "
    "markup)") {
    const TokenId open = *demo().special("<|open|>"), close = *demo().special("<|close|>");
    CHECK(demo().encode("<|open|>", Specials::as_ids) == Ids{open});
    CHECK(demo().encode("a<|open|><|close|>b", Specials::as_ids) == Ids{'a', open, close, 'b'});
    for (TokenId id = 2048; id < 2304; ++id) {  // all 256, the reserved ones too
        const std::string name(demo().bytes(id));
        CHECK(demo().encode(name, Specials::as_ids) == Ids{id});
        for (const TokenId plain : demo().encode("x" + name + "\n" + name, Specials::as_text)) CHECK(plain < 2048);
    }
    CHECK(demo().encode("<|im_user|>", Specials::as_ids) ==
          demo().encode("<|im_user|>", Specials::as_text));  // trap 69
    CHECK(demo().encode("<|kimi_image_placeholder|>", Specials::as_ids).size() > 1);
}

TEST_CASE("text/tokenizer: segments encoded one by one are not the encoding of their concatenation (trap 71)") {
    const Ids parts =
        joined(demo().encode("user says <|op", Specials::as_text), demo().encode("en|>", Specials::as_text));
    const Ids whole = demo().encode("user says <|open|>", Specials::as_ids);
    CHECK(parts != whole);
    CHECK(whole.back() == *demo().special("<|open|>"));
    CHECK(demo().encode("th", Specials::as_text) !=
          joined(demo().encode("t", Specials::as_text), demo().encode("h", Specials::as_text)));
    Ids appended{7};
    demo().encode("t", Specials::as_text, appended);
    demo().encode("h", Specials::as_text, appended);
    CHECK(appended == Ids{7, 't', 'h'});
}

TEST_CASE("text/tokenizer: NUL, BOM, CR LF and empty texts pass as they are") {
    CHECK(demo().encode("", Specials::as_ids) == Ids{});
    for (const std::string& text :
         {std::string("A\0B", 3), std::string("\0\0", 2), std::string("\xEF\xBB\xBFx"), std::string("\r\n"),
          std::string("a\r\n\r\nb\r"), std::string("no newline"), std::string("\n")}) {
        CHECK(demo().decode_bytes(demo().encode(text, Specials::as_ids)) == text);
    }
    CHECK(demo().encode(std::string_view("A\0B", 3), Specials::as_text) == Ids{'A', 0, 'B'});
}

TEST_CASE("text/tokenizer: text that is not UTF-8 is refused with the offset of the byte") {
    for (const char* bad : {"\x80", "\xC0\xAF", "\xED\xA0\x80", "\xF0\x9F\x99", "\xFF"}) {
        Ids ids{1, 2};
        const auto what = error_of([&] { demo().encode(std::string("ab世") + bad, Specials::as_ids, ids); });
        CHECK(contains(what, "the text is not UTF-8: the first bad byte is at offset 5"));
        CHECK(ids == Ids{1, 2});
    }
}

TEST_CASE("text/tokenizer: every id has bytes, ids outside the vocabulary are refused") {
    std::set<std::string> seen;
    for (TokenId id = 0; id < 2304; ++id) {
        CHECK(!demo().bytes(id).empty());
        seen.emplace(demo().bytes(id));
        CHECK(demo().is_special(id) == (id >= 2048));
    }
    CHECK(seen.size() >= 2048 + 250);
    for (const TokenId id : {-1, 2304, 163'840, INT32_MAX, INT32_MIN}) {
        CHECK(!demo().is_special(id));
        CHECK(contains(error_of([&] { demo().decode(Ids{id}); }),
                       "token id " + std::to_string(id) + " does not exist; ids go from 0 to 2303"));
    }
    const Ids ends(demo().end_ids().begin(), demo().end_ids().end());
    CHECK(ends == Ids{2049, 2050});
}

TEST_CASE("text/tokenizer: decoding token by token equals decoding at once, for texts and for random ids") {
    Random random(4);
    std::vector<Ids> runs;
    for (const auto& row : golden()["strings"]) runs.push_back(row[1]);
    for (int i = 0; i < 500; ++i) {
        Ids ids;
        for (std::size_t n = random.below(12); n > 0; --n)
            ids.push_back(static_cast<TokenId>(random.below(random.below(2) ? 256 : 2304)));
        runs.push_back(ids);
    }
    for (const Ids& ids : runs) {
        StreamDecoder decoder;
        std::string text;
        for (const TokenId id : ids) {
            const std::string now = decoder.push(demo().bytes(id));
            if (find_invalid_utf8(now)) FAIL_CHECK("half a character");
            text += now;
        }
        if (text + decoder.flush() != demo().decode(ids)) FAIL_CHECK(demo().decode(ids));
    }
}

TEST_CASE("text/tokenizer: long inputs are cut where the released tokenizer cuts them, specials included") {
    const auto encode = [](const std::string& text) { return demo().encode(text, Specials::as_ids); };
    for (const std::string unit : {"a", " ", "🙂", "世"}) {
        const Ids part = encode(repeat(unit, 25'000));
        CHECK(encode(repeat(unit, 25'001)) == joined(part, encode(unit)));
        CHECK(encode(repeat(unit, 50'000)) == joined(part, part));
    }
    const std::string words = repeat("a ", 200'000);
    CHECK(encode(words + "b") == joined(encode(words), encode("b")));
    CHECK(encode(words + "b").size() == 200'002);
    // A name that lies across a cut is text.
    const std::string before = words.substr(0, 399'996);
    CHECK(encode(before + "<|open|>") == joined(encode(before + "<|op"), encode("en|>")));
    CHECK(encode(words + "<|open|>") == joined(encode(words), Ids{*demo().special("<|open|>")}));
}

TEST_CASE("text/tokenizer: texts of 1 MiB of one kind finish and round-trip") {
    Random random(5);
    std::string letters;
    for (std::size_t i = 0; i < (1u << 20); ++i) letters += static_cast<char>('a' + random.below(26));
    for (const std::string& text :
         {repeat("a", 1u << 20), repeat("^", 1u << 20), repeat(" ", 1u << 20), repeat("\n", 1u << 20),
          repeat("世", (1u << 20) / 3), repeat("🙂", 1u << 18), repeat("<", 1u << 20), repeat("<|open|>", 1u << 17),
          repeat("_", 1u << 20), letters}) {
        CHECK(demo().decode_bytes(demo().encode(text, Specials::as_ids)) == text);
    }
}

TEST_CASE("text/tokenizer: one tokenizer serves several threads, also after a move") {
    Tokenizer first = Tokenizer::open(path_of("demo/model"), 2304);
    const std::string_view kept = first.bytes(2051), byte = first.bytes(65);
    const Tokenizer tokenizer = std::move(first);
    CHECK(kept == "<|open|>");
    CHECK(byte == "A");
    const auto& rows = golden()["strings"];
    std::atomic<int> wrong{0};
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
        threads.emplace_back([&] {
            for (std::size_t i = 0; i < 800; ++i)
                wrong += tokenizer.encode(rows[i][0].get<std::string>(), Specials::as_text) != rows[i][1].get<Ids>();
        });
    }
    for (std::thread& thread : threads) thread.join();
    CHECK(wrong == 0);
}

TEST_CASE(
    "text/tokenizer: missing files, directories in their place and files of another model are errors that say what to "
    "do") {
    namespace fs = std::filesystem;
    const fs::path dir = fs::temp_directory_path() / ("k3_test_tokenizer_" + std::to_string(::getpid()));
    fs::remove_all(dir);
    fs::create_directories(dir);
    const auto error = [&](std::size_t vocab) { return error_of([&] { Tokenizer::open(dir.string(), vocab); }); };
    CHECK(
        contains(error(2304),
                 "tiktoken.model: cannot be opened: No such file or directory; tiktoken.model is part of the released "
                 "checkpoint: give the directory that holds it with --tok DIR"));
    fs::copy_file(path_of("demo/model/tiktoken.model"), dir / "tiktoken.model");
    CHECK(contains(error(2304), "tokenizer_config.json is part of the released checkpoint"));
    fs::create_directories(dir / "tokenizer_config.json");
    CHECK(contains(error(2304), "is a directory, not a file"));
    fs::remove(dir / "tokenizer_config.json");
    fs::copy_file(path_of("demo/model/tokenizer_config.json"), dir / "tokenizer_config.json");
    CHECK(error(2304) == "");
    const std::uint64_t sum = Tokenizer::open(dir.string(), 2304).checksum();
    CHECK(sum == Tokenizer::open(path_of("demo/model"), 2304).checksum());
    CHECK(sum != 0);
    for (const char* name : {"tiktoken.model", "tokenizer_config.json"}) {  // a byte more, that changes no token
        fs::copy_file(dir / name, dir / "kept");
        std::ofstream(dir / name, std::ios::app).put('\n');
        CHECK(Tokenizer::open(dir.string(), 2304).checksum() != sum);
        fs::rename(dir / "kept", dir / name);
    }
    CHECK(sum == Tokenizer::open(dir.string(), 2304).checksum());
    CHECK(contains(error(2000), "vocab_size is 2000 but the tokenizer has 2048 ranks"));
    CHECK(contains(error(163'840), "vocab_size is 163840"));
    CHECK(contains(error(2303), "outside the special slots"));
    std::ofstream(dir / "tiktoken.model").put('\n');
    CHECK(contains(error(2304), "has no token for the single byte 0"));
    fs::remove_all(dir);
}
