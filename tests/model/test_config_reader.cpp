#include "k3/model/config_reader.hpp"

#include <filesystem>
#include <functional>

#include "support/doctest.hpp"
#include "support/mini_checkpoint.hpp"

using namespace k3::model;
using namespace k3::tests;
using Json = nlohmann::json;

namespace {

const std::string kTests = std::string(K3_SOURCE_DIR) + "/tests/";

Json demo() { return Json::parse(k3::io::File::read_text(kTests + "demo/model/config.json")); }

/// The values of spec 1.3; the smallest config there is.
Json flat() {
    return Json::parse(R"({"hidden_size":128,"num_hidden_layers":13,"vocab_size":256,"rms_norm_eps":1e-5,
        "tie_word_embeddings":false,"kda_num_heads":4,"kda_head_dim":16,"short_conv_kernel_size":4,"gate_lower_bound":-5,
        "num_attention_heads":4,"q_lora_rank":64,"kv_lora_rank":32,"qk_nope_head_dim":24,"qk_rope_head_dim":8,
        "v_head_dim":16,"mla_use_output_gate":true,"num_experts":8,"num_experts_per_token":2,"num_shared_experts":2,
        "routed_expert_hidden_size":64,"moe_intermediate_size":48,"routed_scaling_factor":1.0,"moe_renormalize":true,
        "latent_moe_use_norm":true,"first_k_dense_replace":1,"intermediate_size":96,"attn_res_block_size":3,
        "situ_beta":4.0,"situ_linear_beta":25.0,"full_attn_layers":[4,8,12,13]})");
}

std::string refused(const std::string& text, const std::string& generation = {}) {
    return refusal([&] { parse_config(text, "config.json", generation, "generation_config.json"); });
}
/// The refusal after one change to the demo's config.
std::string after(const std::function<void(Json& root, Json& text, Json& linear)>& change) {
    Json root = demo();
    change(root, root["text_config"], root["text_config"]["linear_attn_config"]);
    return refused(root.dump());
}
/// The refusal after a field's value is replaced by `raw` text, valid JSON or not.
std::string with_raw(const std::string& key, const std::string& raw) {
    Json root = demo();
    Json& text = root["text_config"];
    Json& home = text.contains(key) ? text : text["linear_attn_config"];
    home[key] = "@@";
    std::string all = root.dump();
    all.replace(all.find("\"@@\""), 4, raw);
    return refused(all);
}
std::size_t count(const std::string& text, const std::string& part) {
    std::size_t n = 0;
    for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++n;
    return n;
}

}  // namespace

TEST_CASE("model/config_reader: the nested shape is read to the last field") {
    const ModelConfig model = read_config(kTests + "demo/model/config.json");
    const Config& c = model.shape;
    CHECK(c.hidden == 192);
    CHECK(c.layers == 9);
    CHECK(c.vocab == 2304);
    CHECK(c.rms_norm_eps == 1e-5);
    CHECK(c.mla_norm_eps == 1e-6);
    CHECK(c.kda_heads == 5);
    CHECK(c.kda_head_dim == 32);
    CHECK(c.conv_kernel == 4);
    CHECK(c.gate_lower_bound == -5.0);
    CHECK(c.heads == 6);
    CHECK(c.q_lora == 80);
    CHECK(c.kv_lora == 56);
    CHECK(c.qk_nope == 32);
    CHECK(c.qk_rope == 16);
    CHECK(c.v_head == 24);
    CHECK(c.mla_output_gate);
    CHECK(c.experts == 24);
    CHECK(c.experts_per_token == 4);
    CHECK(c.shared_experts == 2);
    CHECK(c.expert_width == 64);
    CHECK(c.latent == 96);
    CHECK(c.latent_norm);
    CHECK(c.routed_scale == 1.0);
    CHECK(c.renormalize);
    CHECK(c.first_dense == 1);
    CHECK(c.dense_width == 448);
    CHECK(c.attn_res_block == 3);
    CHECK(c.situ_beta == 4.0);
    CHECK(c.situ_linear_beta == 25.0);
    CHECK(c.max_positions == 1024);
    using enum LayerKind;
    CHECK(model.kinds == std::vector<LayerKind>{kda, kda, kda, mla, kda, kda, kda, mla, mla});
    CHECK(model.end_ids == std::vector<std::int64_t>{2050});
    CHECK(model.quantized);
    CHECK(Json::parse(model.text) == demo());
}

