#ifndef K3_DRIVERS_INSPECT_DUMP_HPP
#define K3_DRIVERS_INSPECT_DUMP_HPP
// One tensor as numbers: text, or a .npy file. bf16 becomes float32 exactly; a routed expert's matrix, named without
// its last part (".../experts.3.w1"), is dequantised to float32. Works in blocks of rows: a tensor may exceed memory.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "k3/checkpoint/expert_name.hpp"
#include "k3/checkpoint/shard_index.hpp"
#include "k3/checkpoint/tensor_reader.hpp"
#include "k3/core/error.hpp"
#include "k3/formats/mxfp4.hpp"
#include "k3/io/atomic_file.hpp"
#include "k3/model/config_reader.hpp"

namespace k3::inspect {

using checkpoint::Dtype;
using checkpoint::Shape;
using checkpoint::ShardIndex;
using checkpoint::TensorInfo;

/// A half-open range of the first dimension; empty optional = all.
struct Rows {
    std::uint64_t begin, end;
};

namespace detail {

/// The names that share most of their beginning and end with `wanted`.
inline std::string closest(const ShardIndex& index, std::string_view wanted) {
    std::vector<std::pair<std::size_t, std::string>> best;
    index.for_each([&](std::string_view name, const TensorInfo&) {
        const std::size_t shorter = std::min(name.size(), wanted.size());
        std::size_t front = 0, back = 0;
        while (front < shorter && name[front] == wanted[front]) ++front;
        while (back < shorter - front && name[name.size() - 1 - back] == wanted[wanted.size() - 1 - back]) ++back;
        const std::size_t distance = std::max(name.size(), wanted.size()) - front - back;
        if (best.size() == 3 && distance >= best.back().first) return;
        best.insert(std::upper_bound(best.begin(), best.end(), distance,
                                     [](std::size_t d, const auto& entry) { return d < entry.first; }),
                    {distance, checkpoint::printable(name)});
        if (best.size() > 3) best.pop_back();
    });
    std::string text;
    for (const auto& entry : best) text += (text.empty() ? "" : ", ") + entry.second;
    return text;
}

/// The numpy type a dtype is dumped as; empty if there is none.
inline std::string npy_type(Dtype dtype) {
    switch (dtype) {
        case Dtype::boolean: return "|b1";
        case Dtype::u8:
        case Dtype::f8_e8m0: return "|u1";
        case Dtype::i8: return "|i1";
        case Dtype::i32: return "<i4";
        case Dtype::i64: return "<i8";
        case Dtype::f32:
        case Dtype::bf16: return "<f4";
        case Dtype::f64: return "<f8";
        default: return {};
    }
}

inline std::string npy_header(const std::string& type, std::span<const std::uint64_t> dims) {
    std::string shape;
    for (const std::uint64_t dim : dims) shape += std::to_string(dim) + ",";
    if (dims.size() > 1) shape.pop_back();
    std::string text = "{'descr': '" + type + "', 'fortran_order': False, 'shape': (" + shape + "), }";
    text.append(63 - (10 + text.size()) % 64, ' ');
    text += '\n';
    const auto length = static_cast<std::uint16_t>(text.size());  // rank <= 8: far below 65536
    std::string head("\x93NUMPY\x01\x00", 8);
    head += static_cast<char>(length & 255U);
    head += static_cast<char>(length >> 8);
    return head + text;
}

inline std::string number(const std::string& type, const std::byte* at) {
    char text[40];
    const auto load = [at]<class T>(T value) {
        std::memcpy(&value, at, sizeof value);
        return value;
    };
    if (type == "<f4") std::snprintf(text, sizeof text, "%.9g", static_cast<double>(load(float{})));
    if (type == "<f8") std::snprintf(text, sizeof text, "%.17g", load(double{}));
    if (type == "|u1" || type == "|b1") std::snprintf(text, sizeof text, "%u", unsigned{load(std::uint8_t{})});
    if (type == "|i1") std::snprintf(text, sizeof text, "%d", int{load(std::int8_t{})});
    if (type == "<i4") std::snprintf(text, sizeof text, "%lld", static_cast<long long>(load(std::int32_t{})));
    if (type == "<i8") std::snprintf(text, sizeof text, "%lld", static_cast<long long>(load(std::int64_t{})));
    return text;
}

}  // namespace detail

/// Where dumped bytes go: a .npy file that appears when it is whole, or text on stdout, one row of the last dimension
/// a line.
class Sink {
  public:
    Sink(const std::string& path, std::string type, std::vector<std::uint64_t> dims)
        : type_(std::move(type)), dims_(std::move(dims)) {
        if (path.empty()) return;
        file_.emplace(io::PendingFile::create(path));
        const std::string head = detail::npy_header(type_, dims_);
        put(std::as_bytes(std::span(head.data(), head.size())));
    }
    void add(std::span<const std::byte> values) {
        if (file_) return put(values);
        const std::size_t wide = static_cast<std::size_t>(type_.back() - '0');
        const std::uint64_t line = dims_.empty() ? 1 : dims_.back();
        for (std::size_t at = 0; at < values.size(); at += wide) {
            column_ = column_ + 1 == line ? 0 : column_ + 1;
            std::printf("%s%c", detail::number(type_, values.data() + at).c_str(), column_ == 0 ? '\n' : ' ');
        }
    }
    void finish() {
        if (file_) return file_->commit();
        if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) {
            throw Error(Code::write, "standard output could not be written", "check where it goes, or use --out");
        }
    }

