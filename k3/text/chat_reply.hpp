#ifndef K3_TEXT_CHAT_REPLY_HPP
#define K3_TEXT_CHAT_REPLY_HPP
// A generated reply, id by id: what continues a generation prompt.
//   thinking on   reasoning close(think) open(response) content close(response) [tools] close(message) END
//   thinking off  content close(response) [tools] close(message) END
//   tools         open(tools) ( open(call) ( open(argument) value close(argument) )* | open(json) text close(json)
//                 close(call) )+ close(tools)
// Structure is told by token ids, never by characters: a reply may quote a marker as text. END is any end id; the
// released model ends a turn with [EOS] where its config names <|end_of_msg|>.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "k3/core/error.hpp"
#include "k3/io/json_text.hpp"
#include "k3/text/chat_markers.hpp"
#include "k3/text/chat_message.hpp"
#include "k3/text/python_json.hpp"
#include "k3/text/stream_decoder.hpp"
#include "k3/text/tokenizer.hpp"
#include "k3/text/utf8.hpp"

namespace k3::text {

enum class ReplyChannel : std::uint8_t {
    reasoning,
    response,
    tools,      ///< the value of an argument
    structure,  ///< markers, tags and ends: nothing to show
};

/// Text that became certain with one id: whole characters, often none. Empty for structure.
struct ReplyPiece {
    ReplyChannel channel;
    std::string text;
};

/// One reply. Keeps a pointer to the tokenizer, which must outlive it. Not thread-safe.
class ChatReply {
  public:
    /// `thinking` as in the render that the reply continues. END is one of tokenizer.end_ids() and `more_ends`.
    /// Errors: Code::tokenizer if the tokenizer has no chat markers.
    ChatReply(const Tokenizer& tokenizer, Thinking thinking, std::span<const TokenId> more_ends = {})
        : tokenizer_(&tokenizer),
          markers_(ChatMarkers::of(tokenizer)),
          ends_(tokenizer.end_ids().begin(), tokenizer.end_ids().end()),
          thinking_(thinking),
          place_(thinking == Thinking::on ? Place::think : Place::response) {
        ends_.insert(ends_.end(), more_ends.begin(), more_ends.end());
    }

    /// Takes the next id. What breaks the grammar is remembered, not thrown: see problem(). After it, and after the
    /// end, every piece is structure. Errors: Code::tokenizer for an id outside the vocabulary.
    ReplyPiece push(TokenId id);

    /// An end id came: there is nothing more to generate.
    bool ended() const noexcept { return end_id_.has_value(); }
    std::optional<TokenId> end_id() const noexcept { return end_id_; }

    /// Empty as long as the ids follow the grammar; else the first thing that does not.
    const std::string& problem() const noexcept { return problem_; }

    /// What has come so far, also of a reply that is broken or not finished.
    const std::string& reasoning() const noexcept { return reasoning_; }
    const std::string& content() const noexcept { return content_; }

    /// The whole reply as a message: reasoning_content is there with thinking (perhaps empty) and absent without;
    /// arguments are JSON text that renders to the elements they came from.
    /// Errors: Code::chat if an id broke the grammar or the end is missing.
    Message finish() const;

    /// No further id comes: what a character that was never finished becomes, part of the channel before. Changes
    /// nothing of the message.
    std::string flush() { return decoder_.flush(); }

  private:
    enum class Place : std::uint8_t {
        think,
        thought,
        response,
        responded,
        tools,
        call,
        argument,
        json,
        called,
        message_closed
    };
    enum class Tag : std::uint8_t { none, open, close };

    /// What a tag may do.
    struct Step {
        Place from;
        Tag tag;
        std::string_view name;
        Place to;
        std::string_view first{}, second{};  // attributes
    };
    static const Step* find_step(Place from, Tag tag, std::string_view name) noexcept;

    static constexpr std::string_view name_of(Place place) noexcept {
        constexpr std::string_view kNames[] = {"in the reasoning",   "after the reasoning", "in the response",
                                               "after the response", "in the tools block",  "in a tool call",
                                               "in an argument",     "in a json element",   "after the tools block",
                                               "after the message"};
        return kNames[static_cast<std::size_t>(place)];
    }

