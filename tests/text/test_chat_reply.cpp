#include "k3/text/chat_reply.hpp"

#include <string>
#include <utility>
#include <vector>

#include "support/doctest.hpp"
#include "text/chat_notation.hpp"
#include "text/data.hpp"

using namespace k3::test;
using namespace k3::text;

namespace {

constexpr TokenId kEos = 2049, kEom = 2050;

Ids ids_of(const Notation& notation, Ids end = {kEom}) {
    Ids ids = encode(demo(), expand(notation));
    ids.insert(ids.end(), end.begin(), end.end());
    return ids;
}

struct Shown {
    std::string reasoning, response, tools;
};

/// Feeds all ids; what was shown on the way.
Shown feed(ChatReply& reply, const Ids& ids) {
    Shown shown;
    for (const TokenId id : ids) {
        const ReplyPiece piece = reply.push(id);
        if (find_invalid_utf8(piece.text)) FAIL_CHECK("half a character");
        switch (piece.channel) {
            case ReplyChannel::reasoning: shown.reasoning += piece.text; break;
            case ReplyChannel::response: shown.response += piece.text; break;
            case ReplyChannel::tools: shown.tools += piece.text; break;
            case ReplyChannel::structure: CHECK(piece.text.empty()); break;
        }
    }
    return shown;
}

Message parse(const Ids& ids, Thinking thinking = Thinking::on) {
    ChatReply reply(demo(), thinking);
    feed(reply, ids);
    return reply.finish();
}

std::string error_with(Thinking thinking, const Ids& ids) {
    return chat_error_of([&] { parse(ids, thinking); });
}

/// What render() gives for `message`, without what the generation prompt already holds and without the last marker.
Ids continuation(const Message& message, Thinking thinking) {
    const Segments whole = render({{message}, {}}, {.thinking = thinking, .tail = Tail::none}),
                   prompt = render({}, {.thinking = thinking});
    REQUIRE(std::equal(prompt.begin(), prompt.end(), whole.begin()));
    return encode(demo(), Segments(whole.begin() + static_cast<std::ptrdiff_t>(prompt.size()), whole.end() - 1));
}

}  // namespace

TEST_CASE("text/chat_reply: reasoning and response of a sound reply, ended by either end id (trap 72)") {
    const Notation body = {"=So it is 4.", "</think>", "<response>", "=4, of course", "</response>", "</message>"};
    for (const TokenId end : {kEos, kEom}) {
        ChatReply reply(demo(), Thinking::on);
        const Ids ids = ids_of(body, {});
        const Shown shown = feed(reply, ids);
        CHECK(!reply.ended());
        CHECK(contains(chat_error_of([&] { reply.finish(); }), "has no end"));
        reply.push(end);
        CHECK(reply.ended());
        CHECK(reply.end_id() == end);
        CHECK(reply.problem() == "");
        CHECK(shown.reasoning == "So it is 4.");
        CHECK(shown.response == "4, of course");
        CHECK(shown.tools == "");
        const Message message = reply.finish();
        CHECK(message.role == Role::assistant);
        CHECK(message.reasoning_content == "So it is 4.");
        CHECK(message.content == "4, of course");
        CHECK(message.tool_calls.empty());
    }
    ChatReply other(demo(), Thinking::on, Ids{kEos, 'Z'});  // what a config names besides
    feed(other, ids_of(body, {'Z'}));
    CHECK(other.end_id() == 'Z');
    CHECK(other.finish().content == "4, of course");
}

TEST_CASE("text/chat_reply: without thinking there is no reasoning, with it there is, even if empty") {
    const Message plain = parse(ids_of({"=hi", "</response>", "</message>"}), Thinking::off);
    CHECK(plain.content == "hi");
    CHECK(!plain.reasoning_content);
    const Message empty = parse(ids_of({"</think>", "<response>", "</response>", "</message>"}));
    CHECK(empty.content == "");
    CHECK(empty.reasoning_content == "");
    const Message space = parse(ids_of({"=\n ", "</think>", "<response>", "= \n", "</response>", "</message>"}));
    CHECK(space.reasoning_content == "\n ");
    CHECK(space.content == " \n");
}

TEST_CASE("text/chat_reply: markers that are text are content") {
    const std::string text = "<|close|>think<|sep|><|open|>response<|sep|><|end_of_msg|>[EOS]";
    const Message message =
        parse(ids_of({"=" + text, "</think>", "<response>", "=" + text, "</response>", "</message>"}));
    CHECK(message.reasoning_content == text);
    CHECK(message.content == text);
}

