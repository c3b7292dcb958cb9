#include "k3/text/stream_decoder.hpp"

#include <string>

#include "support/doctest.hpp"
#include "text/data.hpp"

using k3::test::Random;
using namespace k3::text;

namespace {

std::string streamed(const std::string& bytes, std::uint64_t cuts) {  // bit i: cut after byte i
    StreamDecoder decoder;
    std::string text, part;
    for (std::size_t i = 0; i < bytes.size(); ++i) {
        part += bytes[i];
        if ((cuts >> i & 1) == 0 && i + 1 < bytes.size()) continue;
        const std::string now = decoder.push(part);
        if (find_invalid_utf8(now)) FAIL_CHECK("half a character came out");
        text += now;
        part.clear();
    }
    return text + decoder.flush();
}

}  // namespace

TEST_CASE(
    "text/stream_decoder: every split of every golden byte string equals the one-shot decode (trap 75: half a "
    "character)") {
    for (const auto& row : k3::test::golden()["decode"]) {
        const std::string hex = row[0];
        std::string bytes;
        for (std::size_t i = 0; i < hex.size(); i += 2)
            bytes += static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16));
        const std::uint64_t splits = bytes.size() > 8 ? 256 : std::uint64_t{1} << bytes.size();
        Random random(bytes.size());
        for (std::uint64_t cuts = 0; cuts < splits; ++cuts) {
            const std::uint64_t mask = bytes.size() > 8 ? random.below(~std::uint64_t{0}) : cuts;
            if (streamed(bytes, mask) != row[1].get<std::string>()) FAIL_CHECK(hex);
        }
    }
}

TEST_CASE("text/stream_decoder: a whole character comes out with its last byte, not later") {
    StreamDecoder decoder;
    CHECK(decoder.push("\xF0") == "");
    CHECK(decoder.push("\x9F") == "");
    CHECK(decoder.push("\x99") == "");
    CHECK(decoder.push("\x82"
                       "a") ==
          "\xF0\x9F\x99\x82"
          "a");
    CHECK(decoder.push("\xED\x95") == "");
    CHECK(decoder.push("\x9C\xEA") == "\xED\x95\x9C");
    CHECK(decoder.push("\xB5\xAD") == "\xEA\xB5\xAD");
    CHECK(decoder.push(std::string_view("\0", 1)) == std::string(1, '\0'));
    CHECK(decoder.flush() == "");
}

TEST_CASE("text/stream_decoder: garbage does not stall the stream; the tail is flushed once") {
    StreamDecoder decoder;
    CHECK(decoder.push("\x80\xFF") == "\xEF\xBF\xBD\xEF\xBF\xBD");
    CHECK(decoder.push("\xE4\xB8") == "");
    CHECK(decoder.push("x") == "\xEF\xBF\xBDx");
    CHECK(decoder.push("\xED\xA0") == "\xEF\xBF\xBD\xEF\xBF\xBD");  // a surrogate cannot be saved: do not wait
    CHECK(decoder.push("\xF0\x9F\x99") == "");
    CHECK(decoder.flush() == "\xEF\xBF\xBD");
    CHECK(decoder.flush() == "");
    CHECK(decoder.push("again") == "again");
}
