#ifndef K3_DRIVERS_RUN_PROMPT_HPP
#define K3_DRIVERS_RUN_PROMPT_HPP
// The prompt as token ids, from a text, a file or a list. Text is taken byte for byte: no newline is added, removed or
// converted, and a NUL is a character like any other. Nothing is read as its beginning: a list with junk is refused.
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "drivers/run/options.hpp"
#include "drivers/text_input.hpp"
#include "k3/core/error.hpp"
#include "k3/text/tokenizer.hpp"

namespace k3::run {

/// The tokenizer; empty where no text comes in (ids, or a saved state alone) and the model has no rank file (and no
/// --tok): ids are then printed as numbers.
/// Errors: Code::tokenizer.
inline std::optional<text::Tokenizer> open_tokenizer(const Options& options, std::size_t vocab) {
    std::error_code ignored;
    const std::filesystem::path ranks = std::filesystem::path(options.tokenizer_dir) / text::Tokenizer::kRankFile;
    const bool no_text =
        options.prompt_kind == PromptKind::ids || (options.prompt_kind == PromptKind::none && !options.chat);
    if (no_text && !options.tokenizer_named && !std::filesystem::exists(ranks, ignored)) {
        return std::nullopt;
    }
    return text::Tokenizer::open(options.tokenizer_dir, vocab);
}

/// Without a prompt (a saved state goes on) nothing.
/// Errors: Code::usage for what was given (Code::tokenizer if it is not UTF-8), also for a prompt without tokens.
inline Ids read_prompt(const Options& options, const std::optional<text::Tokenizer>& tokenizer, std::size_t vocab) {
    Ids ids;
    if (options.prompt_kind == PromptKind::none) return ids;
    const char* const source = options.prompt_option;
    if (options.prompt_kind == PromptKind::ids) {
        const bool file = !options.prompt.empty() && options.prompt[0] == '@';
        ids = parse_ids(source, file ? read_text(source, options.prompt.substr(1)) : options.prompt, vocab);
    } else {
        std::string path, read;
        if (options.prompt_kind == PromptKind::file) {
            path = options.prompt == "-" ? "standard input" : options.prompt;
            read = read_text(source, options.prompt);
        }
        const std::string& text = options.prompt_kind == PromptKind::file ? read : options.prompt;
        try {
            ids = tokenizer->encode(text, text::Specials::as_ids);
        } catch (const Error& error) {  // say which prompt
            throw Error(error.code(), std::string(source) + ": " + error.message(), error.next(), {.path = path});
        }
    }
    if (ids.empty()) {
        throw Error(
            Code::usage, std::string(source) + ": the prompt is empty",
            options.prompt_kind == PromptKind::ids ? "give at least one token id" : "give at least one character");
    }
    return ids;
}

}  // namespace k3::run
#endif
