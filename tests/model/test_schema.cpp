#include "k3/model/schema.hpp"

#include <functional>
#include <map>

#include "support/doctest.hpp"
#include "support/mini_checkpoint.hpp"

using namespace k3::model;
using namespace k3::tests;
using k3::checkpoint::ShardIndex;

namespace {

const std::string kTests = std::string(K3_SOURCE_DIR) + "/tests/";

/// Two KDA layers and one MLA layer, the first dense; odd sizes, so that rows end inside a group and inside a byte.
ModelConfig tiny(bool output_gate = true, bool latent_norm = true) {
    const auto flag = [](bool value) { return std::string(value ? "true" : "false"); };
    return parse_config(R"({"hidden_size":6,"num_hidden_layers":3,"vocab_size":11,"rms_norm_eps":1e-5,"kda_num_heads":2,
        "kda_head_dim":3,"short_conv_kernel_size":4,"gate_lower_bound":-5,"num_attention_heads":2,"q_lora_rank":5,
        "kv_lora_rank":4,"qk_nope_head_dim":3,"qk_rope_head_dim":2,"v_head_dim":4,"num_experts":2,
        "num_experts_per_token":1,"num_shared_experts":2,"routed_expert_hidden_size":7,"moe_intermediate_size":33,
        "routed_scaling_factor":1,"moe_renormalize":true,"first_k_dense_replace":1,"intermediate_size":9,
        "attn_res_block_size":2,"situ_beta":4,"situ_linear_beta":25,"full_attn_layers":[3],"mla_use_output_gate":)" +
                            flag(output_gate) + R"(,"latent_moe_use_norm":)" + flag(latent_norm) + "}",
                        "tiny.json");
}

using Tensors = std::map<std::string, MiniTensor>;

/// What the schema asks for, as a checkpoint has it.
Tensors tensors_of(const Schema& schema) {
    Tensors all;
    const auto add = [&](const std::string& name, const char* dtype, std::vector<std::uint64_t> shape) {
        all[name] = {name, dtype, std::move(shape)};
    };
    for (const TensorRule& rule : schema.trunk) {
        add(rule.name, "BF16", {rule.shape.dims().begin(), rule.shape.dims().end()});
    }
    for (const std::uint32_t layer : schema.moe_layers) {
        for (std::uint32_t e = 0; e < schema.experts; ++e) {
            const std::string at = names::layer(layer, "block_sparse_moe.experts.") + std::to_string(e);
            add(at + ".w1.weight_packed", "U8", {33, 4});
            add(at + ".w1.weight_scale", "U8", {33, 1});
            add(at + ".w2.weight_packed", "U8", {7, 17});
            add(at + ".w2.weight_scale", "U8", {7, 2});
            add(at + ".w3.weight_packed", "U8", {33, 4});
            add(at + ".w3.weight_scale", "U8", {33, 1});
        }
    }
    return all;
}

/// The refusal of the tiny model's checkpoint after a change.
std::string after(const std::function<void(Tensors&)>& change, std::size_t layers = 3) {
    const ModelConfig model = tiny();
    Tensors tensors = tensors_of(make_schema(model, 3));
    change(tensors);
    std::vector<MiniTensor> list;
    for (const auto& item : tensors) list.push_back(item.second);
    const TempFolder folder;
    folder.write("model.safetensors", shard_of(list));
    const ShardIndex index = ShardIndex::open(folder.path(), 1);
    return refusal([&] { check(make_schema(model, layers), index); });
}

const std::string kExpert = "language_model.model.layers.2.block_sparse_moe.experts.1.";

}  // namespace

TEST_CASE("model/schema: the golden and demo checkpoints have exactly what their configs ask for") {
    for (const char* dir : {"golden/A/model", "golden/B/model", "golden/F/model", "demo/model"}) {
        const ModelConfig model = read_config(kTests + dir + "/config.json");
        const ShardIndex index = ShardIndex::open(kTests + dir, 2);
        for (const std::size_t layers : {std::size_t{1}, std::size_t{4}, model.shape.layers}) {
            CHECK(refusal([&] { check(make_schema(model, layers), index); }) == "");
        }
        const Schema schema = make_schema(model, model.shape.layers);
        std::size_t text = 0;  // and nothing of the text model is left over
        index.for_each([&](std::string_view name, const auto&) { text += name.starts_with("language_model."); });
        CHECK(text == schema.trunk.size() + schema.moe_layers.size() * schema.experts * 6);
    }
}

TEST_CASE("model/schema: the trunk of the released shape has 2,460 tensors") {
    ModelConfig model = tiny();
    model.shape.layers = 93;
    model.kinds.assign(93, LayerKind::kda);
    for (std::size_t n = 3; n < 93; n += 4) model.kinds[n] = LayerKind::mla;
    model.kinds[92] = LayerKind::mla;
    const Schema schema = make_schema(model, 93);
    CHECK(schema.trunk.size() == 2455 + 5);  // spec 2.2
    CHECK(schema.moe_layers.size() == 92);
}