  private:
    void put(std::span<const std::byte> bytes) {
        file_->write(at_, bytes);
        at_ += bytes.size();
    }
    std::string type_;
    std::vector<std::uint64_t> dims_;
    std::optional<io::PendingFile> file_{};
    std::uint64_t at_ = 0, column_ = 0;
};

namespace detail {

inline Rows clip(const std::optional<Rows>& rows, std::uint64_t count, const std::string& name) {
    if (!rows) return {0, count};
    if (rows->begin >= rows->end || rows->end > count) {
        throw Error(Code::usage,
                    "--rows " + std::to_string(rows->begin) + ":" + std::to_string(rows->end) +
                        " is not inside 0:" + std::to_string(count),
                    "give first:end, end not included", {.tensor = checkpoint::printable(name)});
    }
    return *rows;
}

inline constexpr std::uint64_t kBlockBytes = std::uint64_t{4} << 20;

inline void dump_plain(const ShardIndex& index, const TensorInfo& info, const std::string& name,
                       const std::optional<Rows>& wanted, const std::string& path) {
    const std::string type = npy_type(info.dtype);
    if (type.empty()) {
        throw Error(Code::usage, "has dtype " + std::string(checkpoint::name(info.dtype)) + ", which cannot be dumped",
                    "F32, BF16, F64, BOOL, U8, I8, I32 and I64 can", {.tensor = checkpoint::printable(name)});
    }
    std::vector<std::uint64_t> dims(info.shape.dims().begin(), info.shape.dims().end());
    const Rows rows = clip(wanted, dims.empty() ? 1 : dims[0], name);
    const std::uint64_t row_bytes = dims.empty() ? info.bytes : dims[0] == 0 ? 0 : info.bytes / dims[0];
    if (!dims.empty()) dims[0] = rows.end - rows.begin;
    Sink sink(path, type, std::move(dims));
    std::fprintf(stderr, "%s: %s %s, rows %llu:%llu\n", checkpoint::printable(name).c_str(),
                 std::string(checkpoint::name(info.dtype)).c_str(), to_string(info.shape).c_str(),
                 static_cast<unsigned long long>(rows.begin), static_cast<unsigned long long>(rows.end));
    std::vector<std::byte> block, wide;
    for (std::uint64_t at = rows.begin * row_bytes, end = rows.end * row_bytes; at < end; at += block.size()) {
        block.resize(static_cast<std::size_t>(std::min(kBlockBytes, end - at)));
        read_tensor(index, info, at, block);
        if (info.dtype == Dtype::bf16) {
            wide.resize(2 * block.size());
            for (std::size_t i = 0; i < block.size(); i += 2) {  // little-endian: the value is the upper half
                const std::byte four[4] = {std::byte{0}, std::byte{0}, block[i], block[i + 1]};
                std::memcpy(wide.data() + 2 * i, four, 4);
            }
            sink.add(wide);
        } else {
            sink.add(block);
        }
    }
    sink.finish();
}

inline void dump_expert(const ShardIndex& index, const TensorInfo& packed, const TensorInfo& scale,
                        const model::Config& config, bool down, const std::string& name,
                        const std::optional<Rows>& wanted, const std::string& path) {
    using formats::mxfp4;
    const std::size_t count = down ? config.latent : config.expert_width;
    const std::size_t cols = down ? config.expert_width : config.latent;
    const std::size_t code_bytes = mxfp4::row_bytes(cols), scale_bytes = mxfp4::scale_bytes(cols);
    if (packed.shape != Shape{count, code_bytes} || scale.shape != Shape{count, scale_bytes} ||
        packed.dtype != Dtype::u8 || scale.dtype != Dtype::u8) {
        throw Error(Code::tensor,
                    "packed " + to_string(packed.shape) + " and scale " + to_string(scale.shape) +
                        " do not make a matrix of " + std::to_string(count) + " rows and " + std::to_string(cols) +
                        " columns",
                    "check config.json against the shards", {.tensor = name});
    }
    const Rows rows = clip(wanted, count, name);
    Sink sink(path, "<f4", {rows.end - rows.begin, cols});
    std::fprintf(stderr, "%s: MXFP4 [%zu, %zu] as float32, rows %llu:%llu\n", name.c_str(), count, cols,
                 static_cast<unsigned long long>(rows.begin), static_cast<unsigned long long>(rows.end));
    std::vector<std::byte> codes(code_bytes), scales(scale_bytes), bytes(4 * cols);
    std::uint64_t overflowed = 0;
    for (std::uint64_t r = rows.begin; r < rows.end; ++r) {
        read_tensor(index, packed, r * code_bytes, codes);
        read_tensor(index, scale, r * scale_bytes, scales);
        for (std::size_t col = 0; col < cols; col += mxfp4::kBlock) {
            double values[mxfp4::kBlock];
            const std::size_t n = std::min(mxfp4::kBlock, cols - col);
            mxfp4::decode_tail({codes.data(), scales.data()}, col, n, values);
            for (std::size_t i = 0; i < n; ++i) {
                const auto value = static_cast<float>(values[i]);
                overflowed += std::isinf(value) ? 1 : 0;
                std::memcpy(bytes.data() + 4 * (col + i), &value, 4);
            }
        }
        sink.add(bytes);
    }
    sink.finish();
    if (overflowed != 0) {
        std::fprintf(stderr, "k3-inspect: note: %llu values exceed float32 and were written as infinity\n",
                     static_cast<unsigned long long>(overflowed));
    }
}

}  // namespace detail

/// Errors: Code::tensor for an unknown name, with the closest ones; Code::usage for rows outside; Code::write.
inline void dump(const ShardIndex& index, const std::string& model_dir, const std::string& name,
                 const std::optional<Rows>& rows, const std::string& path) {
    if (const auto info = index.find(name)) return detail::dump_plain(index, *info, name, rows, path);
    // "....experts.3.w1" is short for its packed codes and scales taken together.
    if (const auto expert = checkpoint::parse_expert_name(name + ".weight_packed")) {
        using checkpoint::ExpertPart;
        const auto packed = index.expert(expert->layer, expert->expert, expert->matrix, ExpertPart::packed);
        const auto scale = index.expert(expert->layer, expert->expert, expert->matrix, ExpertPart::scale);
        if (packed && scale) {
            const model::ModelConfig config = model::read_config(model_dir + "/config.json");
            return detail::dump_expert(index, *packed, *scale, config.shape,
                                       expert->matrix == checkpoint::ExpertMatrix::down, name, rows, path);
        }
    }
    throw Error(Code::tensor, "there is no such tensor", "closest: " + detail::closest(index, name),
                {.path = model_dir, .tensor = checkpoint::printable(name)});
}

}  // namespace k3::inspect
#endif
