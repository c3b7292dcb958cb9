#ifndef K3_DRIVERS_FETCH_OPTIONS_HPP
#define K3_DRIVERS_FETCH_OPTIONS_HPP
// The command line and the environment of k3-fetch.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "drivers/fetch/address.hpp"
#include "drivers/fetch/http.hpp"
#include "drivers/next_command.hpp"
#include "drivers/sizes.hpp"
#include "k3/core/error.hpp"

namespace k3::fetch {

struct Options {
    std::string source_text, folder, revision, jobs_text = "8", piece_text = "64MiB", retries_text = "20",
                                               timeout_text = "30";
    std::string program{};  // argv[0]: the other programs are beside it
    std::vector<std::string> include;
    bool verify_only = false, any_size = false, json = false, quiet = false;
    // From these and the environment:
    Source source{};
    HttpOptions http{};
    unsigned jobs = 0, retries = 0;
    std::uint64_t piece = 0;
    bool token_held_back = false, other_hub = false;  // other_hub: HF_ENDPOINT is set
};

inline void declare(CLI::App& app, Options& options) {
    app.set_version_flag("--version", std::string("k3-fetch " K3_VERSION));
    app.add_option("repo", options.source_text, "OWNER/NAME at the hub, or an address like https://host/OWNER/NAME")
        ->required();
    app.add_option("dir", options.folder, "folder to fetch into; made if missing")->required();
    app.add_option("--revision", options.revision, "branch, tag or commit; default: main");
    app.add_option("--include", options.include,
                   "only files whose path matches this pattern (* also matches /); may be given again [all]")
        ->allow_extra_args(false);
    app.add_flag("--verify-only", options.verify_only, "read every file and compare its digest; fetch nothing");
    app.add_option("--jobs", options.jobs_text, "connections at a time")->capture_default_str();
    app.add_option("--piece", options.piece_text, "bytes of one request")->capture_default_str();
    app.add_option("--retries", options.retries_text, "tries after one that brought nothing, before giving up")
        ->capture_default_str();
    app.add_option("--timeout", options.timeout_text, "seconds to connect in, and without a byte")
        ->capture_default_str();
    app.add_flag("--any-size", options.any_size, "take shards whose size is not that of the published release");
    app.add_flag("--json", options.json, "print the result as JSON");
    app.add_flag("--quiet", options.quiet, "no progress on stderr");
    app.footer(
        "Run it again after any interruption: what is on the disk is kept. Environment: HF_TOKEN, sent to the host of "
        "HF_ENDPOINT (default https://huggingface.co) and to no other; SSL_CERT_FILE; http_proxy, https_proxy, "
        "no_proxy.\n"
        "Example: k3-fetch moonshotai/Kimi-K3 /data/Kimi-K3 && k3 /data/Kimi-K3 --prompt Hello\n"
        "Exit codes: 0 all there and verified, 1 something is missing or damaged, 2 usage or refused (access, space), "
        "3 could not write, 5 interrupted.");
}

namespace detail {

inline std::string environment(const char* name) {
    const char* value = std::getenv(name);
    return value == nullptr ? std::string() : value;
}

/// Errors: Code::usage, without the token.
inline std::string checked_token(std::string token) {
    while (!token.empty() && (token.back() == '\n' || token.back() == '\r' || token.back() == ' ')) token.pop_back();
    if (!std::ranges::all_of(token, [](char c) { return c > 0x20 && c < 0x7f; }))
        throw Error(Code::usage, "HF_TOKEN holds a space or a character that no token has", "set it again");
    return token;
}

}  // namespace detail

/// What the words mean. Errors: Code::usage.
inline void resolve(Options& options) {
    std::string hub = detail::environment("HF_ENDPOINT");
    options.other_hub = !hub.empty();
    hub = checked_endpoint(hub.empty() ? "https://huggingface.co" : hub);
    options.source = parse_source(options.source_text, hub, options.revision);
    options.jobs = static_cast<unsigned>(drivers::parse_count("--jobs", options.jobs_text, 1, 64));
    options.retries = static_cast<unsigned>(drivers::parse_count("--retries", options.retries_text, 0, 10000));
    options.piece = drivers::parse_size("--piece", options.piece_text, 0);
    if (options.piece < (std::uint64_t{1} << 16)) {
        throw Error(Code::usage, "--piece: " + drivers::in_quotes(options.piece_text) + " is too little",
                    "give 64KiB or more");
    }
    options.http.timeout = static_cast<long>(drivers::parse_count("--timeout", options.timeout_text, 1, 3600));
    options.http.token = detail::checked_token(detail::environment("HF_TOKEN"));
    options.http.token_origin = Url::parse(hub)->origin();
    options.http.https_only = options.source.endpoint.starts_with("https:");
    options.http.ca_file = detail::environment("SSL_CERT_FILE");
    options.token_held_back = !options.http.token.empty() && options.source.origin() != options.http.token_origin;
    while (options.folder.size() > 1 && options.folder.ends_with('/')) options.folder.pop_back();
}

namespace detail {

/// The repository as a word that means the same where HF_ENDPOINT is not set.
inline std::string source_word(const Options& options) {
    if (!options.other_hub || options.source_text.find("://") != std::string::npos) return options.source_text;
    const std::string address = options.source.endpoint + "/" + options.source.repo;
    const Source read = parse_source(address, "", "");
    const bool same = read.endpoint == options.source.endpoint && read.repo == options.source.repo;
    return same ? address : options.source_text;
}

}  // namespace detail

/// The command that does it again, with `more` words.
inline std::string command(const Options& options, const std::vector<std::string>& more = {}) {
    std::string text = drivers::sibling(options.program, "k3-fetch");
    std::vector<std::string> words = {detail::source_word(options), options.folder};
    if (!options.revision.empty()) words.insert(words.end(), {"--revision", options.revision});
    if (options.jobs_text != Options{}.jobs_text) words.insert(words.end(), {"--jobs", options.jobs_text});
    if (options.any_size) words.emplace_back("--any-size");
    words.insert(words.end(), more.begin(), more.end());
    for (const std::string& word : words) text += " " + drivers::shell_word(word);
    return text;
}

}  // namespace k3::fetch
#endif
