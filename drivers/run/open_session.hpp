#ifndef K3_DRIVERS_RUN_OPEN_SESSION_HPP
#define K3_DRIVERS_RUN_OPEN_SESSION_HPP
// A session as the command line asks for it, and its memory.
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <system_error>

#include "drivers/run/interrupt.hpp"
#include "drivers/run/options.hpp"
#include "drivers/run/report.hpp"
#include "k3/core/error.hpp"
#include "k3/engine/session.hpp"
#include "k3/model/config_reader.hpp"

namespace k3::run {

/// Reads the config and checks what the command line says about the model. Errors: Code::usage, config.
inline model::ModelConfig read_checked_config(const Options& options) {
    std::error_code ignored;
    if (!std::filesystem::is_directory(options.model_dir, ignored)) {
        throw Error(
            Code::usage,
            std::filesystem::exists(options.model_dir, ignored) ? "is not a directory" : "there is no such directory",
            "give the directory with config.json and the shards", {.path = options.model_dir});
    }
    model::ModelConfig config = model::read_config(options.config_path);
    const std::size_t layers = config.shape.layers, vocab = config.shape.vocab;
    if (options.layers > layers) {
        throw Error(
            Code::usage,
            "--layers: " + std::to_string(options.layers) + " is more than the model's " + std::to_string(layers),
            "give 1 to " + std::to_string(layers));
    }
    for (const std::uint64_t id : options.stop_ids) {
        if (id < vocab) continue;
        throw Error(Code::usage,
                    "--stop-id: " + std::to_string(id) + " is not in the vocabulary of " + std::to_string(vocab),
                    "ids go from 0 to " + std::to_string(vocab - 1));
    }
    return config;
}

/// Errors: those of Session::open.
inline engine::Session open_session(const Options& options) {
    return engine::Session::open({.model_dir = options.model_dir,
                                  .config_path = options.config_path,
                                  .trunk_dir = options.trunk_dir,
                                  .layers = options.layers,
                                  .arch = options.arch,
                                  .threads = options.threads,
                                  .prefill_chunk = options.prefill_chunk,
                                  .memory = options.memory,
                                  .reader = options.reader,
                                  .policy = options.cache_policy,
                                  .pages = options.hugepages ? core::Pages::huge : core::Pages::ordinary,
                                  .read_ahead = options.prefetch,
                                  .look_ahead = options.look_ahead,
                                  .trace = !options.trace_dir.empty(),
                                  .all_logits = options.score});
}

/// Reads the weights that stay, and says so. From here on an interrupt ends the run in order: until here there is
/// nothing to finish or to keep. Errors: those of Session::load.
inline void load_weights(const Options& options, engine::Session& session, const engine::Plan& plan, Report& report) {
    session.load(plan, [&](std::uint64_t done, std::uint64_t total) { report.loading(done, total); });
    report.clear();
    report.reading(options, session);
    catch_interrupts(options.quiet);
}

}  // namespace k3::run
#endif
