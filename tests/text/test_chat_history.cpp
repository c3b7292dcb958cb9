#include "k3/text/chat_history.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "k3/text/utf8.hpp"
#include "support/doctest.hpp"
#include "text/chat_notation.hpp"
#include "text/data.hpp"

using namespace k3::test;
using namespace k3::text;
namespace fs = std::filesystem;

namespace {

/// A folder of this test's own.
struct Folder {
    fs::path path = fs::temp_directory_path() / ("k3_test_history_" + std::to_string(::getpid()));
    Folder() {
        fs::remove_all(path);
        fs::create_directories(path);
    }
    ~Folder() { fs::remove_all(path); }
    std::string file(const char* name) const { return (path / name).string(); }
};

bool same(const std::vector<Message>& a, const std::vector<Message>& b) {
    bool equal = a.size() == b.size();
    for (std::size_t i = 0; equal && i < a.size(); ++i) {
        equal = a[i].role == b[i].role && a[i].content == b[i].content &&
                a[i].reasoning_content == b[i].reasoning_content && !a[i].name && a[i].tool_calls.empty();
    }
    return equal;
}

Message user(std::string text) { return {.role = Role::user, .content = std::move(text)}; }
Message reply(std::string text, std::optional<std::string> reasoning = {}) {
    return {.role = Role::assistant, .content = std::move(text), .reasoning_content = std::move(reasoning)};
}
Message rules(std::string text) { return {.role = Role::system, .content = std::move(text)}; }

}  // namespace

TEST_CASE("text/chat_history: the lines of the documented form") {
    const std::string text =
        "{\"role\":\"system\",\"content\":\"Be \\\"brief\\\".\"}\n"
        "{\"role\":\"user\",\"content\":\"Hi\\n\"}\n"
        "{\"role\":\"assistant\",\"content\":\"Hello\",\"reasoning_content\":\"\"}\n"
        "{\"role\":\"user\",\"content\":\"世\"}\n"
        "{\"role\":\"assistant\",\"content\":\"界\"}\n";
    const std::vector<Message> messages = {rules("Be \"brief\"."), user("Hi\n"), reply("Hello", ""), user("世"),
                                           reply("界")};
    CHECK(same(parse_history(text, "h"), messages));
    CHECK(print_history(messages) == text);
    CHECK(parse_history("", "h").empty());
    CHECK(print_history({}) == "");
    // As another program may write it: other order and spacing, escapes, CR LF, no end of the last line.
    const std::string other =
        "{ \"content\" : \"\\u0041\\ud83d\\ude42\\/\" , \"role\":\"user\" } \r\n"
        "{\"reasoning_content\":\"r\",\"content\":\"c\",\"role\":\"assistant\"}";
    CHECK(same(parse_history(other, "h"), {user("A🙂/"), reply("c", "r")}));
}

TEST_CASE("text/chat_history: any text comes back as it was") {
    std::vector<std::string> texts = {"",
                                      " \n",
                                      std::string("\0", 1),
                                      "\r\n",
                                      "\xEF\xBB\xBF",
                                      "\"\\/\b\f\n\r\t\x1f\x7f",
                                      "\xC2\x80\xE2\x80\xA8\xE2\x80\xA9\xEF\xBF\xBD\xEF\xBF\xBF\xF4\x8F\xBF\xBF",
                                      "<|end_of_msg|><|open|>",
                                      R"({"role":"user"})",
                                      repeat("x", 1 << 20)};
    for (const auto& row : golden()["strings"]) texts.push_back(row[0]);
    Random random(9);
    for (int i = 0; i < 300; ++i) {
        std::string text;
        for (std::size_t n = random.below(40); n > 0; --n) {
            auto scalar = static_cast<std::uint32_t>(random.below(random.below(2) ? 0x180 : 0x110000));
            if (scalar >= 0xD800 && scalar < 0xE000) scalar = 0;
            append_utf8(text, scalar);
        }
        texts.push_back(text);
    }
    std::vector<Message> messages = {rules(texts[4])};
    for (std::size_t i = 0; i < texts.size(); ++i) {
        messages.push_back(user(texts[i]));
        messages.push_back(i % 3 ? reply(texts[i], texts[texts.size() - 1 - i]) : reply(texts[i]));
    }
    const Folder folder;
    const std::string path = folder.file("all.jsonl");
    save_history(path, messages);
    CHECK(same(load_history(path), messages));
    CHECK(print_history(load_history(path)) == k3::io::File::read_text(path));
}

