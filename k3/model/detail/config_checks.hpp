#ifndef K3_MODEL_DETAIL_CONFIG_CHECKS_HPP
#define K3_MODEL_DETAIL_CONFIG_CHECKS_HPP
// Fields that only confirm what the code does, the quantisation block, end ids, and limits that keep products of sizes
// inside 64 bits.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "k3/model/config.hpp"
#include "k3/model/detail/config_fields.hpp"

namespace k3::model::detail {

/// `need`: the flat shape leaves these out; there they are checked only if present.
inline void check_supported(ConfigFields& fields, const Scopes& text, const Scopes& linear, std::size_t heads,
                            Need need) {
    fields.expect(text, {"hidden_act"}, "situ", need);
    fields.expect(text, {"mla_use_nope"}, true, need);  // anything else means RoPE
    fields.expect(linear, {"use_full_rank_gate"}, true, need);
    if (heads != 0) {
        fields.expect(text, {"num_key_value_heads"}, heads, need);
    } else {
        fields.find(text, {"num_key_value_heads"}, need);  // nothing to compare it with: only missed
    }
    fields.expect(text, {"moe_router_activation_func"}, "sigmoid", need);
    fields.expect(text, {"topk_method"}, "noaux_tc", need);
    fields.expect(text, {"num_expert_group"}, 1, need);
    fields.expect(text, {"topk_group"}, 1, Need::optional);  // of one group: says nothing more
    fields.expect(text, {"moe_layer_freq"}, 1, need);
    fields.expect(text, {"tie_word_embeddings"}, false, need);
}

/// The one quantisation whose bytes this engine reads. Returns whether there is one.
inline bool check_quantization(ConfigFields& fields, const Scopes& text, Need need) {
    const auto block = fields.find(text, {"quantization_config"}, need);
    if (block.value == nullptr) return false;
    if (!block.value->is_object()) {
        fields.problem(block.path + " must be an object, is " + shown(*block.value));
        return false;
    }
    const Scopes top{{block.value, block.path + "."}};
    fields.expect(top, {"quant_method"}, "compressed-tensors");
    fields.expect(top, {"format"}, "mxfp4-pack-quantized");
    const auto groups = fields.find(top, {"config_groups"});
    if (groups.value == nullptr) return true;
    if (!groups.value->is_object() || groups.value->empty()) {
        fields.problem(groups.path + " must be an object with at least one group, is " + shown(*groups.value));
        return true;
    }
    for (const auto& item : groups.value->items()) {
        const std::string path = groups.path + "." + one_line(item.key(), 40);
        if (!item.value().is_object()) {
            fields.problem(path + " must be an object, is " + shown(item.value()));
            continue;
        }
        const Scopes group{{&item.value(), path + "."}};
        fields.expect(group, {"format"}, "mxfp4-pack-quantized", Need::optional);
        const auto weights = fields.find(group, {"weights"});
        if (weights.value == nullptr) continue;
        if (!weights.value->is_object()) {
            fields.problem(weights.path + " must be an object, is " + shown(*weights.value));
            continue;
        }
        const Scopes scheme{{weights.value, weights.path + "."}};
        fields.expect(scheme, {"num_bits"}, 4);
        fields.expect(scheme, {"group_size"}, 32);
        fields.expect(scheme, {"type"}, "float");
        fields.expect(scheme, {"scale_dtype"}, "torch.uint8", Need::optional);
        fields.expect(scheme, {"symmetric"}, true, Need::optional);
        fields.expect(scheme, {"strategy"}, "group", Need::optional);
    }
    return true;
}

/// Adds the ids of `eos_token_id` (an id, a list of ids, or null) to `ids`, each once.
inline void add_end_ids(ConfigFields& fields, const Scope& scope, std::size_t vocab, std::vector<std::int64_t>& ids) {
    const auto field = fields.find({scope}, {"eos_token_id"}, Need::optional);
    if (field.value == nullptr || field.value->is_null()) return;
    const auto add = [&](const Json& item) {
        if (!item.is_number_integer()) {
            fields.problem(field.path + " must be an id, a list of ids or null, holds " + shown(item));
        } else if (vocab != 0 && (!item.is_number_unsigned() || item.get<std::uint64_t>() >= vocab)) {
            fields.problem(field.path + " holds " + shown(item) + ", outside the vocabulary of " +
                           std::to_string(vocab));
        } else if (std::find(ids.begin(), ids.end(), item.get<std::int64_t>()) == ids.end()) {
            ids.push_back(item.get<std::int64_t>());
        }
    };
    if (!field.value->is_array()) return add(*field.value);
    for (const Json& item : *field.value) add(item);
}

/// Each size has its own limit; this bounds their products. Below 2^53 elements in all, no product of sizes that
/// appears anywhere, times 8 bytes, can leave 64 bits.
inline void check_total(ConfigFields& fields, const Config& c) {
    const auto d = [](std::size_t value) { return static_cast<double>(value); };
    const double attention = d(c.heads) * d(c.qk_head() + c.v_head) * d(c.q_lora + c.kv_lora + c.hidden) +
                             5 * d(c.kda_width()) * d(c.hidden) + d(c.kda_width()) * d(c.kda_head_dim);
    const double moe = d(c.experts) * (3 * d(c.expert_width) * d(c.latent) + d(c.hidden)) +
                       3 * d(c.shared_width()) * d(c.hidden) + 2 * d(c.latent) * d(c.hidden);
    const double state = d(c.max_positions) * d(c.cache_width());
    const double total = d(c.layers) * (attention + moe + state) +
                         3 * d(c.dense_width) * d(c.hidden) * d(c.first_dense) + 2 * d(c.vocab) * d(c.hidden);
    if (total > 0x1p53) {
        fields.problem(
            "the sizes together make more than 2^53 numbers, which no model has: check them against the release");
    }
}

}  // namespace k3::model::detail
#endif
