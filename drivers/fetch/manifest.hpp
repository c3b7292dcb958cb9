#ifndef K3_DRIVERS_FETCH_MANIFEST_HPP
#define K3_DRIVERS_FETCH_MANIFEST_HPP
// k3-fetch.json: what a folder was fetched from, what the server said about every file, and which files have been read
// whole and found right since. docs/FORMATS.md has the keys.
#include <sys/stat.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include <nlohmann/json.hpp>

#include "drivers/fetch/listing.hpp"
#include "drivers/fetch/part_file.hpp"
#include "drivers/sizes.hpp"
#include "k3/core/error.hpp"
#include "k3/io/file.hpp"

namespace k3::fetch {

/// Size and time of change of a regular file; nullopt if there is none of that name.
struct Stamp {
    std::uint64_t size = 0;
    std::int64_t mtime_ns = 0;

    static std::optional<Stamp> of(const std::string& path) {
        struct stat info {};
        if (::stat(path.c_str(), &info) != 0 || !S_ISREG(info.st_mode)) return {};
        return Stamp{static_cast<std::uint64_t>(info.st_size),
                     std::int64_t{info.st_mtim.tv_sec} * 1000000000 + info.st_mtim.tv_nsec};
    }
};

/// Not thread-safe.
class Manifest {
  public:
    Manifest(std::string folder, Source source, Listing listing)
        : folder_(std::move(folder)), source_(std::move(source)), listing_(std::move(listing)) {}

    /// nullopt where there is none, or none that can be understood; `damaged` tells them apart. Errors: Code::read.
    static std::optional<Manifest> load(const std::string& folder, bool& damaged) {
        const std::string path = folder + "/" + kManifestName;
        damaged = false;
        if (::access(path.c_str(), F_OK) != 0) return {};
        try {
            const nlohmann::json root = nlohmann::json::parse(io::File::read_text(path, std::uint64_t{256} << 20));
            if (root.at("version") != 1) throw Error(Code::read, "", "");
            Manifest manifest(folder, {root.at("endpoint"), root.at("repo"), root.at("revision")},
                              {root.at("commit"), {}});
            for (const nlohmann::json& row : root.at("files")) {
                RemoteFile file{row.at("path"), row.at("size"), {}};
                for (const char* kind : {"sha256", "git-sha1"}) {
                    if (row.contains(kind)) file.digest = {kind, row.at(kind)};
                }
                if (!is_safe_path(file.path) || is_own_path(file.path)) throw Error(Code::read, "", "");
                if (row.value("stale", false)) manifest.stale_.insert(file.path);
                if (row.contains("verified_mtime_ns")) manifest.verified_[file.path] = row.at("verified_mtime_ns");
                manifest.listing_.files.push_back(std::move(file));
            }
            detail::check_names(manifest.listing_.files, manifest.source_.repo);
            return manifest;
        } catch (const std::exception&) {
            damaged = true;
            return {};
        }
    }

    /// Writes it where it differs from what is there: a full disk is no obstacle to a folder that is complete.
    /// Errors: Code::write.
    void save() const {
        nlohmann::ordered_json root = {{"version", 1},
                                       {"repo", source_.repo},
                                       {"endpoint", source_.endpoint},
                                       {"revision", source_.revision},
                                       {"commit", listing_.commit}};
        nlohmann::ordered_json& rows = root["files"] = nlohmann::ordered_json::array();
        for (const RemoteFile& file : listing_.files) {
            nlohmann::ordered_json row = {{"path", file.path}, {"size", file.size}};
            if (file.digest) row[file.digest.kind] = file.digest.hex;
            if (const auto mark = verified_.find(file.path); mark != verified_.end())
                row["verified_mtime_ns"] = mark->second;
            if (is_stale(file)) row["stale"] = true;
            rows.push_back(std::move(row));
        }
        const std::string path = folder_ + "/" + kManifestName;
        const std::string text = root.dump(1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
        if (!is_there(path, text)) replace_text(path, text, Sync::yes);
    }

    const Source& source() const noexcept { return source_; }
    const Listing& listing() const noexcept { return listing_; }
    std::string local(const RemoteFile& file) const { return folder_ + "/" + file.path; }

    /// What must be equal for two fetches of a file to be of the same bytes.
    std::string identity(const RemoteFile& file) const {
        if (file.digest) return file.digest.text();
        return listing_.commit.empty() ? "none" : "commit:" + listing_.commit;
    }

    /// Files found right before stay so if they are still to be the same. Files without a digest that may be of another
    /// commit become stale: their size says nothing.
    void adopt(const Manifest& before) {
        for (const RemoteFile& file : listing_.files) {
            const RemoteFile* old = before.find(file.path);
            const auto mark = before.verified_.find(file.path);
            if (old != nullptr && mark != before.verified_.end() && old->size == file.size &&
                before.identity(*old) == identity(file))
                verified_.insert(*mark);
            if (old == nullptr || file.digest || !Stamp::of(local(file))) continue;
            const bool same_commit = !listing_.commit.empty() && listing_.commit == before.listing_.commit;
            if (before.is_stale(*old) || (!same_commit && before.identity(*old) != identity(file)))
                stale_.insert(file.path);
        }
    }

    /// `file` was read whole, or arrived whole, as it is now.
    void mark(const RemoteFile& file) {
        if (const auto stamp = Stamp::of(local(file))) verified_[file.path] = stamp->mtime_ns;
        stale_.erase(file.path);
    }
    /// What is there under its name was fetched as another version, and no digest can tell whether it is this one.
    bool is_stale(const RemoteFile& file) const { return stale_.contains(file.path); }
    void unmark(const RemoteFile& file) { verified_.erase(file.path); }
    bool is_marked(const RemoteFile& file, const Stamp& stamp) const {
        const auto mark = verified_.find(file.path);
        return mark != verified_.end() && stamp.size == file.size && mark->second == stamp.mtime_ns;
    }

    const RemoteFile* find(const std::string& path) const {
        const auto file = std::ranges::lower_bound(listing_.files, path, {}, &RemoteFile::path);
        return file != listing_.files.end() && file->path == path ? &*file : nullptr;
    }

  private:
    static bool is_there(const std::string& path, const std::string& text) {
        const auto stamp = Stamp::of(path);
        if (!stamp || stamp->size != text.size()) return false;
        try {
            return io::File::read_text(path, text.size()) == text;
        } catch (const Error&) {
            return false;
        }
    }

    std::string folder_;
    Source source_;
    Listing listing_;
    std::map<std::string, std::int64_t> verified_;
    std::set<std::string> stale_;
};

/// The manifest as several threads see it. It is saved as files are found right, at most once a second, and by save().
class Ledger {
  public:
    enum class Keep { as_it_goes, at_the_end };

    Ledger(Manifest& manifest, Keep keep) : manifest_(&manifest), keep_(keep) {}

    void mark(const RemoteFile& file) {
        const std::lock_guard lock(guard_);
        manifest_->mark(file);
        const auto now = std::chrono::steady_clock::now();
        if (keep_ == Keep::at_the_end || now - saved_ < std::chrono::seconds(1)) return;
        manifest_->save();
        saved_ = now;
    }
    void unmark(const RemoteFile& file) {
        const std::lock_guard lock(guard_);
        manifest_->unmark(file);
    }
    void save() {
        const std::lock_guard lock(guard_);
        manifest_->save();
    }

  private:
    Manifest* manifest_;
    Keep keep_;
    std::chrono::steady_clock::time_point saved_{};
    std::mutex guard_;
};

}  // namespace k3::fetch
#endif
