#include "k3/stream/packed_trunk.hpp"

#include <nlohmann/json.hpp>

#include "support/doctest.hpp"
#include "support/mini_checkpoint.hpp"

using namespace k3;
using namespace k3::tests;
using stream::PackedTrunk;
using Json = nlohmann::ordered_json;

namespace {

const std::string kNorm = "language_model.model.layers.0.input_layernorm.weight";
const std::string kLog = "language_model.model.layers.1.self_attn.A_log";

/// Two runs of 4096 and 8192 bytes with one tensor each.
Json description() {
    return Json::parse(R"({"n_layers": 2, "align": 4096, "layers": [
        {"layer": 0, "file_off": 0, "nbytes": 4096, "tensors": {
            "language_model.model.layers.0.input_layernorm.weight":
                {"off": 64, "nbytes": 128, "dtype": "BF16", "shape": [64]}}},
        {"layer": 1, "file_off": 4096, "nbytes": 8192, "tensors": {
            "language_model.model.layers.1.self_attn.A_log":
                {"off": 8128, "nbytes": 64, "dtype": "F32", "shape": [16]}}}]})");
}
Json& norm(Json& root) { return root["layers"][0]["tensors"][kNorm]; }

struct Rig {
    TempFolder folder;
    Rig() { folder.write("trunk.bin", std::string(12288, 'x')); }
    PackedTrunk open(const Json& root) const { return open_text(root.dump()); }
    PackedTrunk open_text(const std::string& text) const {
        folder.write("trunk.json", text);
        return PackedTrunk::open(folder.path());
    }
    template <class Change>
    std::string refused(const Change& change) const {
        Json root = description();
        change(root);
        return refusal([&] { open(root); });
    }
};

void check_line(const std::string& line, const std::vector<std::string>& parts) {
    CAPTURE(line);
    CHECK(holds(line, "trunk.json"));
    CHECK(holds(line, "; pack the trunk again with k3-pack"));
    for (const std::string& part : parts) CHECK(holds(line, part));
}

}  // namespace

TEST_CASE("stream/packed_trunk: a tensor is found at run plus offset, with what trunk.json says of it") {
    const Rig rig;
    const PackedTrunk trunk = rig.open(description());
    CHECK(trunk.size() == 2);
    REQUIRE(trunk.runs().size() == 2);
    CHECK(trunk.runs()[1].offset == 4096);
    CHECK(trunk.runs()[1].bytes == 8192);
    CHECK(trunk.is_direct());
    CHECK(trunk.file().size() == 12288);
    const auto log = trunk.find(kLog);  // its last byte is the file's
    REQUIRE(log);
    CHECK(log->offset == 4096 + 8128);
    CHECK(log->bytes == 64);
    CHECK(log->dtype == checkpoint::Dtype::f32);
    CHECK(log->shape == checkpoint::Shape{16});
    CHECK(trunk.find(kNorm)->offset == 64);
    CHECK_FALSE(trunk.find(kNorm.substr(1)));
    CHECK_FALSE(trunk.find(kNorm + "x"));
    CHECK_FALSE(trunk.find(""));
}

TEST_CASE("stream/packed_trunk: what other writers leave out or add is no obstacle") {
    const Rig rig;
    Json root = description();
    root.erase("n_layers");
    root.erase("align");
    root["packer"] = {{"version", "1.0"}, {"off", -3}};
    root["layers"][0].erase("layer");
    root["layers"][0]["kind"] = "kda";
    root["layers"][1]["layer"] = 77;
    norm(root).erase("shape");
    norm(root)["crc"] = 1.5;
    const PackedTrunk trunk = rig.open(root);
    CHECK(trunk.size() == 2);
    CHECK_FALSE(trunk.find(kNorm)->shape);
    CHECK(trunk.find(kLog)->shape);
    norm(root)["shape"] = nullptr;
    CHECK_FALSE(rig.open(root).find(kNorm)->shape);
    for (const char* dtype : {"F16", "BF16"}) {
        norm(root)["dtype"] = dtype;
        CHECK(rig.refused([&](Json& same) { same = root; }).empty());
    }
    root["layers"][0]["tensors"] = Json::object();  // a layer without tensors is a run nobody asks for
    CHECK(rig.open(root).size() == 1);
}