TEST_CASE("text/chat_reply: the demo model's prompts are our renders and its reply is sound") {
    const auto prompts = read_json("demo/expected.json")["prompts"];
    const auto italy = [](const ChatOptions& options, const char* question) {
        return encode(demo(), render({{{.role = Role::user, .content = question}}, {}}, options));
    };
    const ChatOptions off{.thinking = Thinking::off}, max{.effort = Effort::max};
    CHECK(italy(off, "What is the capital of Italy?") == prompts[6]["prompt_ids"].get<Ids>());
    CHECK(italy(max, "What is the capital of Italy?") == prompts[7]["prompt_ids"].get<Ids>());
    CHECK(italy(max, "What is 3 + 4?") == prompts[8]["prompt_ids"].get<Ids>());
    ChatReply reply(demo(), Thinking::off);
    const Ids ids = prompts[6]["generated_ids"];
    std::size_t taken = 0;
    while (taken < ids.size() && !reply.ended()) reply.push(ids[taken++]);
    CHECK(reply.finish().content == "The capital of Italy is Rome.");
    ChatReply cut(demo(), Thinking::on);
    CHECK(feed(cut, prompts[8]["generated_ids"].get<Ids>()).response == "3 + 4 =");
    CHECK(cut.reasoning() == "I have to calculate. 3 + 4 = 7");
    CHECK(cut.content() == "3 + 4 =");
    CHECK(chat_error_of([&] { cut.finish(); }) ==
          "the reply has no end: it stops in the response after 24 tokens; let it generate more tokens");
}

TEST_CASE("text/chat_reply: text arrives in whole characters; what is never finished becomes one U+FFFD") {
    const auto bytes = [](std::string_view text) {  // one token a byte
        Ids ids;
        for (const char c : text) {
            const Ids one = {static_cast<TokenId>(static_cast<unsigned char>(c))};
            REQUIRE(demo().decode_bytes(one) == std::string(1, c));
            ids.push_back(one[0]);
        }
        return ids;
    };
    Ids ids = bytes("a\xF0\x9F\x99");
    const Ids rest = ids_of({"</think>", "<response>"}, {}), end = ids_of({"</response>", "</message>"});
    ids.insert(ids.end(), rest.begin(), rest.end());
    for (const TokenId id : bytes("\x82ä\xE4\xB8\x96\x80z")) ids.push_back(id);
    ids.insert(ids.end(), end.begin(), end.end());
    ChatReply reply(demo(), Thinking::on);
    const Shown shown = feed(reply, ids);
    CHECK(shown.reasoning == "a\uFFFD");
    CHECK(shown.response == "\uFFFDä世\uFFFDz");
    const Message message = reply.finish();
    CHECK(message.reasoning_content == shown.reasoning);
    CHECK(message.content == shown.response);
    // A tag's name may come in any pieces.
    Ids spelled = {'x', *demo().special("<|close|>")};
    for (const TokenId id : bytes("response")) spelled.push_back(id);
    spelled.push_back(*demo().special("<|sep|>"));
    for (const TokenId id : ids_of({"</message>"})) spelled.push_back(id);
    CHECK(parse(spelled, Thinking::off).content == "x");
}

TEST_CASE("text/chat_reply: tool calls are parsed back with their types, and render to what they came from") {
    const Message message = parse(ids_of({"</think>",
                                          "<response>",
                                          "=c",
                                          "</response>",
                                          "<tools>",
                                          "<call tool='a&amp;quot;&quot;&lt;' index='1'>",
                                          "<argument key='s&quot;' type='string'>",
                                          "=say \"x\"\n<|sep|>",
                                          "</argument>",
                                          "<argument key='n' type='number'>",
                                          "=1e2",
                                          "</argument>",
                                          "<argument key='o' type='object'>",
                                          "={\"b\":[1, 2],\"a\":null}",
                                          "</argument>",
                                          "<argument key='n' type='null'>",
                                          "=null",
                                          "</argument>",
                                          "<argument key='e' type='string'>",
                                          "</argument>",
                                          "</call>",
                                          "<call tool='none' index='2'>",
                                          "</call>",
                                          "<call tool='raw' index='3'>",
                                          "<json type='object'>",
                                          "=not {json",
                                          "</json>",
                                          "</call>",
                                          "</tools>",
                                          "</message>"},
                                         {kEos}));
    REQUIRE(message.tool_calls.size() == 3);
    CHECK(message.tool_calls[0].name == "a&quot;\"&lt;");
    CHECK(std::get<std::string>(message.tool_calls[0].arguments) ==
          R"({"s\"": "say \"x\"\n<|sep|>", "n": 1e2, "o": {"b":[1, 2],"a":null}, "n": null, "e": ""})");
    CHECK(message.tool_calls[1].name == "none");
    CHECK(std::holds_alternative<std::monostate>(message.tool_calls[1].arguments));
    CHECK(std::get<std::string>(message.tool_calls[2].arguments) == "not {json");
    for (const ToolCall& call : message.tool_calls) CHECK(!call.id);

    std::size_t tried = 0;
    for (const auto& test : golden_chat()["cases"]) {
        if (test.contains("error")) continue;
        for (Message before : read_conversation(test).messages) {
            if (before.role != Role::assistant || !before.more_content.empty()) continue;
            before.name.reset();  // not part of what the model generates
            for (const Thinking thinking : {Thinking::on, Thinking::off}) {
                INFO(test["name"].get<std::string>());
                Ids ids = continuation(before, thinking);
                const Ids want = ids;
                ids.push_back(kEos);
                const Message after = parse(ids, thinking);
                CHECK(after.tool_calls.size() == before.tool_calls.size());
                CHECK(continuation(after, thinking) == want);
                ++tried;
            }
        }
    }
    CHECK(tried > 80);
}

