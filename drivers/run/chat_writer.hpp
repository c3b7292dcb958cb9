#ifndef K3_DRIVERS_RUN_CHAT_WRITER_HPP
#define K3_DRIVERS_RUN_CHAT_WRITER_HPP
// An answer as it is written: <think>...</think>, then <response>...</response>. What is which comes from the token ids
// (text::ChatReply), never from characters: an answer that talks about "</think>" stays an answer.
#include <cstdint>
#include <string>
#include <string_view>

#include "drivers/run/token_sink.hpp"
#include "k3/text/chat_reply.hpp"

namespace k3::run {

class ChatWriter final : public TokenSink {
  public:
    ChatWriter(text::ChatReply& reply, Stdout& out) : reply_(reply), out_(out) {}

    void put(std::int32_t id) override {
        const text::ReplyPiece piece = reply_.push(id);
        if (piece.channel == text::ReplyChannel::structure || piece.text.empty()) return;
        enter(piece.channel);
        out_.write(piece.text);
    }
    void finish() override {
        if (const std::string rest = reply_.flush(); !rest.empty()) out_.write(rest);
        enter(text::ReplyChannel::structure);
    }
    /// A reply that broke the format shows nothing more: there is no point in going on with it either.
    bool failed() const noexcept override { return out_.failed() || !reply_.problem().empty(); }

  private:
    void enter(text::ReplyChannel channel) {
        if (channel == channel_) return;
        if (const std::string_view tag = name(channel_); !tag.empty()) out_.write("</" + std::string(tag) + ">\n");
        if (const std::string_view tag = name(channel); !tag.empty()) out_.write("<" + std::string(tag) + ">");
        channel_ = channel;
    }
    static constexpr std::string_view name(text::ReplyChannel channel) noexcept {
        switch (channel) {
            case text::ReplyChannel::reasoning: return "think";
            case text::ReplyChannel::response: return "response";
            case text::ReplyChannel::tools: return "tools";
            case text::ReplyChannel::structure: break;
        }
        return {};
    }
    text::ChatReply& reply_;
    Stdout& out_;
    text::ReplyChannel channel_ = text::ReplyChannel::structure;
};

}  // namespace k3::run
#endif