    std::string* payload() noexcept;
    ReplyChannel channel() const noexcept;
    void apply_tag();
    void opened();
    void closed(Place place);
    bool read_attributes(std::string_view text, std::string_view first, std::string_view second);
    void close_argument();
    void fail(std::string what, std::string next = "generate the reply again") {
        if (!problem_.empty()) return;
        problem_ = "token " + std::to_string(count_) + " of the reply: " + io::one_line(std::move(what));
        next_ = std::move(next);
    }

    const Tokenizer* tokenizer_;
    ChatMarkers markers_;
    std::vector<TokenId> ends_;
    Thinking thinking_;
    Place place_;
    Tag tag_ = Tag::none;
    std::string label_{};      // bytes of the tag that is being read
    StreamDecoder decoder_{};  // of the payload that is being read
    std::string reasoning_{}, content_{};
    std::vector<ToolCall> calls_{};
    std::string arguments_{};                 // of the call that is being read, as JSON text without braces
    std::array<std::string, 2> attribute_{};  // values of the tag that was read last
    std::string value_{};                     // of the argument or json element that is being read
    std::size_t count_ = 0;
    std::optional<TokenId> end_id_{};
    std::string problem_{}, next_{};
};

// --------------------------------------------------------------------------------------------------------------------

inline std::string* ChatReply::payload() noexcept {
    switch (place_) {
        case Place::think: return &reasoning_;
        case Place::response: return &content_;
        case Place::argument:
        case Place::json: return &value_;
        default: return nullptr;
    }
}

inline ReplyChannel ChatReply::channel() const noexcept {
    return place_ == Place::think      ? ReplyChannel::reasoning
           : place_ == Place::response ? ReplyChannel::response
                                       : ReplyChannel::tools;
}

inline ReplyPiece ChatReply::push(TokenId id) {
    const std::string_view bytes = tokenizer_->bytes(id);
    const bool end = std::find(ends_.begin(), ends_.end(), id) != ends_.end();
    ReplyPiece piece{ReplyChannel::structure, {}};
    ++count_;
    if (ended()) fail("ids go on after the end", "stop at the first end id");
    if (end && !ended()) {
        end_id_ = id;
        if (tag_ != Tag::none) fail("the reply ends inside a tag");
        if (place_ != Place::message_closed) fail("the reply ends " + std::string(name_of(place_)));
    }
    if (end || !problem_.empty()) return piece;
    std::string* const text = tag_ == Tag::none ? payload() : nullptr;
    if (tokenizer_->is_special(id)) {
        if (text != nullptr) {  // the last character may be unfinished: it stays so
            piece = {channel(), decoder_.flush()};
            *text += piece.text;
            if (piece.text.empty()) piece.channel = ReplyChannel::structure;
        }
        if (id == markers_.sep && tag_ != Tag::none) {
            apply_tag();
        } else if ((id == markers_.open || id == markers_.close) && tag_ == Tag::none) {
            tag_ = id == markers_.open ? Tag::open : Tag::close;
            label_.clear();
        } else {
            fail("the special token " + std::string(bytes) + " stands " +
                 (tag_ == Tag::none ? std::string(name_of(place_)) : "in a tag"));
        }
    } else if (tag_ != Tag::none) {
        label_.append(bytes);
    } else if (text != nullptr) {
        piece = {channel(), decoder_.push(bytes)};
        *text += piece.text;
    } else {
        fail("there is text " + std::string(name_of(place_)));
    }
    return piece;
}

inline const ChatReply::Step* ChatReply::find_step(Place from, Tag tag, std::string_view name) noexcept {
    static constexpr Step kSteps[] = {
        {Place::think, Tag::close, "think", Place::thought},
        {Place::thought, Tag::open, "response", Place::response},
        {Place::response, Tag::close, "response", Place::responded},
        {Place::responded, Tag::open, "tools", Place::tools},
        {Place::tools, Tag::open, "call", Place::call, "tool", "index"},
        {Place::call, Tag::open, "argument", Place::argument, "key", "type"},
        {Place::argument, Tag::close, "argument", Place::call},
        {Place::call, Tag::open, "json", Place::json, "type"},
        {Place::json, Tag::close, "json", Place::call},
        {Place::call, Tag::close, "call", Place::tools},
        {Place::tools, Tag::close, "tools", Place::called},
        {Place::responded, Tag::close, "message", Place::message_closed},
        {Place::called, Tag::close, "message", Place::message_closed},
    };
    for (const Step& step : kSteps)
        if (step.from == from && step.tag == tag && step.name == name) return &step;
    return nullptr;
}

inline void ChatReply::apply_tag() {
    const Tag tag = std::exchange(tag_, Tag::none);
    const std::string_view name = std::string_view(label_).substr(0, label_.find(' '));
    const Step* const step = find_step(place_, tag, name);
    if (step == nullptr) {
        const bool other_mode =
            tag == Tag::close &&
            (name == "response" ? place_ == Place::think : name == "think" && place_ == Place::response);
        return fail(
            std::string(tag == Tag::open ? "opens '" : "closes '") + replace_invalid_utf8(label_) + "' " +
                std::string(name_of(place_)),
            other_mode ? "read it with the thinking mode that it was generated with" : "generate the reply again");
    }
    if (!read_attributes(std::string_view(label_).substr(name.size()), step->first, step->second))
        return fail("the tag '" + replace_invalid_utf8(label_) + "' does not have the attributes of its kind");
    place_ = step->to;
    if (tag == Tag::open) {
        opened();
    } else {
        closed(step->from);
    }
}

inline void ChatReply::opened() {
    if (place_ == Place::call) {
        const std::string number = std::to_string(calls_.size() + 1);
        if (attribute_[1] != number) fail("tool call " + number + " has the index '" + attribute_[1] + "'");
        calls_.push_back({.name = attribute_[0]});
        arguments_.clear();
    } else if (place_ == Place::argument || place_ == Place::json) {
        value_.clear();
        const bool verbatim = std::holds_alternative<std::string>(calls_.back().arguments);
        if (verbatim || (place_ == Place::json && !arguments_.empty()))
            fail("a call has a json element and something else");
        if (place_ == Place::json && attribute_[0] != "object") fail("a json element is not of type object");
    }
}

inline void ChatReply::closed(Place place) {
    if (place == Place::argument) {
        close_argument();
    } else if (place == Place::json) {
        calls_.back().arguments = value_;
    } else if (place == Place::call && !arguments_.empty()) {
        calls_.back().arguments = "{" + arguments_ + "}";
    } else if (place == Place::tools && calls_.empty()) {
        fail("the tools block has no call");
    }
}

/// ` first="value" second="value"`, exactly; an empty name: no such attribute.
inline bool ChatReply::read_attributes(std::string_view text, std::string_view first, std::string_view second) {
    if (find_invalid_utf8(text)) return false;
    std::size_t which = 0;
    for (const std::string_view key : {first, second}) {
        if (key.empty()) break;
        const std::string before = " " + std::string(key) + "=\"";
        if (text.substr(0, before.size()) != before) return false;
        text.remove_prefix(before.size());
        const std::size_t end = text.find('"');
        if (end == std::string_view::npos) return false;
        std::string& value = attribute_[which++];
        value = text.substr(0, end);
        text.remove_prefix(end + 1);
        for (std::size_t at = 0; (at = value.find('&', at)) != std::string::npos; ++at) {
            if (value.compare(at, 6, "&quot;") == 0) {
                value.replace(at, 6, "\"");
            } else if (value.compare(at, 5, "&amp;") == 0) {
                value.replace(at, 5, "&");
            }
        }
    }
    return text.empty();
}

inline void ChatReply::close_argument() {
    const auto& [key, type] = attribute_;
    JsonScanner json(value_);
    const bool string = type == kind_name(JsonKind::string);
    if (!string) {
        const auto kind = json.value();
        if (!kind || !json.done() || kind_name(*kind) != type)
            return fail("argument '" + key + "' of call " + std::to_string(calls_.size()) + " is no value of type '" +
                        type + "': " + value_);
    }
    if (!arguments_.empty()) arguments_ += ", ";
    arguments_ += json_quoted(key) + ": " + (string ? json_quoted(value_) : value_);
}

inline Message ChatReply::finish() const {
    if (!problem_.empty()) throw Error(Code::chat, problem_, next_);
    if (!ended()) {
        throw Error(Code::chat,
                    "the reply has no end: it stops " +
                        std::string(tag_ == Tag::none ? name_of(place_) : "inside a tag") + " after " +
                        std::to_string(count_) + " tokens",
                    "let it generate more tokens");
    }
    Message message{.role = Role::assistant, .content = content_, .tool_calls = calls_};
    if (thinking_ == Thinking::on) message.reasoning_content = reasoning_;
    return message;
}

}  // namespace k3::text
#endif
