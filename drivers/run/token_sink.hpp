#ifndef K3_DRIVERS_RUN_TOKEN_SINK_HPP
#define K3_DRIVERS_RUN_TOKEN_SINK_HPP
// Where generated tokens go: text on standard output in whole characters, or numbers on one line where there is no
// tokenizer. What a chat does with them is in chat_writer.hpp.
#include <cstdint>
#include <string>

#include "drivers/run/output.hpp"
#include "k3/text/stream_decoder.hpp"
#include "k3/text/tokenizer.hpp"

namespace k3::run {

class TokenSink {
  public:
    virtual ~TokenSink() = default;
    /// An id that is part of the answer; the end id is not.
    virtual void put(std::int32_t id) = 0;
    /// No further id comes.
    virtual void finish() = 0;
    /// Nobody reads on: there is no point in generating more.
    virtual bool failed() const noexcept = 0;
};

/// Bytes go out as they are, NUL and line breaks included; what is not UTF-8 becomes U+FFFD, and a special token its
/// name. All pieces together equal the text that Tokenizer::decode makes of all ids.
class TokenWriter final : public TokenSink {
  public:
    /// `tokenizer` may be null: ids are then written as numbers separated by commas.
    TokenWriter(const text::Tokenizer* tokenizer, Stdout& out) : tokenizer_(tokenizer), out_(out) {}

    void put(std::int32_t id) override {
        if (tokenizer_ != nullptr) {
            add(decoder_.push(tokenizer_->bytes(id)));
        } else {
            out_.write((any_ ? "," : "") + std::to_string(id));
        }
        any_ = true;
    }
    void finish() override {
        if (tokenizer_ != nullptr) {
            add(decoder_.flush());
        } else if (any_) {
            out_.write("\n");
        }
    }
    bool failed() const noexcept override { return out_.failed(); }
    /// As written, if there is a tokenizer.
    const std::string& text() const noexcept { return text_; }

  private:
    void add(const std::string& piece) {
        out_.write(piece);
        text_ += piece;
    }
    const text::Tokenizer* tokenizer_;
    Stdout& out_;
    text::StreamDecoder decoder_{};
    std::string text_{};
    bool any_ = false;
};

}  // namespace k3::run
#endif
