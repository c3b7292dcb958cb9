#ifndef K3_IO_GUESS_HPP
#define K3_IO_GUESS_HPP
// What a file that cannot be read as what it should be probably is, from its first bytes. Only for messages: a valid
// safetensors header length may happen to spell "PK", so nothing is refused on a guess alone.
#include <optional>
#include <string_view>

namespace k3::io {

struct Guess {
    std::string_view what;  // completes "it is ..."
    std::string_view next;
};

inline std::optional<Guess> guess(std::string_view head) noexcept {
    constexpr std::string_view kAgain = "download the file again";
    if (head.starts_with("version https://git-lfs")) {
        return Guess{"a Git LFS pointer", "fetch the real file with 'git lfs pull', or download it again"};
    }
    if (head.starts_with("PK\x03\x04")) return Guess{"a zip archive, perhaps a PyTorch checkpoint", kAgain};
    if (head.size() >= 2 && head[0] == '\x80' && head[1] >= 2 && head[1] <= 5) {
        return Guess{"a Python pickle", kAgain};
    }
    if (head.starts_with("GGUF")) return Guess{"a GGUF file", "give the released safetensors checkpoint"};
    if (head.starts_with("\x1f\x8b")) return Guess{"a gzip archive", "unpack it first"};
    while (!head.empty() && (head[0] == ' ' || head[0] == '\n' || head[0] == '\r' || head[0] == '\t')) {
        head.remove_prefix(1);
    }
    if (head.starts_with("<")) return Guess{"an HTML or XML page, probably a server's error", kAgain};
    if (head.starts_with("{")) return Guess{"JSON text", kAgain};
    return std::nullopt;
}

}  // namespace k3::io
#endif
