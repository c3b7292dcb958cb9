#include "k3/checkpoint/shard_index.hpp"

#include <unistd.h>

#include <array>
#include <filesystem>
#include <fstream>

#include "k3/checkpoint/tensor_reader.hpp"
#include "support/doctest.hpp"
#include "support/mini_checkpoint.hpp"

using namespace k3::checkpoint;
using namespace k3::tests;

namespace {

std::string expert(unsigned layer, unsigned e, const char* tail) {
    return "language_model.model.layers." + std::to_string(layer) + ".block_sparse_moe.experts." + std::to_string(e) +
           "." + tail;
}

/// Three shards: two layers of experts out of order, and a norm.
void write_three(const TempFolder& folder) {
    std::vector<MiniTensor> first, second;
    for (const unsigned e : {0u, 10u, 2u}) {  // as text sorts them, more or less
        first.push_back({expert(3, e, "w1.weight_packed"), "U8", {4, 2}});
        first.push_back({expert(3, e, "w1.weight_scale"), "U8", {4, 1}});
        second.push_back({expert(1, e, "w2.weight"), "BF16", {3, 5}});
    }
    second.push_back({expert(1, 5, "w2.weight"), "F32", {2}});  // not a matrix: kept by name
    folder.write(shard_name(1, 3), shard_of(first));
    folder.write(shard_name(2, 3), shard_of(second));
    folder.write(
        shard_name(3, 3),
        shard_of({{"language_model.model.norm.weight", "F32", {2}, std::string("\0\0\x80\x3f\0\0\0\x40", 8)}}));
}

std::string refused(const TempFolder& folder, unsigned threads = 2) {
    return refusal([&] { ShardIndex::open(folder.path(), threads); });
}

std::string listing(const ShardIndex& index) {
    std::string text;
    index.for_each([&](std::string_view name, const TensorInfo& info) {
        text += std::to_string(info.shard) + " " + std::to_string(info.offset) + " " + std::string(name) + " " +
                std::string(k3::checkpoint::name(info.dtype)) + " " + to_string(info.shape) + "\n";
    });
    return text;
}

}  // namespace

TEST_CASE("checkpoint/shard_index: every tensor is found by name, experts also by coordinates") {
    const TempFolder folder;
    write_three(folder);
    const ShardIndex index = ShardIndex::open(folder.path(), 2);
    CHECK(index.size() == 11);
    CHECK(index.shards().size() == 3);
    CHECK(index.payload_bytes() == 3 * (8 + 4) + 3 * 30 + 8 + 8);
    std::size_t count = 0;
    index.for_each([&](std::string_view name, const TensorInfo& info) {
        const auto found = index.find(name);
        REQUIRE(found.has_value());
        CHECK(found->offset == info.offset);
        CHECK(found->shard == info.shard);
        ++count;
    });
    CHECK(count == 11);
    const auto packed = index.expert(3, 10, ExpertMatrix::gate, ExpertPart::packed);
    REQUIRE(packed.has_value());
    CHECK(packed->shape == Shape{4, 2});
    CHECK(packed->offset == index.shards()[0].data_begin + 12);  // the second in the file, whatever its number
    CHECK(index.expert(1, 5, ExpertMatrix::down, ExpertPart::plain)->shape == Shape{2});
    CHECK(!index.expert(1, 5, ExpertMatrix::down, ExpertPart::packed));
    CHECK(!index.expert(3, 3, ExpertMatrix::gate, ExpertPart::packed));
    CHECK(!index.find("language_model.model.norm"));
}

TEST_CASE("checkpoint/shard_index: the result does not depend on the number of threads") {
    const TempFolder folder;
    write_three(folder);
    const std::string one = listing(ShardIndex::open(folder.path(), 1));
    for (const unsigned threads : {0u, 2u, 3u, 64u}) CHECK(listing(ShardIndex::open(folder.path(), threads)) == one);
}

TEST_CASE("checkpoint/tensor_reader: trap 51, offsets: bytes are read from anywhere inside a tensor and nowhere else") {
    const TempFolder folder;
    write_three(folder);
    const ShardIndex index = ShardIndex::open(folder.path(), 2);
    const TensorInfo norm = *index.find("language_model.model.norm.weight");
    const auto bytes = read_tensor(index, norm);
    REQUIRE(bytes.size() == 8);
    CHECK(bytes[3] == std::byte{0x3f});
    std::byte last{};
    read_tensor(index, norm, 7, {&last, 1});
    CHECK(last == std::byte{0x40});
    CHECK(!refusal([&] { read_tensor(index, norm, 8, {&last, 1}); }).empty());
    CHECK(!refusal([&] { read_tensor(index, norm, ~std::uint64_t{0}, {&last, 1}); }).empty());
}

