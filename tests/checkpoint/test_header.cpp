#include <sys/stat.h>

#include "k3/checkpoint/header.hpp"
#include "support/doctest.hpp"
#include "support/mini_checkpoint.hpp"

using namespace k3::checkpoint;
using namespace k3::tests;

namespace {

/// The refusal of a shard with these bytes, or "" if it is read.
std::string refused(const std::string& bytes) {
    const TempFolder folder;
    const std::string path = folder.write("model.safetensors", bytes);
    const std::string line = refusal([&] {
        const auto file = k3::io::File::open(path);
        HeaderReader().read(file, 0);
    });
    if (!line.empty()) CHECK_MESSAGE(holds(line, path), line);
    return line;
}
std::string refused(const std::string& header, std::size_t data) { return refused(shard_bytes(header, data)); }
std::string braces(const std::string& inside) { return "{" + inside + "}"; }

}  // namespace

TEST_CASE("checkpoint/header: key order, escapes, metadata and trailing spaces do not matter") {
    const TempFolder folder;
    const std::string header =
        R"({"b\u0061c":{"data_offsets":[4,8],"shape":[2],"dtype":"BF16"},"__metadata__":{"k":"v"},)"
        R"("\"q\"":{"shape":[],"dtype":"F32","data_offsets":[0,4],"later":{"x":[1]}}}      )";
    const auto file = k3::io::File::open(folder.write("model.safetensors", shard_bytes(header, 4 + 4)));
    HeaderReader reader;
    const auto tensors = reader.read(file, 7);
    REQUIRE(tensors.size() == 2);
    CHECK(tensors[0].name == "\"q\"");
    CHECK(tensors[0].info.shape == Shape{});
    CHECK(tensors[0].info.bytes == 4);
    CHECK(tensors[0].info.offset == 8 + header.size());
    CHECK(tensors[1].name == "bac");
    CHECK(tensors[1].info.shard == 7);
    CHECK(tensors[1].info.offset == 8 + header.size() + 4);
    CHECK(reader.data_begin() == 8 + header.size());
}

TEST_CASE("checkpoint/header: tensors of no bytes are legal, also at the very end") {
    CHECK(refused(braces(entry("a", "F32", "[0]", "[0,0]") + "," + entry("b", "F32", "[1]", "[0,4]") + "," +
                         entry("c", "F32", "[2,0]", "[4,4]") + "," + entry("d", "U8", "[]", "[4,5]") + "," +
                         entry("e", "U8", "[9007199254740993,4294967296,0]", "[5,5]")),
                  5) == "");
    CHECK(refused("{}", 0) == "");
}

TEST_CASE("checkpoint/header: a length field that lies is refused before anything is allocated") {
    const std::string header = braces(entry("a", "U8", "[16]", "[0,16]"));
    const std::uint64_t size = 8 + header.size() + 16;
    for (const std::uint64_t length :
         {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{7}, size - 8, size - 7, size, std::uint64_t{1} << 31,
          (std::uint64_t{1} << 32) - 1, (std::uint64_t{1} << 63) - 1, ~std::uint64_t{0} - 7, ~std::uint64_t{0}}) {
        const std::string line = refused(shard_bytes(header, 16, length));
        CHECK_MESSAGE(!line.empty(), length);
    }
    for (std::size_t bytes = 1; bytes < 8; ++bytes) CHECK(holds(refused(std::string(bytes, 'x')), "fewer than 8"));
    CHECK(holds(refused(shard_bytes("", 0, 0)), "too short for a JSON object"));
    CHECK(holds(refused(shard_bytes("[]", 0)), "does not begin with '{'"));
}

