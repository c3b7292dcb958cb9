#ifndef K3_DRIVERS_DOCTOR_FOLDER_HPP
#define K3_DRIVERS_DOCTOR_FOLDER_HPP
// What lies in the folder of a checkpoint that cannot be opened, by its names and sizes: a download that goes on or was
// left, one whose shards went astray, or nothing. What k3-fetch wrote down there says where the rest is.
#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <string>
#include <string_view>
#include <system_error>

#include <nlohmann/json.hpp>

#include "k3/io/file.hpp"

namespace k3::doctor {

struct Folder {
    bool there = false;              // else it is no folder, or cannot be listed
    std::size_t entries = 0;         // of any name
    std::size_t shards = 0, of = 0;  // model*.safetensors; how many there should be, 0: nothing says so
    std::uint64_t bytes = 0;         // of those shards
    std::size_t parts = 0;           // files on their way, *.part
    bool released_names = false;     // shards are numbered like the release's
    std::string endpoint{}, repo{};  // where k3-fetch had it from; empty: nothing says so
    std::string revision{};
    bool nothing() const noexcept { return there && entries == 0; }
};

namespace detail {

/// The N of model-00001-of-N.safetensors, or 0.
inline std::size_t shards_in_name(std::string_view name) {
    const std::size_t of = name.rfind("-of-");
    std::size_t count = 0;
    if (of != std::string_view::npos) std::from_chars(name.data() + of + 4, name.data() + name.size(), count);
    return count;
}

inline bool is_shard_name(std::string_view name) { return name.starts_with("model") && name.ends_with(".safetensors"); }

/// A word of an address: what else stands in the file is not put into a command.
inline bool is_address(const std::string& text) {
    return !text.empty() && text.front() != '-' &&
           std::all_of(text.begin(), text.end(), [](char c) { return c > 0x20 && c < 0x7f; });
}

/// k3-fetch.json, as far as it says where the files are; one that is damaged says nothing.
inline void read_manifest(const std::string& dir, Folder& folder) {
    try {
        const auto root = nlohmann::json::parse(io::File::read_text(dir + "/k3-fetch.json", std::uint64_t{1} << 26));
        const std::string endpoint = root.at("endpoint"), repo = root.at("repo"), revision = root.at("revision");
        if (!is_address(endpoint) || !is_address(repo) || !is_address(revision)) return;
        std::size_t listed = 0;
        for (const auto& file : root.at("files")) listed += is_shard_name(file.at("path").get<std::string>()) ? 1 : 0;
        folder.endpoint = endpoint;
        folder.repo = repo;
        folder.revision = revision;
        if (listed != 0) folder.of = listed;
    } catch (const std::exception&) {  // not there, or not one
    }
}

}  // namespace detail

/// Reads names, sizes and k3-fetch.json. Nothing is thrown: what cannot be read is not there.
inline Folder look_into(const std::string& dir) {
    Folder folder;
    std::error_code failed;
    std::filesystem::directory_iterator at(dir, failed);
    folder.there = !failed;
    for (; !failed && at != std::filesystem::directory_iterator(); at.increment(failed)) {
        ++folder.entries;
        std::string name = at->path().filename().string();
        const bool part = name.ends_with(".part");
        if (part) name.resize(name.size() - std::string_view(".part").size());
        folder.parts += part ? 1 : 0;
        if (!detail::is_shard_name(name)) continue;
        folder.of = std::max(folder.of, detail::shards_in_name(name));
        folder.released_names = folder.released_names || name.ends_with("-of-000096.safetensors");
        if (part) continue;
        ++folder.shards;
        std::error_code unknown;
        const std::uintmax_t size = at->file_size(unknown);
        folder.bytes += unknown ? 0 : size;
    }
    if (folder.there) detail::read_manifest(dir, folder);
    return folder;
}

}  // namespace k3::doctor
#endif
