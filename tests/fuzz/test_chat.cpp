// Chat on damaged input: histories, conversations, arguments and generated replies. They are taken or refused with one
// line and a next step, and what is taken keeps its promises.
#include <stdexcept>

#include "fuzz/mutate.hpp"
#include "k3/text/chat_history.hpp"
#include "k3/text/chat_json.hpp"
#include "k3/text/chat_renderer.hpp"
#include "k3/text/chat_reply.hpp"

using namespace k3;
using namespace k3::tests;
using namespace k3::text;

namespace {

void promise(bool kept, const char* what) {
    if (!kept) throw std::logic_error(what);
}

const Tokenizer& demo() {
    static const Tokenizer tokenizer = Tokenizer::open(std::string(K3_SOURCE_DIR) + "/tests/demo/model", 2304);
    return tokenizer;
}

const Words kMarkers = {"<|open|>", "<|close|>", "<|sep|>", "<|end_of_msg|>", "[EOS]", "[BOS]"};

/// Markers as their ids, every other byte as the token of that byte: any bytes at all, UTF-8 or not.
std::vector<TokenId> ids_of(std::string_view bytes) {
    std::vector<TokenId> ids;
    while (!bytes.empty()) {
        std::size_t taken = 1;
        TokenId id = static_cast<unsigned char>(bytes[0]);
        for (const std::string& name : kMarkers) {
            if (bytes.substr(0, name.size()) != name) continue;
            id = demo().special(name).value();
            taken = name.size();
        }
        ids.push_back(id);
        bytes.remove_prefix(taken);
    }
    return ids;
}

/// The ids of `message` as a reply: what follows the generation prompt.
std::vector<TokenId> continuation(const Message& message, Thinking thinking) {
    auto segments = render({{message}, {}}, {.thinking = thinking, .tail = Tail::none});
    const std::size_t prompt = render({}, {.thinking = thinking}).size();
    segments.erase(segments.begin(), segments.begin() + static_cast<std::ptrdiff_t>(prompt));
    return encode(demo(), segments);
}

bool same(const Message& a, const Message& b) {
    bool equal = a.role == b.role && a.content == b.content && a.reasoning_content == b.reasoning_content &&
                 a.tool_calls.size() == b.tool_calls.size();
    for (std::size_t i = 0; equal && i < a.tool_calls.size(); ++i)
        equal = a.tool_calls[i].name == b.tool_calls[i].name && a.tool_calls[i].arguments == b.tool_calls[i].arguments;
    return equal;
}

}  // namespace

TEST_CASE("fuzz/chat_history: a damaged history is read or refused, and what is read is written as it was") {
    const Words seeds = {
        "{\"role\":\"system\",\"content\":\"s\"}\n{\"role\":\"user\",\"content\":\"\\u00e4\\n\"}\n"
        "{\"role\":\"assistant\",\"content\":\"\xE4\xB8\x96\",\"reasoning_content\":\"r\"}\n",
        "{\"role\":\"user\",\"content\":\"\"}\r\n{ \"content\" : \"\\ud83d\\ude42\\u0000\", \"role\":\"assistant\"}",
        ""};
    const Words words = {"{\"role\":\"user\",\"content\":\"q\"}\n",
                         "{\"role\":\"assistant\",\"content\":\"a\"}\n",
                         "\"role\":",
                         "\"content\":",
                         "\"reasoning_content\":",
                         "\"user\"",
                         "\"assistant\"",
                         "\"system\"",
                         "\"tool\"",
                         "null",
                         "{}",
                         "[]",
                         "\n",
                         "\r\n",
                         "\\ud800",
                         "\\u0000",
                         "\"name\":\"x\","};
    const FuzzCount count = fuzz(seeds, words, 20000, [](std::string_view text) {
        const std::vector<Message> messages = parse_history(text, "history");
        const std::string written = print_history(messages);
        const std::vector<Message> again = parse_history(written, "history");
        promise(again.size() == messages.size(), "another number of messages");
        for (std::size_t i = 0; i < again.size(); ++i) {
            promise(same(again[i], messages[i]), "another message");
            promise(i == 0 || again[i].role != again[i - 1].role, "two messages of one role in a row");
            promise(!find_invalid_utf8(again[i].content), "not UTF-8");
        }
        promise(print_history(again) == written, "written differently");
    });
    CHECK(count.taken > 1000);
    CHECK(count.reasons.size() > 20);
}

