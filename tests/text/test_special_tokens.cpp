#include "k3/text/special_tokens.hpp"

#include <string>

#include "support/doctest.hpp"
#include "text/data.hpp"

using namespace k3::test;
using k3::text::SpecialTokens;

namespace {

SpecialTokens parse(const std::string& json, std::size_t ranks = 300, std::size_t vocab = 316) {
    return SpecialTokens::parse(json, "dir/tokenizer_config.json", ranks, vocab);
}

std::string added(const std::string& entries) { return "{\"added_tokens_decoder\": {" + entries + "}}"; }
std::string entry(int id, const std::string& name) {
    std::string text = "\"";
    text.append(std::to_string(id)).append("\": {\"content\": \"").append(name).append("\", \"special\": true}");
    return text;
}

}  // namespace

TEST_CASE(
    "text/special_tokens: named slots have their names, the others <|reserved_token_ID|> (trap 69: a built-in name "
    "list)") {
    const SpecialTokens tokens =
        parse(added(entry(300, "[BOS]") + "," + entry(307, "<|open|>") + "," + entry(315, "[PAD]")));
    CHECK(tokens.size() == 16);
    CHECK(tokens.first() == 300);
    CHECK(tokens.name(300) == "[BOS]");
    CHECK(tokens.name(301) == "<|reserved_token_301|>");
    CHECK(tokens.find("<|open|>") == 307);
    CHECK(tokens.find("<|reserved_token_302|>") == 302);
    CHECK(!tokens.find("<|reserved_token_315|>"));  // the slot is [PAD]
    CHECK(!tokens.find("<|reserved_token_316|>"));
    CHECK(!tokens.find("<|im_user|>"));
    CHECK(tokens.end_ids().empty());
    CHECK(parse(added(""), 300, 300).size() == 0);
}

TEST_CASE("text/special_tokens: search finds the leftmost name, the longest one there") {
    const SpecialTokens tokens = parse(added(entry(300, "[A]") + "," + entry(301, "[A]B") + "," + entry(302, "<|x|>")));
    const auto at = [&](std::string_view text, std::size_t from) {
        const auto hit = tokens.search(text, from);
        return hit ? std::pair(hit->at, hit->id) : std::pair(std::size_t{999}, 0);
    };
    CHECK(at("", 0).first == 999);
    CHECK(at("none [A <|x|", 0).first == 999);
    CHECK(at("a[A]", 0) == std::pair(std::size_t{1}, 300));
    CHECK(at("a[A]B", 0) == std::pair(std::size_t{1}, 301));
    CHECK(at("[A]<|x|>", 1) == std::pair(std::size_t{3}, 302));
    CHECK(at("<<|x|>", 0) == std::pair(std::size_t{1}, 302));
    CHECK(at("<|reserved_token_309|>", 0) == std::pair(std::size_t{0}, 309));
}

TEST_CASE("text/special_tokens: the end ids are [EOS], <|end_of_msg|> and eos_token (trap 72: one of two end ids)") {
    const auto ends = [](const std::string& json) {
        const SpecialTokens tokens = parse(json);
        return Ids(tokens.end_ids().begin(), tokens.end_ids().end());
    };
    const std::string both = entry(305, "[EOS]") + "," + entry(302, "<|end_of_msg|>") + "," + entry(309, "[EOT]");
    const auto with = [&](const std::string& eos) {
        return "{\"added_tokens_decoder\": {" + both + "}, \"eos_token\": " + eos + "}";
    };
    CHECK(ends(added(both)) == Ids{302, 305});
    CHECK(ends(with("\"[EOS]\"")) == Ids{302, 305});
    CHECK(ends(with("{\"content\": \"[EOT]\"}")) == Ids{302, 305, 309});
    CHECK(ends(with("null")) == Ids{302, 305});
    CHECK(contains(error_of([&] { ends(with("\"</s>\"")); }), "eos_token </s> is not a special token"));
    CHECK(contains(error_of([&] { ends(with("7")); }), "eos_token is not a token name"));
}

TEST_CASE("text/special_tokens: bad files are errors that name the place") {
    const auto error = [](const std::string& json) { return error_of([&] { parse(json); }); };
    CHECK(contains(error(""), "dir/tokenizer_config.json: is not JSON"));
    CHECK(contains(error("{\"added_tokens_decoder\": {"), "is not JSON"));
    CHECK(contains(error("version https://git-lfs.github.com/spec/v1\noid sha256:0\n"),
                   "it is a Git LFS pointer; fetch"));
    CHECK(contains(error("[]"), "is not a JSON object"));
    CHECK(contains(error("{}"), "has no object added_tokens_decoder"));
    CHECK(contains(error("{\"added_tokens_decoder\": []}"), "has no object added_tokens_decoder"));
    CHECK(contains(error(added(entry(299, "x"))), "[\"299\"] is outside the special slots: 16 from id 300"));
    CHECK(contains(error(added(entry(316, "x"))), "is outside the special slots"));
    CHECK(contains(error(added("\"0300\": {\"content\": \"x\"}")), "is not a token id"));
    CHECK(contains(error(added("\"-1\": {\"content\": \"x\"}")), "is not a token id"));
    CHECK(contains(error(added("\"99999999999999999999\": {\"content\": \"x\"}")), "is not a token id"));
    CHECK(contains(error(added("\"\": {\"content\": \"x\"}")), "is not a token id"));
    CHECK(contains(error(added("\"300\": {\"content\": \"\"}")), ".content is not a non-empty string"));
    CHECK(contains(error(added("\"300\": {\"content\": 7}")), ".content is not a non-empty string"));
    CHECK(contains(error(added("\"300\": \"x\"")), ".content is not a non-empty string"));
    CHECK(contains(error(added(entry(300, "x") + "," + entry(300, "y"))),
                   "these keys are there twice: added_tokens_decoder.300"));
    CHECK(contains(error(added(entry(300, "x") + "," + entry(301, "x"))), "ids 300 and 301 have the same name x"));
    CHECK(contains(error(added(entry(300, "<|reserved_token_301|>"))), "ids 300 and 301 have the same name"));
    CHECK(contains(error(added(entry(300, "\xFF"))), "is not JSON"));
    // The released file holds an integer beyond 64 bits.
    CHECK(parse("{\"model_max_length\": 1000000000000000019884624838656, \"added_tokens_decoder\": {}}").size() == 16);
}

TEST_CASE("text/special_tokens: a vocab_size of another model is an error") {
    const auto error = [](std::size_t ranks, std::size_t vocab) {
        return error_of([&] { parse(added(""), ranks, vocab); });
    };
    CHECK(error(300, 556) == "");
    CHECK(contains(error(300, 557), "vocab_size is 557 but the tokenizer has 300 ranks"));
    CHECK(contains(error(300, 299), "--tok DIR"));
}
