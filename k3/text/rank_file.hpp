#ifndef K3_TEXT_RANK_FILE_HPP
#define K3_TEXT_RANK_FILE_HPP
// The ordinary tokens, read from tiktoken.model: one line `base64(bytes) SPACE rank` per token. A token is a byte
// string, not text (no byte-to-letter table as in GPT-2 files, no merges list); its rank is its id and its merge
// priority.
//
// Accepted: ranks 0, 1, 2, ... in file order; distinct, non-empty tokens; every single byte among them (so that any
// text can be encoded); LF or CRLF; blank lines. Everything else is an Error with the line number.
//
// Layout: one blob of all bytes and ranks+1 offsets, and three ways to a rank, as merging does little but look up: an
// array for pairs of bytes; an open hash table for tokens of at most eight bytes, which holds the bytes themselves, so
// that a look-up touches one cache line; another one of (hash, rank) for longer ones. For the released 163,584
// ranks: 1.3 MB + 0.7 MB + 0.3 MB + 4 MB + 1 MB (docs/MEASUREMENTS.md#2026-11-30-tokenizer-speed).
#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "k3/core/error.hpp"
#include "k3/io/guess.hpp"

namespace k3::text {

using TokenId = std::int32_t;
inline constexpr TokenId kNoToken = -1;

class RankFile {
  public:
    /// Parses the text of a rank file; `path` is for messages. Errors: Code::tokenizer, naming file and line.
    static RankFile parse(std::string_view text, const std::string& path);

    std::size_t size() const noexcept { return offsets_.size() - 1; }
    std::size_t longest() const noexcept { return longest_; }  // bytes of the longest token

    /// Requires 0 <= rank < size(). The view lives as long as this object, also when it is moved.
    std::string_view bytes(TokenId rank) const noexcept {
        const auto r = static_cast<std::size_t>(rank);
        return {blob_.data() + offsets_[r], offsets_[r + 1] - offsets_[r]};
    }

    /// The rank of a byte string, or kNoToken.
    TokenId find(std::string_view bytes) const noexcept {
        if (bytes.size() - 1 < kShort) {  // 1 to 8
            const std::uint64_t key = key_of(bytes);
            for (std::size_t at = short_place(key, bytes.size());; at = (at + 1) & short_mask_) {
                const ShortSlot& slot = short_[at];
                if (slot.rank == kNoToken) return kNoToken;
                if (slot.key == key && slot.size == bytes.size()) return slot.rank;
            }
        }
        if (bytes.empty() || bytes.size() > longest_) return kNoToken;
        const std::uint32_t hash = hash_of(bytes);
        for (std::size_t at = hash & mask_;; at = (at + 1) & mask_) {
            const Slot& slot = table_[at];
            if (slot.rank == kNoToken) return kNoToken;
            if (slot.hash == hash && this->bytes(slot.rank) == bytes) return slot.rank;
        }
    }

    /// find of a string of one or two bytes.
    TokenId find_byte(char byte) const noexcept { return singles_[static_cast<unsigned char>(byte)]; }
    TokenId find_pair(char first, char second) const noexcept { return pairs_[pair_place(first, second)]; }

  private:
    struct Slot {
        std::uint32_t hash = 0;
        TokenId rank = kNoToken;
    };

    /// A token of at most eight bytes. key_of is one to one for each size.
    struct ShortSlot {
        std::uint64_t key = 0;
        std::uint32_t size = 0;
        TokenId rank = kNoToken;
    };
    static constexpr std::size_t kShort = 8;
    static constexpr std::uint64_t kMix = 0x9E3779B97F4A7C15u;

    RankFile() = default;
    static std::uint64_t key_of(std::string_view bytes) noexcept;
    std::size_t short_place(std::uint64_t key, std::size_t size) const noexcept {
        const std::uint64_t mixed = (key + size) * kMix;
        return static_cast<std::size_t>((mixed ^ mixed >> 32) * kMix >> 32) & short_mask_;
    }
    static std::size_t pair_place(char first, char second) noexcept {
        return std::size_t{static_cast<unsigned char>(first)} << 8 | static_cast<unsigned char>(second);
    }
    static std::uint32_t hash_of(std::string_view bytes) noexcept;
    void build_table(const std::vector<std::size_t>& lines, const std::string& path);