TEST_CASE("model/config_reader: the golden configs are read, their invented head_dim and rope keys ignored") {
    for (const char* name : {"A", "B", "F"}) {
        const ModelConfig model = read_config(kTests + "golden/" + name + "/model/config.json");
        const Json config = Json::parse(model.text)["text_config"];
        CHECK(model.shape.kda_head_dim == config["linear_attn_config"]["head_dim"].get<std::size_t>());
        CHECK(model.shape.kda_head_dim != config["head_dim"].get<std::size_t>());
    }
}

TEST_CASE("model/config_reader: the flat shape is read without the fields it leaves out, and checks those it has") {
    const ModelConfig model = parse_config(flat().dump(), "flat.json");
    CHECK(model.shape.kda_heads == 4);
    CHECK(model.shape.kda_head_dim == 16);
    CHECK(model.shape.situ_linear_beta == 25.0);
    CHECK(model.shape.max_positions == kMaxPositions);
    CHECK(model.kinds[3] == LayerKind::mla);
    CHECK(model.kinds[12] == LayerKind::mla);
    CHECK(model.kinds[0] == LayerKind::kda);
    CHECK(!model.quantized);
    CHECK(model.end_ids.empty());
    Json bad = flat();
    bad["hidden_act"] = "silu";
    bad["mla_use_nope"] = false;
    bad["kda_layers"] = {1, 2, 3};
    bad["quantization_config"] = {{"quant_method", "awq"}};
    const std::string line = refused(bad.dump());
    CHECK_MESSAGE(holds(line, "hidden_act is \"silu\"; only \"situ\""), line);
    CHECK(holds(line, "mla_use_nope is false; only true"));
    CHECK(holds(line, "neither full_attn_layers nor kda_layers: 5 6 7"));
    CHECK(holds(line, "quantization_config.quant_method is \"awq\""));
}

TEST_CASE("model/config_reader: linear_attn_config at the root of a config without text_config is the nested shape") {
    Json root = demo()["text_config"];
    CHECK(refused(root.dump()) == "");
    root["linear_attn_config"].erase("num_heads");
    root["kda_num_heads"] = 5;
    root["num_heads"] = 5;
    CHECK(holds(refused(root.dump()), "linear_attn_config.num_heads is missing"));
}

TEST_CASE("model/config_reader: every field that must be there is missed by its path, all in one line") {
    const std::string all = refused(R"({"text_config":{"linear_attn_config":{}}})");
    const Json root = demo();
    std::size_t required = 0;
    const auto each = [&](const Json& object, const std::string& prefix, bool linear) {
        for (const auto& item : object.items()) {
            Json changed = root;
            Json& text = changed["text_config"];
            (linear ? text["linear_attn_config"] : text).erase(item.key());
            if (item.key() == "tie_word_embeddings") changed.erase(item.key());
            const std::string line = refused(changed.dump());
            if (line.empty()) continue;
            ++required;
            if (item.key() == "linear_attn_config") continue;
            CHECK_MESSAGE(holds(line, "1 problem: " + prefix + item.key() + " is missing"), line);
            CHECK_MESSAGE(holds(all, prefix + item.key() + " is missing"), item.key());
        }
    };
    each(root["text_config"], "text_config.", false);
    each(root["text_config"]["linear_attn_config"], "text_config.linear_attn_config.", true);
    CHECK(required == 42);  // 34 + linear_attn_config + its 7
    CHECK(holds(all, "41 problems"));
    CHECK(count(all, " is missing") == 41);
    const std::string flat_all = refused("{}");
    CHECK(holds(flat_all, "kda_head_dim is missing"));
    CHECK(count(flat_all, " is missing") == 29);
}

TEST_CASE("model/config_reader: an integer is a JSON integer in its range and nothing else") {
    for (const char* key :
         {"hidden_size", "num_hidden_layers", "vocab_size", "num_heads", "num_experts", "v_head_dim"}) {
        for (const char* raw :
             {"93.0", "\"93\"", "93.5", "9.3e1", "true", "null", "[93]", "{}", "99999999999999999999999"}) {
            const std::string line = with_raw(key, raw);
            CHECK_MESSAGE(holds(line, std::string(key) + " must be an integer, is "), line);
        }
        for (const char* raw : {"0", "-1", "-0", "2147483648", "18446744073709551615"}) {
            const std::string line = with_raw(key, raw);
            CHECK_MESSAGE(holds(line, "outside 1.."), line);
        }
        const std::string line = with_raw(key, "1e999");
        CHECK_MESSAGE(holds(line, std::string(key) + ": number overflow"), line);
    }
    CHECK(holds(with_raw("num_hidden_layers", "93.5"), "1 problem: "));  // the lists are not blamed for it
    CHECK(holds(with_raw("num_attention_heads", "null"), "1 problem: "));
    CHECK(holds(with_raw("vocab_size", "0"), "1 problem: "));
    CHECK(with_raw("first_k_dense_replace", "0") == "");
}

