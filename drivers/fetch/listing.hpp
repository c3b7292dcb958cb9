#ifndef K3_DRIVERS_FETCH_LISTING_HPP
#define K3_DRIVERS_FETCH_LISTING_HPP
// What a repository holds, as its server tells it: the commit that a revision stands for now, then every file with its
// size and, where offered, a digest. Names that would leave the folder they are fetched to are refused.
#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "drivers/fetch/address.hpp"
#include "drivers/fetch/digest.hpp"
#include "drivers/fetch/http.hpp"
#include "drivers/fetch/retry.hpp"
#include "drivers/sizes.hpp"
#include "k3/core/error.hpp"
#include "k3/io/guess.hpp"

namespace k3::fetch {

inline constexpr const char* kManifestName = "k3-fetch.json";

struct RemoteFile {
    std::string path;
    std::uint64_t size = 0;
    Digest digest{};
};

struct Listing {
    std::string commit;             // 40 hex digits; empty where the server does not say
    std::vector<RemoteFile> files;  // by path
};

/// Whether the file, or a folder on the way to it, has a name that k3-fetch gives to files of its own.
inline bool is_own_path(const std::string& path) {
    for (std::size_t begin = 0; begin <= path.size();) {
        const std::size_t end = std::min(path.find('/', begin), path.size());
        const std::string_view word = std::string_view(path).substr(begin, end - begin);
        for (const char* own : {".part", ".part.journal", ".part.journal.new"}) {
            if (word.ends_with(own)) return true;
        }
        if (begin == 0 && (word == kManifestName || word == std::string(kManifestName) + ".new")) return true;
        begin = end + 1;
    }
    return false;
}

/// Whether a file of this name may be written below a folder.
inline bool is_safe_path(const std::string& path) {
    if (path.empty() || path.size() > 1024 || path.front() == '/' || path.back() == '/') return false;
    for (std::size_t begin = 0; begin <= path.size();) {
        const std::size_t end = std::min(path.find('/', begin), path.size());
        const std::string_view word = std::string_view(path).substr(begin, end - begin);
        // A name also has to leave room for ".part.journal.new" within 255 bytes.
        if (word.empty() || word == "." || word == ".." || word.size() > 230) return false;
        begin = end + 1;
    }
    return std::ranges::all_of(path, [](char c) {
        const auto byte = static_cast<unsigned char>(c);
        return byte >= 0x20 && byte != 0x7f && c != '\\';
    });
}

/// For 401 and 403 from the hub itself, anywhere in a run: throws Code::plan.
[[noreturn]] inline void refuse_access(const Source& source, const HttpOptions& http, const Answer& answer) {
    const bool sent = !http.token.empty() && http.token_origin == source.origin();
    throw Error(Code::plan, "no access to " + source.repo + ": " + reason(answer),
                sent ? "check that HF_TOKEN is valid and that its owner has been granted access on " + source.endpoint +
                           "/" + source.repo
                     : "check the name, or set HF_TOKEN to a token that may read it",
                {.path = source.origin()});
}

namespace detail {

using Json = nlohmann::json;

/// GET of a small text, with retries. nullopt for 404. Errors: Code::plan where the server refuses, Code::read where it
/// cannot be reached or goes on failing, Code::interrupted.
class Asker {
  public:
    struct Text {
        std::string body, link, commit;
    };

    Asker(const Source& source, const HttpOptions& http, unsigned retries, std::function<void(const std::string&)> say)
        : source_(&source),
          options_(&http),
          http_(http),
          gate_(*http.stop),
          retries_(std::min(retries, 5U)),
          say_(std::move(say)) {}

    std::optional<Text> ask(const std::string& url) {
        constexpr std::size_t kLongest = std::size_t{64} << 20;
        for (unsigned tries = 1;; ++tries) {
            gate_.wait();
            std::string body;
            bool too_long = false;
            const Answer answer = http_.get(url, std::nullopt,
                                            {.accept = [&](const Answer&) { return true; },
                                             .take =
                                                 [&](std::span<const std::byte> bytes) {
                too_long = body.size() + bytes.size() > kLongest;
                if (!too_long) body.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
                return !too_long;
                                             }});
            if (answer.aborted || *options_->stop)
                throw Error(Code::interrupted, "interrupted, nothing was fetched", "run it again");
            if (too_long) throw Error(Code::read, "the listing is too long", next_of_wrong(), {.path = url});
            switch (verdict(answer)) {
                case Verdict::good:
                    return Text{without_token(std::move(body), options_->token), answer.link, answer.commit};
                case Verdict::missing: return std::nullopt;
                case Verdict::not_allowed: refuse_access(*source_, *options_, answer);
                case Verdict::wrong:
                    throw Error(Code::read, reason(answer), connection_advice(answer, next_of_wrong()), {.path = url});
                case Verdict::again:
                case Verdict::unreachable: break;
            }
            if (tries > retries_) {
                throw Error(Code::read, "no answer in " + std::to_string(tries) + " tries: " + reason(answer),
                            "check the network and the proxy, then run it again", {.path = source_->origin()});
            }
            const double wait = std::max(back_off(tries), answer.retry_after.value_or(0));
            say_(source_->origin() + ": " + reason(answer) + "; again in " + drivers::show_seconds(wait));
            gate_.wait(wait);
        }
    }

  private:
    static std::string next_of_wrong() { return "check the address, HF_ENDPOINT and the proxy"; }