TEST_CASE("checkpoint/tensor_reader: the end of a tensor of 2.5 GiB is read exactly") {
    const TempFolder folder;
    const std::uint64_t bytes = 5ull << 29;
    const std::string header =
        "{" + entry("big", "BF16", "[" + std::to_string(bytes / 2) + "]", "[0," + std::to_string(bytes) + "]") + "}";
    const std::string path = folder.write("model.safetensors", shard_bytes(header, 0));
    REQUIRE(::truncate(path.c_str(), static_cast<off_t>(8 + header.size() + bytes)) == 0);  // a hole
    {
        std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
        file.seekp(static_cast<std::streamoff>(8 + header.size() + bytes - 3));
        file << "end";
    }
    const ShardIndex index = ShardIndex::open(folder.path(), 1);
    std::array<char, 5> tail{};
    read_tensor(index, *index.find("big"), bytes - 5, std::as_writable_bytes(std::span(tail)));
    CHECK(std::string(tail.data(), 5) == std::string("\0\0end", 5));
}

TEST_CASE("checkpoint/shard_index: a folder without shards, or no folder, is refused") {
    const TempFolder folder;
    CHECK(holds(refused(folder), "holds no shard"));
    CHECK(holds(refusal([&] { ShardIndex::open(folder / "nowhere", 1); }), "cannot be listed"));
    folder.write("model.safetensors", shard_of({{"a", "U8", {1}}}));
    CHECK(refused(folder) == "");
    CHECK(holds(refusal([&] { ShardIndex::open(folder / "model.safetensors", 1); }), "cannot be listed"));
}

TEST_CASE("checkpoint/shard_index: all bad shards are listed in one line, in one order") {
    const TempFolder folder;
    write_three(folder);
    const std::string bytes = k3::io::File::read_text(folder / shard_name(1, 3));
    folder.write(shard_name(1, 3), bytes.substr(0, bytes.size() - 5));
    folder.write(shard_name(3, 3), "");
    const std::string line = refused(folder, 1);
    CHECK(holds(line, "2 problems"));
    const std::size_t first = line.find(shard_name(1, 3) + ": is truncated"),
                      third = line.find(shard_name(3, 3) + ": is empty");
    CHECK(first != std::string::npos);
    CHECK(third != std::string::npos);
    CHECK(first < third);
    for (const unsigned threads : {2u, 3u, 8u}) CHECK(refused(folder, threads) == line);
}

TEST_CASE("checkpoint/shard_index: sizes that are wrong in two shards and right in the sum are noticed") {
    const TempFolder folder;
    folder.write(shard_name(1, 2), shard_of({{"a", "U8", {16}}}) + "xx");
    const std::string second = shard_of({{"b", "U8", {16}}});
    folder.write(shard_name(2, 2), second.substr(0, second.size() - 2));
    const std::string line = refused(folder);
    CHECK(holds(line, shard_name(1, 2)));
    CHECK(holds(line, shard_name(2, 2)));
}

TEST_CASE("checkpoint/shard_index: a directory, a dangling link and a missing shard are refused by name") {
    const TempFolder folder;
    write_three(folder);
    std::filesystem::remove(folder / shard_name(2, 3));
    CHECK(holds(refused(folder), "1 of 3 shards are missing: " + shard_name(2, 3)));
    std::filesystem::create_directory(folder / shard_name(2, 3));
    CHECK(holds(refused(folder), "is a directory"));
    std::filesystem::remove(folder / shard_name(2, 3));
    std::filesystem::create_symlink("nothing", folder / shard_name(2, 3));
    CHECK(holds(refused(folder), "cannot be opened"));
}

TEST_CASE("checkpoint/shard_index: shards of two sets and numbers out of range are refused") {
    const TempFolder folder;
    write_three(folder);
    folder.write(shard_name(1, 2), shard_of({{"x", "U8", {1}}}));
    CHECK(holds(refused(folder), "shards of different sets"));
    std::filesystem::remove(folder / shard_name(1, 2));
    folder.write(shard_name(4, 3), shard_of({{"x", "U8", {1}}}));
    CHECK(holds(refused(folder), "outside 1..3"));
}

TEST_CASE("checkpoint/shard_index: a tensor in two shards is refused with both names, by name or by coordinates") {
    for (const std::string& name : {std::string("norm"), expert(3, 0, "w1.weight_packed")}) {
        for (const bool second_is_matrix : {true, false}) {
            const TempFolder folder;
            folder.write(shard_name(1, 2), shard_of({{name, "U8", {4, 2}}}));
            folder.write(shard_name(2, 2),
                         shard_of({second_is_matrix ? MiniTensor{name, "U8", {2, 2}} : MiniTensor{name, "U8", {5}}}));
            const std::string line = refused(folder);
            CHECK_MESSAGE(holds(line, name + " in " + shard_name(1, 2) + " and " + shard_name(2, 2)), line);
        }
    }
}

