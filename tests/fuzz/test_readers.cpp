// Everything that reads a file or an option, on valid inputs with random damage: it returns or throws k3::Error, reads
// nothing outside its input (seen in the sanitizer build), and what it returns keeps its promises. Each case also
// checks that enough inputs were taken, and enough refused for different reasons: a reader that refuses all would pass.
#include <sys/mman.h>
#include <unistd.h>

#include <stdexcept>

#include "drivers/sizes.hpp"
#include "drivers/text_input.hpp"
#include "fuzz/mutate.hpp"
#include "k3/checkpoint/header.hpp"
#include "k3/checkpoint/shard_index.hpp"
#include "k3/engine/state_file.hpp"
#include "k3/model/config_reader.hpp"
#include "k3/text/rank_file.hpp"
#include "k3/text/special_tokens.hpp"
#include "k3/text/stream_decoder.hpp"
#include "k3/text/utf8.hpp"
#include "support/mini_checkpoint.hpp"

using namespace k3;
using namespace k3::tests;

namespace {

std::string source(const std::string& name) {
    return io::File::read_text(std::string(K3_SOURCE_DIR) + "/tests/" + name);
}

/// A broken promise of what was returned. Not an Error: fuzz() reports it as a failure, with the round.
void promise(bool kept, const char* what) {
    if (!kept) throw std::logic_error(what);
}

/// A file in memory that is rewritten every round.
class MemoryFile {
  public:
    MemoryFile() : fd_(::memfd_create("k3-fuzz", MFD_CLOEXEC)) { REQUIRE(fd_ >= 0); }
    ~MemoryFile() { ::close(fd_); }
    MemoryFile(const MemoryFile&) = delete;
    std::string put(std::string_view bytes) const {
        REQUIRE(::ftruncate(fd_, 0) == 0);
        REQUIRE(::pwrite(fd_, bytes.data(), bytes.size(), 0) == static_cast<ssize_t>(bytes.size()));
        return "/proc/self/fd/" + std::to_string(fd_);
    }

  private:
    int fd_;
};

std::string base64(std::string_view bytes) {
    static constexpr char kDigits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    std::string text;
    for (std::size_t at = 0; at < bytes.size(); at += 3) {
        const std::size_t n = std::min<std::size_t>(3, bytes.size() - at);
        std::uint32_t bits = 0;
        for (std::size_t i = 0; i < 3; ++i) bits = bits << 8 | (i < n ? static_cast<unsigned char>(bytes[at + i]) : 0U);
        for (std::size_t i = 0; i < 4; ++i) text += i <= n ? kDigits[bits >> (18 - 6 * i) & 63] : '=';
    }
    return text;
}

/// Well-formed UTF-8, said another way than text/utf8.hpp says it: by the value that the bits give, which must need
/// that many bytes and be a scalar value.
bool well_formed(std::string_view text) {
    for (std::size_t at = 0; at < text.size();) {
        const auto lead = static_cast<unsigned char>(text[at]);
        const std::size_t length = lead < 0x80 ? 1 : lead >> 5 == 6 ? 2 : lead >> 4 == 14 ? 3 : lead >> 3 == 30 ? 4 : 0;
        if (length == 0 || length > text.size() - at) return false;
        std::uint32_t value = length == 1 ? lead : lead & (0x3fU >> (length - 1));
        for (std::size_t i = 1; i < length; ++i) {
            const auto next = static_cast<unsigned char>(text[at + i]);
            if (next >> 6 != 2) return false;
            value = value << 6 | (next & 0x3fU);
        }
        const std::size_t needs = value < 0x80 ? 1 : value < 0x800 ? 2 : value < 0x10000 ? 3 : 4;
        if (needs != length || value > 0x10ffff || (value >= 0xd800 && value <= 0xdfff)) return false;
        at += length;
    }
    return true;
}

}  // namespace