TEST_CASE("model/schema: tensors behind a flag are asked for only with it") {
    const auto names_of = [](const ModelConfig& model) {
        std::string all;
        for (const TensorRule& rule : make_schema(model, 3).trunk) all += rule.name + "\n";
        return all;
    };
    const std::string gate = names::layer(2, names::mla::kGate), norm = names::layer(2, names::moe::kLatentNorm);
    CHECK(holds(names_of(tiny()), gate));
    CHECK(!holds(names_of(tiny(false, true)), gate));
    CHECK(holds(names_of(tiny()), norm));
    CHECK(!holds(names_of(tiny(true, false)), norm));
    CHECK(holds(names_of(tiny()), names::layer(0, names::kAttnResNorm)));  // there though unused
}

TEST_CASE("model/schema: fewer layers ask for less, and a number out of range is refused") {
    CHECK(after([](Tensors& t) { t.erase(names::layer(2, names::kInputNorm)); }, 2) == "");
    CHECK(holds(after([](Tensors& t) { t.erase(names::layer(2, names::kInputNorm)); }, 3), "is missing"));
    CHECK(holds(refusal([] { make_schema(tiny(), 4); }), "give a number from 1 to 3"));
    CHECK(holds(refusal([] { make_schema(tiny(), 0); }), "give a number from 1 to 3"));
}

TEST_CASE("model/schema: every missing tensor counts and is named, neighbouring experts together") {
    CHECK(after([](Tensors&) {}) == "");
    const std::string one = after([](Tensors& t) { t.erase(std::string(names::kLmHead)); });
    CHECK_MESSAGE(holds(one, "1 tensor does not fit the config: language_model.lm_head.weight is missing"), one);
    const std::string all = after([](Tensors& t) { t.clear(); });
    for (const TensorRule& rule : make_schema(tiny(), 3).trunk) CHECK(holds(all, rule.name + " is missing"));
    CHECK_MESSAGE(holds(all, ".block_sparse_moe.experts.[0-"), all);
    CHECK(holds(all, "102 tensors do not fit"));
}

TEST_CASE("model/schema: a wrong shape or dtype is reported with both, and F32 is as good as BF16") {
    const std::string q = names::layer(0, names::kda::kQ), norm = names::layer(1, names::kInputNorm);
    CHECK(after([&](Tensors& t) { t[q].dtype = "F32"; }) == "");
    CHECK(holds(after([&](Tensors& t) { t[q].dtype = "F16"; }), q + " is F16, not BF16 or F32"));
    CHECK(holds(after([&](Tensors& t) { t[q].shape = {5, 6}; }), q + " has shape [5, 6], not [6, 6]"));
    CHECK(holds(after([&](Tensors& t) { t[norm].shape = {}; }), norm + " has shape [], not [6]"));
    CHECK(holds(after([&](Tensors& t) { t[norm].shape = {0}; }), norm + " has shape [0], not [6]"));
    const std::string two = after([&](Tensors& t) {
        t[norm].shape = {7};
        t[q].dtype = "I32";
    });
    CHECK(holds(two, "2 tensors do not fit"));
}

TEST_CASE("model/schema: A_log may be padded and may not be short") {
    const std::string a = names::layer(0, names::kda::kALog);
    for (const std::uint64_t length : {2, 3, 128}) CHECK(after([&](Tensors& t) { t[a].shape = {length}; }) == "");
    CHECK(holds(after([&](Tensors& t) { t[a].shape = {1}; }), a + " has shape [1], not [2] or longer"));
    CHECK(holds(after([&](Tensors& t) { t[a].shape = {2, 1}; }), "has shape [2, 1]"));
}

TEST_CASE("model/schema: experts are packed with scales or plain, and never half of it") {
    const std::string packed = kExpert + "w2.weight_packed", scale = kExpert + "w2.weight_scale",
                      plain = kExpert + "w2.weight";
    const auto make_plain = [&](Tensors& t, const char* dtype) {
        t.erase(packed);
        t.erase(scale);
        t[plain] = {plain, dtype, {7, 33}};
    };
    CHECK(after([&](Tensors& t) { make_plain(t, "BF16"); }) == "");
    CHECK(after([&](Tensors& t) { make_plain(t, "F32"); }) == "");
    CHECK(holds(after([&](Tensors& t) { make_plain(t, "U8"); }), plain + " is U8, not BF16 or F32"));
    CHECK(holds(after([&](Tensors& t) { t.erase(scale); }), scale + " is missing"));
    CHECK(holds(after([&](Tensors& t) { t.erase(packed); }), packed + " is missing"));
    CHECK(holds(after([&](Tensors& t) { t[scale].shape = {2, 7}; }), scale + " has shape [2, 7], not [7, 2]"));
    CHECK(holds(after([&](Tensors& t) { t[packed].shape = {7, 16}; }), packed + " has shape [7, 16], not [7, 17]"));
    CHECK(holds(after([&](Tensors& t) { t[packed].dtype = "BF16"; }), packed + " is BF16, not U8"));
    CHECK(holds(after([&](Tensors& t) {
                    t.erase(scale);
                    t[plain] = {plain, "BF16", {7, 33}};
                }),
                plain + " is there beside packed weights"));
}