TEST_CASE("checkpoint/shard_index: model.safetensors.index.json is checked where it is there") {
    const TempFolder folder;
    write_three(folder);
    const auto with = [&](const std::string& text) {
        folder.write("model.safetensors.index.json", text);
        return refused(folder);
    };
    const std::string e = "\"" + expert(3, 0, "w1.weight_packed") + "\":\"",
                      norm = "\"language_model.model.norm.weight\":\"";
    const std::string s1 = shard_name(1, 3) + "\"", s2 = shard_name(2, 3) + "\"", s3 = shard_name(3, 3) + "\"";
    const std::string w2 = "\"" + expert(1, 2, "w2.weight") + "\":\"";
    CHECK(with("{\"weight_map\":{" + e + s1 + "," + w2 + s2 + "," + norm + s3 + "}}") == "");
    CHECK(holds(with("{\"weight_map\":{" + e + s3 + "," + w2 + s2 + "," + norm + s3 + "," + "\"z\":\"" + s1 + "}}"),
                expert(3, 0, "w1.weight_packed") + " (" + shard_name(3, 3) + "), z (" + shard_name(1, 3) + ")"));
    CHECK(holds(with("{\"weight_map\":{" + e + s1 + "," + norm + s3 + "}}"),
                "does not name these shards: " + shard_name(2, 3)));
    CHECK(holds(with("{\"weight_map\":{" + e + s1 + "," + norm + "model-x.safetensors\",\"q\":\"../y\"}}"),
                "names shards that are not there: ../y, model-x.safetensors"));
    CHECK(holds(with("{\"weight_map\":"), "not valid JSON"));
    CHECK(holds(with("{}"), "no object weight_map"));
    CHECK(holds(with("[]"), "no object weight_map"));
    CHECK(holds(with("{\"weight_map\":{\"a\":1}}"), "other than file names"));
}

TEST_CASE("checkpoint/shard_index: the golden and demo checkpoints are indexed in full") {
    const std::string tests = std::string(K3_SOURCE_DIR) + "/tests/";
    const auto count = [&](const std::string& dir) { return ShardIndex::open(tests + dir, 2).size(); };
    CHECK(count("golden/A/model") == 919);
    CHECK(count("golden/B/model") == 567);
    CHECK(count("golden/F/model") == 775);
    CHECK(count("demo/model") == 1386);
}

TEST_CASE("checkpoint/shard_index: the checksum is of names, types and shapes, not of where tensors lie") {
    const std::vector<MiniTensor> tensors = {{expert(3, 0, "w1.weight_packed"), "U8", {2, 4}},
                                             {expert(3, 0, "w1.weight_scale"), "U8", {2, 1}},
                                             {"a.weight", "BF16", {6, 2}},
                                             {"b.weight", "F32", {3}}};
    const auto sum = [](const std::vector<std::vector<MiniTensor>>& shards) {
        const TempFolder folder;
        for (unsigned i = 0; i < shards.size(); ++i)
            folder.write(shard_name(i + 1, static_cast<unsigned>(shards.size())), shard_of(shards[i]));
        return ShardIndex::open(folder.path(), 2).checksum();
    };
    const std::uint64_t want = sum({tensors});
    CHECK(sum({{tensors[3], tensors[1]}, {tensors[2]}, {tensors[0]}}) == want);
    const auto with = [&](std::size_t i, MiniTensor other) {
        std::vector<MiniTensor> changed = tensors;
        changed[i] = std::move(other);
        return sum({changed});
    };
    CHECK(with(2, {"a.weight", "BF16", {6, 2}, std::string(24, 'x')}) == want);  // values are not in it
    CHECK(with(0, {expert(3, 0, "w1.weight_packed"), "U8", {4, 2}}) != want);
    CHECK(with(0, {expert(3, 0, "w1.weight_packed"), "I8", {2, 4}}) != want);
    CHECK(with(0, {expert(3, 1, "w1.weight_packed"), "U8", {2, 4}}) != want);
    CHECK(with(0, {expert(3, 0, "w2.weight_packed"), "U8", {2, 4}}) != want);
    CHECK(with(2, {"a.weight", "BF16", {2, 6}}) != want);
    CHECK(with(2, {"a.weight", "BF16", {12}}) != want);
    CHECK(with(2, {"a.weight", "F32", {3, 2}}) != want);
    CHECK(with(2, {"a.weighs", "BF16", {6, 2}}) != want);
    CHECK(sum({{tensors[0], tensors[1], tensors[2]}}) != want);
    // Part of the format of state files: a change of it is a new version of that.
    CHECK(ShardIndex::open(std::string(K3_SOURCE_DIR) + "/tests/golden/A/model", 1).checksum() == 0xf68fc307823bf15aU);
}