TEST_CASE("model/config_reader: a real may be written as an integer, and must have a sane size and sign") {
    CHECK(with_raw("routed_scaling_factor", "2") == "");
    CHECK(with_raw("gate_lower_bound", "-5") == "");
    for (const char* key :
         {"rms_norm_eps", "routed_scaling_factor", "activation_situ_beta", "activation_situ_linear_beta"}) {
        for (const char* raw : {"0", "0.0", "-1", "-0.0"}) CHECK(holds(with_raw(key, raw), "must be positive"));
        for (const char* raw : {"\"1\"", "true", "null", "[]"}) CHECK(holds(with_raw(key, raw), "must be a number"));
        CHECK(holds(with_raw(key, "1e300"), "which no float32"));
        CHECK(holds(with_raw(key, "1e999"), std::string(key) + ": number overflow"));
        CHECK(holds(with_raw(key, "NaN"), "syntax error"));
    }
    CHECK(holds(with_raw("gate_lower_bound", "5.0"), "must be negative"));
    CHECK(holds(with_raw("gate_lower_bound", "0"), "must be negative"));
    CHECK(holds(with_raw("moe_renormalize", "1"), "must be true or false"));
    CHECK(holds(with_raw("mla_use_output_gate", "\"true\""), "must be true or false"));
    Json root = demo();
    root["text_config"]["mla_norm_eps"] = 1e-5;
    CHECK(parse_config(root.dump(), "x").shape.mla_norm_eps == 1e-5);
    root["text_config"]["mla_norm_eps"] = nullptr;
    CHECK(holds(refused(root.dump()), "mla_norm_eps must be a number"));
}

TEST_CASE("model/config_reader: trap 42, an empty or missing list: the layer lists must partition the layers") {
    const auto lists = [](const Json& full, const Json& kda) {
        return after([&](Json&, Json&, Json& linear) {
            linear["full_attn_layers"] = full;
            linear["kda_layers"] = kda;
        });
    };
    const Json kda{1, 2, 3, 5, 6, 7};
    CHECK(lists({4, 8, 9}, kda) == "");
    CHECK(holds(lists({4, 8}, kda), "in neither text_config.linear_attn_config.full_attn_layers nor"));
    CHECK(holds(lists({3, 4, 8, 9}, kda), "layers in both"));
    CHECK(holds(lists({0, 4, 8, 9}, kda), "holds 0, outside 1..9"));
    CHECK(holds(lists({4, 8, 9, 10}, kda), "holds 10, outside 1..9"));
    CHECK(holds(lists({4, 8, 9, -1}, kda), "holds -1, outside"));
    CHECK(holds(lists({4, 8, "9"}, kda), "holds \"9\", outside"));
    CHECK(holds(lists({4, 8, 9.0}, kda), "holds 9.0, outside"));
    CHECK(holds(lists({4, 8, 8, 9}, kda), "not in ascending order"));
    CHECK(holds(lists({9, 8, 4}, kda), "not in ascending order"));
    CHECK(holds(lists(Json::array(), kda), "not empty"));
    CHECK(holds(lists(4, kda), "must be a list"));
    CHECK(holds(lists(nullptr, kda), "must be a list"));
    CHECK(holds(lists({1, 2, 3, 4, 5, 6, 7, 8, 9}, Json::array()), "at least one must be KDA"));
    const std::string many = lists({999, 1000, 1001, 1002, 1003}, kda);
    CHECK(holds(many, "holds 2 more such entries"));
}

