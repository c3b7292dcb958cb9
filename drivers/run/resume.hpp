#ifndef K3_DRIVERS_RUN_RESUME_HPP
#define K3_DRIVERS_RUN_RESUME_HPP
// --load-state and --save-state: what a run starts from, what it hands on, and which files it may not write over.
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <string>
#include <system_error>
#include <vector>

#include "drivers/run/generate.hpp"
#include "drivers/run/options.hpp"
#include "drivers/run/output.hpp"
#include "k3/core/error.hpp"
#include "k3/engine/sampler.hpp"
#include "k3/engine/session.hpp"
#include "k3/engine/state_file.hpp"
#include "k3/model/config_reader.hpp"
#include "k3/text/tokenizer.hpp"

namespace k3::run {

/// The sequence a run starts from: what a saved state holds, then the prompt.
struct Start {
    std::optional<engine::StateFile> state{};
    Ids before{}, prompt{};

    Ids all() const {
        Ids ids = before;
        ids.insert(ids.end(), prompt.begin(), prompt.end());
        return ids;
    }
    /// Begun with ids, not with text: end ids do not stop it.
    bool raw(const Options& options) const { return state ? state->run().raw : options.prompt_kind == PromptKind::ids; }
    const engine::SavedSampler* sampler() const {
        return state && state->run().sampler ? &*state->run().sampler : nullptr;
    }
    /// The random numbers of the saved run go on, unless this one was given a seed.
    bool draws_go_on(const Options& options) const {
        return options.sampling && !options.seed_given && sampler() != nullptr;
    }
};

/// Text stops at the ids the tokenizer or a config names as ends; a list of ids is taken as it is: the caller knows.
inline std::vector<std::int64_t> end_ids(const Options& options, const model::ModelConfig& config,
                                         const text::Tokenizer* tokenizer, const Start& start) {
    if (options.ignore_eos || start.raw(options) || tokenizer == nullptr) return {};
    std::vector<std::int64_t> ids = config.end_ids;
    ids.insert(ids.end(), tokenizer->end_ids().begin(), tokenizer->end_ids().end());
    return ids;
}

/// Empty: greedy. Temperature and cuts are those of this run's options: a state does not hold them.
inline std::optional<engine::Sampler> make_sampler(const Options& options, const Start& start) {
    if (!options.sampling) {
        if (start.sampler() != nullptr && !options.greedy && !options.quiet)
            std::fprintf(stderr,
                         "note     the saved run drew its tokens; this one takes the likeliest: give --temperature "
                         "to go on drawing\n");
        return std::nullopt;
    }
    std::optional<engine::Sampler> sampler(*options.sampling);
    if (start.draws_go_on(options)) {
        const auto& saved = start.sampler()->generator;
        sampler->set_generator({saved[0], saved[1]});
    }
    return sampler;
}

/// What kept the state from being written to `path`.
inline std::optional<Error> write_state(const std::string& path, const engine::Session& session, const Start& start,
                                        const Options& options, const Outcome& outcome,
                                        const std::optional<engine::Sampler>& sampler, std::uint64_t tokenizer) {
    if (session.position() == 0)
        return Error(Code::write, "no step was completed, so there is no state to save", "run it again",
                     {.path = path});
    engine::SavedRun saved{
        .ids = start.all(), .digest = outcome.digest.value(), .sampler = {}, .raw = start.raw(options)};
    saved.ids.insert(saved.ids.end(), outcome.ids.begin(), outcome.ids.end());
    if (sampler) saved.sampler = {.generator = {sampler->generator().state, sampler->generator().increment}, .turn = 1};
    try {
        session.save_state(path, saved, tokenizer);
    } catch (const Error& error) {
        return error;
    }
    return std::nullopt;
}

/// A file that a run reads or writes, as the command line names it; empty: not at all.
struct NamedFile {
    const char* option;
    std::string path;
    bool written;
};

/// Each result needs a file of its own, and none may take the place of what is read; a state may follow itself.
/// Errors: Code::usage.
inline void refuse_same_file(const std::vector<NamedFile>& files) {
    std::error_code ignored;
    for (std::size_t a = 0; a < files.size(); ++a)
        for (std::size_t b = 0; b < a; ++b) {
            if (files[a].path.empty() || files[b].path.empty() || (!files[a].written && !files[b].written)) continue;
            const std::string place = resolved(files[a].path);
            if (place != resolved(files[b].path)) continue;
            if (std::filesystem::exists(place, ignored) && !std::filesystem::is_regular_file(place, ignored)) continue;
            throw Error(Code::usage, std::string(files[b].option) + " and " + files[a].option + " name the same file",
                        "give each its own", {.path = files[a].path});
        }
}
inline void refuse_same_file(const Options& options) {
    const bool file = options.prompt_kind == PromptKind::file && options.prompt != "-";
    refuse_same_file({{options.prompt_option, file ? options.prompt : "", false},
                      {"--out", options.out_path, true},
                      {"--dump-logits", options.logits_path, true},
                      {"--save-state", options.save_state, true}});
    refuse_same_file({{"--load-state", options.load_state, false},
                      {"--out", options.out_path, true},
                      {"--dump-logits", options.logits_path, true}});
}

}  // namespace k3::run
#endif
