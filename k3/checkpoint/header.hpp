#ifndef K3_CHECKPOINT_HEADER_HPP
#define K3_CHECKPOINT_HEADER_HPP
// One safetensors header:  u64 little-endian length L | L bytes of JSON | data.
//   {"__metadata__": {text: text}, NAME: {"dtype": "BF16", "shape": [..], "data_offsets": [begin, end]}, ...}
// Offsets count from the end of the header; what leaves this file is absolute.
//
// Nothing in a header is believed: every length, product and offset is checked with arithmetic that cannot wrap. The
// data must be covered exactly: overlaps, gaps and left-over bytes are refused, as the reference library does. Hence
// the size of the file follows from its header, and a truncated download is found when it is opened.
// Keys may come in any order and with escapes; unknown keys inside a tensor's object are ignored (as in the reference).
#include <simdjson.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "k3/checkpoint/tensor_info.hpp"
#include "k3/core/error.hpp"
#include "k3/io/file.hpp"
#include "k3/io/guess.hpp"

namespace k3::checkpoint {

static_assert(std::endian::native == std::endian::little, "checkpoints are little-endian and are read as they are");

/// Headers above this are refused before anything is allocated. The largest public one known has 126 MB; the
/// released model's have 0.8 MB.
inline constexpr std::uint64_t kMaxHeaderBytes = std::uint64_t{256} << 20;

struct HeaderTensor {
    std::string_view name;  // unescaped; lives in the HeaderReader until its next read()
    TensorInfo info;
};

/// Reads headers, one after the other, reusing its buffers. One per thread.
class HeaderReader {
  public:
    /// All tensors of `file`, in the order of their bytes. `shard` is stored in each info.
    /// Errors: Code::checkpoint naming the file, the tensor and the sizes; Code::read if the system fails.
    std::span<const HeaderTensor> read(const io::File& file, std::uint32_t shard);

    /// Bytes before the data of the last file read: 8 + L.
    std::uint64_t data_begin() const noexcept { return data_begin_; }

  private:
    struct Hashed {
        std::size_t hash;
        std::uint32_t tensor;
    };
    std::string_view read_text(const io::File& file);
    void add_tensor(const io::File& file, std::string_view name, simdjson::dom::element value, std::uint32_t shard);
    void check_coverage(const io::File& file);
    void check_names(const io::File& file);

