#ifndef K3_STREAM_PACKED_TRUNK_HPP
#define K3_STREAM_PACKED_TRUNK_HPP
// A packed trunk: trunk.bin, the trunk tensors of all layers in aligned runs, and trunk.json, which says where each is.
//   {"align": 4096, "layers": [{"file_off": 0, "nbytes": 8192, "tensors": {NAME: {"off": 0, "nbytes": 14336,
//    "dtype": "BF16", "shape": [7168]}}}]}
// A tensor lies at file_off + off of trunk.bin. Other writers leave out "shape" and "align" and add keys of their own,
// at every level; those are ignored, and so are "n_layers" and "layer": names are full names. Nothing in the file is
// believed: every number is checked with arithmetic that cannot wrap.
// What is *not* here: reading trunk.bin, and whether its bytes are those of the checkpoint (k3-pack --verify).
#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "k3/checkpoint/shard_index.hpp"
#include "k3/checkpoint/tensor_info.hpp"
#include "k3/core/error.hpp"
#include "k3/io/file.hpp"
#include "k3/io/json_text.hpp"

namespace k3::stream {

struct PackedTensor {
    checkpoint::Dtype dtype;
    std::uint64_t offset;  // bytes from the start of trunk.bin
    std::uint64_t bytes;
    std::optional<checkpoint::Shape> shape;  // if trunk.json gives it
};

/// One layer's bytes in trunk.bin.
struct PackedRun {
    std::uint64_t offset, bytes;
};

/// Thread-safe after open(): it never changes.
class PackedTrunk {
  public:
    static constexpr std::uint64_t kDirectAlign = 4096;

    /// Opens trunk.json and trunk.bin of `folder`. Errors: Code::read if one cannot be read; Code::checkpoint, naming
    /// file, tensor and offset, if there are no layers, a number is negative, not whole or too large, a tensor leaves
    /// its run, a run leaves the file, a tensor is there twice, dtype and shape give other bytes than are said, or a
    /// dtype is unknown. I8R, a draft trunk, is not weights and is refused as such.
    static PackedTrunk open(const std::string& folder);

    /// A tensor by its full checkpoint name.
    std::optional<PackedTensor> find(std::string_view name) const;

    /// Every tensor of this trunk must be in the checkpoint, with the same dtype and bytes, and shape if it has one.
    /// Errors: Code::tensor naming the first that is not, and how many are not.
    void check_against(const checkpoint::ShardIndex& index) const;

    const io::File& file() const noexcept { return bin_; }
    std::span<const PackedRun> runs() const noexcept { return runs_; }
    /// Number of tensors.
    std::size_t size() const noexcept { return tensors_.size(); }
    /// Every run starts and ends on a multiple of kDirectAlign: direct I/O can read runs as they are.
    bool is_direct() const noexcept { return direct_; }

  private:
    struct Entry {
        std::string name;
        PackedTensor tensor;
    };
    PackedTrunk(io::File bin, std::string json) : bin_(std::move(bin)), json_(std::move(json)) {}
    [[noreturn]] void refuse(std::string message, std::string_view tensor = {},
                             std::optional<std::uint64_t> offset = {}) const;
    std::uint64_t number(const io::Json& object, const char* key, const std::string& place,
                         std::string_view tensor = {}) const;
    void add_run(const io::Json& layer, std::size_t n);
    void add_tensor(const std::string& name, const io::Json& value, const PackedRun& run);
    std::optional<checkpoint::Shape> shape_of(const std::string& name, const io::Json& value) const;

