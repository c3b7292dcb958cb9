#ifndef K3_DRIVERS_RUN_OPTIONS_HPP
#define K3_DRIVERS_RUN_OPTIONS_HPP
// The command line of k3 as a plain struct. Every value is read as text and checked here, so that "--gen 1e3" or
// "--gen 0x10" is refused rather than half understood. A later option wins over an earlier one.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "drivers/command_line.hpp"
#include "drivers/run/generation_options.hpp"
#include "drivers/run/memory_options.hpp"
#include "drivers/run/option_table.hpp"
#include "drivers/sizes.hpp"
#include "k3/core/error.hpp"
#include "k3/engine/arches.hpp"
#include "k3/io/cpu_limits.hpp"
#include "k3/model/config_reader.hpp"

namespace k3::run {

enum class PromptKind : std::uint8_t { none, text, file, ids };
enum class Decoding : std::uint8_t { incremental, recompute };
enum class Task : std::uint8_t { run, list_presets, list_arches };

struct Options {
    Task task = Task::run;
    std::string model_dir{}, config_path{}, tokenizer_dir{};
    bool tokenizer_named = false;  // --tok was given: a missing file is then an error also with --ids
    PromptKind prompt_kind = PromptKind::none;
    std::string prompt{};                                // the text, the path or the list of ids
    const char* prompt_option = "--prompt";              // what it was given by
    std::size_t gen = 8, layers = 0, prefill_chunk = 0;  // 0 layers: all; 0 chunk: automatic
    Decoding decoding = Decoding::incremental;
    bool ignore_eos = false, quiet = false;
    bool score = false;                                // the prompt is judged, not continued
    std::vector<std::uint64_t> stop_ids{};             // besides the end ids
    std::optional<engine::SamplerOptions> sampling{};  // empty: the likeliest token
    bool greedy = false, seed_given = false;           // said in so many words
    std::optional<ChatRequest> chat{};
    std::string load_state{}, save_state{};
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

inline Error needs_chat(const char* option) {
    return Error(Code::usage, std::string(option) + " is for a conversation", "give --chat too, or leave it out");
}

/// Exactly one of what a run can start from; a saved state may also be followed by a prompt.
inline void take_prompt(const CommandLine& line, Options& options) {
    constexpr std::pair<Word, PromptKind> kKinds[] = {{kPrompt, PromptKind::text},
                                                      {kPromptFile, PromptKind::file},
                                                      {kScore, PromptKind::file},
                                                      {kIds, PromptKind::ids}};
    std::string given;
    std::size_t count = 0;
    for (const auto& [word, kind] : kKinds) {
        if (!line.given(word)) continue;
        options.prompt_kind = kind;
        options.prompt = line.text[word];
        options.prompt_option = kWordOptions[word].name;
        given += (count++ == 0 ? "" : " and ") + std::string(kWordOptions[word].name);
    }
    if (count == 0 && !line.given(kLoadState) && !options.chat) {
        throw Error(Code::usage, "there is no prompt",
                    "give one of --prompt TEXT, --prompt-file PATH, --ids LIST or --load-state FILE, or --chat");
    }
    if (count > 1) throw Error(Code::usage, given + " are both prompts", "give only one of them");
    options.score = line.given(kScore) || line.tf_check->count() != 0;
    if (!options.score) return;
    for (const Word word : {kGen, kDumpLogits, kDumpTrace, kSaveState, kLoadState, kTemperature, kTopP, kTopK, kSeed})
        if (line.given(word))
            throw Error(Code::usage,
                        std::string(kWordOptions[word].name) + " has no meaning where nothing is generated",
                        "leave it out, or --score and --tf-check");
    for (const auto& [name, flag] : {std::pair("--recompute", line.recompute),
                                     {"--ignore-eos", line.ignore_eos},
                                     {"--stop-id", line.stop_id},
                                     {"--greedy", line.greedy}})
        if (flag->count() != 0)
            throw Error(Code::usage, std::string(name) + " has no meaning where nothing is generated",
                        "leave it out, or --score and --tf-check");
    options.gen = 0;
}

/// Options that make no sense beside one another are refused: ignoring one would be silent.
inline void take_chat(const CommandLine& line, Options& options) {
    if (line.chat->count() == 0) {
        for (const Word word : {kSystem, kHistory, kEffort, kContext})
            if (line.given(word)) throw needs_chat(kWordOptions[word].name);
        if (line.no_think->count() != 0) throw needs_chat("--no-think");
        return;
    }
    for (const Word word : {kPrompt, kPromptFile, kIds, kScore, kOut, kDumpLogits, kDumpTrace, kSaveState, kLoadState})
        if (line.given(word))
            throw Error(Code::usage, std::string(kWordOptions[word].name) + " does not go with --chat",
                        word == kSaveState || word == kLoadState ? "keep the conversation with --history FILE"
                                                                 : "leave one of the two out");
    for (const auto& [name, given] : {std::pair("--recompute", line.recompute),
                                      {"--ignore-eos", line.ignore_eos},
                                      {"--stop-id", line.stop_id},
                                      {"--tf-check", line.tf_check}})
        if (given->count() != 0)
            throw Error(Code::usage, std::string(name) + " does not go with --chat", "leave one of the two out");
    if (line.no_think->count() != 0 && line.given(kEffort))
        throw Error(Code::usage, "--thinking-effort says how much to think and --no-think that nothing is thought",
                    "give only one of them");
    ChatRequest chat;
    chat.system = line.word(kSystem);
    if (line.given(kHistory)) chat.history_path = line.text[kHistory];
    if (line.no_think->count() != 0) chat.thinking = text::Thinking::off;
    if (line.given(kEffort)) chat.effort = text::parse_effort(line.text[kEffort]);
    if (chat.thinking == text::Thinking::off) chat.effort.reset();
    if (line.given(kContext)) chat.context = parse_count("--context", line.text[kContext], 1, model::kMaxPositions);
    options.chat = chat;
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
    take_chat(line, options);
    take_prompt(line, options);
    options.model_dir = line.text[kModel];
    options.config_path = line.given(kConfig) ? line.text[kConfig] : options.model_dir + "/config.json";
    options.tokenizer_named = line.given(kTok);
    options.tokenizer_dir = options.tokenizer_named ? line.text[kTok] : options.model_dir;
    const auto count = [&](Word word, std::size_t otherwise, std::uint64_t least, std::uint64_t most) {
        if (!line.given(word)) return otherwise;
        return static_cast<std::size_t>(parse_count(kWordOptions[word].name, line.text[word], least, most));
    };
    if (!options.score) options.gen = count(kGen, options.chat ? 4096 : 8, options.chat ? 1 : 0, model::kMaxPositions);
    for (const std::string& id : line.stop_ids) options.stop_ids.push_back(parse_count("--stop-id", id, 0, 1U << 31));
    options.sampling = sampling({.temperature = line.word(kTemperature),
                                 .top_p = line.word(kTopP),
                                 .top_k = line.word(kTopK),
                                 .seed = line.word(kSeed),
                                 .greedy = line.greedy->count() != 0});
    options.greedy = line.greedy->count() != 0;
    options.seed_given = line.given(kSeed);
    options.save_state = line.text[kSaveState];
    options.load_state = line.text[kLoadState];
    options.layers = count(kLayers, 0, 1, 1 << 12);
    options.prefill_chunk = count(kChunk, 0, 1, 1 << 16);
    options.threads = static_cast<unsigned>(line.given(kThreads) ? count(kThreads, 1, 1, 1024) : io::usable_cores());
    options.arch = take_arch(line);
    if (line.last(line.recompute) > line.last(line.incremental)) options.decoding = Decoding::recompute;
    options.ignore_eos = line.ignore_eos->count() != 0;
    options.quiet = line.quiet->count() != 0;
    if (line.given(kOut)) options.out_path = line.text[kOut];
    options.logits_path = line.text[kDumpLogits];
    for (const Word word : {kOut, kDumpLogits, kConfig, kTok, kTrunk, kDumpTrace, kSaveState, kLoadState, kHistory}) {
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