    std::vector<std::byte> text_;
    simdjson::dom::parser parser_;
    std::vector<HeaderTensor> tensors_;
    std::vector<Hashed> hashes_;
    std::uint64_t data_begin_ = 0;
};

// ---------------------------------------------------------------------------------------------------------------------

namespace detail {

inline constexpr const char* kDownloadAgain = "download the file again";

[[noreturn]] inline void refuse_header(const io::File& file, std::string message, std::string_view tensor = {},
                                       std::string next = kDownloadAgain) {
    throw Error(Code::checkpoint, std::move(message), std::move(next),
                {.path = file.path(), .tensor = printable(tensor)});
}

[[noreturn]] inline void refuse_not_safetensors(const io::File& file, std::string_view head, std::string why) {
    if (const auto known = io::guess(head)) {
        refuse_header(file, "is not a safetensors file: it is " + std::string(known->what), {},
                      std::string(known->next));
    }
    refuse_header(file, "is not a safetensors file: " + why);
}

/// `array` of non-negative JSON integers, given to `take` one by one. The message names the key.
template <class Take>
void take_integers(const io::File& file, std::string_view tensor, const char* key, simdjson::dom::element value,
                   Take&& take) {
    simdjson::dom::array array;
    if (value.get(array) != simdjson::SUCCESS) refuse_header(file, std::string(key) + " is not a list", tensor);
    for (const simdjson::dom::element item : array) {
        std::uint64_t number = 0;
        if (item.type() == simdjson::dom::element_type::DOUBLE || item.get(number) != simdjson::SUCCESS) {
            refuse_header(file, std::string(key) + " holds something other than non-negative integers", tensor);
        }
        take(number);
    }
}

}  // namespace detail

inline std::string_view HeaderReader::read_text(const io::File& file) {
    std::array<char, 64> head_bytes{};
    const std::uint64_t size = file.size();
    if (size == 0) detail::refuse_header(file, "is empty (0 bytes)");
    file.read(0, std::as_writable_bytes(std::span(head_bytes.data(), std::min<std::uint64_t>(size, 64))));
    const std::string_view head(head_bytes.data(), std::min<std::uint64_t>(size, 64));
    if (size < 8) {
        detail::refuse_not_safetensors(file, head, "it has " + std::to_string(size) + " bytes, fewer than 8");
    }
    std::uint64_t length = 0;
    std::copy_n(head.data(), 8, reinterpret_cast<char*>(&length));
    const std::string says = "its header length says " + std::to_string(length);
    if (length > size - 8) {  // never computed as 8 + length: that wraps
        if (size > 8 && head[8] == '{' && length <= kMaxHeaderBytes) {
            detail::refuse_header(file, "is truncated inside its header: " + std::to_string(size) +
                                            " bytes, of which the header alone needs " + std::to_string(8 + length));
        }
        detail::refuse_not_safetensors(file, head, says + ", but the file has " + std::to_string(size) + " bytes");
    }
    if (length < 2) detail::refuse_not_safetensors(file, head, says + ", too short for a JSON object");
    if (head[8] != '{') detail::refuse_not_safetensors(file, head, "its header does not begin with '{'");
    if (length > kMaxHeaderBytes) {
        detail::refuse_header(file, says + " bytes; the limit is " + std::to_string(kMaxHeaderBytes), {},
                              "split the file into smaller shards");
    }
    if (text_.size() < length + simdjson::SIMDJSON_PADDING) text_.resize(length + simdjson::SIMDJSON_PADDING);
    file.read(8, std::span(text_.data(), length));
    data_begin_ = 8 + length;
    return {reinterpret_cast<const char*>(text_.data()), length};
}

inline void HeaderReader::add_tensor(const io::File& file, std::string_view name, simdjson::dom::element value,
                                     std::uint32_t shard) {
    simdjson::dom::object object;
    if (value.get(object) != simdjson::SUCCESS) detail::refuse_header(file, "its entry is not an object", name);
    TensorInfo info{Dtype::u8, {}, shard, 0, 0};
    bool has_dtype = false, has_shape = false, has_span = false;
    const auto once = [&](bool& seen, const char* key) {
        if (std::exchange(seen, true)) detail::refuse_header(file, std::string(key) + " is given twice", name);
    };
    std::array<std::uint64_t, 2> span{};
    for (const simdjson::dom::key_value_pair field : object) {
        if (field.key == "dtype") {
            once(has_dtype, "dtype");
            std::string_view text;
            if (field.value.get(text) != simdjson::SUCCESS) detail::refuse_header(file, "dtype is not a string", name);
            const auto dtype = dtype_named(text);
            if (!dtype) {
                detail::refuse_header(file, "dtype \"" + printable(text) + "\" is unknown", name,
                                      "check that the file is whole, or report the dtype");
            }
            info.dtype = *dtype;
        } else if (field.key == "shape") {
            once(has_shape, "shape");
            detail::take_integers(file, name, "shape", field.value, [&](std::uint64_t dim) {
                if (!info.shape.push(dim)) {
                    detail::refuse_header(
                        file, "shape has more than " + std::to_string(Shape::kMaxRank) + " dimensions", name);
                }
            });
        } else if (field.key == "data_offsets") {
            once(has_span, "data_offsets");
            std::size_t count = 0;
            detail::take_integers(file, name, "data_offsets", field.value, [&](std::uint64_t number) {
                if (count < 2) span[count] = number;
                ++count;
            });
            if (count != 2) detail::refuse_header(file, "data_offsets does not hold two numbers", name);
        }
    }
    if (!has_dtype || !has_shape || !has_span) {
        detail::refuse_header(file,
                              std::string(!has_dtype   ? "dtype"
                                          : !has_shape ? "shape"
                                                       : "data_offsets") +
                                  " is missing",
                              name);
    }
    const auto place = [&] {
        return "data_offsets [" + std::to_string(span[0]) + ", " + std::to_string(span[1]) + "]";
    };
    if (span[0] > span[1]) detail::refuse_header(file, place() + " run backwards", name);
    const auto bytes = byte_count(info.dtype, info.shape);
    const auto what = [&] { return std::string(checkpoint::name(info.dtype)) + " " + to_string(info.shape); };
    if (!bytes) detail::refuse_header(file, what() + " has no valid size in bytes", name);
    if (*bytes != span[1] - span[0]) {
        detail::refuse_header(file,
                              what() + " needs " + std::to_string(*bytes) + " bytes, " + place() + " hold " +
                                  std::to_string(span[1] - span[0]),
                              name);
    }
    info.offset = span[0];  // made absolute once the file is known to be long enough
    info.bytes = *bytes;
    tensors_.push_back({name, info});
}

inline void HeaderReader::check_coverage(const io::File& file) {
    const auto before = [](const HeaderTensor& a, const HeaderTensor& b) {
        return std::pair(a.info.offset, a.info.bytes) < std::pair(b.info.offset, b.info.bytes);
    };
    if (!std::is_sorted(tensors_.begin(), tensors_.end(), before)) {
        std::stable_sort(tensors_.begin(), tensors_.end(), before);
    }
    const std::uint64_t available = file.size() - data_begin_;
    std::uint64_t covered = 0;
    const HeaderTensor* last = nullptr;
    for (const HeaderTensor& tensor : tensors_) {
        if (tensor.info.offset != covered) {
            const bool gap = tensor.info.offset > covered;
            detail::refuse_header(file,
                                  (gap ? "a gap of " + std::to_string(tensor.info.offset - covered) + " bytes lies"
                                       : "overlaps by " + std::to_string(covered - tensor.info.offset) + " bytes") +
                                      (gap ? " before it" : " with " + printable(last->name)),
                                  tensor.name);
        }
        covered += tensor.info.bytes;  // cannot wrap: it is the end of a span that was read as 64 bits
        last = &tensor;
    }
    if (covered == available) return;
    const std::string sizes =
        "the file has " + std::to_string(file.size()) + " bytes, its header describes " +
        (covered > UINT64_MAX - data_begin_ ? std::string("more than 2^64") : std::to_string(data_begin_ + covered));
    detail::refuse_header(file, (covered > available ? "is truncated: " : "has bytes after its last tensor: ") + sizes);
}

inline void HeaderReader::check_names(const io::File& file) {
    // By hash first: the names share long prefixes, which makes comparing them the slowest part of a header otherwise.
    hashes_.clear();
    for (std::uint32_t i = 0; i < tensors_.size(); ++i) {
        hashes_.push_back({std::hash<std::string_view>{}(tensors_[i].name), i});
    }
    std::sort(hashes_.begin(), hashes_.end(), [](const Hashed& a, const Hashed& b) { return a.hash < b.hash; });
    for (std::size_t first = 0, last = 0; first < hashes_.size(); first = last) {
        for (last = first + 1; last < hashes_.size() && hashes_[last].hash == hashes_[first].hash;) ++last;
        if (last - first == 1) continue;
        std::vector<std::string_view> names;
        for (std::size_t i = first; i < last; ++i) names.push_back(tensors_[hashes_[i].tensor].name);
        std::sort(names.begin(), names.end());
        const auto twin = std::adjacent_find(names.begin(), names.end());
        if (twin != names.end()) detail::refuse_header(file, "is listed twice in this file", *twin);
    }
}

inline std::span<const HeaderTensor> HeaderReader::read(const io::File& file, std::uint32_t shard) {
    tensors_.clear();
    const std::string_view text = read_text(file);
    simdjson::dom::element root;
    const auto fault = parser_.parse(reinterpret_cast<const std::uint8_t*>(text.data()), text.size(), false).get(root);
    simdjson::dom::object object;
    if (fault != simdjson::SUCCESS) {
        detail::refuse_header(file,
                              "its header is not valid JSON (" + std::string(simdjson::error_message(fault)) + ")");
    }
    if (root.get(object) != simdjson::SUCCESS) detail::refuse_header(file, "its header is not a JSON object");
    bool has_metadata = false;
    for (const simdjson::dom::key_value_pair field : object) {
        if (field.key != "__metadata__") {
            add_tensor(file, field.key, field.value, shard);
            continue;
        }
        if (std::exchange(has_metadata, true)) detail::refuse_header(file, "__metadata__ is given twice");
        if (!field.value.is_object()) detail::refuse_header(file, "__metadata__ is not an object");
    }
    check_names(file);
    check_coverage(file);
    for (HeaderTensor& tensor : tensors_) tensor.info.offset += data_begin_;
    return tensors_;
}

}  // namespace k3::checkpoint
#endif
