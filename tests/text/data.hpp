#ifndef K3_TESTS_TEXT_DATA_HPP
#define K3_TESTS_TEXT_DATA_HPP
// What the text tests read: the demo tokenizer, golden_tiktoken.json and the expectations of the golden models.
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "k3/io/file.hpp"
#include "k3/text/tokenizer.hpp"

namespace k3::test {

using text::TokenId;
using Ids = std::vector<TokenId>;

inline std::string path_of(const std::string& name) { return std::string(K3_SOURCE_DIR) + "/tests/" + name; }

inline nlohmann::json read_json(const std::string& name) {
    return nlohmann::json::parse(io::File::read_text(path_of(name)));
}

/// Written by make_golden.mjs; see there for the sections.
inline const nlohmann::json& golden() {
    static const nlohmann::json all = read_json("text/golden_tiktoken.json");
    return all;
}

/// 2,048 ranks and 256 special slots.
inline const text::Tokenizer& demo() {
    static const text::Tokenizer tokenizer = text::Tokenizer::open(path_of("demo/model"), 2304);
    return tokenizer;
}

/// Ids that depend on nothing but the seed.
class Random {
  public:
    explicit Random(std::uint64_t seed) : state_(seed) {}
    std::size_t below(std::size_t n) {
        state_ += 0x9E3779B97F4A7C15u;
        std::uint64_t z = state_;
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
        z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
        return (z ^ (z >> 31)) % n;
    }

  private:
    std::uint64_t state_;
};

inline std::string repeat(std::string_view part, std::size_t times) {
    std::string all;
    all.reserve(part.size() * times);
    for (std::size_t i = 0; i < times; ++i) all.append(part);
    return all;
}

inline std::string base64(std::string_view bytes) {
    constexpr std::string_view kAlphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    std::string text;
    for (std::size_t at = 0; at < bytes.size(); at += 3) {
        const std::size_t n = std::min<std::size_t>(3, bytes.size() - at);
        std::uint32_t bits = 0;
        for (std::size_t i = 0; i < 3; ++i) bits = bits << 8 | (i < n ? static_cast<unsigned char>(bytes[at + i]) : 0u);
        for (std::size_t i = 0; i < 4; ++i) text += i <= n ? kAlphabet[bits >> (18 - 6 * i) & 63] : '=';
    }
    return text;
}

/// The text of a rank file: all single bytes in order, then `more`.
inline std::string rank_text(const std::vector<std::string>& more) {
    std::string text;
    std::size_t rank = 0;
    for (int byte = 0; byte < 256; ++byte) {
        text += base64(std::string(1, static_cast<char>(byte))) + ' ' + std::to_string(rank++) + '\n';
    }
    for (const std::string& token : more) text += base64(token) + ' ' + std::to_string(rank++) + '\n';
    return text;
}

/// The message of the tokenizer Error that `call` throws; "" if it throws none.
template <class Call>
std::string error_of(Call&& call) {
    try {
        call();
    } catch (const Error& error) {
        return error.code() == Code::tokenizer ? error.what() : std::string("another code: ") + error.what();
    }
    return "";
}

inline bool contains(const std::string& text, std::string_view part) { return text.find(part) != std::string::npos; }

}  // namespace k3::test
#endif