TEST_CASE("fuzz/header: a damaged shard is read or refused, and what is read covers the file exactly") {
    const Words seeds = {
        shard_of({{"a", "F32", {2, 3}}, {"b.weight", "BF16", {4}}, {"c", "U8", {0, 7}}}),
        shard_of({{"language_model.model.layers.0.mlp.experts.0.w1.weight_packed", "U8", {3, 16}}}),
        shard_bytes(R"({"b\u0061c":{"data_offsets":[4,8],"shape":[2],"dtype":"BF16"},"__metadata__":{"k":"v"},)"
                    R"("\"q\"":{"shape":[],"dtype":"F32","data_offsets":[0,4],"later":{"x":[1]}}}   )",
                    8),
        shard_bytes("{}", 0), source("golden/A/model/model-00016-of-000016.safetensors")};
    const Words words = {"\"dtype\":",
                         "\"shape\":",
                         "\"data_offsets\":",
                         "\"__metadata__\":",
                         "\"F32\"",
                         "\"BF16\"",
                         "\"U8\"",
                         "\"F4\"",
                         "[0,4]",
                         "[]",
                         "{}",
                         "null",
                         "\"a\":{},",
                         "\\u0000",
                         "\\ud800",
                         "\\n",
                         "[4,0]",
                         "1.5",
                         "true"};
    const MemoryFile file;
    checkpoint::HeaderReader reader;  // one for all rounds: what an input leaves behind must not matter
    const FuzzCount count = fuzz(seeds, words, 20000, [&](std::string_view bytes) {
        const io::File opened = io::File::open(file.put(bytes));
        std::uint64_t at = 0;
        std::set<std::string_view> names;
        for (const checkpoint::HeaderTensor& tensor : reader.read(opened, 3)) {
            if (at == 0) at = reader.data_begin();
            promise(tensor.info.offset == at, "a tensor does not begin where the one before ends");
            promise(checkpoint::byte_count(tensor.info.dtype, tensor.info.shape) == tensor.info.bytes, "a wrong size");
            promise(names.insert(tensor.name).second, "a name twice");
            at += tensor.info.bytes;
        }
        promise(at == 0 || at == bytes.size(), "the tensors do not end with the file");
    });
    CHECK(count.taken > 500);
    CHECK(count.reasons.size() > 20);
}

TEST_CASE("fuzz/config: a damaged config.json is read or refused, and what is read is whole") {
    const Words seeds = {source("demo/model/config.json"), source("golden/A/model/config.json"),
                         source("golden/B/model/config.json")};
    const Words words = {"\"text_config\":",
                         "\"linear_attn_config\":",
                         "\"num_hidden_layers\":",
                         "\"kda_layers\":",
                         "\"full_attn_layers\":",
                         "\"vocab_size\":",
                         "\"rms_norm_eps\":",
                         "\"quantization_config\":",
                         "\"eos_token_id\":",
                         "{}",
                         "[]",
                         "null",
                         "true",
                         "false",
                         "\"x\"",
                         "[1,2,3]",
                         "[4,8,9]",
                         "-1",
                         "1e400",
                         "NaN",
                         "\\ud800",
                         "\\n"};
    const auto read = [](std::string_view text, std::string_view generation) {
        const model::ModelConfig config =
            model::parse_config(text, "config.json", generation, "generation_config.json");
        promise(config.shape.layers >= 1 && config.kinds.size() == config.shape.layers, "layers without a kind");
        promise(config.shape.hidden >= 1 && config.shape.vocab >= 1 && config.shape.heads >= 1, "a size of 0");
        promise(config.shape.experts_per_token <= config.shape.experts, "more routes than experts");
        promise(config.shape.rms_norm_eps > 0 && config.shape.mla_norm_eps > 0, "an epsilon that is not positive");
        promise(config.text == text, "the text is not kept");
    };
    const FuzzCount count = fuzz(seeds, words, 6000, [&](std::string_view text) { read(text, {}); });
    CHECK(count.taken > 300);
    CHECK(count.reasons.size() > 20);
    const Words generation = {source("demo/model/generation_config.json"), R"({"eos_token_id":[1,2]})"};
    const FuzzCount second = fuzz(generation, words, 2000, [&](std::string_view text) {
        if (!text.empty()) read(seeds[0], text);
    });
    CHECK(second.taken > 100);
    CHECK(second.reasons.size() > 5);
}