TEST_CASE("checkpoint/header: trap 54, a cut download: it is named with the size it has and the size it should have") {
    const std::string header = braces(entry("a", "U8", "[16]", "[0,16]") + "," + entry("b", "F32", "[2]", "[16,24]"));
    const std::string whole = shard_bytes(header, 24);
    const std::string size = std::to_string(whole.size());
    for (const std::size_t cut : {1, 8, 9, 24}) {
        const std::string line = refused(whole.substr(0, whole.size() - cut));
        CHECK_MESSAGE(holds(line, "truncated"), line);
        CHECK_MESSAGE(holds(line, "has " + std::to_string(whole.size() - cut) + " bytes"), line);
        CHECK_MESSAGE(holds(line, "describes " + size), line);
    }
    CHECK(holds(refused(whole.substr(0, 20)), "truncated inside its header"));
    const std::string line = refused(whole + "xyz");
    CHECK_MESSAGE(holds(line, "bytes after its last tensor"), line);
    CHECK_MESSAGE(holds(line, "describes " + size), line);
}

TEST_CASE("checkpoint/header: what is no safetensors file is told apart") {
    CHECK(holds(refused(""), "is empty"));
    CHECK(
        holds(refused("version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n"), "Git LFS pointer"));
    CHECK(holds(refused("<!DOCTYPE html><html><body>404</body></html>"), "HTML"));
    CHECK(holds(refused(std::string("PK\x03\x04", 4) + std::string(60, 'z')), "zip archive"));
    CHECK(holds(refused("\x80\x02}q\x01(X"
                        "zzzzzzzzzzzzzzzz"),
                "pickle"));
    CHECK(holds(refused("GGUF" + std::string(40, '\x7f')), "GGUF"));
    CHECK(holds(refused("{\"error\": \"not found\"}"), "JSON text"));
    CHECK(holds(refused(std::string(100, '\xfe')), "not a safetensors file"));
    const TempFolder folder;
    CHECK(::mkfifo((folder / "model.safetensors").c_str(), 0600) == 0);  // must not block
    CHECK(holds(refusal([&] { k3::io::File::open(folder / "model.safetensors"); }), "not a regular file"));
}

TEST_CASE("checkpoint/header: malformed JSON and malformed entries are refused by name") {
    CHECK(holds(refused("{\"a\":", 0), "not valid JSON"));
    CHECK(holds(refused("{} x", 0), "not valid JSON"));
    CHECK(holds(refused("{\"a\xff\":1}", 0), "not valid JSON"));
    CHECK(holds(refused("{\"a\":1}", 0), "tensor a: its entry is not an object"));
    CHECK(holds(refused("{\"__metadata__\":1}", 0), "__metadata__ is not an object"));
    CHECK(holds(refused(R"({"__metadata__":{},"__metadata__":{}})", 0), "__metadata__ is given twice"));
    CHECK(holds(refused(R"({"a":{"shape":[1],"data_offsets":[0,1]}})", 1), "dtype is missing"));
    CHECK(holds(refused(R"({"a":{"dtype":"U8","data_offsets":[0,1]}})", 1), "shape is missing"));
    CHECK(holds(refused(R"({"a":{"dtype":"U8","shape":[1]}})", 1), "data_offsets is missing"));
    CHECK(holds(refused(R"({"a":{"dtype":"U8","dtype":"U8","shape":[1],"data_offsets":[0,1]}})", 1),
                "dtype is given twice"));
    CHECK(holds(refused(braces(entry("a", "Q4_K", "[1]", "[0,1]")), 1), "dtype \"Q4_K\" is unknown"));
    CHECK(holds(refused(R"({"a":{"dtype":8,"shape":[1],"data_offsets":[0,1]}})", 1), "dtype is not a string"));
    CHECK(holds(refused(braces(entry("a", "U8", "1", "[0,1]")), 1), "shape is not a list"));
    CHECK(holds(refused(braces(entry("a", "U8", "[-1]", "[0,1]")), 1), "shape holds"));
    CHECK(holds(refused(braces(entry("a", "U8", "[1.0]", "[0,1]")), 1), "shape holds"));
    CHECK(holds(refused(braces(entry("a\\nb", "U8", "[2]", "[0,1]")), 1), "tensor a?b"));  // stays one line
}