    std::vector<char> blob_;
    std::vector<std::uint32_t> offsets_{0};
    std::array<TokenId, 256> singles_{};
    std::vector<TokenId> pairs_;
    std::vector<ShortSlot> short_;
    std::size_t short_mask_ = 0;
    std::vector<Slot> table_;
    std::size_t mask_ = 0;
    std::size_t longest_ = 0;
};

// --------------------------------------------------------------------------------------------------------------------

namespace detail {

[[noreturn]] inline void refuse_line(const std::string& path, std::size_t line, const std::string& what) {
    throw Error(Code::tokenizer, "line " + std::to_string(line) + ": " + what,
                "download tiktoken.model of the checkpoint again", {.path = path});
}

/// Appends the decoded bytes; false unless `text` is canonical base64 (padded, no stray bits).
inline bool append_base64(std::string_view text, std::vector<char>& out) {
    static constexpr auto kValue = [] {
        constexpr std::string_view kAlphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
        std::array<std::int8_t, 256> value{};
        for (auto& v : value) v = -1;
        for (std::size_t i = 0; i < kAlphabet.size(); ++i) {
            value[static_cast<unsigned char>(kAlphabet[i])] = static_cast<std::int8_t>(i);
        }
        return value;
    }();
    if (text.size() % 4 != 0) return false;
    for (std::size_t at = 0; at < text.size(); at += 4) {
        const bool last = at + 4 == text.size();
        const std::size_t pad = !last || text[at + 3] != '=' ? 0 : text[at + 2] != '=' ? 1 : 2;
        std::uint32_t bits = 0;
        for (std::size_t i = 0; i < 4; ++i) {
            const int value = i >= 4 - pad ? 0 : kValue[static_cast<unsigned char>(text[at + i])];
            if (value < 0) return false;
            bits = bits << 6 | static_cast<std::uint32_t>(value);
        }
        if ((bits & ((1u << (8 * pad)) - 1)) != 0) return false;
        for (std::size_t i = 0; i < 3 - pad; ++i) out.push_back(static_cast<char>(bits >> (16 - 8 * i)));
    }
    return true;
}

}  // namespace detail

inline RankFile RankFile::parse(std::string_view text, const std::string& path) {
    if (text.size() > std::numeric_limits<std::uint32_t>::max()) {
        throw Error(Code::tokenizer, "is too large for a rank file", "check that this is the right file",
                    {.path = path});
    }
    RankFile file;
    std::vector<std::size_t> lines;  // where each token came from, for messages
    const auto refuse = [&](std::size_t number, const std::string& what) {
        if (const auto known = lines.empty() ? io::guess(text) : std::nullopt) {
            throw Error(Code::tokenizer, "is not a rank file: it is " + std::string(known->what),
                        std::string(known->next), {.path = path});
        }
        detail::refuse_line(path, number, what);
    };
    for (std::size_t at = 0, number = 1; at < text.size(); ++number) {
        const std::size_t end = std::min(text.find('\n', at), text.size());
        std::string_view line = text.substr(at, end - at);
        at = end + 1;
        if (line.ends_with('\r')) line.remove_suffix(1);
        if (line.empty()) continue;
        const std::size_t space = line.find(' ');
        if (space == std::string_view::npos) refuse(number, "is not `base64 rank`");
        const std::string expected = std::to_string(lines.size());
        if (line.substr(space + 1) != expected) {
            refuse(number, "the rank must be " + expected + ": ranks count up from 0");
        }
        const std::size_t before = file.blob_.size();
        if (!detail::append_base64(line.substr(0, space), file.blob_)) {
            refuse(number, "the token is not base64");
        }
        if (file.blob_.size() == before) refuse(number, "the token is empty");
        file.longest_ = std::max(file.longest_, file.blob_.size() - before);
        file.offsets_.push_back(static_cast<std::uint32_t>(file.blob_.size()));
        lines.push_back(number);
    }
    file.build_table(lines, path);
    for (int byte = 0; byte < 256; ++byte) {
        const char single = static_cast<char>(byte);
        file.singles_[static_cast<std::size_t>(byte)] = file.find({&single, 1});
        if (file.singles_[static_cast<std::size_t>(byte)] == kNoToken) {
            throw Error(Code::tokenizer, "has no token for the single byte " + std::to_string(byte),
                        "download tiktoken.model of the checkpoint again", {.path = path});
        }
    }
    return file;
}

/// All bytes of a string of 1 to 8 bytes in one number; which number depends on the byte order. Loads that overlap
/// instead of a loop: this is called for most pieces and most merges.
inline std::uint64_t RankFile::key_of(std::string_view bytes) noexcept {
    const std::size_t size = bytes.size();
    const auto byte = [&](std::size_t i) { return std::uint64_t{static_cast<unsigned char>(bytes[i])}; };
    if (size < 4) return byte(0) | byte(size / 2) << 8 | byte(size - 1) << 16;
    std::uint32_t head, tail;
    std::memcpy(&head, bytes.data(), sizeof head);
    std::memcpy(&tail, bytes.data() + size - sizeof tail, sizeof tail);
    return head | std::uint64_t{tail} << 32;
}

/// Of a string of more than 8 bytes. Not stable across versions or byte orders: it never leaves this object.
inline std::uint32_t RankFile::hash_of(std::string_view bytes) noexcept {
    std::uint64_t hash = bytes.size() * kMix;
    const auto mix = [&](std::size_t at) {
        std::uint64_t word;
        std::memcpy(&word, bytes.data() + at, sizeof word);
        hash = (hash ^ word) * kMix;
        hash ^= hash >> 32;
    };
    for (std::size_t at = 0; at + sizeof(std::uint64_t) < bytes.size(); at += sizeof(std::uint64_t)) mix(at);
    mix(bytes.size() - sizeof(std::uint64_t));
    return static_cast<std::uint32_t>(hash);
}

inline void RankFile::build_table(const std::vector<std::size_t>& lines, const std::string& path) {
    std::size_t short_tokens = 0;
    for (std::size_t r = 0; r < size(); ++r) short_tokens += bytes(static_cast<TokenId>(r)).size() <= kShort;
    // At most half full: a probe ends soon, and always.
    short_.assign(std::bit_ceil(2 * short_tokens + 2), ShortSlot{});
    short_mask_ = short_.size() - 1;
    table_.assign(std::bit_ceil(2 * (size() - short_tokens) + 2), Slot{});
    mask_ = table_.size() - 1;
    pairs_.assign(65536, kNoToken);
    for (std::size_t r = 0; r < size(); ++r) {
        const auto rank = static_cast<TokenId>(r);
        const std::string_view token = bytes(rank);
        if (const TokenId other = find(token); other != kNoToken) {
            detail::refuse_line(path, lines[r],
                                "repeats the token of line " + std::to_string(lines[static_cast<std::size_t>(other)]));
        }
        if (token.size() == 2) pairs_[pair_place(token[0], token[1])] = rank;
        if (token.size() <= kShort) {
            std::size_t at = short_place(key_of(token), token.size());
            while (short_[at].rank != kNoToken) at = (at + 1) & short_mask_;
            short_[at] = {key_of(token), static_cast<std::uint32_t>(token.size()), rank};
        } else {
            const std::uint32_t hash = hash_of(token);
            std::size_t at = hash & mask_;
            while (table_[at].rank != kNoToken) at = (at + 1) & mask_;
            table_[at] = {hash, rank};
        }
    }
}

}  // namespace k3::text
#endif