TEST_CASE("fuzz/rank_file: a damaged tiktoken.model is read or refused, and what is read finds its own tokens") {
    std::string text;
    std::size_t rank = 0;
    for (int byte = 0; byte < 256; ++byte)
        text += base64(std::string(1, static_cast<char>(byte))) + ' ' + std::to_string(rank++) + '\n';
    const std::string bytes_only = text;
    for (const char* token : {"th", "the", " the", "\xed\x95", "\xed\x95\x9c", "a longer token of some words"})
        text += base64(token) + ' ' + std::to_string(rank++) + '\n';
    std::string crlf;
    for (const char c : text) crlf += c == '\n' ? std::string("\r\n") : std::string(1, c);
    const Words words = {
        "\n", "\r\n", " ", "=", "==", "====", "AA== 0\n", "dGg= 256\n", "AAAA 262\n", "dGg= 262\n", "\n\n"};
    const FuzzCount count = fuzz({text, bytes_only, crlf}, words, 20000, [](std::string_view file) {
        const text::RankFile ranks = text::RankFile::parse(file, "tiktoken.model");
        promise(ranks.size() >= 256, "fewer tokens than bytes");
        std::size_t longest = 0;
        for (std::size_t r = 0; r < ranks.size(); ++r) {
            const auto id = static_cast<text::TokenId>(r);
            promise(!ranks.bytes(id).empty() && ranks.find(ranks.bytes(id)) == id, "a token is not found");
            const std::string_view token = ranks.bytes(id);
            promise(token.size() != 1 || ranks.find_byte(token[0]) == id, "a byte is not found");
            promise(token.size() != 2 || ranks.find_pair(token[0], token[1]) == id, "a pair is not found");
            longest = std::max(longest, token.size());
        }
        promise(ranks.longest() == longest, "the longest token is another one");
    });
    CHECK(count.taken > 200);  // most damage breaks the count of ranks
    CHECK(count.reasons.size() > 20);
}

TEST_CASE("fuzz/special_tokens: a damaged tokenizer_config.json is read or refused, and what is read finds its names") {
    const std::string demo = source("demo/model/tokenizer_config.json"),
                      small = source("golden/B/model/tokenizer_config.json");
    const Words words = {"\"added_tokens_decoder\":",
                         "\"content\":",
                         "\"eos_token\":",
                         "\"[EOS]\"",
                         "\"285\":",
                         "\"300\":",
                         "\"301\":",
                         "\"0285\":",
                         "\"-1\":",
                         "{}",
                         "[]",
                         "null",
                         "\"<|end_of_msg|>\"",
                         "\\u0000",
                         "\\ud800",
                         "\\n",
                         "\"<|reserved_token_291|>\"",
                         "\"9999999999\":",
                         "{\"content\":\"x\"}",
                         "\"\""};
    const auto read = [](std::string_view json, std::size_t ranks, std::size_t vocab) {
        const text::SpecialTokens tokens = text::SpecialTokens::parse(json, "tokenizer_config.json", ranks, vocab);
        promise(tokens.size() == vocab - ranks, "another number of slots");
        for (std::size_t slot = 0; slot < tokens.size(); ++slot) {
            const auto id = static_cast<text::TokenId>(ranks + slot);
            const std::string_view name = tokens.name(id);
            promise(!name.empty() && tokens.find(name) == id, "a name is not found");
            const auto hit = tokens.search("a " + std::string(name), 2);
            promise(hit && hit->at == 2 && tokens.name(hit->id).starts_with(name), "a name is not found in a text");
        }
        for (const text::TokenId end : tokens.end_ids())
            promise(end >= tokens.first() && end < tokens.first() + static_cast<text::TokenId>(tokens.size()),
                    "an end id that is no slot");
    };
    const std::string tiny =  // most edits of a long file land where nothing is read
        R"({"added_tokens_decoder":{"285":{"content":"[EOS]"},"300":{"content":"<|x|>"}},"eos_token":"[EOS]"})";
    const FuzzCount count = fuzz({small, tiny}, words, 20000, [&](std::string_view json) { read(json, 285, 301); });
    CHECK(count.taken > 400);
    CHECK(count.reasons.size() > 15);
    CHECK(fuzz({demo}, words, 1000, [&](std::string_view json) { read(json, 2048, 2304); }).taken > 50);
}