TEST_CASE("fuzz/chat_reply: any ids are a reply or are refused; what was parsed renders to what parses to it") {
    const Words seeds = {
        "why<|close|>think<|sep|><|open|>response<|sep|>hi<|close|>response<|sep|><|close|>message<|sep|>[EOS]",
        "hi<|close|>response<|sep|><|close|>message<|sep|><|end_of_msg|>",
        "<|close|>response<|sep|><|open|>tools<|sep|><|open|>call tool=\"f&amp;\" index=\"1\"<|sep|>"
        "<|open|>argument key=\"k\" type=\"number\"<|sep|>1e2<|close|>argument<|sep|>"
        "<|open|>argument key=\"s\" type=\"string\"<|sep|>x\"\\<|close|>argument<|sep|>"
        "<|open|>argument key=\"o\" type=\"object\"<|sep|>{\"a\":[1,null]}<|close|>argument<|sep|><|close|>call<|sep|>"
        "<|open|>call tool=\"g\" index=\"2\"<|sep|><|open|>json type=\"object\"<|sep|>[1]<|close|>json<|sep|>"
        "<|close|>call<|sep|><|close|>tools<|sep|><|close|>message<|sep|>[EOS]"};
    Words words = kMarkers;
    for (const char* word : {"think",
                             "response",
                             "tools",
                             "call",
                             "argument",
                             "json",
                             "message",
                             " tool=\"",
                             " index=\"",
                             " key=\"",
                             " type=\"",
                             "\"",
                             "&quot;",
                             "&",
                             "string",
                             "number",
                             "boolean",
                             "null",
                             "object",
                             "array",
                             "true",
                             "{}",
                             "1",
                             "<|close|>think<|sep|>",
                             "<|open|>response<|sep|>",
                             "<|close|>response<|sep|>",
                             "<|close|>message<|sep|>",
                             "<|open|>tools<|sep|>",
                             "<|close|>tools<|sep|>",
                             "<|close|>call<|sep|>",
                             "\xE4\xB8",
                             "\x96"})
        words.push_back(word);
    const FuzzCount count = fuzz(seeds, words, 20000, [](std::string_view bytes) {
        const std::vector<TokenId> ids = ids_of(bytes);
        const std::span<const TokenId> ends = demo().end_ids();
        const bool has_end = std::any_of(
            ids.begin(), ids.end(), [&](TokenId id) { return std::find(ends.begin(), ends.end(), id) != ends.end(); });
        std::optional<Error> refusal;
        std::size_t taken = 0;
        for (const Thinking thinking : {Thinking::on, Thinking::off}) {
            ChatReply reply(demo(), thinking);
            std::string reasoning, content;
            for (const TokenId id : ids) {
                const ReplyPiece piece = reply.push(id);
                promise(!find_invalid_utf8(piece.text), "half a character");
                promise(piece.channel != ReplyChannel::structure || piece.text.empty(), "structure with a text");
                if (piece.channel == ReplyChannel::reasoning) reasoning += piece.text;
                if (piece.channel == ReplyChannel::response) content += piece.text;
            }
            promise(reply.ended() == has_end, "an end that is none, or was not seen");
            promise(reply.reasoning() == reasoning && reply.content() == content, "pieces are not the whole");
            try {
                const Message message = reply.finish();
                ++taken;
                promise(has_end && reply.problem().empty(), "a reply without end, or with a problem");
                ChatReply second(demo(), thinking);
                for (const TokenId id : continuation(message, thinking)) second.push(id);
                const Message again = second.finish();
                // A json element that holds an object comes back as arguments: what it means, not how it was said.
                ChatReply third(demo(), thinking);
                for (const TokenId id : continuation(again, thinking)) third.push(id);
                promise(same(third.finish(), again), "another message");
                promise(again.content == message.content && again.reasoning_content == message.reasoning_content &&
                            again.tool_calls.size() == message.tool_calls.size(),
                        "another content");
            } catch (const Error& error) {
                promise(!reply.ended() || !reply.problem().empty(), "refused without a reason");
                refusal = error;
            }
        }
        promise(taken < 2, "a reply with and without thinking");
        if (taken == 0) throw Error(*refusal);
    });
    CHECK(count.taken > 500);
    CHECK(count.reasons.size() > 20);
}

