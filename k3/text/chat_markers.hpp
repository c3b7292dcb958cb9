#ifndef K3_TEXT_CHAT_MARKERS_HPP
#define K3_TEXT_CHAT_MARKERS_HPP
// The four special tokens that chat structure is made of. Everything else between them is ordinary text.
#include <string>
#include <string_view>

#include "k3/core/error.hpp"
#include "k3/text/tokenizer.hpp"

namespace k3::text {

inline constexpr std::string_view kOpen = "<|open|>", kClose = "<|close|>", kSep = "<|sep|>",
                                  kEndOfMessage = "<|end_of_msg|>";

struct ChatMarkers {
    TokenId open, close, sep, end_of_message;

    /// Errors: Code::tokenizer if one of them is no special token. Encoded as text they would be six ordinary tokens
    /// each, and the model would see no structure at all.
    static ChatMarkers of(const Tokenizer& tokenizer) {
        const auto id = [&](std::string_view name) {
            if (const auto found = tokenizer.special(name)) return *found;
            throw Error(
                Code::tokenizer, "the tokenizer has no special token " + std::string(name),
                "chat needs the tokenizer_config.json of the released model: give its directory with --tok DIR");
        };
        return {id(kOpen), id(kClose), id(kSep), id(kEndOfMessage)};
    }
};

}  // namespace k3::text
#endif