TEST_CASE("fuzz/utf8: any bytes decode, in one piece and in many, to the same valid text") {
    const Words seeds = {"plain text",
                         "caf\xc3\xa9 \xed\x95\x9c\xea\xb5\xad\xec\x96\xb4 \xf0\x9f\x98\x80\xf0\x9f\x91\xa9",
                         "\xf4\x8f\xbf\xbf\xee\x80\x80\xed\x9f\xbf\xe0\xa0\x80\xf0\x90\x80\x80", ""};
    const Words words = {"\xc2",         "\xe0\xa0", "\xf0\x90\x80", "\xed\xa0\x80", "\xf4\x90\x80\x80",  "\xc0\x80",
                         "\xef\xbf\xbd", "\xff",     "\x80\x80",     "\xf0\x9f",     std::string(1, '\0')};
    std::size_t valid = 0, broken = 0;
    std::uint64_t turn = 0;
    fuzz(seeds, words, 60000, [&](std::string_view bytes) {
        const std::string whole = text::replace_invalid_utf8(bytes);
        promise(!text::find_invalid_utf8(whole), "what was put right is not valid");
        promise(text::replace_invalid_utf8(whole) == whole, "valid text is changed");
        const auto bad = text::find_invalid_utf8(bytes);
        ++(bad ? broken : valid);
        promise(!bad == well_formed(bytes), "valid is what is not well formed, or the other way round");
        promise(bad ? whole != bytes : whole == bytes, "valid and unchanged are not the same");
        promise(!bad || whole.substr(0, *bad) == bytes.substr(0, *bad), "something before the first bad byte changed");
        std::string again;  // every character taken apart and put together
        for (std::size_t at = 0; at < whole.size();) {
            const text::Utf8Step step = text::step_utf8(whole, at);
            text::append_utf8(again, step.scalar);
            at += step.bytes;
        }
        promise(again == whole, "a character does not survive");
        text::StreamDecoder decoder;
        std::string streamed;
        FuzzRandom random(++turn);
        for (std::size_t at = 0; at < bytes.size();) {
            const ExactBytes piece(bytes.substr(at, 1 + random.below(5)));
            at += piece.view().size();
            const std::string certain = decoder.push(piece.view());
            promise(!text::find_invalid_utf8(certain), "a push gives half a character");
            streamed += certain;
        }
        streamed += decoder.flush();
        promise(streamed == whole, "the stream is another text");
    });
    CHECK(valid > 5000);
    CHECK(broken > 5000);
}

