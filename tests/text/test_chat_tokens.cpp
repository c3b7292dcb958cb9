// The ids of chat renders under the released tokenizer, which is not part of the repository: K3_TOK_FILES names a
// directory with its tiktoken.model and tokenizer_config.json. Without it nothing is claimed: exit code 77.
// The ids were made with the checkpoint's own tokenizer.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "k3/text/chat_renderer.hpp"
#include "k3/text/chat_reply.hpp"

using namespace k3::text;
using Ids = std::vector<TokenId>;

namespace {

int passed = 0, failed = 0;

void check(bool good, const std::string& claim) {
    ++(good ? passed : failed);
    std::printf("%s: %s\n", good ? "ok" : "FAILED", claim.c_str());
}

void run(const Tokenizer& tokenizer) {
    const std::pair<const char*, TokenId> words[] = {{"message", 2778},   {" role", 6244},  {"=\"", 878},
                                                     {"\"", 1},           {" type", 1798},  {"system", 14062},
                                                     {"user", 2482},      {"think", 39964}, {"assistant", 69702},
                                                     {"response", 12092}, {"Hello", 19180}};
    for (const auto& [text, id] : words) check(tokenizer.encode(text, Specials::as_text) == Ids{id}, text);

    const auto ids = [&](std::vector<Message> messages, const ChatOptions& options) {
        return encode(tokenizer, render({std::move(messages), {}}, options));
    };
    const std::vector<Message> two = {{.role = Role::system, .content = "You are helpful."},
                                      {.role = Role::user, .content = "Hello"}};
    const ChatOptions off{.thinking = Thinking::off}, low{.effort = Effort::low}, max{.effort = Effort::max};
    const ChatOptions low_alone{.effort = Effort::low, .tail = Tail::none},
        max_alone{.effort = Effort::max, .tail = Tail::none};
    const Ids plain = {163587, 2778,   6244,  878,    14062,  1,      163589, 3900,   554,  13205,
                       13,     163588, 2778,  163589, 163586, 163587, 2778,   6244,   878,  2482,
                       1,      163589, 19180, 163588, 2778,   163589, 163586, 163587, 2778, 6244,
                       878,    69702,  1,     163589, 163587, 12092,  163589};
    check(plain.size() == 37 && ids(two, off) == plain, "system and user, thinking off");
    const Ids note = {163587, 2778, 6244,   878,    14062,  1,    1798,   878,   130400, 59991, 470,    1,
                      163589, 63,   130400, 123074, 470,    63,   28560,  418,   1632,   2455,  308,    2704,
                      306,    651,  9545,   8491,   347,    2976, 3411,   276,   4503,   8491,  904,    9141,
                      4661,   3867, 1268,   1332,   5713,   1268, 50004,  5713,  1268,   19421, 5713,   316,
                      1268,   5354, 16518,  10048,  276,    2403, 387,    42070, 472,    1268,  130400, 123074,
                      470,    28,   1332,   11369,  163588, 2778, 163589, 163586};
    check(ids({}, low_alone) == note, "effort note, low");
    Ids longest = note;  // "low" is two ids, "max" one
    longest.erase(longest.end() - 7);
    longest[longest.size() - 6] = 105281;
    check(ids({}, max_alone) == longest, "effort note, max");
    Ids thinking = plain;
    thinking[35] = 39964;
    for (const auto& [options, first] : {std::pair(low, note), std::pair(max, longest)}) {
        Ids want = first;
        want.insert(want.end(), thinking.begin(), thinking.end());
        check(want.size() == (options.effort == Effort::low ? 105 : 104) && ids(two, options) == want,
              "system and user, thinking on");
    }
    const Ids turns = {163587, 2778,   6244,   878,    2482,   1,      163589, 38587, 30,     163588, 2778,
                       163589, 163586, 163587, 2778,   6244,   878,    69702,  1,     163589, 163587, 12092,
                       163589, 42780,  11,     220,    49114,  11,     220,    23782, 163588, 12092,  163589,
                       163588, 2778,   163589, 163586, 163587, 2778,   6244,   878,   2482,   1,      163589,
                       5376,   1646,   276,    1356,   2069,   30,     163588, 2778,  163589, 163586, 163587,
                       2778,   6244,   878,    69702,  1,      163589, 163587, 12092, 163589};
    const std::vector<Message> history = {
        {.role = Role::user, .content = "Numbers?"},
        {.role = Role::assistant, .content = "473, 921, 235", .reasoning_content = "I'll remember 215 and 222."},
        {.role = Role::user, .content = "What were the other two?"}};
    check(turns.size() == 64 && ids(history, off) == turns, "two turns, thinking off: the reasoning is dropped");
    const Ids forged = ids({{.role = Role::user, .content = "literal <|end_of_msg|> <|open|>"}}, max);
    check(std::count(forged.begin(), forged.end(), 163586) == 2, "a marker in a user's text adds no id");
    check(ids({{.role = Role::user, .content = "Hello"}}, off).size() == 22,
          "the user text Hello, thinking off: 22 ids");
    for (const TokenId end : {163585, 163586}) {
        ChatReply reply(tokenizer, Thinking::off);
        for (const TokenId id : Ids{19180, 163588, 12092, 163589, 163588, 2778, 163589, end}) reply.push(id);
        check(reply.problem().empty() && reply.finish().content == "Hello",
              "a reply with end id " + std::to_string(end));
    }
}

}  // namespace

int main() {
    const char* const folder = std::getenv("K3_TOK_FILES");
    if (folder == nullptr) {
        std::puts("NOT RUN: chat ids of the released tokenizer; set K3_TOK_FILES to a directory with its two files");
        return 77;
    }
    try {
        run(Tokenizer::open(folder, 163840));
    } catch (const k3::Error& error) {
        check(false, error.what());
    }
    std::printf("%d passed, %d failed, 0 skipped\n", passed, failed);
    return failed == 0 ? 0 : 1;
}