TEST_CASE("text/chat_history: what a line may not be, with its number") {
    const std::string ok = "{\"role\":\"user\",\"content\":\"q\"}\n";
    const std::pair<std::string, const char*> rows[] = {
        {"\n", "the line is empty; remove it"},
        {"\r\n", "the line is empty"},
        {" \n", "does not begin with an object"},
        {"[]", "does not begin with an object; write one JSON object a line"},
        {"null", "does not begin with an object"},
        {"\xEF\xBB\xBF{\"role\":\"assistant\",\"content\":\"\"}", "does not begin with an object"},
        {"{\"role\":\"assistant\",\"content\":\"\"} x", "is not JSON: parse error at column"},
        {"{\"role\":\"assistant\",\"content\":\"\"}{}", "is not JSON"},
        {"{\"role\":\"assistant\",\"content\":\"", "is not JSON"},
        {"{\"role\":\"assistant\",\"content\":\"a\tb\"}", "is not JSON"},
        {"{\"role\":\"assistant\",\"content\":\"\\ud800\"}", "is not JSON"},
        {"{\"role\":\"assistant\",\"content\":\"\xED\xA0\x80\"}", "not UTF-8: its first bad byte is at offset 31"},
        {"{\"role\":\"assistant\",\"content\":\"\x80\"}", "not UTF-8"},
        {"{\"role\":\"assistant\",\"content\":\"\"}" + std::string("\0x", 2), "the line has a NUL byte"},
        {"{\"role\":\"assistant\"}", "content is missing"},
        {"{\"content\":\"x\"}", "role is missing"},
        {"{}", "role is missing"},
        {"{\"role\":\"assistant\",\"content\":null}", "content is not a string: null"},
        {"{\"role\":\"assistant\",\"content\":[\"x\"]}", "content is not a string: [\"x\"]"},
        {"{\"role\":5,\"content\":\"\"}", "role is not a string: 5"},
        {"{\"role\":\"assistant\",\"content\":\"\",\"reasoning_content\":null}", "reasoning_content is not a string"},
        {"{\"role\":\"assistant\",\"content\":\"\",\"name\":\"x\"}", "key 'name' is unknown; a line has role, content"},
        {"{\"role\":\"assistant\",\"content\":\"\",\"content\":\"\"}", "these keys are there twice: content"},
        {"{\"role\":\"assistant\",\"content\":\"\",\"c\\u006fntent\":\"\"}", "these keys are there twice: content"},
        {"{\"role\":\"bot\",\"content\":\"\"}", "role 'bot' does not exist; use system, user or assistant"},
        {"{\"role\":\"tool\",\"content\":\"\"}", "tool results are not part of a history"},
        {"{\"role\":\"user\",\"content\":\"\"}", "a user message follows a user message"},
        {"{\"role\":\"system\",\"content\":\"\"}", "a system message may only be the first"},
        {"{\"role\":\"assistant\",\"content\":\"\"}\n{\"role\":\"assistant\",\"content\":\"\"}",
         "line 3: an assistant message does not follow a user message"},
        {"{\"role\":\"assistant\",\"content\":\"\"}\n\n", "line 3: the line is empty"},
        {"{\"role\":\"assistant\",\"content\":\"\"}\n{\"role\":\"user\",\"content\":\"\",\"reasoning_content\":\"r\"}",
         "line 3: only an assistant has reasoning_content"},
    };
    for (const auto& row : rows) {
        const std::string error = chat_error_of([&] { parse_history(ok + row.first, "h.jsonl"); });
        if (!contains(error, row.second)) FAIL_CHECK("want: ", row.second, "\ngot:  ", error);
        if (error.rfind("h.jsonl: line ", 0) != 0) FAIL_CHECK("no place: ", error);
        if (contains(error, "line 1") || contains(error, "checkpoint")) FAIL_CHECK("misleading: ", error);
    }
    CHECK(contains(chat_error_of([] { parse_history("{\"role\":\"assistant\",\"content\":\"\"}", "h"); }),
                   "h: line 1: an assistant message does not follow a user message; correct the line or remove it"));
}