TEST_CASE("fuzz/state_file: a damaged state is refused; with checksums made right, what is taken is written the same") {
    const std::string dir = std::string(K3_SOURCE_DIR) + "/tests/golden/A/model";
    const model::ModelConfig config = model::read_config(dir + "/config.json");
    const checkpoint::ShardIndex index = checkpoint::ShardIndex::open(dir, 1);
    const model::BoundModel bound(config, index, 4);  // three KDA layers, one MLA layer
    const engine::StateOwner owner{bound, index};
    const std::size_t vocab = config.shape.vocab, head = engine::detail::kStateHeaderBytes;
    model::State state(bound.view());
    std::vector<float> logits(vocab, 0.5F);
    const MemoryFile file;
    const TempFolder folder;
    Words seeds;
    for (const std::size_t fed : {0, 1, 3}) {
        float value = 0;
        state.restore(fed, [&](float* part, std::size_t count) {
            for (std::size_t i = 0; i < count; ++i) part[i] = value += 0.25F;
        });
        for (const std::size_t more : {0, 2}) {
            engine::SavedRun run{std::vector<std::int32_t>(fed + more, 7)};
            if (more != 0) run.sampler = engine::SavedSampler{{1, 2}, fed};
            engine::write_state_file(folder / "state", owner, more, run, state, logits);
            seeds.push_back(io::File::read_text(folder / "state"));
        }
    }
    const auto sum = [](std::string_view bytes) {
        core::Checksum checksum;
        checksum.add(std::as_bytes(std::span(bytes)));
        return checksum.value();
    };
    const auto little = [](std::uint64_t value) {
        std::string bytes(8, '\0');
        std::memcpy(bytes.data(), &value, 8);
        return bytes;
    };
    Words words = {little(0),
                   little(1),
                   little(2),
                   little(3),
                   little(std::uint64_t{1} << 20),
                   little(~std::uint64_t{0}),
                   std::string(seeds[0], 0, head),
                   std::string(4, '\0'),
                   "k3-state"};
    std::size_t right = 0;
    const auto use = [&](std::string_view bytes) {
        const engine::StateFile opened = engine::StateFile::open(file.put(bytes), owner, 2);
        promise(opened.fed() <= opened.run().ids.size(), "more is fed than there is");
        for (const std::int32_t id : opened.run().ids)
            promise(id >= 0 && static_cast<std::size_t>(id) < vocab, "an id out of range");
        opened.read(owner, state, logits);
        promise(state.position() == opened.fed(), "another position");
        std::uint64_t tokenizer = 0;
        std::memcpy(&tokenizer, bytes.data() + head - 16, 8);
        engine::write_state_file(folder / "again", owner, tokenizer, opened.run(), state,
                                 opened.has_logits() ? std::span<const float>(logits) : std::span<const float>());
        promise(io::File::read_text(folder / "again") == bytes, "what was taken is not what is written");
        ++right;
    };
    const FuzzCount raw = fuzz(seeds, words, 2000, use);
    CHECK(raw.refused > 1900);
    const FuzzCount sealed = fuzz(seeds, words, 4000, [&](std::string_view bytes) {
        std::string copy(bytes);
        if (copy.size() >= head + 8) {
            copy.replace(head - 8, 8, little(sum(std::string_view(copy).substr(0, head - 8))));
            copy.replace(copy.size() - 8, 8, little(sum(std::string_view(copy).substr(0, copy.size() - 8))));
        }
        use(copy);
    });
    CHECK(sealed.taken > 200);
    CHECK(sealed.reasons.size() > 7);
    CHECK(right > 200);
}

TEST_CASE("fuzz/sizes: numbers, sizes and lists of ids on a command line are read whole or refused") {
    const Words words = {"G", "GB", "GiB", "Gi", "M", "T", "k", ".", "-", "+", "e3", "0x", " ", "nan", "inf", "999999"};
    const FuzzCount sizes =
        fuzz({"8G", "8GiB", "8000M", "1.5T", "0.25gb", "64KiB"}, words, 60000, [](std::string_view text) {
            const std::uint64_t bytes = drivers::parse_size("--memory", text, 0);
            promise(bytes <= 1000000000000000U, "more than the limit");
            promise(text.find_first_not_of("0123456789.KMGTBIkmgtbi") == std::string::npos,
                    "a character that is no part of a size");
            promise(!drivers::show_bytes(bytes).empty(), "nothing to show");
        });
    CHECK(sizes.taken > 2000);
    CHECK(sizes.refused > 2000);
    const FuzzCount numbers = fuzz({"1", "17", "4096", "0"}, words, 60000, [](std::string_view text) {
        const std::uint64_t value = drivers::parse_count("--gen", text, 0, 1U << 24);
        promise(value <= 1U << 24 && text.find_first_not_of("0123456789") == std::string::npos, "not a whole number");
        promise(
            std::string(text.substr(std::min(text.find_first_not_of('0'), text.size() - 1))) == std::to_string(value),
            "another number");
    });
    CHECK(numbers.taken > 2000);
    CHECK(numbers.refused > 2000);
    const FuzzCount lists = fuzz({"1,2,3", "1 2 3", "255", "0 , 1\t,2\n", ""},
                                 {",", ",,", " ", "\n", "-1", "256", "1e3"}, 60000, [](std::string_view text) {
                                     const drivers::Ids ids = drivers::parse_ids("--ids", text, 256);
                                     for (const std::int32_t id : ids)
                                         promise(id >= 0 && id < 256, "an id out of range");
                                     promise(text.find_first_not_of("0123456789, \t\r\n") == std::string::npos, "junk");
                                 });
    CHECK(lists.taken > 2000);
    CHECK(lists.refused > 2000);
}
