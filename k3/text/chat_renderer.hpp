#ifndef K3_TEXT_CHAT_RENDERER_HPP
#define K3_TEXT_CHAT_RENDERER_HPP
// A conversation as segments, by the grammar of the released encoder (its later revision; docs/FORMATS.md, "Chat"):
//   open(tag, attributes) = <|open|> tag ( ` key` `="` escaped-value `"` )* <|sep|>
//   close(tag)            = <|close|> tag <|sep|>
//   message               = open("message", ...) body close("message") <|end_of_msg|>
// A segment is either markup, which we wrote, or text. Each is encoded by itself: markup with the names of special
// tokens as ids, text with names as text. Joined and encoded once, a user's text could forge markup, and byte pairs
// could merge across borders.
#include <cstddef>
#include <initializer_list>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "k3/core/error.hpp"
#include "k3/io/json_text.hpp"
#include "k3/text/chat_arguments.hpp"
#include "k3/text/chat_markers.hpp"
#include "k3/text/chat_message.hpp"
#include "k3/text/python_json.hpp"
#include "k3/text/tokenizer.hpp"
#include "k3/text/utf8.hpp"

namespace k3::text {

/// Never empty.
struct ChatSegment {
    std::string text;
    bool markup = false;
    bool operator==(const ChatSegment&) const = default;
};

/// Order: tool declaration, effort note, messages, tool-choice note, response-format note, generation prompt. Tool
/// results come in the order of their calls (chat_arguments.hpp has the rules of calls and results).
/// A session that generated a reply goes on with <|end_of_msg|>, whichever end id the model chose, and then the render
/// of the new messages alone, without tools and effort: these stand once, at the start. Errors: Code::chat, naming the
/// message: text that is not UTF-8, a field that its role does not have, a tool result without a name, arguments that
/// are no object, tools that are no array of objects, a json_schema without schema.
std::vector<ChatSegment> render(const Conversation& conversation, const ChatOptions& options);

/// The ids of the segments, each encoded alone. Errors: Code::tokenizer if the tokenizer lacks the markers.
inline std::vector<TokenId> encode(const Tokenizer& tokenizer, std::span<const ChatSegment> segments) {
    ChatMarkers::of(tokenizer);
    std::vector<TokenId> ids;
    for (const ChatSegment& segment : segments)
        tokenizer.encode(segment.text, segment.markup ? Specials::as_ids : Specials::as_text, ids);
    return ids;
}

// --------------------------------------------------------------------------------------------------------------------

namespace detail {

class ChatRenderer {
  public:
    using Attributes = std::initializer_list<std::pair<std::string_view, std::string_view>>;

    std::vector<ChatSegment> take() { return std::move(out_); }
    /// What the following texts belong to, for errors: "messages[3]".
    void at(std::string where) { where_ = std::move(where); }

    [[noreturn]] void refuse(const std::string& what, const std::string& next) const {
        throw Error(Code::chat, where_ + ": " + io::one_line(what), next);
    }

    void markup(std::string_view name) { out_.push_back({std::string(name), true}); }
    void text(std::string_view text) {
        if (const auto offset = find_invalid_utf8(text))
            refuse("a text is not UTF-8: its first bad byte is at offset " + std::to_string(*offset),
                   "convert it to UTF-8");
        if (!text.empty()) out_.push_back({std::string(text), false});
    }

    void open(std::string_view tag, Attributes attributes = {}) {
        markup(kOpen);
        text(tag);
        for (const auto& [key, value] : attributes) {
            // Four segments, not one: "=\"" and the value could merge.
            text(" " + std::string(key));
            text("=\"");
            text(escaped(value));
            text("\"");
        }
        markup(kSep);
    }
    void close(std::string_view tag) {
        markup(kClose);
        text(tag);
        markup(kSep);
    }
    void content(const Message& message) {
        text(message.content);
        for (const std::string& part : message.more_content) text(part);
    }
    void open_message(Role role, const std::optional<std::string>& name) {
        if (name && !name->empty()) return open("message", {{"role", role_name(role)}, {"name", *name}});
        open("message", {{"role", role_name(role)}});
    }
    void close_message() {
        close("message");
        markup(kEndOfMessage);
    }

    /// A message that the caller did not write: constant text in `body`.
    void note(std::string_view type, std::string_view body) {
        open("message", {{"role", "system"}, {"type", type}});
        text(body);
        close_message();
    }

    void declare_tools(const io::Json& tools, std::string_view heading) {
        bool objects = tools.is_array();
        for (std::size_t i = 0; objects && i < tools.size(); ++i) objects = tools[i].is_object();
        if (!objects) refuse("tools are not an array of objects", "give an array of function declarations");
        note("tool-declare", std::string(heading) + "\n\n" + fenced(tools));
    }

    void call(const ToolCall& call, std::size_t number) {
        open("call", {{"tool", call.name}, {"index", std::to_string(number)}});
        const auto arguments = read_arguments(call.arguments);
        if (!arguments)
            refuse("the arguments of call " + std::to_string(number) + " are not an object",
                   "give an object, or JSON text");
        for (const Argument& argument : arguments->list) {
            open("argument", {{"key", argument.key}, {"type", kind_name(argument.kind)}});
            text(argument.value);
            close("argument");
        }
        if (arguments->verbatim) {
            open("json", {{"type", "object"}});
            text(*arguments->verbatim);
            close("json");
        }
        close("call");
    }