    const Source* source_;
    const HttpOptions* options_;
    Http http_;
    Gate gate_;
    unsigned retries_;
    std::function<void(const std::string&)> say_;
};

inline Json parse_answer(const std::string& text, const std::string& url, Json::value_t kind) {
    Json value = Json::parse(text, nullptr, false);
    if (value.is_discarded() || value.type() != kind) {
        const auto instead = io::guess(text);
        throw Error(Code::read,
                    "the answer is not what a hub says: " +
                        (instead ? "it is " + std::string(instead->what) : "it is not the JSON expected"),
                    "check the address, HF_ENDPOINT, and the network for a login page", {.path = url});
    }
    return value;
}

inline std::string text_of(const Json& object, const char* key) {
    const auto found = object.find(key);
    return found != object.end() && found->is_string() ? found->get<std::string>() : std::string();
}

inline std::optional<std::uint64_t> size_of(const Json& object) {
    const auto found = object.find("size");
    if (found == object.end() || !found->is_number_unsigned()) return {};
    const auto size = found->get<std::uint64_t>();
    return size <= static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()) ? std::optional(size)
                                                                                        : std::nullopt;
}

/// Errors: Code::plan for a name or a size that cannot be taken.
inline RemoteFile read_entry(const Json& entry, const std::string& repo) {
    const auto refuse = [&](const std::string& what) {
        throw Error(Code::plan, "the listing of " + repo + " has " + what + ", nothing was fetched",
                    "this server is not to be trusted: check the address and HF_ENDPOINT");
    };
    RemoteFile file{text_of(entry, "path")};
    if (!is_safe_path(file.path))
        refuse("a file " + drivers::in_quotes(file.path) + ", which could not be stored safely");
    auto size = size_of(entry);
    if (const std::string oid = text_of(entry, "oid"); is_hex(oid, 40)) file.digest = {"git-sha1", oid};
    if (const auto lfs = entry.find("lfs"); lfs != entry.end() && lfs->is_object()) {
        if (size_of(*lfs)) size = size_of(*lfs);
        file.digest = {};  // the oid is that of a pointer
        if (const std::string oid = text_of(*lfs, "oid"); is_hex(oid, 64)) file.digest = {"sha256", oid};
    }
    if (!size) refuse("no usable size for " + drivers::in_quotes(file.path));
    file.size = *size;
    return file;
}

/// The address with rel="next" of a Link header, or "".
inline std::string next_link(const std::string& header, const std::string& base) {
    for (std::size_t at = header.find('<'); at != std::string::npos; at = header.find('<', at + 1)) {
        const std::size_t close = header.find('>', at);
        if (close == std::string::npos) return "";
        const std::string rest = header.substr(close + 1, header.find('<', close) - close - 1);
        if (rest.find("rel=\"next\"") == std::string::npos && rest.find("rel=next") == std::string::npos) continue;
        const auto url = Url::parse(header.substr(at + 1, close - at - 1), base);
        return url ? url->text() : "";
    }
    return "";
}

/// Sorted; a name twice, or as a file and as a folder, is refused.
inline void check_names(std::vector<RemoteFile>& files, const std::string& repo) {
    std::ranges::sort(files, {}, &RemoteFile::path);
    for (std::size_t i = 1; i < files.size(); ++i) {
        const auto folder = std::ranges::lower_bound(files, files[i - 1].path + "/", {}, &RemoteFile::path);
        const bool inside = folder != files.end() && folder->path.starts_with(files[i - 1].path + "/");
        if (files[i].path != files[i - 1].path && !inside) continue;
        throw Error(Code::plan, "the listing of " + repo + " has " + drivers::in_quotes(files[i - 1].path) + " twice",
                    "this server is not to be trusted: check the address and HF_ENDPOINT");
    }
}

}  // namespace detail

/// Asks for the commit, then for the tree, page by page. `say` gets one line for each wait, and one about files that
/// are left out.
/// Errors: Code::plan (no access, no such repository, unsafe names), Code::read, Code::interrupted.
inline Listing list_repository(const Source& source, const HttpOptions& http, unsigned retries,
                               const std::function<void(const std::string&)>& say) {
    constexpr std::size_t kMostPages = 10000;
    detail::Asker asker(source, http, retries, say);
    Listing listing;
    std::vector<std::string> left_out;
    const std::string revision_url = source.api("revision", source.revision);
    if (const auto answer = asker.ask(revision_url)) {
        const std::string commit =
            detail::text_of(detail::parse_answer(answer->body, revision_url, detail::Json::value_t::object), "sha");
        if (is_hex(commit, 40)) listing.commit = commit;
    }
    std::string url = source.api("tree", listing.commit.empty() ? source.revision : listing.commit) + "?recursive=true";
    for (std::size_t page = 0; !url.empty(); ++page) {
        const auto answer = asker.ask(url);
        if (!answer) {
            throw Error(Code::plan, source.origin() + " has no " + source.repo + " with a revision " + source.revision,
                        "check the name, the revision and HF_ENDPOINT");
        }
        if (page == kMostPages)
            throw Error(Code::read, "the listing does not end", "check HF_ENDPOINT", {.path = source.origin()});
        if (listing.commit.empty() && is_hex(answer->commit, 40)) listing.commit = answer->commit;
        for (const detail::Json& entry : detail::parse_answer(answer->body, url, detail::Json::value_t::array)) {
            if (detail::text_of(entry, "type") != "file") continue;
            RemoteFile file = detail::read_entry(entry, source.repo);
            if (is_own_path(file.path)) {
                left_out.push_back(std::move(file.path));
            } else {
                listing.files.push_back(std::move(file));
            }
        }
        url = detail::next_link(answer->link, url);
    }
    detail::check_names(listing.files, source.repo);
    if (!left_out.empty()) {
        say(std::to_string(left_out.size()) + " files are left out, k3-fetch uses such names itself; the first is " +
            drivers::in_quotes(left_out.front()));
    }
    return listing;
}

}  // namespace k3::fetch
#endif
