#ifndef K3_TESTS_SUPPORT_MINI_CHECKPOINT_HPP
#define K3_TESTS_SUPPORT_MINI_CHECKPOINT_HPP
// Writes small checkpoints for tests, well-formed or broken on purpose: a folder that removes itself, shards from
// tensors, and shards from any header text, length field and amount of data.
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "k3/core/error.hpp"

namespace k3::tests {

class TempFolder {
  public:
    TempFolder() : path_((std::filesystem::temp_directory_path() / "k3-test-XXXXXX").string()) {
        if (::mkdtemp(path_.data()) == nullptr) throw std::runtime_error("no temporary folder");
    }
    ~TempFolder() {
        std::error_code ignored;
        std::filesystem::remove_all(path_, ignored);
    }
    TempFolder(const TempFolder&) = delete;
    TempFolder& operator=(const TempFolder&) = delete;

    const std::string& path() const { return path_; }
    std::string operator/(const std::string& name) const { return path_ + "/" + name; }
    /// Writes `bytes` to the file `name` in the folder and returns its path.
    std::string write(const std::string& name, const std::string& bytes) const {
        const std::string path = path_ + "/" + name;
        std::ofstream(path, std::ios::binary) << bytes;
        return path;
    }

  private:
    std::string path_;
};

/// The 8-byte length field, the header and `data` zero bytes. The field says `length` if given, else the truth.
inline std::string shard_bytes(const std::string& header, std::size_t data, std::optional<std::uint64_t> length = {}) {
    const std::uint64_t field = length.value_or(header.size());
    std::string bytes(8, '\0');
    for (int i = 0; i < 8; ++i) bytes[static_cast<std::size_t>(i)] = static_cast<char>(field >> (8 * i));
    return bytes + header + std::string(data, '\0');
}

struct MiniTensor {
    std::string name, dtype;
    std::vector<std::uint64_t> shape;
    std::string data{};  // zeros if empty

    std::uint64_t bytes() const {
        std::uint64_t count = dtype == "F32" || dtype == "I32" ? 4 : dtype == "BF16" || dtype == "F16" ? 2 : 1;
        for (const std::uint64_t dim : shape) count *= dim;
        return count;
    }
};

/// One entry of a header.
inline std::string entry(const std::string& name, const std::string& dtype, const std::string& shape,
                         const std::string& offsets) {
    return "\"" + name + R"(":{"dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":)" + offsets + "}";
}

/// A well-formed shard: the tensors in order, without gaps.
inline std::string shard_of(const std::vector<MiniTensor>& tensors) {
    std::string header = R"({"__metadata__":{"format":"pt"})", data;
    for (const MiniTensor& tensor : tensors) {
        // Appending, not "[" + text: g++ 12 sees an overlap in that at -O3 that is not there (its bug 105651).
        std::string shape = "[", offsets = "[";
        for (const std::uint64_t dim : tensor.shape) {
            if (shape.size() > 1) shape += ',';
            shape += std::to_string(dim);
        }
        shape += ']';
        offsets += std::to_string(data.size());
        offsets += ',';
        offsets += std::to_string(data.size() + tensor.bytes());
        offsets += ']';
        header += ',';
        header += entry(tensor.name, tensor.dtype, shape, offsets);
        data += tensor.data.empty() ? std::string(tensor.bytes(), '\0') : tensor.data;
    }
    header += "}";
    header.append((8 - header.size() % 8) % 8, ' ');
    return shard_bytes(header, 0) + data;
}

/// "model-00002-of-000003.safetensors"
inline std::string shard_name(unsigned number, unsigned total) {
    char name[64];
    std::snprintf(name, sizeof name, "model-%05u-of-%06u.safetensors", number, total);
    return name;
}

/// The line an action is refused with, or "" if it is not refused. A line break in it is marked as a fault.
template <class Action>
std::string refusal(const Action& action) {
    try {
        action();
    } catch (const Error& error) {
        const std::string line = error.what();
        return line.find('\n') == std::string::npos ? line : "MORE THAN ONE LINE: " + line;
    }
    return {};
}

inline bool holds(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace k3::tests
#endif
