#ifndef K3_DRIVERS_RUN_OPTION_TABLE_HPP
#define K3_DRIVERS_RUN_OPTION_TABLE_HPP
// The options of k3 with their help, as CLI11 gets them. What their values mean is in options.hpp.
#include <algorithm>
#include <array>
#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

namespace k3::run::detail {

enum Word : std::size_t {
    kModel,
    kPrompt,
    kPromptFile,
    kIds,
    kScore,
    kTok,
    kGen,
    kConfig,
    kLayers,
    kOut,
    kDumpLogits,
    kDumpTrace,
    kThreads,
    kArch,
    kChunk,
    kTrunk,
    kTrunkGb,
    kCacheGb,
    kPreset,
    kMemory,
    kTrunkRing,
    kCachePolicy,
    kReader,
    kLookAhead,
    kTemperature,
    kTopP,
    kTopK,
    kSeed,
    kSaveState,
    kLoadState,
    kSystem,
    kHistory,
    kEffort,
    kContext,
    kWords
};

struct WordOption {
    const char *name, *type, *group, *help;
};

inline constexpr WordOption kWordOptions[kWords] = {
    {"model_dir", "DIR", "", "the checkpoint: config.json and its shards"},
    {"--prompt", "TEXT", "Prompt (exactly one)", "the text to continue; names of special tokens are their ids"},
    {"--prompt-file", "PATH", "Prompt (exactly one)", "the same, byte for byte from a file; - is standard input"},
    {"--ids", "LIST", "Prompt (exactly one)",
     "token ids, separated by commas or spaces, or @FILE; end ids do not stop the run"},
    {"--score", "PATH", "Prompt (exactly one)", "as --prompt-file PATH --tf-check: the perplexity of a text"},
    {"--tok", "DIR", "Prompt (exactly one)", "where tiktoken.model and tokenizer_config.json are [model_dir]"},
    {"--gen", "N", "Generation", "tokens to generate; 0 only reads the prompt [8; in a chat 4096 for an answer]"},
    {"--config", "PATH", "Model", "another config [model_dir/config.json]"},
    {"--layers", "N", "Model", "run the first N layers only [all]"},
    {"--out", "FILE", "Results", "the run as JSON [k3_run.json]"},
    {"--dump-logits", "PATH", "Results", "the first step's logits as raw float32 [none]"},
    {"--dump-cache-trace", "DIR", "Results", "which experts were used, for k3-trace [none]"},
    {"--threads", "N", "Machine", "threads [physical cores this process may use]; changes no bit"},
    {"--arch", "NAME", "Machine", "instruction set, see --list-arches [the widest]; changes no bit"},
    {"--prefill-chunk", "N", "Machine", "tokens of the prompt in one pass [what fits, up to 512]; changes no bit"},
    {"--trunk", "DIR", "Memory", "packed trunk of k3-pack [the shards]"},
    {"--trunk-gb", "X", "Memory", "GB of trunk to keep in memory [auto]"},
    {"--cache-gb", "X", "Memory", "GB of experts to keep in memory [auto]"},
    {"--preset", "NAME", "Memory", "how memory is split, see --list-presets [auto]"},
    {"--memory", "SIZE", "Memory", "ceiling for everything: 8G is 8*10^9 bytes, 8GiB 8*2^30 [what the machine has]"},
    {"--trunk-ring", "N", "Memory", "panels in the ring that the streamed trunk passes through [what fits, to 400 MB]"},
    {"--cache-policy", "NAME", "Memory", "which expert gives way: lru, lfru, s3fifo [lfru]; changes no bit"},
    {"--reader", "NAME", "Machine", "how the disk is read: uring, threads, buffered [uring where it works]"},
    {"--lookahead", "N", "Memory", "experts of the next layer read on its router's guess; auto or off [auto]"},
    {"--temperature", "X", "Sampling (greedy unless one is given)", "divides the logits [1]"},
    {"--top-p", "P", "Sampling (greedy unless one is given)", "from the likeliest tokens that have this share [0.95]"},
    {"--top-k", "K", "Sampling (greedy unless one is given)", "from the K likeliest tokens [all]"},
    {"--seed", "N", "Sampling (greedy unless one is given)", "same seed, same tokens, on every machine [drawn]"},
    {"--save-state", "FILE", "Generation", "writes what a later run needs to go on as if there had been no end [none]"},
    {"--load-state", "FILE", "Prompt (exactly one)", "goes on from there; a prompt, if given, follows what is in it"},
    {"--system", "TEXT", "Chat", "the system message [none]"},
    {"--history", "FILE", "Chat", "the conversation as JSON lines: read at the start, written after every turn [none]"},
    {"--thinking-effort", "E", "Chat", "low, high or max [max]"},
    {"--context", "N", "Chat", "positions the conversation may take [8192, at least its history and one answer]"},
};

struct CommandLine {
    CLI::App app{"Runs a Kimi K3 checkpoint on the CPU: reads a prompt and continues it, or chats.", "k3"};
    std::array<std::string, kWords> text{};
    std::array<CLI::Option*, kWords> option{};
    CLI::Option *incremental, *recompute, *ignore_eos, *quiet, *presets, *arches, *no_hugepages, *no_prefetch;
    CLI::Option *greedy, *chat, *no_think, *stop_id, *tf_check;
    std::vector<std::string> stop_ids{};

