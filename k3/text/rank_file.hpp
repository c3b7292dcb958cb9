#ifndef K3_TEXT_RANK_FILE_HPP
#define K3_TEXT_RANK_FILE_HPP
// The ordinary tokens, read from tiktoken.model: one line `base64(bytes) SPACE rank` per token. A token is a byte
// string, not text (no byte-to-letter table as in GPT-2 files, no merges list); its rank is its id and its merge
// priority.
//
// Accepted: ranks 0, 1, 2, ... in file order; distinct, non-empty tokens; every single byte among them (so that any
// text can be encoded); LF or CRLF; blank lines. Everything else is an Error with the line number.
//
// Layout: one blob of all bytes and ranks+1 offsets, and an open hash table of (hash, rank). For the released 163,584
// ranks: 1.3 MB + 0.7 MB + 4 MB.
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
        if (bytes.size() > longest_) return kNoToken;
        const std::uint32_t hash = hash_of(bytes);
        for (std::size_t at = hash & mask_;; at = (at + 1) & mask_) {
            const Slot& slot = table_[at];
            if (slot.rank == kNoToken) return kNoToken;
            if (slot.hash == hash && this->bytes(slot.rank) == bytes) return slot.rank;
        }
    }

  private:
    struct Slot {
        std::uint32_t hash = 0;
        TokenId rank = kNoToken;
    };

    RankFile() = default;
    static std::uint32_t hash_of(std::string_view bytes) noexcept;
    void build_table(const std::vector<std::size_t>& lines, const std::string& path);

    std::vector<char> blob_;
    std::vector<std::uint32_t> offsets_{0};
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
        if (file.find({&single, 1}) == kNoToken) {
            throw Error(Code::tokenizer, "has no token for the single byte " + std::to_string(byte),
                        "download tiktoken.model of the checkpoint again", {.path = path});
        }
    }
    return file;
}

/// Not stable across versions or byte orders: it never leaves this object.
inline std::uint32_t RankFile::hash_of(std::string_view bytes) noexcept {
    constexpr std::uint64_t kMix = 0x9E3779B97F4A7C15u;
    std::uint64_t hash = bytes.size() * kMix;
    const auto mix = [&hash](std::uint64_t word) {
        hash = (hash ^ word) * kMix;
        hash ^= hash >> 32;
    };
    std::size_t at = 0;
    for (std::uint64_t word; bytes.size() - at >= sizeof word; at += sizeof word) {
        std::memcpy(&word, bytes.data() + at, sizeof word);
        mix(word);
    }
    std::uint64_t rest = 0;
    for (; at < bytes.size(); ++at) rest = rest << 8 | static_cast<unsigned char>(bytes[at]);
    mix(rest);
    return static_cast<std::uint32_t>(hash);
}

inline void RankFile::build_table(const std::vector<std::size_t>& lines, const std::string& path) {
    table_.assign(std::bit_ceil(2 * size() + 2), Slot{});  // at most half full: a probe ends soon, and always
    mask_ = table_.size() - 1;
    for (std::size_t r = 0; r < size(); ++r) {
        const auto rank = static_cast<TokenId>(r);
        const std::uint32_t hash = hash_of(bytes(rank));
        std::size_t at = hash & mask_;
        for (; table_[at].rank != kNoToken; at = (at + 1) & mask_) {
            if (table_[at].hash == hash && bytes(table_[at].rank) == bytes(rank)) {
                detail::refuse_line(
                    path, lines[r],
                    "repeats the token of line " + std::to_string(lines[static_cast<std::size_t>(table_[at].rank)]));
            }
        }
        table_[at] = {hash, rank};
    }
}

}  // namespace k3::text
#endif
