#ifndef K3_DRIVERS_FETCH_ADDRESS_HPP
#define K3_DRIVERS_FETCH_ADDRESS_HPP
// Where a repository is: a name at a hub, or an address. And what may be sent where: an origin is scheme, host and
// port; a token goes to the one origin it is meant for.
#include <curl/curl.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "drivers/sizes.hpp"
#include "k3/core/error.hpp"

namespace k3::fetch {

/// A parsed address. Only http and https, without a user or a password.
class Url {
  public:
    /// `base`: what a relative address is relative to. Errors: nullopt for what is not such an address.
    static std::optional<Url> parse(const std::string& text, const std::string& base = "") {
        const Handle handle(curl_url(), curl_url_cleanup);
        if (!base.empty() && curl_url_set(handle.get(), CURLUPART_URL, base.c_str(), 0) != CURLUE_OK) return {};
        if (curl_url_set(handle.get(), CURLUPART_URL, text.c_str(), 0) != CURLUE_OK) return {};
        Url url;
        url.scheme_ = part(handle, CURLUPART_SCHEME);
        url.host_ = part(handle, CURLUPART_HOST);
        std::ranges::transform(url.host_, url.host_.begin(),
                               [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; });
        url.port_ = part(handle, CURLUPART_PORT, CURLU_DEFAULT_PORT);
        url.path_ = part(handle, CURLUPART_PATH);
        url.text_ = part(handle, CURLUPART_URL);
        const bool user = !part(handle, CURLUPART_USER).empty() || !part(handle, CURLUPART_PASSWORD).empty();
        if ((url.scheme_ != "http" && url.scheme_ != "https") || url.host_.empty() || user) return {};
        return url;
    }

    const std::string& text() const noexcept { return text_; }
    const std::string& scheme() const noexcept { return scheme_; }
    const std::string& path() const noexcept { return path_; }
    /// "https://host", "http://host:8080"
    std::string origin() const {
        const bool usual = port_ == (scheme_ == "https" ? "443" : "80");
        return scheme_ + "://" + host_ + (usual ? "" : ":" + port_);
    }

  private:
    using Handle = std::unique_ptr<CURLU, decltype(&curl_url_cleanup)>;
    static std::string part(const Handle& handle, CURLUPart which, unsigned flags = 0) {
        char* raw = nullptr;
        if (curl_url_get(handle.get(), which, &raw, flags) != CURLUE_OK) return {};
        const std::unique_ptr<char, decltype(&curl_free)> owner(raw, curl_free);
        return raw;
    }
    std::string text_, scheme_, host_, port_, path_;
};

/// A file's path or a revision as part of an address: everything but letters, digits, "-._~" and, in paths, "/" is
/// escaped.
inline std::string escaped(std::string_view text, bool keep_slashes) {
    std::string out;
    for (const char c : text) {
        const auto byte = static_cast<unsigned char>(c);
        const bool plain = (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') ||
                           std::string_view("-._~").find(c) != std::string_view::npos;
        if (plain || (keep_slashes && c == '/')) {
            out += c;
        } else {
            out += '%';
            out += "0123456789ABCDEF"[byte >> 4];
            out += "0123456789ABCDEF"[byte & 15];
        }
    }
    return out;
}

/// Where to fetch from. `endpoint` ends without a slash.
struct Source {
    std::string endpoint, repo, revision;

    std::string origin() const { return Url::parse(endpoint)->origin(); }
    std::string api(const std::string& verb, const std::string& at) const {
        return endpoint + "/api/models/" + repo + "/" + verb + "/" + escaped(at, false);
    }
    std::string file(const std::string& at, const std::string& path) const {
        return endpoint + "/" + repo + "/resolve/" + escaped(at, false) + "/" + escaped(path, true);
    }
};

namespace detail {

inline std::vector<std::string> split(std::string_view path) {
    std::vector<std::string> parts;
    while (!path.empty()) {
        const std::size_t slash = std::min(path.find('/'), path.size());
        if (slash > 0) parts.emplace_back(path.substr(0, slash));
        path.remove_prefix(std::min(slash + 1, path.size()));
    }
    return parts;
}

inline bool is_repo_word(const std::string& word) {
    return !word.empty() && word != "." && word != ".." && std::ranges::all_of(word, [](char c) {
        return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || c == '-' || c == '_' ||
               c == '.';
    });
}

/// For a message: a user and a password before the host are left out, whatever characters they have.
inline std::string without_user(std::string address) {
    const std::size_t scheme = address.find("://"), begin = scheme == std::string::npos ? 0 : scheme + 3;
    const std::size_t at = address.rfind('@');
    if (at != std::string::npos && at >= begin) address.replace(begin, at - begin, "...");
    return address;
}

}  // namespace detail

/// HF_ENDPOINT, or the default, as an address without a slash at its end. Errors: Code::usage.
inline std::string checked_endpoint(std::string text) {
    const auto url = Url::parse(text);
    if (!url) {
        throw Error(Code::usage,
                    "HF_ENDPOINT: " + drivers::in_quotes(detail::without_user(text)) + " is not an address",
                    "write it like https://huggingface.co");
    }
    text = url->text();
    while (text.ends_with('/')) text.pop_back();
    return text;
}

/// What the user named: OWNER/NAME at `endpoint`, or an address like https://host/OWNER/NAME, also with
/// /tree/REVISION as it is copied from a browser. An empty `revision` becomes the address's, or "main".
/// Errors: Code::usage.
inline Source parse_source(const std::string& text, const std::string& endpoint, const std::string& revision) {
    const auto refuse = [&](const std::string& what) {
        throw Error(Code::usage, drivers::in_quotes(detail::without_user(text)) + what,
                    "give a repository like moonshotai/Kimi-K3, or an address like https://host/OWNER/NAME");
    };
    Source source{endpoint, text, revision};
    if (text.find("://") != std::string::npos) {
        const auto url = Url::parse(text);
        if (!url) refuse(" is not an http or https address without a user name");
        auto parts = detail::split(url->path());
        for (std::size_t i = 1; i < parts.size(); ++i) {
            if (parts[i] != "tree" && parts[i] != "resolve" && parts[i] != "blob") continue;
            if (i + 1 < parts.size() && source.revision.empty()) source.revision = parts[i + 1];
            parts.resize(i);
        }
        if (parts.empty()) refuse(" names no repository");
        source.endpoint = url->origin();
        for (std::size_t i = 0; i + 2 < parts.size(); ++i) source.endpoint += "/" + parts[i];
        source.repo = parts.back();
        if (parts.size() > 1) source.repo = parts[parts.size() - 2] + "/" + source.repo;
    }
    const auto words = detail::split(source.repo);
    if (words.empty() || words.size() > 2 || source.repo.front() == '/' || source.repo.back() == '/' ||
        !std::ranges::all_of(words, detail::is_repo_word)) {
        refuse(" is not a repository");
    }
    if (source.revision.empty()) source.revision = "main";
    return source;
}

}  // namespace k3::fetch
#endif
