#ifndef K3_TEXT_SPECIAL_TOKENS_HPP
#define K3_TEXT_SPECIAL_TOKENS_HPP
// The special slots: ids ranks .. vocab_size-1 (256 in the release, 16 in some fixtures). tokenizer_config.json names
// some of them in added_tokens_decoder; the others are <|reserved_token_ID|> with their own id. A name belongs to a
// slot by position: where slot 163839 is [PAD], <|reserved_token_163839|> is ordinary text.
//
// Names come from the file only. There is no built-in list: other models of the family use the same ids with other
// names.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "k3/core/error.hpp"
#include "k3/io/json_text.hpp"
#include "k3/text/rank_file.hpp"

namespace k3::text {

class SpecialTokens {
  public:
    static constexpr std::size_t kMostSlots = 256;

    /// Reads the names for ids [ranks, vocab_size) from the text of tokenizer_config.json; `path` is for messages.
    /// Errors: Code::tokenizer for malformed JSON, an id outside the slots, a name given twice, an end token that is no
    /// slot, or a vocab_size that leaves fewer than 0 or more than 256 slots (then the files belong to another model).
    static SpecialTokens parse(std::string_view json, const std::string& path, std::size_t ranks,
                               std::size_t vocab_size);

    std::size_t size() const noexcept { return names_.size(); }

    /// Requires first() <= id < first() + size(). The view lives as long as this object, also when it is moved.
    std::string_view name(TokenId id) const noexcept { return names_[static_cast<std::size_t>(id - first_)]; }
    TokenId first() const noexcept { return first_; }

    /// The id of a name, if it is one.
    std::optional<TokenId> find(std::string_view name) const {
        const auto at = ids_.find(name);
        return at == ids_.end() ? std::nullopt : std::optional(at->second);
    }

    struct Hit {
        std::size_t at;  // byte offset
        TokenId id;
    };

    /// The leftmost name in `text` at or after `from`; the longest one if several start there (none of the released
    /// names is a prefix of another).
    std::optional<Hit> search(std::string_view text, std::size_t from) const {
        for (std::size_t at = from; at < text.size(); ++at) {
            if (!starts_[static_cast<unsigned char>(text[at])]) continue;
            for (const std::size_t length : lengths_) {
                if (length > text.size() - at) continue;
                if (const auto id = find(text.substr(at, length))) return Hit{at, *id};
            }
        }
        return std::nullopt;
    }

    /// Ids that end a message, ascending: [EOS], <|end_of_msg|>, and what eos_token names. A model may emit any of
    /// them.
    std::span<const TokenId> end_ids() const noexcept { return ends_; }

  private:
    struct Hash : std::hash<std::string_view> {
        using is_transparent = void;
    };

    SpecialTokens() = default;
    void read(std::string_view json, const std::string& path);
    void index(const std::string& path);

