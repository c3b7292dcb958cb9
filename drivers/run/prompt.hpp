#ifndef K3_DRIVERS_RUN_PROMPT_HPP
#define K3_DRIVERS_RUN_PROMPT_HPP
// The prompt as token ids, from a text, a file or a list. Text is taken byte for byte: no newline is added, removed or
// converted, and a NUL is a character like any other. Nothing is read as its beginning: a list with junk is refused.
#include <cerrno>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "drivers/run/options.hpp"
#include "drivers/run/sizes.hpp"
#include "k3/core/error.hpp"
#include "k3/text/tokenizer.hpp"

namespace k3::run {

using Ids = std::vector<std::int32_t>;

/// The tokenizer; empty for a list of ids whose model has no rank file (and no --tok): ids are then printed as numbers.
/// Errors: Code::tokenizer.
inline std::optional<text::Tokenizer> open_tokenizer(const Options& options, std::size_t vocab) {
    std::error_code ignored;
    const std::filesystem::path ranks = std::filesystem::path(options.tokenizer_dir) / text::Tokenizer::kRankFile;
    if (options.prompt_kind == PromptKind::ids && !options.tokenizer_named &&
        !std::filesystem::exists(ranks, ignored)) {
        return std::nullopt;
    }
    return text::Tokenizer::open(options.tokenizer_dir, vocab);
}

namespace detail {

/// One comma, or white space, or one comma with white space around it, between two ids; nothing else anywhere.
inline Ids parse_ids(std::string_view list, std::size_t vocab) {
    constexpr const char* kNext = "write ids like 1,2,3";
    const auto blank = [](char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; };
    std::size_t at = 0;
    const auto skip_blanks = [&] {
        while (at < list.size() && blank(list[at])) ++at;
    };
    Ids ids;
    bool comma = false;  // a comma was seen and its right-hand id is owed
    for (skip_blanks(); at < list.size(); skip_blanks()) {
        if (list[at] == ',') {
            if (ids.empty() || comma) {
                throw Error(Code::usage,
                            "--ids: a number is missing before the comma at character " + std::to_string(at + 1),
                            kNext);
            }
            comma = true;
            ++at;
            continue;
        }
        std::size_t end = at;
        while (end < list.size() && !blank(list[end]) && list[end] != ',') ++end;
        const std::string_view word = list.substr(at, end - at);
        const std::size_t digits = word.find_first_not_of("0123456789", word[0] == '-' ? 1 : 0);
        if (digits != std::string_view::npos || word == "-") {
            throw Error(Code::usage, "--ids: " + in_quotes(word) + " is not a token id", kNext);
        }
        std::uint64_t id = 0;  // a number too long for it is out of range anyway
        const auto [stop, failure] = std::from_chars(word.data(), word.data() + word.size(), id);
        if (failure != std::errc{} || stop != word.data() + word.size() || id >= vocab) {
            throw Error(Code::usage,
                        "--ids: id " + std::string(word.substr(0, 40)) + " is not in the vocabulary of " +
                            std::to_string(vocab),
                        "ids go from 0 to " + std::to_string(vocab - 1));
        }
        ids.push_back(static_cast<std::int32_t>(id));
        comma = false;
        at = end;
    }
    if (comma) throw Error(Code::usage, "--ids: a number is missing after the last comma", kNext);
    return ids;
}

/// A whole file or standard input, also where the path is a pipe.
inline std::string read_prompt_file(const std::string& path) {
    constexpr std::size_t kLimit = std::size_t{1} << 30;
    const bool standard_input = path == "-";
    const auto fail = [&](const std::string& what, const char* next) {
        throw Error(Code::usage, "--prompt-file: " + what, next, {.path = standard_input ? "standard input" : path});
    };
    std::unique_ptr<std::FILE, int (*)(std::FILE*)> owned(nullptr, [](std::FILE* file) { return std::fclose(file); });
    if (!standard_input) {
        owned.reset(std::fopen(path.c_str(), "rb"));
        if (!owned) fail(std::string("cannot be opened: ") + std::strerror(errno), "check the path");
    }
    std::FILE* file = standard_input ? stdin : owned.get();
    std::string text;
    char piece[1 << 16];
    for (std::size_t got; (got = std::fread(piece, 1, sizeof piece, file)) > 0;) {
        text.append(piece, got);
        if (text.size() > kLimit) fail("has more than 2^30 bytes", "give a shorter prompt");
    }
    if (std::ferror(file) != 0) fail(std::string("cannot be read: ") + std::strerror(errno), "give a text file");
    return text;
}

}  // namespace detail

/// Errors: Code::usage for what was given (Code::tokenizer if it is not UTF-8), also for a prompt without tokens.
inline Ids read_prompt(const Options& options, const std::optional<text::Tokenizer>& tokenizer, std::size_t vocab) {
    Ids ids;
    const char* source = options.prompt_kind == PromptKind::ids ? "--ids" : "--prompt";
    if (options.prompt_kind == PromptKind::ids) {
        ids = detail::parse_ids(options.prompt, vocab);
    } else {
        std::string path, read;
        if (options.prompt_kind == PromptKind::file) {
            source = "--prompt-file";
            path = options.prompt == "-" ? "standard input" : options.prompt;
            read = detail::read_prompt_file(options.prompt);
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
