#include "k3/model/bound_model.hpp"

#include <set>

#include "engine/rewrite.hpp"
#include "engine/rig.hpp"
#include "support/doctest.hpp"

using namespace k3;
using namespace k3::tests;
using engine::ArchName;

namespace {

/// Golden B with the scale bytes whose weights leave binary32's range taken down.
std::vector<MiniTensor> tame_b() {
    std::vector<MiniTensor> tensors = tensors_of(golden_dir("B"));
    for (MiniTensor& t : tensors)
        if (ends_with(t.name, ".weight_scale"))
            for (char& scale : t.data)
                if (static_cast<unsigned char>(scale) == 254) scale = static_cast<char>(200);
    return tensors;
}

Floats logits_of(Loaded& model, ArchName arch) {
    Runner runner(model, arch, 2);
    Sequence sequence(runner);
    return sequence.feed_all(runner, some_ids(40, runner.vocab(), 3), 17);
}
Floats logits_of(const std::vector<MiniTensor>& tensors, ArchName arch) {
    const TempFolder folder;
    write_checkpoint(folder, golden_dir("B"), tensors);
    Loaded model(folder.path());
    return logits_of(model, arch);
}

}  // namespace

TEST_CASE("model/bound_model: every missing tensor is listed, trunk and experts, and nothing is bound") {
    std::vector<MiniTensor> tensors = tensors_of(golden_dir("B"));
    const std::vector<std::string> gone{"language_model.model.layers.2.self_attn.kv_b_proj.weight",
                                        "language_model.model.layers.5.block_sparse_moe.experts.3.w2.weight_scale",
                                        "language_model.model.layers.0.mlp.up_proj.weight",
                                        "language_model.model.norm.weight", "language_model.lm_head.weight"};
    const std::size_t before = tensors.size();
    std::erase_if(tensors,
                  [&](const MiniTensor& t) { return std::find(gone.begin(), gone.end(), t.name) != gone.end(); });
    REQUIRE(tensors.size() == before - gone.size());
    const TempFolder folder;
    write_checkpoint(folder, golden_dir("B"), tensors);
    const std::string line = refusal([&] { const Loaded model(folder.path()); });
    for (const std::string& name : gone) {
        CAPTURE(name);
        CHECK(holds(line, name));
    }
    // What the first two layers do not need may be missing.
    std::erase_if(tensors, [](const MiniTensor& t) {
        return !holds(t.name, ".layers.0.") && !holds(t.name, ".layers.1.") && holds(t.name, ".layers.");
    });
    for (const MiniTensor& t : tensors_of(golden_dir("B")))
        if (t.name == gone[2] || t.name == gone[3] || t.name == gone[4]) tensors.push_back(t);
    const TempFolder two;
    write_checkpoint(two, golden_dir("B"), tensors);
    CHECK(refusal([&] { const Loaded model(two.path(), 2); }) == "");
}

TEST_CASE("model/bound_model: wrong shapes and dtypes are refused by name") {
    const auto after = [](const std::string& name, std::vector<std::uint64_t> shape, const char* dtype) {
        std::vector<MiniTensor> tensors = tensors_of(golden_dir("B"));
        for (MiniTensor& t : tensors)
            if (t.name == name) t = {name, dtype, std::move(shape)};
        const TempFolder folder;
        write_checkpoint(folder, golden_dir("B"), tensors);
        return refusal([&] { const Loaded model(folder.path()); });
    };
    const std::string q = "language_model.model.layers.1.self_attn.q_proj.weight";
    CHECK(holds(after(q, {100, 60}, "BF16"), q));  // transposed
    CHECK(holds(after(q, {60, 100}, "U8"), q));
    CHECK(after(q, {60, 100}, "F32") == "");
}

TEST_CASE(
    "model/bound_model: a trunk in f32 gives the bits of the same trunk in bf16 (trap 48: the header's dtype "
    "decides)") {
    const std::vector<MiniTensor> tensors = tensors_of(golden_dir("B"));
    std::vector<MiniTensor> wide;
    std::size_t widened = 0;
    for (const MiniTensor& t : tensors) {
        wide.push_back(t.dtype == "BF16" ? widened_to_f32(t) : t);
        widened += t.dtype == "BF16";
    }
    REQUIRE(widened > 50);
    for (const ArchName arch : engine::arches_of_this_cpu()) {
        Loaded original(golden_dir("B"));
        const Floats want = logits_of(original, arch);
        REQUIRE(all_finite(want));
        CHECK(same_bits(logits_of(wide, arch), want));
    }
}