    CommandLine() {
        app.set_version_flag("--version", std::string("k3 " K3_VERSION));
        for (std::size_t i = 0; i < kWords; ++i) {
            const WordOption& row = kWordOptions[i];
            option[i] = app.add_option(row.name, text[i], row.help)->type_name(row.type);
            option[i]->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
            if (row.group[0] != '\0') option[i]->group(row.group);
        }
        const auto flag = [this](const char* name, const char* help, const char* group) {
            return app.add_flag(std::string(name))->description(help)->group(group);
        };
        incremental = flag("--incremental", "feed each new token to the kept state (the default)", "Generation");
        recompute =
            flag("--recompute", "feed the whole sequence again for every token: same tokens, slower", "Generation");
        ignore_eos = flag("--ignore-eos", "go on through end-of-message ids", "Generation");
        stop_id = app.add_option("--stop-id", stop_ids, "stops after this id too; may be given again [end ids only]")
                      ->type_name("N")
                      ->group("Generation")
                      ->allow_extra_args(false);
        greedy = flag("--greedy", "always the likeliest token, whatever is said below (the default)",
                      "Sampling (greedy unless one is given)");
        chat = flag("--chat", "a conversation on the terminal; see /help in it", "Chat");
        no_think = flag("--no-think", "answers without thinking first", "Chat");
        tf_check = flag("--tf-check",
                        "judge the prompt instead of continuing it: log-probability of each token, agreement with the "
                        "greedy choice, perplexity",
                        "Generation");
        quiet = flag("--quiet", "only errors on stderr", "Results");
        no_hugepages = flag("--no-hugepages", "ordinary pages for weights; to compare", "Machine");
        no_prefetch =
            flag("--no-prefetch", "read a panel of the trunk when it is needed, not before; to compare", "Machine");
        presets = flag("--list-presets", "print the memory presets", "Memory");
        arches = flag("--list-arches", "print what this CPU can run, narrowest first", "Machine");
        app.footer(
            "Text goes to stdout as it is generated (without tokenizer files: ids), everything else to stderr.\n"
            "Exit codes: 0 done; 1 a damaged checkpoint, a numeric fault or an answer without an end; 2 usage, "
            "config,\n"
            "tokenizer, memory plan, history or saved state;\n"
            "3 a result could not be written; 4 an expert failed to load (earlier ids are sound); 5 interrupted.\n"
            "Example: k3 tests/demo/model --prompt 'The capital of France is' --gen 24\n");
    }

    bool given(Word word) const { return option[word]->count() != 0; }

    /// Position of the last time an option was given; 0 if it was not.
    std::size_t last(const CLI::Option* wanted) const {
        const auto& order = app.parse_order();
        const auto hit = std::find(order.rbegin(), order.rend(), wanted);
        return static_cast<std::size_t>(order.rend() - hit);
    }

    std::optional<std::string> word(Word which) const {
        return given(which) ? std::optional(text[which]) : std::nullopt;
    }
};

}  // namespace k3::run::detail
#endif
