#ifndef K3_DRIVERS_INSPECT_CENSUS_HPP
#define K3_DRIVERS_INSPECT_CENSUS_HPP
// What a checkpoint holds: tensors and bytes by class, by dtype and by layer. Goes by names alone, so that it also
// works on a folder whose config.json is refused; a name it does not know is counted as "other" and shown.
#include <algorithm>
#include <array>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "k3/checkpoint/expert_name.hpp"
#include "k3/checkpoint/shard_index.hpp"

namespace k3::inspect {

enum class Class : std::uint8_t { embedding, lm_head, root, layer_norms, kda, mla, dense, moe, experts, vision, other };
inline constexpr std::array<const char*, 11> kClassNames{"embedding", "lm_head",   "root norms",  "layer norms",
                                                         "trunk KDA", "trunk MLA", "trunk dense", "trunk MoE",
                                                         "experts",   "vision",    "other"};

struct Count {
    std::uint64_t tensors = 0, bytes = 0;
    void add(std::uint64_t more) noexcept { ++tensors, bytes += more; }
};

struct LayerCount {
    Count trunk, experts;
    std::array<std::uint64_t, kClassNames.size()> classes{};  // bytes
    std::uint64_t expert_ids = 0;                             // distinct experts
    bool kda = false, mla = false, dense = false;
    std::uint64_t trunk_begin = ~std::uint64_t{0}, trunk_end = 0;
    std::optional<std::uint32_t> trunk_shard{};
    bool split = false;  // trunk tensors in more than one shard

    /// The trunk is one gapless run of one shard: it can be streamed with one sequential read.
    bool one_run() const noexcept { return !split && trunk_end - trunk_begin == trunk.bytes; }
};

struct Census {
    std::array<Count, kClassNames.size()> classes{};
    std::map<std::string, Count> dtypes;
    std::map<std::uint32_t, LayerCount> layers;
    std::vector<std::string> others;  // names of class other
    Count total;
};

namespace detail {

/// Takes "language_model.model.layers.N." off the front and returns N.
inline std::optional<std::uint32_t> take_layer(std::string_view& name) {
    constexpr std::string_view kPrefix = "language_model.model.layers.";
    if (!name.starts_with(kPrefix)) return std::nullopt;
    std::string_view rest = name.substr(kPrefix.size());
    std::uint32_t layer = 0;
    const auto [end, failure] = std::from_chars(rest.data(), rest.data() + rest.size(), layer);
    if (failure != std::errc{} || end == rest.data() + rest.size() || *end != '.') return std::nullopt;
    name = rest.substr(static_cast<std::size_t>(end - rest.data()) + 1);
    return layer;
}

inline bool is_mla_only(std::string_view suffix) {
    return suffix.starts_with("self_attn.q_a_") || suffix.starts_with("self_attn.q_b_") ||
           suffix.starts_with("self_attn.kv_");
}
inline bool is_kda_only(std::string_view suffix) {
    return suffix == "self_attn.A_log" || suffix == "self_attn.dt_bias" || suffix == "self_attn.b_proj.weight" ||
           suffix.starts_with("self_attn.f_") || suffix.find("_conv1d.") != std::string_view::npos;
}

inline Class class_of(std::string_view name, const std::map<std::uint32_t, LayerCount>& layers) {
    if (checkpoint::parse_expert_name(name)) return Class::experts;
    if (name == "language_model.model.embed_tokens.weight") return Class::embedding;
    if (name == "language_model.lm_head.weight") return Class::lm_head;
    if (name == "language_model.model.norm.weight" || name.starts_with("language_model.model.output_attn_res_")) {
        return Class::root;
    }
    if (name.starts_with("vision_tower.") || name.starts_with("mm_projector.")) return Class::vision;
    std::string_view suffix = name;
    const std::optional<std::uint32_t> layer = take_layer(suffix);
    if (!layer) return Class::other;
    if (suffix.starts_with("self_attn.")) return layers.at(*layer).mla ? Class::mla : Class::kda;
    if (suffix.starts_with("mlp.")) return Class::dense;
    if (suffix.starts_with("block_sparse_moe.experts.")) return Class::other;  // an expert tensor of an unknown kind
    if (suffix.starts_with("block_sparse_moe.")) return Class::moe;
    const bool norm = suffix == "input_layernorm.weight" || suffix == "post_attention_layernorm.weight" ||
                      suffix.starts_with("self_attention_res_") || suffix.starts_with("mlp_res_");
    return norm ? Class::layer_norms : Class::other;
}

inline void count_layer(LayerCount& layer, std::string_view suffix, const checkpoint::TensorInfo& info) {
    layer.trunk.add(info.bytes);
    layer.kda = layer.kda || is_kda_only(suffix);
    layer.mla = layer.mla || is_mla_only(suffix);
    layer.dense = layer.dense || suffix.starts_with("mlp.");
    layer.split = layer.split || (layer.trunk_shard && *layer.trunk_shard != info.shard);
    layer.trunk_shard = info.shard;
    layer.trunk_begin = std::min(layer.trunk_begin, info.offset);
    layer.trunk_end = std::max(layer.trunk_end, info.offset + info.bytes);
}

}  // namespace detail

inline Census take_census(const checkpoint::ShardIndex& index) {
    Census census;
    std::map<std::uint32_t, std::vector<bool>> seen;
    index.for_each([&](std::string_view name, const checkpoint::TensorInfo& info) {
        census.total.add(info.bytes);
        census.dtypes[std::string(checkpoint::name(info.dtype))].add(info.bytes);
        if (const auto expert = checkpoint::parse_expert_name(name)) {
            LayerCount& layer = census.layers[expert->layer];
            layer.experts.add(info.bytes);
            std::vector<bool>& ids = seen[expert->layer];
            if (ids.size() <= expert->expert) ids.resize(std::size_t{expert->expert} + 1);
            if (!ids[expert->expert]) ++layer.expert_ids;
            ids[expert->expert] = true;
            return;
        }
        std::string_view suffix = name;
        if (const auto layer = detail::take_layer(suffix)) detail::count_layer(census.layers[*layer], suffix, info);
    });
    // A second walk, because whether self_attn.g_proj is KDA's or MLA's depends on its neighbours.
    index.for_each([&](std::string_view name, const checkpoint::TensorInfo& info) {
        const Class which = detail::class_of(name, census.layers);
        census.classes[static_cast<std::size_t>(which)].add(info.bytes);
        std::string_view suffix = name;
        if (const auto layer = detail::take_layer(suffix))
            census.layers[*layer].classes[static_cast<std::size_t>(which)] += info.bytes;
        if (which == Class::other) census.others.emplace_back(name);
    });
    return census;
}

inline std::string kind_of(const LayerCount& layer) {
    const std::string attention = layer.kda == layer.mla ? (layer.kda ? "KDA and MLA?" : "?")
                                  : layer.kda            ? "KDA"
                                                         : "MLA";
    return attention + (layer.dense ? " dense" : " MoE");
}

}  // namespace k3::inspect
#endif