TEST_CASE("stream/packed_trunk: runs that are not on 4096 are said to be so, and no more") {
    const Rig rig;
    Json root = description();
    root["align"] = 64;
    root["layers"][1]["file_off"] = 4095;
    CHECK_FALSE(rig.open(root).is_direct());
    root = description();
    root["layers"][0]["nbytes"] = 200;
    CHECK_FALSE(rig.open(root).is_direct());
}

TEST_CASE("stream/packed_trunk: no layers, and what is no layer, is refused") {
    const Rig rig;
    check_line(rig.refused([](Json& r) { r.erase("layers"); }), {"no layers"});
    check_line(rig.refused([](Json& r) { r["layers"] = Json::array(); }), {"no layers"});
    check_line(rig.refused([](Json& r) { r["layers"] = Json::object(); }), {"no layers"});
    check_line(rig.refused([](Json& r) { r["layers"][1] = 3; }), {"layers[1]", "3"});
    check_line(rig.refused([](Json& r) { r["layers"][1].erase("tensors"); }), {"layers[1]", "tensors"});
    check_line(rig.refused([](Json& r) { r["layers"][1].erase("file_off"); }), {"layers[1]", "file_off"});
    check_line(rig.refused([](Json& r) { r["layers"][1].erase("nbytes"); }), {"layers[1]", "nbytes"});
    check_line(refusal([&] { rig.open_text("{\"layers\": ["); }), {"not JSON"});
    check_line(refusal([&] { rig.open_text("[]"); }), {"not a JSON object"});
    check_line(refusal([&] { rig.open_text(R"({"layers": [], "layers": []})"); }), {"twice"});
}

TEST_CASE("stream/packed_trunk: negative, fractional and overflowing numbers are refused") {
    const Rig rig;
    for (const Json& bad : {Json(-1), Json(0.5), Json(1e300), Json("0"), Json(nullptr), Json(true), Json::array()}) {
        CAPTURE(bad.dump());
        check_line(rig.refused([&](Json& r) { r["layers"][0]["file_off"] = bad; }), {"layers[0]", "file_off"});
        check_line(rig.refused([&](Json& r) { r["layers"][0]["nbytes"] = bad; }), {"layers[0]", "nbytes"});
        check_line(rig.refused([&](Json& r) { norm(r)["off"] = bad; }), {kNorm, "off"});
        check_line(rig.refused([&](Json& r) { norm(r)["nbytes"] = bad; }), {kNorm, "nbytes"});
    }
    std::string text = description().dump();
    text.replace(text.find("\"off\":64"), 8, "\"off\":18446744073709551616");
    check_line(refusal([&] { rig.open_text(text); }), {kNorm, "off"});
    // Sums that would wrap.
    static constexpr std::uint64_t kMost = ~std::uint64_t{0};
    check_line(rig.refused([](Json& r) { r["layers"][0]["file_off"] = kMost; }), {"layers[0]", "leaves trunk.bin"});
    check_line(rig.refused([](Json& r) { r["layers"][1]["nbytes"] = kMost - 4095; }),
               {"layers[1]", "leaves trunk.bin"});
    check_line(rig.refused([](Json& r) { norm(r)["off"] = kMost; }), {kNorm, "leaves its run"});
    check_line(rig.refused([](Json& r) { norm(r)["nbytes"] = kMost - 63; }), {kNorm, "leaves its run", "offset 64"});
}

TEST_CASE("stream/packed_trunk: a tensor that leaves its run by a byte is refused, also where the file goes on") {
    const Rig rig;
    const auto no_shape = [](Json& r) -> Json& {
        norm(r).erase("shape");
        return norm(r);
    };
    CHECK(rig.refused([&](Json& r) { no_shape(r)["off"] = 4096 - 128; }).empty());
    check_line(rig.refused([&](Json& r) { no_shape(r)["off"] = 4096 - 127; }), {kNorm, "leaves its run", "3969"});
    check_line(rig.refused([&](Json& r) { no_shape(r)["nbytes"] = 4096 - 63; }), {kNorm, "leaves its run"});
}

TEST_CASE("stream/packed_trunk: a run that leaves the file by a byte is refused") {
    const Rig rig;
    check_line(rig.refused([](Json& r) { r["layers"][1]["nbytes"] = 8193; }), {"layers[1]", "12288"});
    check_line(rig.refused([](Json& r) { r["layers"][1]["file_off"] = 4097; }), {"layers[1]", "12288"});
    rig.folder.write("trunk.bin", std::string(12287, 'x'));
    check_line(rig.refused([](Json&) {}), {"layers[1]", "leaves trunk.bin", "12287"});
}