    io::File bin_;
    std::string json_;  // path of trunk.json
    std::vector<PackedRun> runs_;
    std::vector<Entry> tensors_;  // by name
    bool direct_ = true;
};

// ---------------------------------------------------------------------------------------------------------------------

namespace detail {
inline constexpr const char* kPackAgain = "pack the trunk again with k3-pack";
}

inline void PackedTrunk::refuse(std::string message, std::string_view tensor,
                                std::optional<std::uint64_t> offset) const {
    throw Error(Code::checkpoint, std::move(message), detail::kPackAgain,
                {.path = json_, .tensor = checkpoint::printable(tensor), .offset = offset});
}

inline std::uint64_t PackedTrunk::number(const io::Json& object, const char* key, const std::string& place,
                                         std::string_view tensor) const {
    const auto found = object.find(key);
    if (found == object.end()) refuse(place + "has no " + key, tensor);
    if (!found->is_number_unsigned()) {  // negative, a fraction, beyond 64 bits, or not a number at all
        refuse(place + key + " is " + io::shown(*found) + ", not a whole number from 0 to 2^64 - 1", tensor);
    }
    return found->get<std::uint64_t>();
}

inline std::optional<checkpoint::Shape> PackedTrunk::shape_of(const std::string& name, const io::Json& value) const {
    const auto found = value.find("shape");
    if (found == value.end() || found->is_null()) return std::nullopt;
    if (!found->is_array()) refuse("shape is " + io::shown(*found) + ", not a list", name);
    checkpoint::Shape shape;
    for (const io::Json& dim : *found) {
        if (!dim.is_number_unsigned()) refuse("shape holds " + io::shown(dim) + ", not a whole number", name);
        if (!shape.push(dim.get<std::uint64_t>())) {
            refuse("shape has more than " + std::to_string(checkpoint::Shape::kMaxRank) + " dimensions", name);
        }
    }
    return shape;
}

inline void PackedTrunk::add_tensor(const std::string& name, const io::Json& value, const PackedRun& run) {
    if (!value.is_object()) refuse("is " + io::shown(value) + ", not an object", name);
    const std::uint64_t off = number(value, "off", "", name), bytes = number(value, "nbytes", "", name);
    // Compared by subtraction: the sums may wrap. The run lies in the file, so run.offset + off does not.
    if (off > run.bytes || bytes > run.bytes - off) {
        refuse("leaves its run: " + std::to_string(bytes) + " bytes at " + std::to_string(off) + " of " +
                   std::to_string(run.bytes),
               name, off <= run.bytes ? std::optional(run.offset + off) : std::nullopt);
    }
    const auto text = value.find("dtype");
    if (text == value.end() || !text->is_string()) refuse("has no dtype", name, run.offset + off);
    const auto& spelled = text->get_ref<const std::string&>();
    if (spelled == "I8R") {
        throw Error(Code::checkpoint,
                    "is I8R: this is a draft trunk, rounded to 8 bits. It can propose tokens; it is not the weights",
                    "give the trunk that k3-pack wrote, or leave --trunk out",
                    {.path = json_, .tensor = checkpoint::printable(name), .offset = run.offset + off});
    }
    const auto dtype = checkpoint::dtype_named(spelled);
    if (!dtype) refuse("has the unknown dtype " + io::shown(*text), name, run.offset + off);
    const auto shape = shape_of(name, value);
    if (shape && checkpoint::byte_count(*dtype, *shape) != bytes) {
        refuse("has " + std::to_string(bytes) + " bytes, which " + spelled + " " + to_string(*shape) + " does not",
               name, run.offset + off);
    }
    tensors_.push_back({name, {*dtype, run.offset + off, bytes, shape}});
}

inline void PackedTrunk::add_run(const io::Json& layer, std::size_t n) {
    const std::string place = "layers[" + std::to_string(n) + "] ";
    if (!layer.is_object()) refuse(place + "is " + io::shown(layer) + ", not an object");
    const PackedRun run{number(layer, "file_off", place), number(layer, "nbytes", place)};
    if (run.offset > bin_.size() || run.bytes > bin_.size() - run.offset) {
        refuse(place + "leaves trunk.bin: " + std::to_string(run.bytes) + " bytes at " + std::to_string(run.offset) +
               ", but the file has " + std::to_string(bin_.size()));
    }
    direct_ = direct_ && run.offset % kDirectAlign == 0 && run.bytes % kDirectAlign == 0;
    const auto tensors = layer.find("tensors");
    if (tensors == layer.end() || !tensors->is_object()) refuse(place + "has no object called tensors");
    for (const auto& [name, value] : tensors->items()) add_tensor(name, value, run);
    runs_.push_back(run);
}

inline PackedTrunk PackedTrunk::open(const std::string& folder) {
    const std::string json = folder + "/trunk.json";
    constexpr std::uint64_t kLongest = std::uint64_t{64} << 20;  // the released model's has 0.7 MB
    const std::string text = io::File::read_text(json, kLongest);
    PackedTrunk trunk(io::File::open(folder + "/trunk.bin"), json);
    io::Json root;
    try {
        root = io::parse_json(text, Code::checkpoint, json);
    } catch (const Error& error) {
        throw Error(error.code(), error.message(), detail::kPackAgain, error.where());
    }
    const auto layers = root.find("layers");
    if (layers == root.end() || !layers->is_array() || layers->empty()) trunk.refuse("has no layers");
    for (std::size_t n = 0; n < layers->size(); ++n) trunk.add_run((*layers)[n], n);
    std::sort(trunk.tensors_.begin(), trunk.tensors_.end(),
              [](const Entry& a, const Entry& b) { return a.name < b.name; });
    const auto twin = std::adjacent_find(trunk.tensors_.begin(), trunk.tensors_.end(),
                                         [](const Entry& a, const Entry& b) { return a.name == b.name; });
    if (twin != trunk.tensors_.end()) trunk.refuse("is there twice", twin->name, twin[1].tensor.offset);
    return trunk;
}

inline std::optional<PackedTensor> PackedTrunk::find(std::string_view name) const {
    const auto at = std::lower_bound(tensors_.begin(), tensors_.end(), name,
                                     [](const Entry& entry, std::string_view key) { return entry.name < key; });
    if (at == tensors_.end() || at->name != name) return std::nullopt;
    return at->tensor;
}

inline void PackedTrunk::check_against(const checkpoint::ShardIndex& index) const {
    const Entry* first = nullptr;
    std::string why;
    std::size_t count = 0;
    for (const Entry& entry : tensors_) {
        const auto info = index.find(entry.name);
        const PackedTensor& tensor = entry.tensor;
        const bool fits = info && info->dtype == tensor.dtype && info->bytes == tensor.bytes &&
                          (!tensor.shape || *tensor.shape == info->shape);
        if (fits || count++ != 0) continue;
        first = &entry;
        why = info ? "is " + std::string(name(tensor.dtype)) + " " +
                         (tensor.shape ? to_string(*tensor.shape) + " " : "") + "of " + std::to_string(tensor.bytes) +
                         " bytes; the checkpoint has " + std::string(name(info->dtype)) + " " + to_string(info->shape) +
                         " of " + std::to_string(info->bytes)
                   : "is not in the checkpoint";
    }
    if (count == 0) return;
    if (count > 1) why += " (and " + std::to_string(count - 1) + " more tensors differ)";
    throw Error(Code::tensor, why, "give the trunk of this checkpoint: pack it with k3-pack",
                {.path = json_, .tensor = checkpoint::printable(first->name), .offset = first->tensor.offset});
}

}  // namespace k3::stream
#endif