TEST_CASE("fuzz/chat_renderer: a damaged conversation is rendered or refused; structure comes from the renderer only") {
    const Words seeds = {
        R"({"messages":[{"role":"system","content":"s","name":"n"},{"role":"user","content":[{"type":"text","text":"a"},{"text":"b"}]},
           {"role":"assistant","content":"c","reasoning_content":"r","tool_calls":[{"id":"1","function":{"name":"f","arguments":"{\"a\":1e2,\"b\":\"x\"}"}},
           {"id":2,"name":"g","arguments":{"k":[1.5,null,true],"s":"t"}}]},{"role":"tool","tool_call_id":"2","content":"B"},{"role":"tool","id":1,"content":"A"}],
           "tools":[{"name":"f","x":1},{"b":{"d":[],"c":{}}}]})",
        R"({"messages":[{"role":"system","tools":[{"z":1,"a":2}]},{"role":"tool","tool":"t","content":""}]})"};
    Words words = kMarkers;
    for (const char* word : {"\"role\":",
                             "\"content\":",
                             "\"name\":",
                             "\"tools\":",
                             "\"tool_calls\":",
                             "\"arguments\":",
                             "\"function\":",
                             "\"tool\":",
                             "\"id\":",
                             "\"user\"",
                             "\"assistant\"",
                             "\"tool\"",
                             "null",
                             "{}",
                             "[]",
                             "[{}]",
                             "\"{\\\"a\\\":\\\"\\\\ud800\\\"}\"",
                             "\"\"",
                             "1.5",
                             "\"{\\\"a\\\":\"",
                             "{\"role\":\"tool\"},"})
        words.push_back(word);
    const FuzzCount count = fuzz(seeds, words, 8000, [](std::string_view text) {
        const OrderedJson json = OrderedJson::parse(text.begin(), text.end(), nullptr, false);
        if (json.is_discarded()) throw Error(Code::chat, "is not JSON", "correct it");
        const Conversation conversation = read_conversation(json);
        for (const Thinking thinking : {Thinking::on, Thinking::off}) {
            const auto segments = render(conversation, {.thinking = thinking, .tool_choice = ToolChoice::required});
            std::string joined;
            std::size_t markers = 0, opened = 0, closed = 0;
            for (const ChatSegment& segment : segments) {
                promise(!segment.text.empty(), "an empty segment");
                promise(!find_invalid_utf8(segment.text), "not UTF-8");
                promise(!segment.markup || demo().special(segment.text), "markup that is no marker");
                markers += segment.markup;
                opened += segment.markup && segment.text == "<|open|>";
                closed += segment.markup && segment.text == "<|close|>";
                joined += segment.text;
            }
            promise(opened == closed + 2, "more is open than the generation prompt");
            const std::vector<TokenId> ids = encode(demo(), segments);
            promise(demo().decode_bytes(ids) == joined, "other bytes");
            std::size_t specials = 0;
            for (const TokenId id : ids) specials += demo().is_special(id);
            promise(specials == markers, "a forged marker");
        }
    });
    CHECK(count.taken > 300);
    CHECK(count.reasons.size() > 10);
}

TEST_CASE("fuzz/python_json: what strict JSON takes is taken whole, and nothing outside the text is read") {
    const Words seeds = {R"({"a": 1, "b": [true, null, -0.5e+3], "c": {"d": "\ud83d\ude42\n"}})", "[]", "\"x\"", "-1e5",
                         R"( {"k":NaN,"k":[Infinity,{}]} tail)"};
    const Words words = {"NaN", "-Infinity", "true", "null", "\"",      "\\", "\\u00e4", "\\ud800", "{",  "}",
                         "[",   "]",         ":",    ",",    "{\"a\":", "0",  "1.",      "1e",      "\t", "\x01"};
    std::size_t strict = 0, objects = 0;
    fuzz(seeds, words, 30000, [&](std::string_view text) {
        JsonScanner json(text);
        json.skip_space();
        const auto kind = json.value();
        promise(json.at() <= text.size(), "beyond the end");
        // The other parser skips a byte order mark and stops at a NUL.
        if (OrderedJson::accept(text.begin(), text.end()) && text.substr(0, 3) != "\xEF\xBB\xBF" &&
            text.find('\0') == std::string_view::npos) {
            ++strict;
            json.skip_space();
            promise(kind && json.done(), "JSON that is refused");
        }
        const auto arguments = parse_arguments(text);
        promise(!arguments || kind == JsonKind::object, "arguments that are no object");
        promise(kind != JsonKind::object || arguments, "an object that is no arguments");
        objects += arguments.has_value();
        if (!arguments) return;
        for (const Argument& argument : *arguments) {
            if (argument.kind == JsonKind::string) continue;
            JsonScanner value(argument.value);
            promise(value.value() == argument.kind && value.done(), "a slice that is no value");
            promise(text.find(argument.value) != std::string_view::npos, "a slice of something else");
        }
    });
    CHECK(strict > 1000);
    CHECK(objects > 1000);
}