TEST_CASE("stream/packed_trunk: unknown dtypes are refused, and draft trunks as what they are") {
    const Rig rig;
    check_line(rig.refused([](Json& r) { norm(r)["dtype"] = "BF17"; }), {kNorm, "BF17", "offset 64"});
    check_line(rig.refused([](Json& r) { norm(r)["dtype"] = "bf16"; }), {kNorm, "bf16"});
    check_line(rig.refused([](Json& r) { norm(r).erase("dtype"); }), {kNorm, "dtype"});
    check_line(rig.refused([](Json& r) { norm(r)["dtype"] = 7; }), {kNorm, "dtype"});
    const std::string draft = rig.refused([](Json& r) { norm(r)["dtype"] = "I8R"; });
    for (const char* part : {"trunk.json", "I8R", "draft", "not the weights", "--trunk"}) CHECK(holds(draft, part));
}

TEST_CASE("stream/packed_trunk: a shape that is given must make the bytes") {
    const Rig rig;
    check_line(rig.refused([](Json& r) { norm(r)["shape"] = {63}; }), {kNorm, "128 bytes", "[63]"});
    check_line(rig.refused([](Json& r) { norm(r)["shape"] = {std::uint64_t{1} << 63, 2, 64}; }), {kNorm, "128 bytes"});
    check_line(rig.refused([](Json& r) { norm(r)["shape"] = {-64}; }), {kNorm, "-64"});
    check_line(rig.refused([](Json& r) { norm(r)["shape"] = 64; }), {kNorm, "not a list"});
    check_line(rig.refused([](Json& r) { norm(r)["shape"] = {1, 1, 1, 1, 1, 1, 1, 1, 64}; }), {kNorm, "dimensions"});
    check_line(rig.refused([](Json& r) { norm(r) = 5; }), {kNorm, "not an object"});
}

TEST_CASE("stream/packed_trunk: a tensor of two layers is refused") {
    const Rig rig;
    check_line(rig.refused([](Json& r) { r["layers"][1]["tensors"][kNorm] = norm(r); }), {kNorm, "twice"});
}

TEST_CASE("stream/packed_trunk: missing files are named") {
    const TempFolder folder;
    CHECK(holds(refusal([&] { PackedTrunk::open(folder.path()); }), "trunk.json: cannot be opened"));
    folder.write("trunk.json", description().dump());
    CHECK(holds(refusal([&] { PackedTrunk::open(folder.path()); }), "trunk.bin: cannot be opened"));
}

TEST_CASE("stream/packed_trunk: it must agree with the checkpoint in name, dtype, bytes and shape") {
    const Rig rig;
    const PackedTrunk trunk = rig.open(description());
    const auto against = [&](const std::vector<MiniTensor>& tensors, const PackedTrunk& packed) {
        const TempFolder model;
        model.write(shard_name(1, 1), shard_of(tensors));
        const auto index = checkpoint::ShardIndex::open(model.path(), 1);
        return refusal([&] { packed.check_against(index); });
    };
    CHECK(against({{kNorm, "BF16", {64}}, {kLog, "F32", {16}}, {"other", "U8", {3}}}, trunk).empty());
    const auto check_tensor = [](const std::string& line, const std::string& name, const std::string& what) {
        CAPTURE(line);
        CHECK(holds(line, "trunk.json, tensor " + name + ", offset "));
        CHECK(holds(line, what));
        CHECK(holds(line, "k3-pack"));
    };
    check_tensor(against({{kNorm, "BF16", {64}}}, trunk), kLog, "not in the checkpoint");
    check_tensor(against({{kNorm, "F16", {64}}, {kLog, "F32", {16}}}, trunk), kNorm, "the checkpoint has F16 [64]");
    check_tensor(against({{kNorm, "BF16", {65}}, {kLog, "F32", {16}}}, trunk), kNorm, "of 130");
    check_tensor(against({{kNorm, "BF16", {8, 8}}, {kLog, "F32", {16}}}, trunk), kNorm, "[8, 8]");
    CHECK(holds(against({{"other", "U8", {3}}}, trunk), "1 more"));
    Json root = description();
    norm(root).erase("shape");
    CHECK(against({{kNorm, "BF16", {8, 8}}, {kLog, "F32", {16}}}, rig.open(root)).empty());
    CHECK_FALSE(against({{kNorm, "F16", {64}}, {kLog, "F32", {16}}}, rig.open(root)).empty());
}
