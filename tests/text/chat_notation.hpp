#ifndef K3_TESTS_TEXT_CHAT_NOTATION_HPP
#define K3_TESTS_TEXT_CHAT_NOTATION_HPP
// The short notation of golden_chat.json (see its "about") turned into segments. It knows the grammar of tags and
// nothing else: no escaping, no order, no constants but those in the file.
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "k3/text/chat_json.hpp"
#include "k3/text/chat_renderer.hpp"
#include "text/data.hpp"

namespace k3::test {

using Segments = std::vector<text::ChatSegment>;
using Notation = std::vector<std::string>;

inline const text::OrderedJson& golden_chat() {
    static const auto all = text::OrderedJson::parse(io::File::read_text(path_of("text/golden_chat.json")));
    return all;
}

inline void expand(const std::string& element, Segments& out) {
    const auto markup = [&](const char* name) { out.push_back({name, true}); };
    const auto text = [&](const std::string& bytes) {
        if (!bytes.empty()) out.push_back({bytes, false});
    };
    const char kind = element.at(0);
    const std::string rest = element.substr(1);
    if (kind == '=') {
        text(rest);
    } else if (kind == '@') {
        std::string body;
        for (const auto& line : golden_chat()["bodies"].at(rest))
            body += (body.empty() ? "" : "\n") + line.get<std::string>();
        text(body);
    } else if (kind == '?') {
        expand("<message role='assistant'>", out);
        expand("<" + rest + ">", out);
    } else if (element.rfind("</", 0) == 0) {
        markup("<|close|>");
        text(element.substr(2, element.find('>') - 2));
        markup("<|sep|>");
        if (element.back() == '.') markup("<|end_of_msg|>");
    } else if (kind == '<') {
        markup("<|open|>");
        std::size_t at = std::min(element.find(' '), element.size() - 1);
        text(element.substr(1, at - 1));
        while (element.at(at) == ' ') {
            const std::size_t equals = element.find("='", at), end = element.find('\'', equals + 2);
            text(element.substr(at, equals - at));
            text("=\"");
            text(element.substr(equals + 2, end - equals - 2));
            text("\"");
            at = end + 1;
        }
        markup("<|sep|>");
    } else {
        throw std::logic_error("no notation: " + element);
    }
}

inline Segments expand(const Notation& elements) {
    Segments all;
    for (const std::string& element : elements) expand(element, all);
    return all;
}

inline text::ChatOptions options_of(const text::OrderedJson& test) {
    using namespace text;
    const auto given = test.find("options") == test.end() ? OrderedJson::object() : test.at("options");
    ChatOptions options;
    if (!given.value("thinking", true)) options.thinking = Thinking::off;
    if (!given.value("tail", true)) options.tail = Tail::none;
    if (given.contains("effort")) options.effort = parse_effort(given.at("effort").get<std::string>());
    const std::string choice = given.value("tool_choice", ""), format = given.value("response_format", "");
    if (!choice.empty()) options.tool_choice = choice == "required" ? ToolChoice::required : ToolChoice::none;
    if (!format.empty())
        options.response_format = format == "json_object" ? ResponseFormat::json_object : ResponseFormat::json_schema;
    if (given.contains("schema")) options.response_schema = io::Json(given.at("schema"));
    return options;
}

/// For failures: markup as it is, texts in brackets.
inline std::string shown(const Segments& segments) {
    std::string all;
    for (const auto& segment : segments) all += segment.markup ? segment.text : "[" + segment.text + "]";
    return all;
}

/// The line of the Error{Code::chat} that `call` throws; "" if it throws none.
template <class Call>
std::string chat_error_of(Call&& call) {
    try {
        call();
    } catch (const Error& error) {
        if (error.next().empty()) return "no next step: " + std::string(error.what());
        return error.code() == Code::chat ? error.what() : std::string("another code: ") + error.what();
    }
    return "";
}

}  // namespace k3::test
#endif