    TokenId first_ = 0;
    std::vector<std::string> names_;  // by slot
    std::unordered_map<std::string, TokenId, Hash, std::equal_to<>> ids_;
    std::vector<std::size_t> lengths_;  // distinct name lengths, longest first
    std::array<bool, 256> starts_{};    // first bytes of names
    std::vector<TokenId> ends_;
    std::string eos_;  // what eos_token says, if anything
};

// --------------------------------------------------------------------------------------------------------------------

namespace detail {

[[noreturn]] inline void refuse_config(const std::string& path, const std::string& what) {
    // `what` quotes names and keys of the file, and JSON strings may hold line breaks.
    throw Error(Code::tokenizer, io::one_line(what), "use the tokenizer_config.json of this checkpoint",
                {.path = path});
}

}  // namespace detail

inline SpecialTokens SpecialTokens::parse(std::string_view json, const std::string& path, std::size_t ranks,
                                          std::size_t vocab_size) {
    if (vocab_size < ranks || vocab_size - ranks > kMostSlots) {
        throw Error(Code::tokenizer,
                    "the model's vocab_size is " + std::to_string(vocab_size) + " but the tokenizer has " +
                        std::to_string(ranks) + " ranks, and 0 to 256 special slots must follow them",
                    "give the tokenizer of this checkpoint with --tok DIR", {.path = path});
    }
    SpecialTokens tokens;
    tokens.first_ = static_cast<TokenId>(ranks);
    tokens.names_.resize(vocab_size - ranks);
    tokens.read(json, path);
    for (std::size_t slot = 0; slot < tokens.names_.size(); ++slot) {
        std::string& name = tokens.names_[slot];
        if (!name.empty()) continue;
        name = "<|reserved_token_";
        name.append(std::to_string(ranks + slot)).append("|>");
    }
    tokens.index(path);
    return tokens;
}

inline void SpecialTokens::read(std::string_view json, const std::string& path) {
    using io::Json;  // not simdjson: the released model_max_length is an integer beyond 64 bits
    const Json root = io::parse_json(json, Code::tokenizer, path);
    const auto added = root.find("added_tokens_decoder");
    if (added == root.end() || !added->is_object()) detail::refuse_config(path, "has no object added_tokens_decoder");
    const auto text_of = [](const Json& object, const char* key) {  // "" unless it is a string
        const auto at = object.find(key);
        return at != object.end() && at->is_string() ? at->get<std::string>() : std::string();
    };
    for (const auto& [key, value] : added->items()) {
        const std::string label = "added_tokens_decoder[\"" + key + "\"]";
        // At most nine digits and no leading zero: an id has one spelling, and it fits.
        const bool digits = !key.empty() && key.size() < 10 && (key[0] != '0' || key.size() == 1) &&
                            std::all_of(key.begin(), key.end(), [](char c) { return c >= '0' && c <= '9'; });
        if (!digits) detail::refuse_config(path, label + " is not a token id");
        const long slot = std::stol(key) - first_;
        if (slot < 0 || slot >= static_cast<long>(size())) {
            detail::refuse_config(path, label + " is outside the special slots: " + std::to_string(size()) +
                                            " from id " + std::to_string(first_));
        }
        std::string content = text_of(value, "content");
        if (content.empty()) detail::refuse_config(path, label + ".content is not a non-empty string");
        names_[static_cast<std::size_t>(slot)] = std::move(content);
    }
    // Transformers writes a token as its name or as an object with its name. null or absent: this file has no opinion.
    const auto eos = root.find("eos_token");
    if (eos == root.end() || eos->is_null()) return;
    eos_ = eos->is_object() ? text_of(*eos, "content") : text_of(root, "eos_token");
    if (eos_.empty()) detail::refuse_config(path, "eos_token is not a token name");
}

inline void SpecialTokens::index(const std::string& path) {
    for (std::size_t slot = 0; slot < names_.size(); ++slot) {
        const std::string& name = names_[slot];
        const auto [at, fresh] = ids_.emplace(name, first_ + static_cast<TokenId>(slot));
        if (!fresh) {
            detail::refuse_config(path, "ids " + std::to_string(at->second) + " and " +
                                            std::to_string(static_cast<std::size_t>(first_) + slot) +
                                            " have the same name " + name);
        }
        starts_[static_cast<unsigned char>(name[0])] = true;
        lengths_.push_back(name.size());
    }
    std::sort(lengths_.begin(), lengths_.end(), std::greater<>());
    lengths_.erase(std::unique(lengths_.begin(), lengths_.end()), lengths_.end());
    if (!eos_.empty() && !find(eos_)) detail::refuse_config(path, "eos_token " + eos_ + " is not a special token");
    for (const std::string_view name :
         {std::string_view("[EOS]"), std::string_view("<|end_of_msg|>"), std::string_view(eos_)}) {
        if (const auto id = find(name)) ends_.push_back(*id);
    }
    std::sort(ends_.begin(), ends_.end());
    ends_.erase(std::unique(ends_.begin(), ends_.end()), ends_.end());
}

}  // namespace k3::text
#endif