TEST_CASE("text/chat_reply: replies that break the grammar are refused, with the reason") {
    const Notation tools = {"</response>", "<tools>"}, call = {"</response>", "<tools>", "<call tool='f' index='1'>"};
    const auto after = [](Notation start, const Notation& more) {
        start.insert(start.end(), more.begin(), more.end());
        return start;
    };
    const auto argument = [&](const std::string& type, const std::string& value) {
        return after(call, {"<argument key='k' type='" + type + "'>", "=" + value, "</argument>", "</call>", "</tools>",
                            "</message>"});
    };
    struct Row {
        Thinking thinking;
        Notation reply;
        const char* error;
    };
    constexpr Thinking on = Thinking::on, off = Thinking::off;
    const Row rows[] = {
        {on, {}, "the reply ends in the reasoning"},
        {off, {}, "the reply ends in the response"},
        {on, {"=r"}, "the reply ends in the reasoning"},
        {on, {"=r", "</think>"}, "the reply ends after the reasoning"},
        {on, {"=r", "</think>", "<response>", "=c"}, "the reply ends in the response"},
        {on, {"</think>", "<response>", "</response>"}, "the reply ends after the response; generate the reply again"},
        // The other thinking mode.
        {on, {"=c", "</response>", "</message>"}, "closes 'response' in the reasoning; read it with the thinking mode"},
        {off,
         {"=r", "</think>", "<response>", "=c", "</response>", "</message>"},
         "closes 'think' in the response; read it with the thinking mode"},
        {on, {"</think>", "</response>", "</message>"}, "closes 'response' after the reasoning"},
        {on, {"</think>", "=c", "</response>", "</message>"}, "there is text after the reasoning"},
        {on, {"<response>", "=c", "</response>", "</message>"}, "opens 'response' in the reasoning"},
        {on, {"</think>", "<think>", "</think>"}, "opens 'think' after the reasoning"},
        {off, {"</response>", "=x", "</message>"}, "there is text after the response"},
        {off, {"</response>", "<response>"}, "opens 'response' after the response"},
        {off, {"</message>"}, "closes 'message' in the response"},
        {off, {"</response>", "</message>", "=x"}, "there is text after the message"},
        {off,
         {"</response>", "</message>", "<message role='user'>"},
         "opens 'message role=\"user\"' after the message"},
        {off, {"</response >", "</message>"}, "does not have the attributes of its kind"},
        {off, {"<argument key='k' type='string'>"}, "in the response"},
        // Tools.
        {off, after(tools, {"</tools>", "</message>"}), "the tools block has no call"},
        {off, after(tools, {"</message>"}), "closes 'message' in the tools block"},
        {off, after(tools, {"=x", "<call tool='f' index='1'>"}), "there is text in the tools block"},
        {off, after(tools, {"<call tool='f' index='2'>"}), "tool call 1 has the index '2'"},
        {off, after(tools, {"<call index='1' tool='f'>"}), "does not have the attributes of its kind"},
        {off, after(tools, {"<call tool='f'>"}), "does not have the attributes of its kind"},
        {off, after(tools, {"<call tool='f' index='1' x='y'>"}), "does not have the attributes of its kind"},
        {off, after(call, {"</call>", "<call tool='f' index='1'>"}), "tool call 2 has the index '1'"},
        {off, after(call, {"=x", "</call>"}), "there is text in a tool call"},
        {off, after(call, {"</tools>"}), "closes 'tools' in a tool call"},
        {off, after(call, {"<json type='array'>", "</json>"}), "a json element is not of type object"},
        {off, after(call, {"<json type='object'>", "=x", "</json>", "<json type='object'>"}),
         "a json element and something else"},
        {off, after(call, {"<json type='object'>", "=x", "</json>", "<argument key='k' type='null'>"}),
         "a json element and something else"},
        {off, after(call, {"<argument key='k' type='null'>", "=null", "</argument>", "<json type='object'>"}),
         "a json element and something else"},
        {off, after(call, {"</call>", "</tools>", "=x"}), "there is text after the tools block"},
        {off, after(call, {"</call>", "</tools>", "<tools>"}), "opens 'tools' after the tools block"},
        {off, argument("number", "1x"), "argument 'k' of call 1 is no value of type 'number': 1x"},
        {off, argument("number", "1 "), "no value of type 'number'"},
        {off, argument("number", "\"1\""), "no value of type 'number'"},
        {off, argument("number", "true"), "no value of type 'number'"},
        {off, argument("boolean", "True"), "no value of type 'boolean'"},
        {off, argument("null", ""), "no value of type 'null'"},
        {off, argument("object", "{\"a\":1"), "no value of type 'object'"},
        {off, argument("object", "[]"), "no value of type 'object'"},
        {off, argument("array", "{}"), "no value of type 'array'"},
        {off, argument("integer", "1"), "no value of type 'integer'"},
        {off, argument("", "1"), "no value of type ''"},
    };
    for (const Row& row : rows) {
        INFO(shown(expand(row.reply)));
        const std::string error = error_with(row.thinking, ids_of(row.reply));
        if (!contains(error, row.error)) FAIL_CHECK("want: ", row.error, "\ngot:  ", error);
        if (error.find(" of the reply: ") == std::string::npos) FAIL_CHECK("no place: ", error);
    }
    CHECK(error_with(off, ids_of(argument("number", "NaN"))) == "");
    CHECK(error_with(off, ids_of(argument("object", "{\"a\":\"\n\"}"))) == "");
}

