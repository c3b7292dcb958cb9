#ifndef K3_DRIVERS_INSPECT_REPORT_HPP
#define K3_DRIVERS_INSPECT_REPORT_HPP
// The census as text or JSON, with the budget that follows from the configuration: what a token costs, what is held.
#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>

#include <nlohmann/json.hpp>

#include "drivers/inspect/census.hpp"
#include "k3/model/config_reader.hpp"

namespace k3::inspect {

/// Bytes that decide how a run can be arranged. All exact.
struct Budget {
    std::uint64_t trunk;               // layers' trunk and lm_head: pinned as far as memory allows, else streamed
    std::uint64_t embedding_row;       // read for every new token
    std::uint64_t expert;              // one expert, its six tensors
    std::uint64_t experts_per_token;   // read for one token when none is cached
    std::uint64_t cache_per_position;  // latent cache, float32
    std::uint64_t recurrent_state;     // KDA state and convolution histories of one sequence, float32
};

inline Budget make_budget(const Census& census, const model::ModelConfig& config) {
    const model::Config& c = config.shape;
    std::uint64_t kda = 0, moe = 0;
    for (std::size_t layer = 0; layer < c.layers; ++layer) {
        kda += config.kinds[layer] == model::LayerKind::kda ? 1 : 0;
        moe += layer >= c.first_dense ? 1 : 0;
    }
    const auto of = [&](Class which) { return census.classes[static_cast<std::size_t>(which)].bytes; };
    Budget budget{};
    budget.trunk = of(Class::lm_head) + of(Class::root) + of(Class::layer_norms) + of(Class::kda) + of(Class::mla) +
                   of(Class::dense) + of(Class::moe);
    budget.embedding_row = of(Class::embedding) / c.vocab;
    budget.expert = moe == 0 ? 0 : of(Class::experts) / (moe * c.experts);
    budget.experts_per_token = budget.expert * moe * c.experts_per_token;
    budget.cache_per_position = 4 * c.cache_width() * (c.layers - kda);
    budget.recurrent_state = 4 * kda * c.kda_width() * (c.kda_head_dim + 3 * (c.conv_kernel - 1));
    return budget;
}

namespace detail {
inline void print_row(const char* label, const Count& count, std::uint64_t total) {
    std::printf("  %-12s %9" PRIu64 " tensors %18" PRIu64 " bytes  %5.1f %%\n", label, count.tensors, count.bytes,
                total == 0 ? 0.0 : 100.0 * static_cast<double>(count.bytes) / static_cast<double>(total));
}
}  // namespace detail

inline void print_text(const Census& census, const std::optional<Budget>& budget, std::size_t shards) {
    std::printf("%zu shards, %" PRIu64 " tensors, %" PRIu64 " payload bytes\n\nby class\n", shards,
                census.total.tensors, census.total.bytes);
    for (std::size_t i = 0; i < kClassNames.size(); ++i) {
        if (census.classes[i].tensors != 0) detail::print_row(kClassNames[i], census.classes[i], census.total.bytes);
    }
    for (const std::string& name : census.others) std::printf("    other: %s\n", checkpoint::printable(name).c_str());
    std::printf("\nby dtype\n");
    for (const auto& [dtype, count] : census.dtypes) detail::print_row(dtype.c_str(), count, census.total.bytes);
    std::printf("\nby layer\n  layer  kind        trunk bytes  one run  experts      expert bytes\n");
    for (const auto& [number, layer] : census.layers) {
        std::printf("  %5u  %-9s %13" PRIu64 "  %-7s  %7" PRIu64 "  %16" PRIu64 "\n", number, kind_of(layer).c_str(),
                    layer.trunk.bytes, layer.one_run() ? "yes" : "no", layer.expert_ids, layer.experts.bytes);
    }
    if (!budget) return;
    std::printf("\nbudget, bytes\n");
    const auto line = [](std::uint64_t bytes, const char* what) { std::printf("  %18" PRIu64 "  %s\n", bytes, what); };
    line(budget->trunk, "trunk and lm_head: pinned as far as memory allows, the rest streamed every token");
    line(budget->embedding_row, "one embedding row: read for every new token, never resident as a whole");
    line(budget->expert, "one expert");
    line(budget->experts_per_token, "experts of one token, none of them cached");
    line(budget->cache_per_position, "latent cache for one position");
    line(budget->recurrent_state, "recurrent state of one sequence");
}

inline void print_json(const Census& census, const std::optional<Budget>& budget, std::size_t shards) {
    using Json = nlohmann::ordered_json;
    const auto count = [](const Count& c) { return Json{{"tensors", c.tensors}, {"bytes", c.bytes}}; };
    Json root = {{"shards", shards}, {"tensors", census.total.tensors}, {"payload_bytes", census.total.bytes}};
    root["classes"] = root["dtypes"] = Json::object();
    root["layers"] = root["other"] = Json::array();
    for (std::size_t i = 0; i < kClassNames.size(); ++i) root["classes"][kClassNames[i]] = count(census.classes[i]);
    for (const auto& [dtype, c] : census.dtypes) root["dtypes"][dtype] = count(c);
    for (const auto& [number, layer] : census.layers) {
        root["layers"].push_back({{"layer", number},
                                  {"kind", kind_of(layer)},
                                  {"trunk", count(layer.trunk)},
                                  {"one_run", layer.one_run()},
                                  {"expert_count", layer.expert_ids},
                                  {"experts", count(layer.experts)}});
    }
    for (const std::string& name : census.others) root["other"].push_back(checkpoint::printable(name));
    if (budget) {
        root["budget"] = {{"trunk", budget->trunk},
                          {"embedding_row", budget->embedding_row},
                          {"expert", budget->expert},
                          {"experts_per_token", budget->experts_per_token},
                          {"cache_per_position", budget->cache_per_position},
                          {"recurrent_state", budget->recurrent_state}};
    }
    std::printf("%s\n", root.dump(-1, ' ', false, Json::error_handler_t::replace).c_str());
}

}  // namespace k3::inspect
#endif
