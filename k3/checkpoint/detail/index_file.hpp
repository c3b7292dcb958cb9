#ifndef K3_CHECKPOINT_DETAIL_INDEX_FILE_HPP
#define K3_CHECKPOINT_DETAIL_INDEX_FILE_HPP
// model.safetensors.index.json: {"metadata": {...}, "weight_map": {TENSOR: SHARD FILE, ...}}. The headers are the
// truth; this file is checked against them where it exists and is never needed. In the release it has 60 MB.
#include <simdjson.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "k3/core/error.hpp"
#include "k3/io/file.hpp"

namespace k3::checkpoint::detail {

class IndexFile {
  public:
    struct Listed {
        std::string_view tensor;  // lives in the parser
        std::uint32_t file;       // index into files()
    };

    /// Errors: Code::checkpoint or Code::read, naming the file.
    void parse(const std::string& path) {
        const io::File file = io::File::open(path);
        const auto refuse = [&](std::string message) {
            throw Error(Code::checkpoint, std::move(message),
                        "download it again, or delete it: it is checked but not needed", {.path = path});
        };
        constexpr std::uint64_t kLimit = std::uint64_t{1} << 30;
        if (file.size() > kLimit) {
            refuse("has " + std::to_string(file.size()) + " bytes; the limit is " + std::to_string(kLimit));
        }
        // Freed on return; the names live on in the parser's own buffer. Not value-initialised: read() fills it.
        const std::size_t size = file.size();
        const std::unique_ptr<std::byte[]> text(new std::byte[size + simdjson::SIMDJSON_PADDING]);
        file.read(0, {text.get(), size});
        simdjson::dom::element root;
        const auto fault = parser_.parse(reinterpret_cast<const std::uint8_t*>(text.get()), size, false).get(root);
        if (fault != simdjson::SUCCESS) {
            refuse("is not valid JSON (" + std::string(simdjson::error_message(fault)) + ")");
        }
        simdjson::dom::object map;
        if (root.at_key("weight_map").get(map) != simdjson::SUCCESS) refuse("has no object weight_map");
        std::unordered_map<std::string_view, std::uint32_t> known;
        for (const simdjson::dom::key_value_pair entry : map) {
            std::string_view shard;
            if (entry.value.get(shard) != simdjson::SUCCESS) refuse("weight_map holds something other than file names");
            const auto [place, is_new] = known.try_emplace(shard, static_cast<std::uint32_t>(files_.size()));
            if (is_new) files_.push_back(shard);
            listed_.push_back({entry.key, place->second});
        }
    }

    const std::vector<Listed>& listed() const noexcept { return listed_; }
    const std::vector<std::string_view>& files() const noexcept { return files_; }

  private:
    simdjson::dom::parser parser_;
    std::vector<Listed> listed_;
    std::vector<std::string_view> files_;
};

}  // namespace k3::checkpoint::detail
#endif
