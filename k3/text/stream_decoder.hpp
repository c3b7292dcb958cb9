#ifndef K3_TEXT_STREAM_DECODER_HPP
#define K3_TEXT_STREAM_DECODER_HPP
// Token bytes in, whole UTF-8 characters out. A token may end inside a character (common in Korean or emoji), so a
// stream that prints token by token must wait for the rest; bytes that can no longer become a character must not make
// it wait.
#include <cstddef>
#include <string>
#include <string_view>
#include <utility>

#include "k3/text/utf8.hpp"

namespace k3::text {

/// All pushes and the flush, put together, equal replace_invalid_utf8 of all bytes, however they are split.
class StreamDecoder {
  public:
    /// Adds the bytes of one token (any bytes) and returns the text that is now certain: valid UTF-8, possibly empty.
    std::string push(std::string_view bytes) {
        held_.append(bytes);
        std::string text;
        std::size_t at = 0;
        while (at < held_.size()) {
            const Utf8Step step = step_utf8(held_, at);
            if (step.kind == Utf8::cut) break;
            text.append(step.kind == Utf8::scalar ? std::string_view(held_).substr(at, step.bytes) : kReplacement);
            at += step.bytes;
        }
        held_.erase(0, at);  // what stays is at most three bytes
        return text;
    }

    /// The end of the stream: a character that was never finished becomes one U+FFFD. The decoder is then as new.
    std::string flush() { return replace_invalid_utf8(std::exchange(held_, {})); }

  private:
    std::string held_;
};

}  // namespace k3::text
#endif