    void assistant(const Message& message, Thinking thinking) {
        open_message(message.role, message.name);
        if (thinking == Thinking::on) {  // there even without reasoning; without thinking it is absent, not empty
            open("think");
            text(message.reasoning_content.value_or(""));
            close("think");
        }
        open("response");
        content(message);
        close("response");
        if (!message.tool_calls.empty()) {
            open("tools");
            for (std::size_t i = 0; i < message.tool_calls.size(); ++i) call(message.tool_calls[i], i + 1);
            close("tools");
        }
        close_message();
    }

    /// Requires a name: the caller has found it.
    void tool_result(const Message& message, const std::string& tool, std::size_t number) {
        open("message", {{"role", "tool"}, {"tool", tool}, {"index", std::to_string(number)}});
        content(message);
        close_message();
    }

    void effort_note(Effort effort) {
        note("thinking-effort",
             "`thinking_effort` guides on how much to think in your thinking channel (not including the response "
             "channel), supported values include `low`, `medium`, `high`, and `max`.\n"
             "Now the system is invoked with `thinking_effort=" +
                 std::string(effort_name(effort)) + "`.");
    }

    void tool_choice_note(ToolChoice choice) {
        note("tool-choice", choice == ToolChoice::required ? "The system is invoked with `tool_choice=required`.\n"
                                                             "You MUST call tools in the next message."
                                                           : "The system is invoked with `tool_choice=none`.\n"
                                                             "You MUST NOT call any tools in the next message.");
    }

    void response_format_note(ResponseFormat format, const io::Json& schema) {
        const bool with_schema = format == ResponseFormat::json_schema;
        if (with_schema && schema.is_null())
            refuse("response format json_schema has no schema", "give a schema, or use json_object");
        note("response-format",
             "The system is invoked with `response_format=" + std::string(with_schema ? "json_schema" : "json_object") +
                 "`.\nYour response must be raw JSON data without markdown code blocks (```json) or any additional "
                 "formatting." +
                 (with_schema ? "\nThe JSON data must match the following schema:\n" + fenced(schema) : ""));
    }

    void check_fields(const Message& message) const {
        const auto belongs = [&](bool present, Role role, const char* field) {
            if (present && message.role != role) {
                refuse(
                    "a message of role " + std::string(role_name(message.role)) + " has " + field +
                        ", which would be lost",
                    std::string("only role ") + std::string(role_name(role)) + " has it: remove it or change the role");
            }
        };
        belongs(message.reasoning_content.has_value(), Role::assistant, "reasoning_content");
        belongs(!message.tool_calls.empty(), Role::assistant, "tool_calls");
        belongs(message.tool_call_id.has_value(), Role::tool, "tool_call_id");
        belongs(!message.tools.empty(), Role::system, "tools");
        if (!message.tools.empty() &&
            !(message.content.empty() && message.more_content.empty() && message.name.value_or("").empty()))
            refuse("a system message that declares tools has a content or a name, which would be lost",
                   "put them into a system message of their own");
    }

    static std::string fenced(const io::Json& value) {  // io::Json sorts keys by itself
        return "```json\n" + print_json(value, JsonSpacing::compact) + "\n```";
    }

  private:
    static std::string escaped(std::string_view value) {
        std::string out;
        for (const char c : value) {
            if (c == '&') {
                out += "&amp;";
            } else if (c == '"') {
                out += "&quot;";
            } else {
                out += c;
            }
        }
        return out;
    }

    std::vector<ChatSegment> out_{};
    std::string where_{};
};

}  // namespace detail

inline std::vector<ChatSegment> render(const Conversation& conversation, const ChatOptions& options) {
    detail::ChatRenderer out;
    if (!conversation.tools.empty()) {
        out.at("tools");
        out.declare_tools(conversation.tools, "# Tools\nHere are the available tools, described in JSONSchema.");
    }
    if (options.thinking == Thinking::on && options.effort) out.effort_note(*options.effort);
    const std::vector<ToolCall>* calls = nullptr;  // of the last assistant message
    std::size_t results = 0;                       // tool results since it
    for (const detail::Placed& placed : detail::in_call_order(conversation.messages)) {
        const Message& message = *placed.message;
        out.at("messages[" + std::to_string(&message - conversation.messages.data()) + "]");
        out.check_fields(message);
        if (message.role == Role::assistant) {
            calls = &message.tool_calls;
            results = 0;
            out.assistant(message, options.thinking);
        } else if (message.role == Role::tool) {
            ++results;
            const std::string* tool = placed.tool;
            if (tool == nullptr && message.name) tool = &*message.name;
            if (tool == nullptr && calls != nullptr && results <= calls->size()) tool = &(*calls)[results - 1].name;
            if (tool == nullptr) {
                out.refuse("a tool result has no name, and no call of the assistant stands at its place",
                           "give it the name of its tool, or the tool_call_id of a call");
            }
            out.tool_result(message, *tool, results);
        } else if (!message.tools.empty()) {
            out.declare_tools(message.tools,
                              "## New Tools Available\n"
                              "The system dynamically extends the toolset via lazy-loading.\n"
                              "You have access to all existing and extended tools.\n"
                              "Here are the specs for the extended tools.");
        } else {
            out.open_message(message.role, message.name);
            out.content(message);
            out.close_message();
        }
    }
    if (options.tool_choice != ToolChoice::automatic) out.tool_choice_note(options.tool_choice);
    out.at("response_schema");
    if (options.response_format != ResponseFormat::text)
        out.response_format_note(options.response_format, options.response_schema);
    if (options.tail == Tail::generation_prompt) {
        out.open("message", {{"role", "assistant"}});
        out.open(options.thinking == Thinking::on ? "think" : "response");
    }
    return out.take();
}

}  // namespace k3::text
#endif
