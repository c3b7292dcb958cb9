#ifndef K3_TEXT_CHAT_ARGUMENTS_HPP
#define K3_TEXT_CHAT_ARGUMENTS_HPP
// Tool calls and tool results, before they are rendered: the arguments of a call as a list, results in call order.
//
// Arguments keep the caller's order. An object has its strings raw and its other values spelled anew, as json.dumps
// spells them. A text is read one level deep: each pair is an argument, duplicates included, a string value is what it
// means, any other value keeps its bytes (1e2 stays 1e2); what follows the closing brace is ignored. A text that is no
// object (not JSON, another value, only spaces) is kept verbatim; the empty text is no arguments.
#include <algorithm>
#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "k3/text/chat_message.hpp"
#include "k3/text/python_json.hpp"

namespace k3::text {

struct Argument {
    std::string key{};
    JsonKind kind{};
    std::string value{};  // of a string its characters, else a JSON literal
};

struct Arguments {
    std::vector<Argument> list{};
    std::optional<std::string> verbatim{};  // a text that is no JSON object; then the list is empty
};

/// The pairs of a JSON object, one level deep; nothing if `text` does not begin with one.
inline std::optional<std::vector<Argument>> parse_arguments(std::string_view text) {
    JsonScanner json(text);
    std::vector<Argument> list;
    json.skip_space();
    if (!json.take("{")) return std::nullopt;
    json.skip_space();
    if (json.take("}")) return list;
    do {
        json.skip_space();
        Argument argument;
        if (!json.key(&argument.key)) return std::nullopt;
        const std::size_t from = json.at();
        if (JsonScanner string = json; string.string(&argument.value)) {
            argument.kind = JsonKind::string;
            json = string;
        } else {
            const auto kind = json.value();
            if (!kind || *kind == JsonKind::string) return std::nullopt;
            argument.kind = *kind;
            argument.value = text.substr(from, json.at() - from);
        }
        list.push_back(std::move(argument));
        json.skip_space();
    } while (json.take(","));
    if (!json.take("}")) return std::nullopt;
    return list;
}

/// Nothing if they are a JSON value that is no object.
inline std::optional<Arguments> read_arguments(const ToolArguments& arguments) {
    Arguments read;
    if (const auto* object = std::get_if<OrderedJson>(&arguments)) {
        if (!object->is_object()) return std::nullopt;
        for (auto at = object->begin(); at != object->end(); ++at) {
            const OrderedJson& value = at.value();
            const JsonKind kind = value.is_string()    ? JsonKind::string
                                  : value.is_boolean() ? JsonKind::boolean
                                  : value.is_number()  ? JsonKind::number
                                  : value.is_null()    ? JsonKind::null
                                  : value.is_object()  ? JsonKind::object
                                                       : JsonKind::array;
            read.list.push_back(
                {at.key(), kind,
                 value.is_string() ? value.get<std::string>() : print_json(value, JsonSpacing::spaced)});
        }
    } else if (const auto* text = std::get_if<std::string>(&arguments); text != nullptr && !text->empty()) {
        if (auto list = parse_arguments(*text)) {
            read.list = std::move(*list);
        } else {
            read.verbatim = *text;
        }
    }
    return read;
}

namespace detail {

struct Placed {
    const Message* message;
    const std::string* tool;  // the name in the call that a result answers; null if it was not matched
};

/// The messages, with each run of tool results in the order of the calls of the assistant message before it. A run with
/// a result that answers none of these calls stays as it is: moving the others would only guess.
inline std::vector<Placed> in_call_order(const std::vector<Message>& messages) {
    struct Call {
        std::size_t position;
        const std::string* name;
    };
    std::map<std::string_view, Call> calls;  // of the last assistant message; the first of equal ids counts
    std::vector<Placed> placed;
    for (auto at = messages.begin(); at != messages.end();) {
        if (at->role != Role::tool) {
            if (at->role == Role::assistant) {
                calls.clear();
                for (const ToolCall& call : at->tool_calls)
                    if (call.id) calls.emplace(*call.id, Call{calls.size(), &call.name});
            }
            placed.push_back({&*at++, nullptr});
            continue;
        }
        std::vector<std::pair<std::size_t, Placed>> run;
        bool matched = true;
        for (; at != messages.end() && at->role == Role::tool; ++at) {
            const auto call = at->tool_call_id ? calls.find(*at->tool_call_id) : calls.end();
            matched = matched && call != calls.end();
            run.push_back(call == calls.end() ? std::pair(std::size_t{0}, Placed{&*at, nullptr})
                                              : std::pair(call->second.position, Placed{&*at, call->second.name}));
        }
        if (matched)
            std::stable_sort(run.begin(), run.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
        for (const auto& entry : run) placed.push_back({entry.second.message, matched ? entry.second.tool : nullptr});
    }
    return placed;
}

}  // namespace detail
}  // namespace k3::text
#endif
