#ifndef K3_CHECKPOINT_DETAIL_PROBLEMS_HPP
#define K3_CHECKPOINT_DETAIL_PROBLEMS_HPP
// Many findings, one line: bad shards, missing files, duplicate names are collected and reported together.
#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "k3/core/error.hpp"

namespace k3::checkpoint::detail {

/// "a; b; c and 7 more": at most `limit` items are spelled out.
inline std::string join_some(const std::vector<std::string>& items, std::string_view separator,
                             std::size_t limit = 20) {
    std::string text;
    for (std::size_t i = 0; i < items.size() && i < limit; ++i) {
        if (i != 0) text += separator;
        text += items[i];
    }
    if (items.size() > limit) text += " and " + std::to_string(items.size() - limit) + " more";
    return text;
}

/// The last part of a path.
inline std::string base_name(const std::string& path) { return path.substr(path.find_last_of('/') + 1); }

/// Throws nothing if `errors` is empty, the only one as it is, or one Error about `dir` that lists them in order.
inline void throw_all(const std::string& dir, const std::vector<Error>& errors) {
    if (errors.empty()) return;
    if (errors.size() == 1) throw errors.front();
    std::vector<std::string> lines;
    for (const Error& error : errors) {
        std::string line = base_name(error.where().path);
        if (!error.where().tensor.empty()) line += ", tensor " + error.where().tensor;
        lines.push_back(line + ": " + error.message());
    }
    throw Error(errors.front().code(), std::to_string(errors.size()) + " problems: " + join_some(lines, " | "),
                errors.front().next(), {.path = dir});
}

}  // namespace k3::checkpoint::detail
#endif
