#ifndef K3_TEXT_CHAT_JSON_HPP
#define K3_TEXT_CHAT_JSON_HPP
// A conversation from JSON in the shape that chat programs exchange: role, content, name, reasoning_content, tool_calls
// [{id, function: {name, arguments}}] (or without `function`), tool_call_id, tools. Keys that have no meaning here are
// ignored. The rules about what stands for what are the released encoder's.
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "k3/core/error.hpp"
#include "k3/io/json_text.hpp"
#include "k3/text/chat_message.hpp"
#include "k3/text/python_json.hpp"

namespace k3::text {

/// {"messages": [...], "tools": [...]}, tools optional. Errors: Code::chat, naming the message: not an object, an
/// unknown role, a field of the wrong type, content in several parts (each would be encoded by itself) or with an
/// image.
Conversation read_conversation(const OrderedJson& json);

// --------------------------------------------------------------------------------------------------------------------

namespace detail {

class MessageReader {
  public:
    MessageReader(const OrderedJson& json, std::size_t index)
        : json_(json), where_("messages[" + std::to_string(index) + "]") {}

    Message read() const {
        if (!json_.is_object()) refuse("is not an object", "give an object with role and content");
        Message message;
        const OrderedJson* const role = find(json_, "role");
        const auto known = role != nullptr && role->is_string() ? find_role(role->get<std::string>()) : std::nullopt;
        if (!known)
            refuse("has no known role: " + (role == nullptr ? "null" : shown(*role)),
                   "use system, user, assistant or tool");
        message.role = *known;
        content(message);
        if (message.role == Role::tool) {  // a null counts: it says that there is no name, or no id
            message.name = string(json_, json_.contains("tool") ? "tool" : "name");
            message.tool_call_id = id(json_, json_.contains("tool_call_id") ? "tool_call_id" : "id");
        } else {
            message.name = string(json_, "name");
        }
        if (message.role == Role::assistant) {
            message.reasoning_content = string(json_, "reasoning_content");
            if (message.reasoning_content.value_or("").empty()) message.reasoning_content = string(json_, "reasoning");
            message.tool_calls = calls();
        }
        if (const OrderedJson* tools = find(json_, "tools"); tools != nullptr && message.role == Role::system)
            message.tools = io::Json(*tools);
        return message;
    }

  private:
    [[noreturn]] void refuse(const std::string& what, const std::string& next) const {
        throw Error(Code::chat, where_ + " " + io::one_line(what), next);
    }
    static std::string shown(const OrderedJson& value) {
        return io::one_line(value.dump(-1, ' ', false, OrderedJson::error_handler_t::replace), 60);
    }

    /// The value of a key; null if it is absent or null.
    static const OrderedJson* find(const OrderedJson& object, const char* key) {
        const auto at = object.find(key);
        return at == object.end() || at->is_null() ? nullptr : &*at;
    }
    std::optional<std::string> string(const OrderedJson& object, const char* key) const {
        const OrderedJson* const value = find(object, key);
        if (value == nullptr) return std::nullopt;
        if (!value->is_string())
            refuse(std::string("has a ") + key + " that is not a string: " + shown(*value), "give a string");
        return value->get<std::string>();
    }
    std::optional<std::string> id(const OrderedJson& object,
                                  const char* key) const {  // a number is as good as its text
        const OrderedJson* const value = find(object, key);
        return value != nullptr && value->is_number_integer() ? value->dump() : string(object, key);
    }

    void content(Message& message) const {
        const OrderedJson* const value = find(json_, "content");
        if (value == nullptr || !value->is_array()) {
            message.content = string(json_, "content").value_or("");
            return;
        }
        for (const OrderedJson& part : *value) {
            const OrderedJson* const text = part.is_object() ? find(part, "text") : nullptr;
            const std::string type = part.is_object() ? string(part, "type").value_or("text") : "";
            if (text == nullptr || !text->is_string() || type == "image" || type == "image_url")
                refuse("has a part that is no text: " + shown(part), "this version reads text only");
            message.more_content.push_back(text->get<std::string>());
        }
    }

    std::vector<ToolCall> calls() const {
        std::vector<ToolCall> calls;
        const OrderedJson* const list = find(json_, "tool_calls");
        if (list == nullptr) return calls;
        if (!list->is_array()) refuse("has tool_calls that are not an array", "give an array");
        for (const OrderedJson& entry : *list) {
            if (!entry.is_object()) refuse("has a tool call that is not an object: " + shown(entry), "give an object");
            const OrderedJson* const inner = find(entry, "function");
            const OrderedJson& function = inner != nullptr && inner->is_object() ? *inner : entry;
            const auto name = string(function, "name");
            if (!name) refuse("has a tool call without a name", "give the name of the tool");
            ToolCall call{.name = *name, .id = id(entry, "id")};
            if (const OrderedJson* arguments = find(function, "arguments")) {
                if (arguments->is_string()) {
                    call.arguments = arguments->get<std::string>();
                } else {
                    call.arguments = *arguments;
                }
            }
            calls.push_back(std::move(call));
        }
        return calls;
    }

    const OrderedJson& json_;
    std::string where_;
};

}  // namespace detail

inline Conversation read_conversation(const OrderedJson& json) {
    const auto messages = json.is_object() ? json.find("messages") : json.end();
    if (messages == json.end() || !messages->is_array())
        throw Error(Code::chat, "a conversation has no array of messages", "give {\"messages\": [...]}");
    Conversation conversation;
    for (std::size_t i = 0; i < messages->size(); ++i)
        conversation.messages.push_back(detail::MessageReader((*messages)[i], i).read());
    if (const auto tools = json.find("tools"); tools != json.end()) conversation.tools = io::Json(*tools);
    return conversation;
}

}  // namespace k3::text
#endif