TEST_CASE("model/bound_model: plain bf16 and f32 experts equal the mxfp4 ones they dequantise, bit for bit") {
    const std::vector<MiniTensor> packed = tame_b();
    const auto config = model::read_config(golden_dir("B") + "/config.json").shape;
    const auto bf16 = plain_experts(packed, config.latent, config.expert_width, "BF16");
    const auto f32 = plain_experts(packed, config.latent, config.expert_width, "F32");
    REQUIRE(bf16.size() == packed.size() - 8 * 7 * 3);
    std::vector<MiniTensor> swapped = packed;  // the nibbles: trap 44, which a comparison of statistics cannot see
    for (MiniTensor& t : swapped)
        if (ends_with(t.name, ".weight_packed"))
            for (char& c : t.data)
                c = static_cast<char>((static_cast<unsigned char>(c) << 4) | (static_cast<unsigned char>(c) >> 4));
    for (const ArchName arch : engine::arches_of_this_cpu()) {
        INFO("arch ", std::string(engine::name(arch)));
        const Floats want = logits_of(packed, arch);
        REQUIRE(all_finite(want));
        CHECK(same_bits(logits_of(bf16, arch), want));
        CHECK(same_bits(logits_of(f32, arch), want));
        CHECK_FALSE(same_bits(logits_of(swapped, arch), want));
    }
}

TEST_CASE("model/bound_model: conv taps are transposed, residual norms folded, A_log read by its head count") {
    const Loaded model(golden_dir("B"));
    const auto raw = [&](const std::string& name) {
        const auto info = *model.index.find(name);
        const auto bytes = checkpoint::read_tensor(model.index, info);
        Floats values(bytes.size() / (info.dtype == checkpoint::Dtype::f32 ? 4 : 2));
        for (std::size_t i = 0; i < values.size(); ++i) {
            if (info.dtype == checkpoint::Dtype::f32)
                std::memcpy(&values[i], bytes.data() + 4 * i, 4);
            else
                values[i] = formats::bf16::widen(bytes.data() + 2 * i);
        }
        return values;
    };
    const std::string at = "language_model.model.layers.1.";
    const model::DecoderLayer& layer = model.bound.view().layers[1];
    const Floats taps = raw(at + "self_attn.k_conv1d.weight"), norm = raw(at + "mlp_res_norm.weight"),
                 proj = raw(at + "mlp_res_proj.weight"), a_log = raw(at + "self_attn.A_log");
    for (std::size_t c = 0; c < 60; ++c)
        for (std::size_t j = 0; j < 4; ++j) CHECK(layer.kda.conv[1][j * 60 + c] == taps[c * 4 + j]);
    for (std::size_t i = 0; i < 100; ++i) {
        volatile float product = norm[i] * proj[i];
        CHECK(layer.mlp_fold[i] == product);
    }
    CHECK(a_log.size() >= 3);
    for (std::size_t h = 0; h < 3; ++h) CHECK(layer.kda.a_log[h] == a_log[h]);
}

TEST_CASE("model/bound_model: the layer map is that of the config, one-based there (trap 41)") {
    const Loaded model(golden_dir("A"));
    std::string kinds;
    std::size_t kda = 0, mla = 0;
    for (std::size_t n = 0; n < model.bound.view().layer_count; ++n) {
        const model::DecoderLayer& layer = model.bound.view().layers[n];
        const bool is_mla = layer.kind == model::LayerKind::mla;
        kinds += is_mla ? 'M' : 'K';
        CHECK(layer.kind_index == (is_mla ? mla++ : kda++));
        CHECK(layer.dense == (n == 0));
    }
    CHECK(kinds == "KKKMKKKMKKKMM");
}

TEST_CASE("model/bound_model: matrices() are all of the trunk but embedding and vectors, counted by id, lm_head last") {
    const std::string dir = golden_dir("B");
    const auto config = model::read_config(dir + "/config.json");
    const auto index = checkpoint::ShardIndex::open(dir, 1);
    model::BoundModel bound(config, index, config.shape.layers);
    std::set<std::string> names;
    for (std::size_t i = 0; i < bound.matrices().size(); ++i) {
        const auto& matrix = bound.matrices()[i];
        CHECK(names.insert(matrix.name).second);
        CHECK(matrix.weight->id == i);
        CHECK(matrix.weight->data == nullptr);  // nothing is in memory yet
        CHECK(matrix.weight->rows == matrix.info.shape[0]);
        CHECK(matrix.info.offset == index.find(matrix.name)->offset);
    }
    CHECK(bound.matrices().back().name == model::names::kLmHead);
    std::size_t two_dimensional = 0;
    for (const model::TensorRule& rule : model::make_schema(config, config.shape.layers).trunk)
        two_dimensional += index.find(rule.name)->shape.rank() == 2 && index.find(rule.name)->shape[0] > 1;
    CHECK(names.size() == two_dimensional - 1);  // all but the embedding table
}
