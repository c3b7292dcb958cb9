#ifndef K3_TEXT_TOKENIZER_HPP
#define K3_TEXT_TOKENIZER_HPP
// Text to token ids and back, as the released tokenizer does it:
//   official cuts of long input -> special names, if asked for -> pre-tokenization pattern -> byte-level BPE by ranks.
// No BOS is added. Decoding is concatenation: bytes are exact, text may need replacement characters.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "k3/core/checksum.hpp"
#include "k3/core/error.hpp"
#include "k3/io/file.hpp"
#include "k3/text/bpe.hpp"
#include "k3/text/long_input.hpp"
#include "k3/text/pre_tokenizer.hpp"
#include "k3/text/rank_file.hpp"
#include "k3/text/special_tokens.hpp"
#include "k3/text/utf8.hpp"

namespace k3::text {

/// What the names of special tokens mean inside a text.
enum class Specials : std::uint8_t {
    as_ids,   ///< each name is its id (the official default): for markup that we write, and for raw prompts
    as_text,  ///< names are characters like any others: for everything a user or a tool wrote
};

class Tokenizer {
  public:
    static constexpr const char* kRankFile = "tiktoken.model";
    static constexpr const char* kConfigFile = "tokenizer_config.json";

    /// Reads both files of `dir`. Errors: Code::tokenizer for a missing or malformed file, or if they do not fit
    /// vocab_size.
    static Tokenizer open(const std::string& dir, std::size_t vocab_size) {
        const std::string rank_path = dir + "/" + kRankFile, config_path = dir + "/" + kConfigFile;
        const std::string rank_text = read(rank_path, kRankFile), config_text = read(config_path, kConfigFile);
        RankFile ranks = RankFile::parse(rank_text, rank_path);
        SpecialTokens specials = SpecialTokens::parse(config_text, config_path, ranks.size(), vocab_size);
        Tokenizer tokenizer(std::move(ranks), std::move(specials));
        core::Checksum checksum;
        checksum.add_value(std::uint64_t{rank_text.size()});
        for (const std::string_view text : {std::string_view(rank_text), std::string_view(config_text)})
            checksum.add(std::as_bytes(std::span(text)));
        tokenizer.checksum_ = std::max<std::uint64_t>(1, checksum.value());
        return tokenizer;
    }

    /// The ids of `text`. An empty text has none; NUL is an ordinary character.
    /// Errors: Code::tokenizer if the text is not UTF-8, with the offset of the first bad byte.
    std::vector<TokenId> encode(std::string_view text, Specials mode) const {
        std::vector<TokenId> ids;
        encode(text, mode, ids);
        return ids;
    }

    /// Appends the ids of `text` to `out`; nothing is appended on error. Encoding is not a homomorphism: encode
    /// segments whose border must stay a border (chat markup and contents) one by one, never their concatenation.
    /// Threads: any number of calls at once.
    void encode(std::string_view text, Specials mode, std::vector<TokenId>& out) const {
        if (const auto offset = find_invalid_utf8(text)) {
            throw Error(Code::tokenizer,
                        "the text is not UTF-8: the first bad byte is at offset " + std::to_string(*offset),
                        "convert it to UTF-8", {.offset = *offset});
        }
        PreTokenizer::Scratch scratch(pattern_);
        Merger merger;
        const auto ordinary = [&](std::string_view segment) {
            pattern_.split(segment, scratch, [&](std::string_view piece) { merger.encode(piece, ranks_, out); });
        };
        for_each_cut(text, CutLimits{}, [&](std::string_view part) {
            std::size_t at = 0;
            while (mode == Specials::as_ids) {
                const auto hit = specials_.search(part, at);
                if (!hit) break;
                ordinary(part.substr(at, hit->at - at));
                out.push_back(hit->id);
                at = hit->at + specials_.name(hit->id).size();
            }
            ordinary(part.substr(at));
        });
    }

    /// The bytes of one token; of a special, its name. The view lives as long as the tokenizer, also when it is moved.
    /// Errors: Code::tokenizer if the id is outside [0, vocab()).
    std::string_view bytes(TokenId id) const {
        if (id < 0 || static_cast<std::size_t>(id) >= vocab()) {
            throw Error(Code::tokenizer, "token id " + std::to_string(id) + " does not exist",
                        "ids go from 0 to " + std::to_string(vocab() - 1));
        }
        return is_special(id) ? specials_.name(id) : ranks_.bytes(id);
    }

    std::string decode_bytes(std::span<const TokenId> ids) const {
        std::string all;
        for (const TokenId id : ids) all.append(bytes(id));
        return all;
    }

    /// Always valid UTF-8 (replace_invalid_utf8 of decode_bytes). For text as it is generated: StreamDecoder.
    std::string decode(std::span<const TokenId> ids) const { return replace_invalid_utf8(decode_bytes(ids)); }

    std::size_t vocab() const noexcept { return ranks_.size() + specials_.size(); }
    std::size_t ranks() const noexcept { return ranks_.size(); }  // ids of ordinary tokens: [0, ranks())
    bool is_special(TokenId id) const noexcept {
        return id >= specials_.first() && static_cast<std::size_t>(id) < vocab();
    }
    std::optional<TokenId> special(std::string_view name) const { return specials_.find(name); }

    /// Of the bytes of both files; never 0.
    std::uint64_t checksum() const noexcept { return checksum_; }

    /// Ids that end a message, ascending. config.json and generation_config.json may name others: stop on the union.
    std::span<const TokenId> end_ids() const noexcept { return specials_.end_ids(); }

  private:
    Tokenizer(RankFile ranks, SpecialTokens specials) : ranks_(std::move(ranks)), specials_(std::move(specials)) {}

    static std::string read(const std::string& path, const char* name) {
        try {
            return io::File::read_text(path, std::uint64_t{64} << 20);
        } catch (const Error& error) {
            throw Error(Code::tokenizer, error.message(),
                        std::string(name) +
                            " is part of the released checkpoint: give the directory that holds it with --tok DIR",
                        {.path = path});
        }
    }

    RankFile ranks_;
    SpecialTokens specials_;
    PreTokenizer pattern_;
    std::uint64_t checksum_ = 1;
};

}  // namespace k3::text
#endif
