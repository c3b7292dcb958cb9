#ifndef K3_CHECKPOINT_DETAIL_SHARD_FILES_HPP
#define K3_CHECKPOINT_DETAIL_SHARD_FILES_HPP
// Which files of a model directory are its shards, and whether a numbered set is whole.
#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "k3/checkpoint/detail/problems.hpp"
#include "k3/core/error.hpp"

namespace k3::checkpoint::detail {

inline constexpr std::string_view kShardSuffix = ".safetensors";
inline constexpr const char* kDownloadMissing = "download what is missing into the model directory";

/// Names (not paths) of all model*.safetensors in `dir`, sorted bytewise: the numbers are padded, so that is their
/// order. Errors: Code::checkpoint if there is no such directory or no shard in it.
inline std::vector<std::string> find_shards(const std::string& dir) {
    std::error_code fault;
    std::filesystem::directory_iterator entries(dir, fault);
    if (fault) {
        throw Error(Code::checkpoint, "cannot be listed: " + fault.message(), "give the directory of the checkpoint",
                    {.path = dir});
    }
    std::vector<std::string> names;
    for (const std::filesystem::directory_iterator end; entries != end; entries.increment(fault)) {
        const std::string name = entries->path().filename().string();
        if (name.starts_with("model") && name.ends_with(kShardSuffix)) names.push_back(name);
        if (fault) break;
    }
    if (fault) {
        throw Error(Code::checkpoint, "cannot be listed: " + fault.message(), "check the disk", {.path = dir});
    }
    if (names.empty()) {
        throw Error(Code::checkpoint, "holds no shard (model*.safetensors)",
                    "give the directory of a downloaded checkpoint", {.path = dir});
    }
    std::sort(names.begin(), names.end());
    return names;
}

/// The parts of model-00002-of-000096.safetensors; the digits keep their padding.
struct ShardNumber {
    std::string number, total;
};

inline std::optional<ShardNumber> shard_number(std::string_view name) {
    constexpr std::string_view kHead = "model-", kMiddle = "-of-";
    const auto digits_only = [](std::string_view text) {
        return !text.empty() && text.size() <= 9 && text.find_first_not_of("0123456789") == std::string_view::npos;
    };
    if (!name.starts_with(kHead) || !name.ends_with(kShardSuffix)) return std::nullopt;
    name.remove_prefix(kHead.size());
    name.remove_suffix(kShardSuffix.size());
    const std::size_t middle = name.find(kMiddle);
    if (middle == std::string_view::npos) return std::nullopt;
    const std::string_view number = name.substr(0, middle), total = name.substr(middle + kMiddle.size());
    if (!digits_only(number) || !digits_only(total)) return std::nullopt;
    return ShardNumber{std::string(number), std::string(total)};
}

/// Adds an Error for shards of different sets, and one that lists the missing numbers of a set.
inline void check_numbering(const std::string& dir, const std::vector<std::string>& names, std::vector<Error>& errors) {
    std::map<unsigned long, std::set<unsigned long>> sets;  // total -> numbers
    std::map<unsigned long, ShardNumber> sample;
    for (const std::string& name : names) {
        const auto parts = shard_number(name);
        if (!parts) continue;
        const unsigned long total = std::stoul(parts->total), number = std::stoul(parts->number);
        if (number == 0 || number > total) {
            errors.emplace_back(Code::checkpoint, "its number is outside 1.." + std::to_string(total),
                                "move the file away", Where{.path = dir + "/" + name});
            continue;
        }
        sets[total].insert(number);
        sample.emplace(total, *parts);
    }
    if (sets.size() > 1) {
        std::vector<std::string> totals;
        for (const auto& entry : sets) totals.push_back("..." + std::string("-of-") + sample.at(entry.first).total);
        errors.emplace_back(Code::checkpoint, "holds shards of different sets: " + join_some(totals, ", "),
                            "keep the files of one checkpoint only", Where{.path = dir});
        return;
    }
    for (const auto& [total, numbers] : sets) {
        if (numbers.size() == total) continue;
        const ShardNumber& like = sample.at(total);
        std::vector<std::string> missing;  // only the first few are named: a wrong total may be a million
        for (unsigned long n = 1; n <= total && missing.size() < 20; ++n) {
            if (numbers.count(n) != 0) continue;
            std::string digits = std::to_string(n);
            digits.insert(0, like.number.size() - std::min(like.number.size(), digits.size()), '0');
            missing.push_back("model-" + digits + "-of-" + like.total + std::string(kShardSuffix));
        }
        const std::size_t count = total - numbers.size();
        std::string list = join_some(missing, ", ");
        if (count > missing.size()) list += " and " + std::to_string(count - missing.size()) + " more";
        errors.emplace_back(Code::checkpoint,
                            std::to_string(count) + " of " + std::to_string(total) + " shards are missing: " + list,
                            kDownloadMissing, Where{.path = dir});
    }
}

}  // namespace k3::checkpoint::detail
#endif