TEST_CASE("text/chat_reply: special tokens where they do not belong, and ids after the end") {
    const TokenId open = *demo().special("<|open|>"), close = *demo().special("<|close|>"),
                  sep = *demo().special("<|sep|>"), bos = 2048;
    const auto error = [](const Ids& ids) { return error_with(Thinking::off, ids); };
    CHECK(contains(error({'a', bos, 'b'}), "token 2 of the reply: the special token [BOS] stands in the response"));
    CHECK(contains(error({'a', sep}), "the special token <|sep|> stands in the response"));
    CHECK(contains(error({close, open}), "the special token <|open|> stands in a tag"));
    CHECK(contains(error({close, 'r', bos}), "the special token [BOS] stands in a tag"));
    CHECK(contains(error({close, 'r', kEos}), "token 3 of the reply: the reply ends inside a tag"));
    CHECK(contains(error({close, sep}), "closes '' in the response"));
    CHECK(contains(error({close, 0x80, '\n', sep}), "closes '\uFFFD ' in the response"));
    for (TokenId id = 2048; id < 2304; ++id) {  // in a payload only <|close|> and <|open|> may come, and only for tags
        if (id == kEos || id == kEom || id == open || id == close) continue;
        if (!contains(error({'a', id}), "the special token " + std::string(demo().bytes(id)))) FAIL_CHECK(id);
    }
    const Notation body = {"=hi", "</response>", "</message>"};
    CHECK(contains(error(ids_of(body, {kEos, kEos})), "ids go on after the end; stop at the first end id"));
    CHECK(contains(error(ids_of(body, {kEos, kEom})), "ids go on after the end"));
    CHECK(contains(error(ids_of(body, {kEos, 'x'})), "ids go on after the end"));
    CHECK(contains(error(ids_of(body, {'x', kEos})), "there is text after the message"));
    CHECK(contains(error(ids_of(body, {bos})), "the special token [BOS] stands after the message"));
    CHECK(contains(error(ids_of(body, {})), "has no end: it stops after the message after"));
    CHECK(contains(error({}), "has no end: it stops in the response after 0 tokens"));
    CHECK(contains(error({'a', close, 'r'}), "has no end: it stops inside a tag after 3 tokens"));
}

TEST_CASE("text/chat_reply: the first problem stays, what came before it is kept, and the end is still seen") {
    ChatReply reply(demo(), Thinking::off);
    feed(reply, {'a', 'b', 2048, 'c'});
    const std::string problem = reply.problem();
    CHECK(problem == "token 3 of the reply: the special token [BOS] stands in the response");
    CHECK(!reply.ended());
    feed(reply, {2048, kEos, 'd', kEos});
    CHECK(reply.ended());
    CHECK(reply.end_id() == kEos);
    CHECK(reply.problem() == problem);
    CHECK(reply.content() == "ab");
    CHECK(chat_error_of([&] { reply.finish(); }) == problem + "; generate the reply again");
    ChatReply other(demo(), Thinking::off);
    for (const TokenId id : {-1, 2304}) CHECK(contains(error_of([&] { other.push(id); }), "does not exist"));
    feed(other, ids_of({"=x", "</response>", "</message>"}));
    CHECK(other.finish().content == "x");
}
