#ifndef K3_MODEL_DETAIL_LAYER_KINDS_HPP
#define K3_MODEL_DETAIL_LAYER_KINDS_HPP
// full_attn_layers and kda_layers: one-based layer numbers that must partition 1..layers. A missing map once made every
// layer linear attention in another engine, and the text stayed fluent; so nothing is assumed here.
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "k3/model/config.hpp"
#include "k3/model/detail/config_fields.hpp"

namespace k3::model::detail {

/// The numbers of a list that are integers in 1..layers; every other fault of the list is a problem.
inline std::vector<std::size_t> layer_list(ConfigFields& fields, const ConfigFields::Found& field, std::size_t layers) {
    std::vector<std::size_t> list;
    if (!field.value->is_array() || field.value->empty()) {
        fields.problem(field.path + " must be a list of layer numbers that is not empty, is " + shown(*field.value));
        return list;
    }
    std::size_t bad = 0;
    bool ascending = true;
    for (const Json& item : *field.value) {
        const bool good =
            item.is_number_unsigned() && item.get<std::uint64_t>() >= 1 && item.get<std::uint64_t>() <= layers;
        if (!good) {
            if (++bad <= 3)
                fields.problem(field.path + " holds " + shown(item) + ", outside 1.." + std::to_string(layers));
            continue;
        }
        const std::size_t number = item.get<std::size_t>();
        ascending = ascending && (list.empty() || number > list.back());
        list.push_back(number);
    }
    if (bad > 3) fields.problem(field.path + " holds " + std::to_string(bad - 3) + " more such entries");
    if (!ascending) fields.problem(field.path + " is not in ascending order without repeats");
    return list;
}

/// `kda_need`: the flat shape lists only the full-attention layers, so there the others are KDA by definition.
inline std::vector<LayerKind> layer_kinds(ConfigFields& fields, const Scopes& scopes, std::size_t layers,
                                          Need kda_need) {
    std::vector<LayerKind> kinds(layers, LayerKind::kda);
    const auto full = fields.find(scopes, {"full_attn_layers"});
    const auto kda = fields.find(scopes, {"kda_layers"}, kda_need);
    if (layers == 0) return kinds;  // num_hidden_layers is a problem already
    std::vector<std::uint8_t> is_full(layers), is_kda(layers);
    if (full.value != nullptr) {
        for (const std::size_t number : layer_list(fields, full, layers)) is_full[number - 1] = 1;
    }
    if (kda.value != nullptr) {
        for (const std::size_t number : layer_list(fields, kda, layers)) is_kda[number - 1] = 1;
    }
    std::string both, neither;
    std::size_t full_count = 0;
    for (std::size_t i = 0; i < layers; ++i) {
        if (is_full[i] != 0) kinds[i] = LayerKind::mla;
        full_count += is_full[i];
        std::string number(1, ' ');
        number += std::to_string(i + 1);
        if (is_full[i] != 0 && is_kda[i] != 0) both += number;
        if (is_full[i] == 0 && is_kda[i] == 0) neither += number;
    }
    if (full.value != nullptr && kda.value != nullptr) {
        if (!both.empty())
            fields.problem("layers in both " + full.path + " and " + kda.path + ":" + one_line(both, 80));
        if (!neither.empty()) {
            fields.problem("layers in neither " + full.path + " nor " + kda.path + ":" + one_line(neither, 80));
        }
    }
    if (full_count == layers) fields.problem(full.path + " names every layer; at least one must be KDA");
    return kinds;
}

}  // namespace k3::model::detail
#endif
