#ifndef K3_DRIVERS_RUN_OPTIONS_HPP
#define K3_DRIVERS_RUN_OPTIONS_HPP
// The command line of k3 as a plain struct. Every value is read as text and checked here, so that "--gen 1e3" or
// "--gen 0x10" is refused rather than half understood. A later option wins over an earlier one.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <CLI/CLI.hpp>

#include "drivers/command_line.hpp"
#include "drivers/run/memory_options.hpp"
#include "drivers/sizes.hpp"
#include "k3/core/error.hpp"
#include "k3/engine/arches.hpp"
#include "k3/io/cpu_limits.hpp"
#include "k3/model/config_reader.hpp"

namespace k3::run {

enum class PromptKind : std::uint8_t { text, file, ids };
enum class Decoding : std::uint8_t { incremental, recompute };
enum class Task : std::uint8_t { run, list_presets, list_arches };

struct Options {
    Task task = Task::run;
    std::string model_dir{}, config_path{}, tokenizer_dir{};
    bool tokenizer_named = false;  // --tok was given: a missing file is then an error also with --ids
    PromptKind prompt_kind = PromptKind::text;
    std::string prompt{};                                // the text, the path or the list of ids
    std::size_t gen = 8, layers = 0, prefill_chunk = 0;  // 0 layers: all; 0 chunk: automatic
    Decoding decoding = Decoding::incremental;
    bool ignore_eos = false, quiet = false;
    engine::ArchName arch{};
    unsigned threads = 1;
    std::string out_path = "k3_run.json", logits_path{};
    MemoryRequest memory{};
    std::string trunk_dir{}, trace_dir{};
    stream::Policy cache_policy = stream::Policy::lfru;
    io::ReaderKind reader = io::ReaderKind::automatic;
    std::optional<std::size_t> look_ahead{};
    bool hugepages = true, prefetch = true;
};

/// Parses argv. Empty: --help or --version was asked for and printed. Errors: Code::usage, Code::plan.
std::optional<Options> parse_options(int argc, char** argv);

// ---------------------------------------------------------------------------------------------------------------------

namespace detail {

enum Word : std::size_t {
    kModel,
    kPrompt,
    kPromptFile,
    kIds,
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
    kWords
};

struct WordOption {
    const char *name, *type, *group, *help;
};

inline constexpr WordOption kWordOptions[kWords] = {
    {"model_dir", "DIR", "", "the checkpoint: config.json and its shards"},
    {"--prompt", "TEXT", "Prompt (exactly one)", "the text to continue; names of special tokens are their ids"},
    {"--prompt-file", "PATH", "Prompt (exactly one)", "the same, byte for byte from a file; - is standard input"},
    {"--ids", "LIST", "Prompt (exactly one)", "token ids, separated by commas or spaces; end ids do not stop the run"},
    {"--tok", "DIR", "Prompt (exactly one)", "where tiktoken.model and tokenizer_config.json are [model_dir]"},
    {"--gen", "N", "Generation", "tokens to generate; 0 only reads the prompt [8]"},
    {"--config", "PATH", "Model", "another config [model_dir/config.json]"},
    {"--layers", "N", "Model", "run the first N layers only [all]"},
    {"--out", "FILE", "Results", "the run as JSON [k3_run.json]"},
    {"--dump-logits", "PATH", "Results", "the first step's logits as raw float32"},
    {"--dump-cache-trace", "DIR", "Results", "which experts were used, for k3-trace"},
    {"--threads", "N", "Machine", "threads [physical cores this process may use]; changes no bit"},
    {"--arch", "NAME", "Machine", "instruction set, see --list-arches [the widest]; changes no bit"},
    {"--prefill-chunk", "N", "Machine", "tokens of the prompt in one pass [what fits, up to 512]; changes no bit"},
    {"--trunk", "DIR", "Memory", "packed trunk of k3-pack"},
    {"--trunk-gb", "X", "Memory", "GB of trunk to keep in memory, or auto"},
    {"--cache-gb", "X", "Memory", "GB of experts to keep in memory, or auto"},
    {"--preset", "NAME", "Memory", "see --list-presets [auto]"},
    {"--memory", "SIZE", "Memory", "ceiling for everything: 8G is 8*10^9 bytes, 8GiB 8*2^30"},
    {"--trunk-ring", "N", "Memory", "panels in the ring that the streamed trunk passes through [what fits, to 400 MB]"},
    {"--cache-policy", "NAME", "Memory", "which expert gives way: lru, lfru, s3fifo [lfru]; changes no bit"},
    {"--reader", "NAME", "Machine", "how the disk is read: uring, threads, buffered [uring where it works]"},
    {"--lookahead", "N", "Memory", "experts of the next layer read on its router's guess; auto or off [auto]"},
};

struct CommandLine {
    CLI::App app{"Runs a Kimi K3 checkpoint on the CPU: reads a prompt and continues it, greedily.", "k3"};
    std::array<std::string, kWords> text{};
    std::array<CLI::Option*, kWords> option{};
    CLI::Option *incremental, *recompute, *ignore_eos, *quiet, *presets, *arches, *no_hugepages, *no_prefetch;

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
        quiet = flag("--quiet", "only errors on stderr", "Results");
        no_hugepages = flag("--no-hugepages", "ordinary pages for weights; to compare", "Machine");
        no_prefetch =
            flag("--no-prefetch", "read a panel of the trunk when it is needed, not before; to compare", "Machine");
        presets = flag("--list-presets", "print the memory presets", "Memory");
        arches = flag("--list-arches", "print what this CPU can run, narrowest first", "Machine");
        app.footer(
            "Text goes to stdout as it is generated (without tokenizer files: ids), everything else to stderr.\n"
            "Exit codes: 0 done; 1 a damaged checkpoint or a numeric fault; 2 usage, config, tokenizer or memory "
            "plan;\n"
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

inline void take_prompt(const CommandLine& line, Options& options) {
    constexpr std::pair<Word, PromptKind> kKinds[] = {
        {kPrompt, PromptKind::text}, {kPromptFile, PromptKind::file}, {kIds, PromptKind::ids}};
    std::string given;
    std::size_t count = 0;
    for (const auto& [word, kind] : kKinds) {
        if (!line.given(word)) continue;
        options.prompt_kind = kind;
        options.prompt = line.text[word];
        given += (count++ == 0 ? "" : " and ") + std::string(kWordOptions[word].name);
    }
    if (count == 0) {
        throw Error(Code::usage, "there is no prompt", "give one of --prompt TEXT, --prompt-file PATH or --ids LIST");
    }
    if (count > 1) throw Error(Code::usage, given + " are both prompts", "give only one of them");
}

inline std::string arch_names() {
    std::string names;
    for (const engine::ArchName arch : engine::arches_of_this_cpu()) {
        names += (names.empty() ? "" : ", ") + std::string(engine::name(arch));
    }
    return names;
}

inline stream::Policy take_policy(const std::string& text) {
    if (const auto policy = stream::parse_policy(text)) return *policy;
    throw Error(Code::usage, "--cache-policy: " + in_quotes(text) + " is not a policy", "give lru, lfru or s3fifo");
}

inline io::ReaderKind take_reader(const std::string& text) {
    if (text == "uring") return io::ReaderKind::uring;
    if (text == "threads") return io::ReaderKind::threads;
    if (text == "buffered") return io::ReaderKind::buffered;
    throw Error(Code::usage, "--reader: " + in_quotes(text) + " is not a reader", "give uring, threads or buffered");
}

inline engine::ArchName take_arch(const CommandLine& line) {
    if (!line.given(kArch)) return engine::widest_arch();
    const std::string& text = line.text[kArch];
    const auto arch = engine::arch_named(text);
    const auto here = engine::arches_of_this_cpu();
    if (arch && std::find(here.begin(), here.end(), *arch) != here.end()) return *arch;
    throw Error(
        Code::usage,
        "--arch: " + in_quotes(text) + (arch ? " is not supported on this CPU" : " is not an instruction set of k3"),
        "this CPU has " + arch_names());
}

}  // namespace detail

inline std::optional<Options> parse_options(int argc, char** argv) {
    using namespace detail;
    CommandLine line;
    std::vector<std::string> words;  // last first, as CLI11 wants them
    for (int i = 1; i < argc; ++i) {
        std::string word = argv[i];
        // CLI11 takes "--prompt=" as having no value and would swallow the next option.
        const bool empty_value = word.size() > 3 && word.rfind("--", 0) == 0 && word.find('=') == word.size() - 1;
        if (empty_value) word.pop_back();
        words.insert(words.begin(), std::move(word));
        if (empty_value) words.insert(words.begin(), "");
    }
    if (!drivers::parse_command_line(line.app, std::move(words))) return std::nullopt;

    Options options;
    if (line.presets->count() != 0 || line.arches->count() != 0) {
        options.task = line.presets->count() != 0 ? Task::list_presets : Task::list_arches;
        return options;
    }
    if (!line.given(kModel) || line.text[kModel].empty()) {
        throw Error(Code::usage, "there is no model directory", "run k3 MODEL_DIR --prompt TEXT, or see k3 --help");
    }
    take_prompt(line, options);
    options.model_dir = line.text[kModel];
    options.config_path = line.given(kConfig) ? line.text[kConfig] : options.model_dir + "/config.json";
    options.tokenizer_named = line.given(kTok);
    options.tokenizer_dir = options.tokenizer_named ? line.text[kTok] : options.model_dir;
    const auto count = [&](Word word, std::size_t otherwise, std::uint64_t least, std::uint64_t most) {
        if (!line.given(word)) return otherwise;
        return static_cast<std::size_t>(parse_count(kWordOptions[word].name, line.text[word], least, most));
    };
    options.gen = count(kGen, options.gen, 0, model::kMaxPositions);
    options.layers = count(kLayers, 0, 1, 1 << 12);
    options.prefill_chunk = count(kChunk, 0, 1, 1 << 16);
    options.threads = static_cast<unsigned>(line.given(kThreads) ? count(kThreads, 1, 1, 1024) : io::usable_cores());
    options.arch = take_arch(line);
    if (line.last(line.recompute) > line.last(line.incremental)) options.decoding = Decoding::recompute;
    options.ignore_eos = line.ignore_eos->count() != 0;
    options.quiet = line.quiet->count() != 0;
    if (line.given(kOut)) options.out_path = line.text[kOut];
    options.logits_path = line.text[kDumpLogits];
    for (const Word word : {kOut, kDumpLogits, kConfig, kTok, kTrunk, kDumpTrace}) {
        if (line.given(word) && (line.text[word].empty() || line.text[word] == "-")) {
            throw Error(
                Code::usage,
                std::string(kWordOptions[word].name) + ": " + in_quotes(line.text[word]) + " is not a path it takes",
                "name a file or folder; stdout is for the text");
        }
    }
    const std::size_t preset = line.last(line.option[kPreset]);
    options.memory = memory_request({.memory = line.word(kMemory),
                                     .preset = line.word(kPreset),
                                     .trunk_gb = line.word(kTrunkGb),
                                     .cache_gb = line.word(kCacheGb),
                                     .trunk_ring = line.word(kTrunkRing),
                                     .preset_after_trunk = preset > line.last(line.option[kTrunkGb]),
                                     .preset_after_cache = preset > line.last(line.option[kCacheGb])});
    options.trunk_dir = line.text[kTrunk];
    options.trace_dir = line.text[kDumpTrace];
    if (line.given(kCachePolicy)) options.cache_policy = take_policy(line.text[kCachePolicy]);
    if (line.given(kReader)) options.reader = take_reader(line.text[kReader]);
    if (line.given(kLookAhead) && line.text[kLookAhead] != "auto")
        options.look_ahead = line.text[kLookAhead] == "off" ? 0 : count(kLookAhead, 0, 0, 64);
    options.hugepages = line.no_hugepages->count() == 0;
    options.prefetch = line.no_prefetch->count() == 0;
    return options;
}

}  // namespace k3::run
#endif