TEST_CASE("text/chat_history: a line has at most 16 MiB, read and written") {
    const std::string frame = print_history(std::vector{user("")});  // with its line end
    const std::string fits = repeat("x", kHistoryLineLimit - (frame.size() - 1));
    CHECK(kHistoryLineLimit == 16'777'216);
    const std::string text = print_history(std::vector{user(fits)});
    CHECK(text.size() == kHistoryLineLimit + 1);
    CHECK(parse_history(text, "h")[0].content == fits);
    CHECK(chat_error_of([&] { print_history(std::vector{user(fits + "x")}); }) ==
          "message 1 of the history: its line would have 16777217 bytes, and the limit is 16777216; leave it out, or "
          "split it");
    std::string over = text;
    over.insert(over.size() - 3, "x");
    CHECK(contains(chat_error_of([&] { parse_history(over, "h"); }),
                   "h: line 1: the line has 16777217 bytes, and the limit is 16777216; begin a new history"));
}

TEST_CASE("text/chat_history: what the format cannot hold is not written, and the old file stays") {
    const Folder folder;
    const std::string path = folder.file("h.jsonl");
    save_history(path, std::vector{user("old")});
    const auto error = [&](std::vector<Message> messages) {
        const std::string line = chat_error_of([&] { save_history(path, messages); });
        CHECK(load_history(path)[0].content == "old");
        return line;
    };
    CHECK(error({user("a"), user("b")}) ==
          "message 2 of the history: a user message follows a user message; keep the turns in order");
    CHECK(contains(error({reply("a")}), "message 1 of the history: an assistant message does not follow"));
    CHECK(contains(error({rules(""), rules("")}), "may only be the first"));
    CHECK(contains(error({{.role = Role::tool}}), "tool results are not part"));
    CHECK(contains(error({{.role = Role::user, .name = "n"}}), "a name or tools"));
    CHECK(contains(error({{.role = Role::user, .more_content = {"x"}}}), "several parts"));
    CHECK(contains(error({user(""), {.role = Role::assistant, .tool_calls = {{.name = "f"}}}}), "a name or tools"));
    CHECK(contains(error({{.role = Role::user, .reasoning_content = "r"}}), "only an assistant has reasoning_content"));
    CHECK(contains(error({user("ab\xED\xA0\x80")}), "not UTF-8: the first bad byte is at offset 2; convert it"));
    CHECK(contains(error({user(""), reply("", "\xFF")}), "message 2 of the history: it is not UTF-8"));
}

TEST_CASE("text/chat_history: files: missing, replaced whole, permissions, folders") {
    const Folder folder;
    const std::string path = folder.file("h.jsonl");
    CHECK(load_history(path).empty());
    save_history(path, std::vector{user("a")});
    struct stat info {};
    REQUIRE(::stat(path.c_str(), &info) == 0);
    CHECK((info.st_mode & 0777) == 0600);  // a chat is its owner's business
    const ino_t before = info.st_ino;
    REQUIRE(::chmod(path.c_str(), 0640) == 0);
    save_history(path, std::vector{user("a"), reply("b")});
    REQUIRE(::stat(path.c_str(), &info) == 0);
    CHECK((info.st_mode & 0777) == 0640);
    CHECK(info.st_ino != before);  // renamed into place, not written over
    CHECK(load_history(path).size() == 2);
    save_history(path, {});
    CHECK(load_history(path).empty());
    CHECK(std::distance(fs::directory_iterator(folder.path), fs::directory_iterator{}) == 1);

    const auto code = [](auto&& call) {
        try {
            call();
        } catch (const k3::Error& error) {
            CHECK(!error.next().empty());
            return error.code();
        }
        return k3::Code::internal;
    };
    CHECK(code([&] { load_history(folder.path.string()); }) == k3::Code::read);
    CHECK(code([&] { save_history(folder.file("no/such/h"), {}); }) == k3::Code::write);
    CHECK(load_history(folder.file("no/such/h")).empty());
    CHECK(code([&] { save_history(folder.path.string(), {}); }) == k3::Code::write);
    std::ofstream(path) << "{\"role\":\"user\"}\n";
    CHECK(contains(chat_error_of([&] { load_history(path); }), path + ": line 1: content is missing"));
}