TEST_CASE("checkpoint/header: shapes that do not fit the bytes are refused, whatever a wrapped product says") {
    CHECK(holds(refused(braces(entry("a", "BF16", "[4294967296,4294967296]", "[0,0]")), 0), "no valid size"));
    CHECK(holds(refused(braces(entry("a", "BF16", "[9223372036854775808,2]", "[0,0]")), 0), "no valid size"));
    CHECK(holds(refused(braces(entry("a", "BF16", "[9223372036854775809]", "[0,2]")), 2), "no valid size"));
    CHECK(holds(refused(braces(entry("a", "F4", "[3]", "[0,1]")), 1), "no valid size"));
    CHECK(holds(refused(braces(entry("a", "BF16", "[8]", "[0,4]")), 4), "needs 16 bytes"));
    CHECK(holds(refused(braces(entry("a", "BF16", "[8]", "[0,64]")), 64), "needs 16 bytes"));
    CHECK(refused(braces(entry("a", "U8", "[1,1,1,1,1,1,1,1]", "[0,1]")), 1) == "");
    CHECK(holds(refused(braces(entry("a", "U8", "[1,1,1,1,1,1,1,1,1]", "[0,1]")), 1), "more than 8 dimensions"));
}

TEST_CASE(
    "checkpoint/header: spans that are reversed, negative, fractional, overlapping, apart or too far are refused") {
    for (const char* offsets : {"[-8,8]", "[0.5,16]", "[0.0,16]", "[\"0\",\"16\"]", "[0]", "[0,16,32]", "[]", "{}",
                                "null", "[16,0]", "[0,17]", "[0,18446744073709551615]", "[18446744073709551615,16]",
                                "[0,184467440737095516150]", "[true,16]"}) {
        CHECK_MESSAGE(!refused(braces(entry("a", "U8", "[16]", offsets)), 16).empty(), offsets);
    }
    const std::string a = entry("a", "U8", "[16]", "[0,16]");
    CHECK(holds(refused(braces(a + "," + entry("b", "U8", "[16]", "[8,24]")), 24),
                "tensor b: overlaps by 8 bytes with a"));
    CHECK(holds(refused(braces(a + "," + entry("b", "U8", "[16]", "[0,16]")), 16), "overlaps by 16 bytes"));
    CHECK(holds(refused(braces(a + "," + entry("b", "U8", "[4]", "[4112,4116]")), 4116), "a gap of 4096 bytes"));
    CHECK(holds(refused(braces(entry("a", "U8", "[16]", "[4,20]")), 20), "a gap of 4 bytes"));
    CHECK(holds(refused(braces(entry("a", "U8", "[17]", "[0,17]")), 16), "truncated"));
    // Consistent, and near 2^64: the end of the file would wrap.
    CHECK(holds(refused(braces(entry("a", "U8", "[18446744073709551615]", "[0,18446744073709551615]")), 16),
                "more than 2^64"));
}

TEST_CASE("checkpoint/header: a name that is there twice is refused, also when escaped differently") {
    CHECK(holds(refused(braces(entry("a", "U8", "[2]", "[0,2]") + "," + entry("a", "U8", "[2]", "[2,4]")), 4),
                "tensor a: is listed twice"));
    CHECK(holds(refused(braces(entry("a", "U8", "[2]", "[0,2]") + "," + entry("\\u0061", "U8", "[2]", "[2,4]")), 4),
                "tensor a: is listed twice"));
}

TEST_CASE("checkpoint/header: one reader serves many files, long after short and short after long") {
    const TempFolder folder;
    std::vector<MiniTensor> many;
    for (int i = 0; i < 3000; ++i) many.push_back({"tensor." + std::to_string(i), "U8", {1}});
    const auto large = k3::io::File::open(folder.write("large", shard_of(many)));
    const auto small = k3::io::File::open(folder.write("small", shard_of({{"only", "F32", {2}}})));
    HeaderReader reader;
    CHECK(reader.read(small, 0).size() == 1);
    CHECK(reader.read(large, 0).size() == 3000);
    const auto tensors = reader.read(small, 0);
    REQUIRE(tensors.size() == 1);
    CHECK(tensors[0].name == "only");
}
