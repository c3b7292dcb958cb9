#ifndef K3_DRIVERS_INSPECT_DIFF_HPP
#define K3_DRIVERS_INSPECT_DIFF_HPP
// Two checkpoints by their headers: tensors that only one has, and those of another dtype or shape. In which shard a
// tensor lies does not matter; what is in it is not read.
#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "k3/checkpoint/shard_index.hpp"

namespace k3::inspect {

struct Difference {
    struct Side {
        std::string dtype{}, shape{};
        std::uint64_t bytes = 0;
    };
    std::string name{};
    char kind = '~';  // - only in the first, + only in the second, ~ in both and not alike
    Side first{}, second{};
};

struct Differences {
    std::vector<Difference> list{};
    std::uint64_t only_first = 0, only_second = 0, changed = 0, same = 0;
    bool none() const noexcept { return list.empty(); }
};

inline Differences compare(const checkpoint::ShardIndex& first, const checkpoint::ShardIndex& second) {
    const auto side = [](const checkpoint::TensorInfo& info) {
        return Difference::Side{std::string(checkpoint::name(info.dtype)), to_string(info.shape), info.bytes};
    };
    Differences found;
    first.for_each([&](std::string_view name, const checkpoint::TensorInfo& mine) {
        const auto other = second.find(name);
        if (!other) {
            ++found.only_first;
            found.list.push_back({checkpoint::printable(name), '-', side(mine), {}});
        } else if (other->dtype != mine.dtype || other->shape != mine.shape) {
            ++found.changed;
            found.list.push_back({checkpoint::printable(name), '~', side(mine), side(*other)});
        } else {
            ++found.same;
        }
    });
    second.for_each([&](std::string_view name, const checkpoint::TensorInfo& info) {
        if (first.find(name)) return;
        ++found.only_second;
        found.list.push_back({checkpoint::printable(name), '+', {}, side(info)});
    });
    return found;
}

inline void print_diff_text(const Differences& found) {
    const auto shown = [](const Difference::Side& side) {
        return side.dtype + " " + side.shape + " " + std::to_string(side.bytes) + " bytes";
    };
    for (const Difference& d : found.list)
        std::printf("%c %s %s\n", d.kind, d.name.c_str(),
                    d.kind == '~'   ? (shown(d.first) + " -> " + shown(d.second)).c_str()
                    : d.kind == '-' ? shown(d.first).c_str()
                                    : shown(d.second).c_str());
    std::printf("%llu only in the first, %llu only in the second, %llu of another dtype or shape, %llu alike\n",
                static_cast<unsigned long long>(found.only_first), static_cast<unsigned long long>(found.only_second),
                static_cast<unsigned long long>(found.changed), static_cast<unsigned long long>(found.same));
}

inline void print_diff_json(const Differences& found) {
    using Json = nlohmann::ordered_json;
    const auto side = [](const Difference::Side& s) {
        return Json{{"dtype", s.dtype}, {"shape", s.shape}, {"bytes", s.bytes}};
    };
    Json root = {{"only_first", found.only_first},
                 {"only_second", found.only_second},
                 {"changed", found.changed},
                 {"same", found.same},
                 {"differences", Json::array()}};
    for (const Difference& d : found.list) {
        Json row = {{"name", d.name}};
        if (d.kind != '+') row["first"] = side(d.first);
        if (d.kind != '-') row["second"] = side(d.second);
        root["differences"].push_back(row);
    }
    std::printf("%s\n", root.dump(-1, ' ', false, Json::error_handler_t::replace).c_str());
}

}  // namespace k3::inspect
#endif
