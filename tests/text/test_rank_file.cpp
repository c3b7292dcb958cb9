#include "k3/text/rank_file.hpp"

#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "support/doctest.hpp"
#include "text/data.hpp"

using namespace k3::test;
using k3::text::kNoToken;
using k3::text::RankFile;

TEST_CASE(
    "text/rank_file: tokens are raw bytes with their line as rank; every rank is found by its bytes (trap 65: GPT-2 "
    "keys)") {
    const RankFile file = RankFile::parse(rank_text({"ab", std::string("\0x", 2), "世", "abcdefghijklmnopq"}), "f");
    CHECK(file.size() == 260);
    CHECK(file.bytes(0) == std::string_view("\0", 1));
    CHECK(file.bytes(255) == "\xFF");
    CHECK(file.bytes(256) == "ab");
    CHECK(file.find("世") == 258);
    CHECK(file.find("abcdefghijklmnopq") == 259);
    CHECK(file.find("abcdefghijklmnopr") == kNoToken);
    CHECK(file.find("") == kNoToken);
    CHECK(file.find(repeat("a", 1000)) == kNoToken);
    CHECK(file.longest() == 17);

    const std::string path = path_of("demo/model/tiktoken.model");
    const RankFile demo = RankFile::parse(k3::io::File::read_text(path), path);
    REQUIRE(demo.size() == 2048);
    for (int rank = 0; rank < 2048; ++rank) {
        if (demo.find(demo.bytes(rank)) != rank) FAIL_CHECK(rank);
    }
}

TEST_CASE("text/rank_file: CRLF, blank lines and a missing last newline are accepted") {
    const std::string text = rank_text({"ab"});
    std::string crlf = "\r\n\n";
    for (const char c : text) crlf += c == '\n' ? std::string("\r\n\r\n") : std::string(1, c);
    CHECK(RankFile::parse(crlf, "f").size() == 257);
    CHECK(RankFile::parse(text.substr(0, text.size() - 1), "f").find("ab") == 256);
}

TEST_CASE("text/rank_file: everything else is an error that names the file and the line") {
    const std::string good = rank_text({});
    const auto error = [&](const std::string& text) {
        return error_of([&] { RankFile::parse(text, "dir/tiktoken.model"); });
    };
    const auto after = [&](const std::string& line) { return error(good + line + "\n"); };
    CHECK(error(good) == "");
    for (const char* bad :
         {"YWI=",      "YWI= 257", "YWI= 0",       "YWI= 0256", "YWI= +256", "YWI=  256",     "YWI= 256 ",
          "YWI=\t256", " 256",     "YWI 256",      "YWJ= 256",  "YW=I 256",  "=WI= 256",      "Y=== 256",
          "==== 256",  "YW*= 256", "YWI=YWI= 256", "YQ== 256",  "ÄÖ 256",    "#version: 0.2", "YWI= 256x"}) {
        CAPTURE(bad);
        const std::string what = after(bad);
        CHECK(contains(what, "dir/tiktoken.model: line 257: "));
        CHECK(contains(what, "; download"));
    }
    CHECK(contains(after("YWI= 256\nYWI= 257"), "line 258: repeats the token of line 257"));
    CHECK(contains(error(""), "no token for the single byte 0"));
    CHECK(contains(error(good.substr(good.find('\n') + 1)), "line 1: the rank must be 0"));
    CHECK(contains(error("\xEF\xBB\xBF" + good), "line 1: the token is not base64"));
    CHECK(contains(error("version https://git-lfs.github.com/spec/v1\noid sha256:0\n"), "Git LFS pointer"));
    CHECK(contains(error("<!DOCTYPE html>\n"), "an HTML or XML page"));
    CHECK(contains(after("<!DOCTYPE html>\n"), "line 257: "));
    // "GGUF" is base64: what looks like another file and reads as ranks is ranks.
    CHECK(contains(error("GGUF 0\n"), "no token for the single byte 0"));
    std::string without_ff = good.substr(0, good.rfind('\n', good.size() - 2) + 1);
    CHECK(contains(error(without_ff), "no token for the single byte 255"));
}

TEST_CASE("text/rank_file: every look-up answers as a map does, for tokens, their beginnings and strings beside them") {
    Random random(21);
    std::map<std::string, TokenId, std::less<>> map;
    std::vector<std::string> more;
    for (int byte = 0; byte < 256; ++byte) map.emplace(std::string(1, static_cast<char>(byte)), byte);
    while (more.size() < 4000) {  // two letters and two bytes, so that strings collide in all but their length
        std::string token;
        for (std::size_t n = 2 + random.below(random.below(2) ? 7 : 19); n > 0; --n)
            token += "ab\0\xFF"[random.below(4)];
        if (map.emplace(token, static_cast<TokenId>(256 + more.size())).second) more.push_back(token);
    }
    const RankFile file = RankFile::parse(rank_text(more), "f");
    const auto expected = [&](std::string_view text) {
        const auto at = map.find(text);
        return at == map.end() ? kNoToken : at->second;
    };
    std::size_t found = 0;
    for (int round = 0; round < 40'000; ++round) {
        std::string text = more[random.below(more.size())];
        if (random.below(2)) text[random.below(text.size())] = "ab\0\xFF"[random.below(4)];
        if (random.below(2)) text.resize(random.below(text.size() + 1));
        if (random.below(4) == 0) text += std::string(random.below(9), '\0');
        if (file.find(text) != expected(text)) FAIL_CHECK(text.size());
        found += expected(text) != kNoToken;
    }
    CHECK(found > 10'000);
    CHECK(found < 35'000);
    for (int pair = 0; pair < 65'536; ++pair) {
        const std::string text{static_cast<char>(pair >> 8), static_cast<char>(pair & 255)};
        if (file.find_pair(text[0], text[1]) != expected(text)) FAIL_CHECK(pair);
        if (file.find_byte(text[0]) != expected(text.substr(0, 1))) FAIL_CHECK(pair);
    }
}
