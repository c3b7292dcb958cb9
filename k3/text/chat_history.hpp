#ifndef K3_TEXT_CHAT_HISTORY_HPP
#define K3_TEXT_CHAT_HISTORY_HPP
// A chat on disk: JSON lines, one message each.
//   {"role":"system","content":"..."}                              first line only
//   {"role":"user","content":"..."}                                then user and assistant in turn, the user first
//   {"role":"assistant","content":"...","reasoning_content":"..."} reasoning_content may be absent
// Strict: what a line says beyond that would be lost when the file is written again. Text is exact, NUL included.
#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "k3/core/error.hpp"
#include "k3/io/atomic_file.hpp"
#include "k3/io/file.hpp"
#include "k3/io/json_text.hpp"
#include "k3/text/chat_message.hpp"
#include "k3/text/python_json.hpp"
#include "k3/text/utf8.hpp"

namespace k3::text {

inline constexpr std::size_t kHistoryLineLimit = std::size_t{16} << 20;  // bytes, without the line end

/// The messages in the text of a history; `path` is for messages. An empty text has none; the last line may lack its
/// end, and CR LF ends a line too.
/// Errors: Code::chat with the number of the line: not a JSON object of the form above, not UTF-8 (also half a
/// surrogate pair, which has no UTF-8), a key that is unknown or there twice, a role out of turn, an empty line, a line
/// over the limit, anything after an object.
std::vector<Message> parse_history(std::string_view text, const std::string& path);

/// The text of a history. Errors: Code::chat with the number of the message for what the format cannot hold.
std::string print_history(std::span<const Message> messages);

/// A file that does not exist is an empty history. Errors: as parse_history; Code::read.
inline std::vector<Message> load_history(const std::string& path) {
    std::error_code ignored;
    if (std::filesystem::status(path, ignored).type() == std::filesystem::file_type::not_found) return {};
    return parse_history(io::File::read_text(path), path);
}

/// Written whole or not at all (temporary file, fsync, rename). A new file is for its owner alone; an old one keeps its
/// permissions. Errors: as print_history; Code::write, and then the old file is as it was.
inline void save_history(const std::string& path, std::span<const Message> messages) {
    const std::string text = print_history(messages);
    std::error_code problem;
    const auto old = std::filesystem::status(path, problem);
    io::PendingFile file = io::PendingFile::create(path);
    const auto mode = std::filesystem::is_regular_file(old)
                          ? old.permissions()
                          : std::filesystem::perms::owner_read | std::filesystem::perms::owner_write;
    std::filesystem::permissions(file.temporary_path(), mode, problem);  // before there is anything to read
    if (problem) io::PendingFile::fail(path, "its permissions cannot be set", problem.value());
    file.write(0, std::as_bytes(std::span(text.data(), text.size())));
    file.commit();
}

// --------------------------------------------------------------------------------------------------------------------

namespace detail {

/// Why `role` cannot be the next one after `messages`; "" if it can.
inline std::string out_of_turn(Role role, std::span<const Message> messages) {
    if (role == Role::tool) return "tool results are not part of a history";
    if (role == Role::system) return messages.empty() ? "" : "a system message may only be the first";
    const bool answer = !messages.empty() && messages.back().role == Role::user;
    if ((role == Role::assistant) == answer) return "";
    return answer ? "a user message follows a user message" : "an assistant message does not follow a user message";
}

inline Message parse_history_line(std::string_view line, std::span<const Message> before) {
    const auto refuse = [](const std::string& what, const std::string& next = "correct the line or remove it") {
        throw Error(Code::chat, io::one_line(what), next);
    };
    if (line.empty()) refuse("the line is empty", "remove it");
    if (line.size() > kHistoryLineLimit)
        refuse("the line has " + std::to_string(line.size()) + " bytes, and the limit is " +
                   std::to_string(kHistoryLineLimit),
               "begin a new history");
    if (const auto offset = find_invalid_utf8(line))
        refuse("the line is not UTF-8: its first bad byte is at offset " + std::to_string(*offset),
               "convert it to UTF-8");
    if (line[0] != '{') refuse("the line does not begin with an object", "write one JSON object a line");
    // To the JSON parser a NUL is the end of the text, whatever follows.
    if (line.find('\0') != std::string_view::npos) refuse("the line has a NUL byte", "write it as \\u0000");
    const io::Json record = io::parse_json(line, Code::chat, "");
    Message message;
    bool role = false, content = false;
    for (const auto& [key, value] : record.items()) {
        if (!value.is_string()) refuse(key + " is not a string: " + io::shown(value));
        const std::string& text = value.get_ref<const std::string&>();
        if (key == "role") {
            const auto found = find_role(text);
            if (!found) refuse("role '" + text + "' does not exist", "use system, user or assistant");
            message.role = *found;
            role = true;
        } else if (key == "content") {
            message.content = text;
            content = true;
        } else if (key == "reasoning_content") {
            message.reasoning_content = text;
        } else {
            refuse("key '" + key + "' is unknown", "a line has role, content and perhaps reasoning_content");
        }
    }
    if (!role || !content) refuse(role ? "content is missing" : "role is missing");
    if (const std::string why = out_of_turn(message.role, before); !why.empty()) refuse(why);
    if (message.reasoning_content && message.role != Role::assistant) refuse("only an assistant has reasoning_content");
    return message;
}

}  // namespace detail

inline std::vector<Message> parse_history(std::string_view text, const std::string& path) {
    std::vector<Message> messages;
    for (std::size_t number = 1; !text.empty(); ++number) {
        const std::size_t end = std::min(text.find('\n'), text.size());
        std::string_view line = text.substr(0, end);
        if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
        try {
            messages.push_back(detail::parse_history_line(line, messages));
        } catch (const Error& error) {
            std::string what = error.message();  // the parser counts lines of its own
            if (const std::size_t at = what.find("at line 1, "); at != std::string::npos) what.erase(at + 3, 8);
            throw Error(
                error.code(), "line " + std::to_string(number) + ": " + what,
                error.next() == "restore the file of the checkpoint" ? "correct the line or remove it" : error.next(),
                {.path = path});
        }
        text.remove_prefix(std::min(end + 1, text.size()));
    }
    return messages;
}

inline std::string print_history(std::span<const Message> messages) {
    std::string text;
    for (std::size_t i = 0; i < messages.size(); ++i) {
        const Message& message = messages[i];
        const auto refuse = [i](const std::string& what, const std::string& next) {
            throw Error(Code::chat, "message " + std::to_string(i + 1) + " of the history: " + what, next);
        };
        if (const std::string why = detail::out_of_turn(message.role, messages.first(i)); !why.empty())
            refuse(why, "keep the turns in order");
        if (!message.more_content.empty())
            refuse("its content is in several parts, which a history cannot hold", "join them into one text");
        if (message.name || !message.tool_calls.empty() || message.tool_call_id || !message.tools.empty())
            refuse("it has a name or tools, which a history cannot hold", "leave them out");
        if (message.reasoning_content && message.role != Role::assistant)
            refuse("only an assistant has reasoning_content", "leave it out");
        const std::string* const reasoning = message.reasoning_content ? &*message.reasoning_content : nullptr;
        for (const std::string* part : {&message.content, reasoning}) {
            if (const auto offset = part == nullptr ? std::nullopt : find_invalid_utf8(*part)) {
                refuse("it is not UTF-8: the first bad byte is at offset " + std::to_string(*offset),
                       "convert it to UTF-8");
            }
        }
        std::string line =
            R"({"role":)" + json_quoted(role_name(message.role)) + R"(,"content":)" + json_quoted(message.content);
        if (reasoning != nullptr) line += R"(,"reasoning_content":)" + json_quoted(*reasoning);
        line += "}";
        if (line.size() > kHistoryLineLimit)
            refuse("its line would have " + std::to_string(line.size()) + " bytes, and the limit is " +
                       std::to_string(kHistoryLineLimit),
                   "leave it out, or split it");
        text.append(line) += '\n';
    }
    return text;
}

}  // namespace k3::text
#endif
