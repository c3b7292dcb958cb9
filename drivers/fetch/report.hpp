#ifndef K3_DRIVERS_FETCH_REPORT_HPP
#define K3_DRIVERS_FETCH_REPORT_HPP
// The result on stdout, as text or JSON: what is there, what is missing or damaged, and the one command to run next.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "drivers/exit_code.hpp"
#include "drivers/fetch/local.hpp"
#include "drivers/fetch/manifest.hpp"
#include "drivers/fetch/options.hpp"
#include "drivers/next_command.hpp"

namespace k3::fetch {

struct Outcome {
    const Manifest* manifest = nullptr;
    const std::vector<FileState>* states = nullptr;
    std::uint64_t received = 0;
    double seconds = 0;
};

namespace detail {

/// Names the bad files where they are few: fetching a shard again looks at no other.
inline std::string command_for(const Options& options, const std::vector<FileState>& states) {
    constexpr std::size_t kFew = 4;
    std::vector<std::string> words;
    for (const FileState& state : states) {
        if (state.good()) continue;
        const bool plain = state.file->path.find_first_of("*?[]\\") == std::string::npos;
        if (!plain || words.size() == 2 * kFew) {
            words.clear();
            for (const std::string& pattern : options.include) words.insert(words.end(), {"--include", pattern});
            break;
        }
        words.insert(words.end(), {"--include", state.file->path});
    }
    return command(options, words);
}

inline std::string next_command(const Options& options, const Outcome& outcome) {
    if (!std::ranges::all_of(*outcome.states, &FileState::good)) return command_for(options, *outcome.states);
    if (outcome.states->size() < outcome.manifest->listing().files.size()) return command(options);
    return drivers::sibling(options.program, "k3") + " " + drivers::shell_word(options.folder) + " --prompt Hello";
}

}  // namespace detail

/// Prints; returns the exit code.
inline int report(const Options& options, const Outcome& outcome) {
    const Manifest& manifest = *outcome.manifest;
    const auto& states = *outcome.states;
    std::uint64_t bytes = 0, good_bytes = 0;
    std::size_t bad = 0, sized = 0;
    for (const FileState& state : states) {
        bytes += state.file->size;
        if (state.good()) good_bytes += state.file->size;
        bad += state.good() ? 0 : 1;
        sized += state.state == State::sized ? 1 : 0;
    }
    const int code = bad == 0 ? drivers::kSuccess : drivers::kFailed;
    const std::string next = detail::next_command(options, outcome);
    if (options.json) {
        nlohmann::ordered_json root = {{"version", 1},
                                       {"repo", manifest.source().repo},
                                       {"endpoint", manifest.source().endpoint},
                                       {"revision", manifest.source().revision},
                                       {"commit", manifest.listing().commit},
                                       {"dir", options.folder},
                                       {"bytes", bytes},
                                       {"good_bytes", good_bytes},
                                       {"received_bytes", outcome.received},
                                       {"seconds", outcome.seconds},
                                       {"bad_files", bad},
                                       {"exit_code", code},
                                       {"next", next}};
        nlohmann::ordered_json& rows = root["files"] = nlohmann::ordered_json::array();
        for (const FileState& state : states) {
            nlohmann::ordered_json row = {
                {"path", state.file->path}, {"size", state.file->size}, {"state", name_of(state.state)}};
            if (state.file->digest) row[state.file->digest.kind] = state.file->digest.hex;
            if (!state.why.empty()) row["why"] = state.why;
            rows.push_back(std::move(row));
        }
        std::printf("%s\n", root.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace).c_str());
        return code;
    }
    for (const FileState& state : states) {
        if (state.good()) continue;
        const bool missing = state.state == State::missing || state.state == State::partial;
        std::printf("%s  %s: %s\n",
                    missing                        ? "missing"
                    : state.state == State::failed ? "failed "
                                                   : "damaged",
                    state.file->path.c_str(), state.why.c_str());
    }
    const std::string commit = manifest.listing().commit.empty() ? "" : " at " + manifest.listing().commit;
    if (bad > 0) {
        std::printf("%s%s: %zu of %zu files are missing or damaged\nfetch them with: %s\n",
                    manifest.source().repo.c_str(), commit.c_str(), bad, states.size(), next.c_str());
        return code;
    }
    std::printf("%s%s: %zu files, %llu bytes, all there; %s\n", manifest.source().repo.c_str(), commit.c_str(),
                states.size(), static_cast<unsigned long long>(bytes),
                sized == 0               ? "every digest is right"
                : sized == states.size() ? "every size is right, the server offers no digests"
                                         : "every digest that the server offers and every size is right");
    std::printf("next: %s\n", next.c_str());
    return code;
}

}  // namespace k3::fetch
#endif
