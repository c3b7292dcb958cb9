#include "k3/text/bpe.hpp"

#include <string>
#include <vector>

#include "support/doctest.hpp"
#include "text/data.hpp"

using namespace k3::test;
using k3::text::kNoToken;
using k3::text::Merger;
using k3::text::RankFile;

namespace {

Ids encode(const RankFile& ranks, std::string_view piece) {
    Merger merger;
    Ids ids;
    merger.encode(piece, ranks, ids);
    return ids;
}

std::string decode(const RankFile& ranks, const Ids& ids) {
    std::string bytes;
    for (const TokenId id : ids) bytes += ranks.bytes(id);
    return bytes;
}

/// The definition, as plainly as it can be written: quadratic.
Ids by_definition(const RankFile& ranks, std::string_view piece) {
    if (ranks.find(piece) != kNoToken) return {ranks.find(piece)};
    std::vector<std::string> parts;
    for (const char c : piece) parts.emplace_back(1, c);
    for (;;) {
        TokenId best = kNoToken;
        std::size_t where = 0;
        for (std::size_t i = 0; i + 1 < parts.size(); ++i) {
            const TokenId rank = ranks.find(parts[i] + parts[i + 1]);
            if (rank != kNoToken && (best == kNoToken || rank < best)) {
                best = rank;
                where = i;
            }
        }
        if (best == kNoToken) break;
        parts[where] += parts[where + 1];
        parts.erase(parts.begin() + static_cast<std::ptrdiff_t>(where) + 1);
    }
    Ids ids;
    for (const std::string& part : parts) ids.push_back(ranks.find(part));
    return ids;
}

}  // namespace

TEST_CASE("text/bpe: lowest rank first, leftmost on ties, whole pieces at once (trap 65: a merges list)") {
    // 256 ab, 257 bc, 258 aa, 259 abc, 260 unreachable by merges
    const RankFile ranks = RankFile::parse(rank_text({"ab", "bc", "aa", "abc", "xyz"}), "f");
    CHECK(encode(ranks, "a") == Ids{'a'});
    CHECK(encode(ranks, "abc") == Ids{259});
    CHECK(encode(ranks, "abcd") == Ids{259, 'd'});
    CHECK(encode(ranks, "abd") == Ids{256, 'd'});
    CHECK(encode(ranks, "aaab") == Ids{258, 256});  // ab before aa
    CHECK(encode(ranks, "aaa") == Ids{258, 'a'});   // leftmost (kills: rightmost on ties)
    CHECK(encode(ranks, "aaaaa") == Ids{258, 258, 'a'});
    CHECK(encode(ranks, "xyz") == Ids{260});  // a token although no pair inside it is one (kills: merges only)
    CHECK(encode(ranks, "xyzx") == Ids{'x', 'y', 'z', 'x'});
    CHECK(encode(ranks, std::string("\0\xFF", 2)) == Ids{0, 255});
}

TEST_CASE("text/bpe: equals the quadratic definition on random pieces, for sparse and dense rank sets") {
    Random random(1);
    const std::string path = path_of("demo/model/tiktoken.model");
    std::vector<RankFile> sets;
    sets.push_back(RankFile::parse(k3::io::File::read_text(path), path));
    for (std::size_t tokens : {10, 60, 400}) {
        std::vector<std::string> more;
        while (more.size() < tokens) {
            std::string token;
            for (std::size_t n = 2 + random.below(5); n > 0; --n) token += "abc"[random.below(3)];
            if (std::find(more.begin(), more.end(), token) == more.end()) more.push_back(token);
            if (more.size() >= 350) break;  // few short strings are left
        }
        sets.push_back(RankFile::parse(rank_text(more), "random"));
    }
    for (const RankFile& ranks : sets) {
        for (int round = 0; round < 1500; ++round) {
            std::string piece;
            const std::string_view letters = round % 2 == 0 ? "abc" : " theandofin\xE4\xB8";
            for (std::size_t n = 1 + random.below(40); n > 0; --n) piece += letters[random.below(letters.size())];
            if (encode(ranks, piece) != by_definition(ranks, piece)) FAIL_CHECK(piece);
        }
    }
}

TEST_CASE(
    "text/bpe: pieces of 1 MiB finish and round-trip (kills: recursion, a scan for the best pair after each merge)") {
    const std::string path = path_of("demo/model/tiktoken.model");
    const RankFile ranks = RankFile::parse(k3::io::File::read_text(path), path);
    Random random(2);
    std::string letters;
    for (std::size_t i = 0; i < (1u << 20); ++i) letters += static_cast<char>('a' + random.below(26));
    const RankFile doubling =
        RankFile::parse(rank_text({"aa", "aaaa", repeat("a", 8), repeat("a", 16), repeat("a", 32)}), "f");
    for (const std::string& piece :
         {repeat("a", 1u << 20), repeat("^", 1u << 20), repeat(" ", 1u << 20), repeat("\n", 1u << 20),
          repeat("世", (1u << 20) / 3), repeat("🙂", 1u << 18), letters}) {
        CHECK(decode(ranks, encode(ranks, piece)) == piece);
        CHECK(decode(doubling, encode(doubling, piece)) == piece);
    }
    CHECK(encode(doubling, repeat("a", 1u << 20)).size() == (1u << 15));
}