TEST_CASE("model/config_reader: values the engine does not implement are refused by name") {
    const auto set = [](const char* key, const Json& value) {
        return after([&](Json&, Json& text, Json& linear) { (linear.contains(key) ? linear : text)[key] = value; });
    };
    CHECK(holds(set("hidden_act", "silu"), "text_config.hidden_act is \"silu\"; only \"situ\" is supported"));
    CHECK(holds(set("mla_use_nope", false), "text_config.mla_use_nope is false"));
    CHECK(holds(set("mla_use_nope", 1), "text_config.mla_use_nope is 1"));
    CHECK(holds(set("mla_use_nope", nullptr), "text_config.mla_use_nope is null"));
    CHECK(holds(set("use_full_rank_gate", false), "linear_attn_config.use_full_rank_gate is false"));
    CHECK(holds(set("num_expert_group", 8), "num_expert_group is 8; only 1"));
    CHECK(holds(set("num_expert_group", 1.0), "num_expert_group is 1.0; only 1"));
    CHECK(holds(set("topk_group", 4), "topk_group is 4"));
    CHECK(holds(set("moe_router_activation_func", "softmax"), "moe_router_activation_func is \"softmax\""));
    CHECK(holds(set("topk_method", "greedy"), "topk_method is \"greedy\""));
    CHECK(holds(set("moe_layer_freq", 2), "moe_layer_freq is 2"));
    CHECK(holds(set("num_key_value_heads", 2), "num_key_value_heads is 2; only 6"));
    CHECK(holds(set("tie_word_embeddings", true), "tie_word_embeddings is true"));
    CHECK(holds(set("num_experts_per_token", 25), "num_experts_per_token is 25, num_experts only 24"));
    CHECK(holds(set("num_experts_per_token", 65), "outside 1..64"));
    CHECK(holds(set("attn_res_block_size", 0), "outside 1.."));
    CHECK(holds(set("short_conv_kernel_size", 0), "outside 1.."));
    CHECK(holds(set("first_k_dense_replace", 10), "first_k_dense_replace is 10"));
    CHECK(set("rope_scaling", {{"type", "yarn"}}) == "");
    CHECK(set("head_dim", 74) == "");
    CHECK(holds(after([](Json& root, Json&, Json&) { root["tie_word_embeddings"] = true; }),
                "but tie_word_embeddings is true"));
    CHECK(holds(after([](Json& root, Json&, Json&) { root["hidden_size"] = 193; }),
                "text_config.hidden_size is 192 but hidden_size is 193"));
    CHECK(holds(after([](Json&, Json& text, Json&) { text["situ_beta"] = 3; }), "but text_config.situ_beta is 3"));
}

TEST_CASE("model/config_reader: only the MXFP4 that is read is accepted") {
    const auto set = [](const char* pointer, const Json& value) {
        return after(
            [&](Json&, Json& text, Json&) { text["quantization_config"][Json::json_pointer(pointer)] = value; });
    };
    const std::string weights = "/config_groups/group_0/weights";
    CHECK(holds(set("/quant_method", "awq"), "quantization_config.quant_method is \"awq\""));
    CHECK(holds(set("/format", "int4"), "quantization_config.format is \"int4\""));
    CHECK(holds(set("/config_groups/group_0/format", "nvfp4-pack-quantized"), "group_0.format"));
    CHECK(holds(set((weights + "/num_bits").c_str(), 8), "group_0.weights.num_bits is 8; only 4"));
    CHECK(holds(set((weights + "/group_size").c_str(), 64), "group_0.weights.group_size is 64; only 32"));
    CHECK(holds(set((weights + "/type").c_str(), "int"), "group_0.weights.type is \"int\""));
    CHECK(holds(set((weights + "/scale_dtype").c_str(), "torch.float8_e8m0fnu"), "weights.scale_dtype"));
    CHECK(holds(set((weights + "/symmetric").c_str(), false), "weights.symmetric is false"));
    CHECK(holds(set("/config_groups", Json::object()), "at least one group"));
    CHECK(holds(set("/config_groups/group_1", 3), "group_1 must be an object"));
    CHECK(holds(set("/config_groups/group_1", Json::object()), "group_1.weights is missing"));
    CHECK(holds(after([](Json&, Json& text, Json&) { text["quantization_config"] = "mxfp4"; }), "must be an object"));
    CHECK(after([](Json&, Json& text, Json&) {
              text["quantization_config"]["config_groups"]["group_0"]["weights"].erase("scale_dtype");
          }) == "");
}

