#ifndef K3_TEXT_CHAT_MESSAGE_HPP
#define K3_TEXT_CHAT_MESSAGE_HPP
// A conversation as plain values. How it becomes text: chat_renderer.hpp.
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "k3/core/error.hpp"
#include "k3/io/json_text.hpp"
#include "k3/text/python_json.hpp"

namespace k3::text {

enum class Role : std::uint8_t { system, user, assistant, tool };
inline constexpr std::string_view kRoleNames[] = {"system", "user", "assistant", "tool"};

constexpr std::string_view role_name(Role role) noexcept { return kRoleNames[static_cast<std::size_t>(role)]; }

/// The role of that name, if there is one.
constexpr std::optional<Role> find_role(std::string_view name) noexcept {
    for (std::size_t i = 0; i < std::size(kRoleNames); ++i)
        if (kRoleNames[i] == name) return static_cast<Role>(i);
    return std::nullopt;
}

/// Nothing, an object, or the JSON text of one. The same arguments render differently as an object (spelled anew) and
/// as text (each value keeps its spelling): chat_renderer.hpp.
using ToolArguments = std::variant<std::monostate, OrderedJson, std::string>;

struct ToolCall {
    std::string name{};
    ToolArguments arguments{};
    std::optional<std::string> id{};  // opaque; matched with Message::tool_call_id
};

/// A field that does not belong to the role must be empty: it would be lost, so the renderer refuses it.
struct Message {
    Role role = Role::user;
    std::string content{};
    std::vector<std::string> more_content{};         // further parts of the content; each is encoded by itself
    std::optional<std::string> name{};               // of a tool result: the tool's name
    std::optional<std::string> reasoning_content{};  // assistant
    std::vector<ToolCall> tool_calls{};              // assistant
    std::optional<std::string> tool_call_id{};       // tool
    io::Json tools{};                                // system: more tools from here on; then there is no content
};

struct Conversation {
    std::vector<Message> messages{};
    io::Json tools{};  // an array of declarations; null or empty if there are none
};

enum class Thinking : std::uint8_t { on, off };
enum class Effort : std::uint8_t { low, high, max };
enum class ToolChoice : std::uint8_t { automatic, required, none };
enum class ResponseFormat : std::uint8_t { text, json_object, json_schema };
enum class Tail : std::uint8_t {
    generation_prompt,  ///< the assistant's message is opened and stays open: what the model continues
    none,
};

/// What a chat front end uses when the user names none. The renderer itself has no default.
inline constexpr Effort kDefaultEffort = Effort::max;

struct ChatOptions {
    Thinking thinking = Thinking::on;
    std::optional<Effort> effort{};  // no note if absent; ignored without thinking
    ToolChoice tool_choice = ToolChoice::automatic;
    ResponseFormat response_format = ResponseFormat::text;
    io::Json response_schema{};  // for ResponseFormat::json_schema
    Tail tail = Tail::generation_prompt;
};

constexpr std::string_view effort_name(Effort effort) noexcept {
    return effort == Effort::low ? "low" : effort == Effort::high ? "high" : "max";
}

/// Errors: Code::usage. "medium" is refused although the model's own note names it: the released encoder refuses it
/// too.
inline Effort parse_effort(std::string_view name) {
    for (const Effort effort : {Effort::low, Effort::high, Effort::max})
        if (effort_name(effort) == name) return effort;
    throw Error(Code::usage, "thinking effort '" + io::one_line(std::string(name), 40) + "' does not exist",
                "use low, high or max");
}

}  // namespace k3::text
#endif