TEST_CASE("model/config_reader: end ids come from both levels and the generation config, each once") {
    Json root = demo();
    root["eos_token_id"] = {7, 5};
    root["text_config"]["eos_token_id"] = 5;
    const auto ids = [&](const std::string& generation) {
        return parse_config(root.dump(), "c", generation, "g").end_ids;
    };
    using Ids = std::vector<std::int64_t>;
    CHECK(ids("") == Ids{7, 5});
    CHECK(ids(R"({"eos_token_id":[9,7]})") == Ids{7, 5, 9});
    CHECK(ids(R"({"eos_token_id":null})") == Ids{7, 5});
    CHECK(ids("{}") == Ids{7, 5});
    root["eos_token_id"] = nullptr;
    root["text_config"].erase("eos_token_id");
    CHECK(ids("").empty());
    CHECK(holds(refused(root.dump(), R"({"eos_token_id":2304})"),
                "generation_config.json: 1 problem: eos_token_id holds 2304, outside"));
    CHECK(holds(refused(root.dump(), R"({"eos_token_id":-1})"), "holds -1, outside"));
    CHECK(holds(refused(root.dump(), R"({"eos_token_id":"2"})"), "must be an id, a list of ids or null"));
    CHECK(holds(refused(root.dump(), R"({"eos_token_id":[true]})"), "must be an id, a list of ids or null"));
    CHECK(holds(refused(root.dump(), R"({"eos_token_id":1,"eos_token_id":2})"),
                "generation_config.json: these keys are there twice"));
}

TEST_CASE("model/config_reader: keys that are there twice are refused, all of them") {
    std::string text = demo().dump();
    const std::string field = "\"hidden_size\":192";
    text.replace(text.find(field), field.size(), field + ",\"hidden_size\":193");
    text.insert(1, "\"text_config\":{},");
    CHECK(holds(refused(text), "these keys are there twice: text_config, text_config.hidden_size"));
}

TEST_CASE("model/config_reader: text that is no JSON object is refused with its place") {
    CHECK(holds(refused(""), "unexpected end of input"));
    CHECK(holds(refused("[]"), "is not a JSON object"));
    CHECK(holds(refused("version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\n"),
                "it is a Git LFS pointer; fetch"));
    CHECK(holds(refused("\n<html>404</html>"), "it is an HTML or XML page, probably a server's error; download"));
    CHECK(!holds(refused("{1}"), "it is"));
    CHECK(holds(refused("{\"text_config\":{\"hidden_size\": 1 1}}"),
                "is not JSON: at text_config.hidden_size: parse error at line 1"));
    CHECK(holds(refused("{\"a\":\"\xff\"}"), "invalid"));
    CHECK(holds(refused("{\"hidden_size\":" + std::string(100000, '[')), "nested more than 64 deep"));
    CHECK(holds(refused(R"({"text_config":3})"), "text_config must be an object, is 3"));
    CHECK(holds(refused(R"({"text_config":{"linear_attn_config":[]}})"),
                "text_config.linear_attn_config must be an object"));
    CHECK(!holds(refused("{\"text_config\":\"a\\nb\"}"), "MORE THAN ONE LINE"));
}

TEST_CASE("model/config_reader: sizes that are plausible one by one and absurd together are refused") {
    const std::string line = after([](Json&, Json& text, Json&) {
        text["hidden_size"] = 1 << 20;
        text["moe_intermediate_size"] = 1 << 20;
        text["routed_expert_hidden_size"] = 1 << 20;
        text["num_experts"] = 1 << 16;
    });
    CHECK(holds(line, "more than 2^53 numbers"));
}

TEST_CASE("model/config_reader: a file that is absent, a directory or empty is a refused config") {
    const TempFolder folder;
    const auto code = [&](const std::string& path) {
        try {
            read_config(path);
        } catch (const k3::Error& error) {
            return error.code();
        }
        return k3::Code::internal;
    };
    CHECK(code(folder / "config.json") == k3::Code::config);
    CHECK(holds(refusal([&] { read_config(folder / "config.json"); }), "is not there"));
    CHECK(holds(refusal([&] { read_config(folder / "config.json"); }), "released checkpoint"));
    std::filesystem::create_directory(folder / "config.json");
    CHECK(code(folder / "config.json") == k3::Code::config);
    std::filesystem::remove(folder / "config.json");
    folder.write("config.json", "");
    CHECK(code(folder / "config.json") == k3::Code::config);
    folder.write("config.json", demo().dump());
    folder.write("generation_config.json", R"({"eos_token_id":[1]})");
    CHECK(read_config(folder / "config.json").end_ids == std::vector<std::int64_t>{2050, 1});
    folder.write("generation_config.json", "");
    CHECK(holds(refusal([&] { read_config(folder / "config.json"); }), "generation_config.json: is empty"));
}
