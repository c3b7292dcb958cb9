#ifndef K3_TESTS_ORACLE_WEIGHTS_F64_HPP
#define K3_TESTS_ORACLE_WEIGHTS_F64_HPP
// Checkpoints as float64, for the oracle. Shares no line with k3/checkpoint or k3/formats: the safetensors header is
// read with nlohmann-json, bf16, f32 and MXFP4 are decoded from the specification's text (sections 2.3 and 4).
//
// A `Weight` is a matrix [rows][cols] that hands out row blocks in double. Nothing ever holds more than kBlockBytes of
// decoded rows, so a full-width model (163,840 x 7,168) costs no more memory than a small one.
// Not thread-safe: a shard's stream has one read position. Every error is a std::runtime_error that names the tensor.
#include <Eigen/Dense>
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace k3::oracle {

using Index = Eigen::Index;
using Mat = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;  ///< [tokens or rows][columns]
using Vec = Eigen::VectorXd;

inline constexpr std::size_t kBlockBytes = std::size_t{64} << 20;  ///< decoded rows held at once, at most
inline constexpr Index kGroup = 32;                                ///< MXFP4 weights that share a scale

/// BF16 is the upper half of a binary32.
inline double bf16_to_f64(std::uint16_t bits) {
    return static_cast<double>(std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16));
}

/// E2M1: bit 3 sign, bits 2..1 exponent (bias 1), bit 0 mantissa; exponent 0 is subnormal. 0 .5 1 1.5 2 3 4 6 and
/// negated.
inline double e2m1_to_f64(unsigned nibble) {
    const int exponent = static_cast<int>((nibble >> 1) & 3u);
    const double mantissa = (nibble & 1u) != 0 ? 0.5 : 0.0;
    const double magnitude = exponent == 0 ? mantissa : std::ldexp(1.0 + mantissa, exponent - 1);
    return (nibble & 8u) != 0 ? -magnitude : magnitude;
}

/// E8M0: 2^(byte - 127); 255 is NaN by OCP and makes its group +0 here. Byte 0 is 2^-127.
inline double e8m0_to_f64(unsigned byte) { return byte == 255 ? 0.0 : std::ldexp(1.0, static_cast<int>(byte) - 127); }

/// One MXFP4 row: the low nibble is the even column; scale g covers columns 32 g .. 32 g + 31 of this row.
inline void mxfp4_row_to_f64(const std::uint8_t* packed, const std::uint8_t* scales, Index cols, double* out) {
    for (Index first = 0; first < cols; first += kGroup) {
        const unsigned byte = scales[first / kGroup];
        std::array<double, 16> code{};  // all 16 weights this group can hold; +0 throughout for byte 255
        for (unsigned i = 0; i < 16 && byte != 255; ++i) code[i] = e2m1_to_f64(i) * e8m0_to_f64(byte);
        for (Index c = first; c < std::min(cols, first + kGroup); ++c)
            out[c] = code[c % 2 == 0 ? packed[c / 2] & 15u : packed[c / 2] >> 4];
    }
}

/// A matrix [rows][cols] decoded by row blocks.
class Weight {
  public:
    /// Decodes rows [first, first + count) into out (count x cols, row-major).
    using Loader = std::function<void(Index first, Index count, double* out)>;

    Weight() = default;
    Weight(Index rows, Index cols, Loader load) : rows_(rows), cols_(cols), load_(std::move(load)) {}

    /// From a matrix in memory (any row-major double matrix; copied).
    static Weight dense(Mat m) {
        auto kept = std::make_shared<const Mat>(std::move(m));
        return {kept->rows(), kept->cols(), [kept](Index first, Index count, double* out) {
                    Eigen::Map<Mat>(out, count, kept->cols()) = kept->middleRows(first, count);
                }};
    }
    /// From BF16 bits in memory (not copied).
    static Weight bf16(std::span<const std::uint16_t> bits, Index rows, Index cols) {
        return {rows, cols, [bits, cols](Index first, Index count, double* out) {
                    for (Index i = 0; i < count * cols; ++i) out[i] = bf16_to_f64(bits[first * cols + i]);
                }};
    }
    /// From float32 in memory (not copied).
    static Weight f32(std::span<const float> values, Index rows, Index cols) {
        return {rows, cols, [values, cols](Index first, Index count, double* out) {
                    for (Index i = 0; i < count * cols; ++i) out[i] = static_cast<double>(values[first * cols + i]);
                }};
    }
    /// From MXFP4 bytes in memory (not copied): packed [rows][ceil(cols/2)], scales [rows][ceil(cols/32)].
    static Weight mxfp4(std::span<const std::uint8_t> packed, std::span<const std::uint8_t> scales, Index rows,
                        Index cols) {
        return {rows, cols, [packed, scales, cols](Index first, Index count, double* out) {
                    const Index stride = (cols + 1) / 2, groups = (cols + kGroup - 1) / kGroup;
                    for (Index r = 0; r < count; ++r)
                        mxfp4_row_to_f64(packed.data() + (first + r) * stride, scales.data() + (first + r) * groups,
                                         cols, out + r * cols);
                }};
    }

    Index rows() const { return rows_; }
    Index cols() const { return cols_; }

    Mat block(Index first, Index count) const {
        Mat out(count, cols_);
        load_(first, count, out.data());
        return out;
    }
    Mat all() const { return block(0, rows_); }
    Vec row(Index r) const { return block(r, 1).row(0).transpose(); }

    /// Calls fn(first_row, block) over all rows, blocks of at most kBlockBytes (and at least one row).
    template <class Fn>
    void for_blocks(Fn&& fn) const {
        const Index step =
            std::max<Index>(1, static_cast<Index>(kBlockBytes / sizeof(double)) / std::max<Index>(1, cols_));
        for (Index first = 0; first < rows_; first += step) fn(first, block(first, std::min(step, rows_ - first)));
    }

    /// Matrix times tokens: y[t][r] = sum_c x[t][c] w[r][c].
    Mat times(const Mat& x) const {
        check(x);
        Mat y(x.rows(), rows_);
        for_blocks([&](Index first, const Mat& w) { y.middleCols(first, w.rows()).noalias() = x * w.transpose(); });
        return y;
    }
    /// {times(x), |w| times bound}: a product and what its budget needs, each block decoded once.
    std::pair<Mat, Mat> times_with_abs(const Mat& x, const Mat& bound) const {
        check(x);
        check(bound);
        std::pair<Mat, Mat> y{Mat(x.rows(), rows_), Mat(x.rows(), rows_)};
        for_blocks([&](Index first, const Mat& w) {
            y.first.middleCols(first, w.rows()).noalias() = x * w.transpose();
            y.second.middleCols(first, w.rows()).noalias() = bound * w.cwiseAbs().eval().transpose();
        });
        return y;
    }

  private:
    void check(const Mat& x) const {
        if (x.cols() != cols_) throw std::runtime_error("oracle: matrix and tokens have different widths");
    }

    Index rows_ = 0, cols_ = 0;
    Loader load_;
};

/// Where one tensor's bytes are.
struct TensorEntry {
    std::string dtype;         ///< "BF16", "F32" or "U8"
    std::vector<Index> shape;  ///< as in the header
    std::size_t shard = 0;     ///< index into Checkpoint::shards
    std::uint64_t begin = 0;   ///< byte offset in the file (8 + header length already added)
    std::uint64_t bytes = 0;
};

/// All tensors of a directory's *.safetensors files (the index file is not needed).
class Checkpoint {
  public:
    explicit Checkpoint(const std::filesystem::path& dir) {
        std::vector<std::filesystem::path> files;
        for (const auto& entry : std::filesystem::directory_iterator(dir))
            if (entry.path().extension() == ".safetensors") files.push_back(entry.path());
        std::sort(files.begin(), files.end());
        if (files.empty()) throw std::runtime_error("oracle: no .safetensors in " + dir.string());
        for (const auto& file : files) add_shard(file);
    }

    bool has(const std::string& name) const { return tensors_.count(name) != 0; }
    const std::map<std::string, TensorEntry>& tensors() const { return tensors_; }

    const TensorEntry& entry(const std::string& name) const {
        const auto found = tensors_.find(name);
        if (found == tensors_.end()) throw std::runtime_error("oracle: no tensor " + name);
        return found->second;
    }

    /// Any BF16 or F32 tensor as a matrix: last dimension = columns, everything before = rows.
    Weight matrix(const std::string& name, Index rows, Index cols) const {
        const TensorEntry& e = entry(name);
        const bool wide = e.dtype == "F32";
        if (!wide && e.dtype != "BF16") throw std::runtime_error("oracle: " + name + " has dtype " + e.dtype);
        const Index width = wide ? 4 : 2;
        if (static_cast<Index>(e.bytes) != rows * cols * width)
            throw std::runtime_error("oracle: " + name + " has " + std::to_string(e.bytes) + " bytes, expected [" +
                                     std::to_string(rows) + "][" + std::to_string(cols) + "]");
        return {rows, cols, [this, e, wide, cols, width](Index first, Index count, double* out) {
                    const auto raw = read(e, first * cols * width, count * cols * width);
                    for (Index i = 0; i < count * cols; ++i)
                        out[i] = wide ? static_cast<double>(element<float>(raw, i))
                                      : bf16_to_f64(element<std::uint16_t>(raw, i));
                }};
    }
    /// n values; a stored tensor may be longer (A_log): the entries past n are not read.
    Vec vector(const std::string& name, Index n) const {
        const TensorEntry& e = entry(name);
        const Index stored = static_cast<Index>(e.bytes) / (e.dtype == "F32" ? 4 : 2);
        if (stored < n) throw std::runtime_error("oracle: " + name + " is shorter than " + std::to_string(n));
        return matrix(name, stored, 1).block(0, n).col(0);
    }
    /// `stem`.weight_packed and `stem`.weight_scale; the column count comes from the config (an odd one is legal).
    Weight mxfp4(const std::string& stem, Index rows, Index cols) const {
        const TensorEntry& p = entry(stem + ".weight_packed");
        const TensorEntry& s = entry(stem + ".weight_scale");
        const Index stride = (cols + 1) / 2, groups = (cols + kGroup - 1) / kGroup;
        if (p.dtype != "U8" || s.dtype != "U8" || static_cast<Index>(p.bytes) != rows * stride ||
            static_cast<Index>(s.bytes) != rows * groups)
            throw std::runtime_error("oracle: " + stem + " is not MXFP4 [" + std::to_string(rows) + "][" +
                                     std::to_string(cols) + "]");
        return {rows, cols, [this, p, s, cols, stride, groups](Index first, Index count, double* out) {
                    const auto packed = read(p, first * stride, count * stride);
                    const auto scales = read(s, first * groups, count * groups);
                    for (Index r = 0; r < count; ++r)
                        mxfp4_row_to_f64(packed.data() + r * stride, scales.data() + r * groups, cols, out + r * cols);
                }};
    }

  private:
    template <class T>
    static T element(const std::vector<std::uint8_t>& raw, Index i) {
        T value;
        std::memcpy(&value, raw.data() + static_cast<std::size_t>(i) * sizeof(T), sizeof(T));
        return value;
    }
    void add_shard(const std::filesystem::path& file) {
        auto in = std::make_shared<std::ifstream>(file, std::ios::binary);
        std::array<unsigned char, 8> head{};
        in->read(reinterpret_cast<char*>(head.data()), 8);
        std::uint64_t length = 0;
        for (std::size_t i = 8; i-- > 0;) length = length << 8 | head[i];
        if (!*in || length > std::filesystem::file_size(file))
            throw std::runtime_error("oracle: " + file.string() + " is not a safetensors file");
        std::string text(length, '\0');
        in->read(text.data(), static_cast<std::streamsize>(length));
        const auto header = nlohmann::json::parse(text);
        for (const auto& [name, value] : header.items()) {
            if (name == "__metadata__") continue;
            TensorEntry e;
            e.dtype = value.at("dtype").get<std::string>();
            e.shape = value.at("shape").get<std::vector<Index>>();
            const auto begin = value.at("data_offsets").at(0).get<std::uint64_t>();
            e.bytes = value.at("data_offsets").at(1).get<std::uint64_t>() - begin;
            e.begin = 8 + length + begin;
            e.shard = shards_.size();
            if (!tensors_.emplace(name, std::move(e)).second)
                throw std::runtime_error("oracle: tensor stored twice: " + name);
        }
        shards_.push_back(std::move(in));
    }
    std::vector<std::uint8_t> read(const TensorEntry& e, Index offset, Index bytes) const {
        std::vector<std::uint8_t> out(static_cast<std::size_t>(bytes));
        std::ifstream& in = *shards_[e.shard];
        in.clear();
        in.seekg(static_cast<std::streamoff>(e.begin) + offset);
        in.read(reinterpret_cast<char*>(out.data()), bytes);
        if (!in) throw std::runtime_error("oracle: short read");
        return out;
    }

    std::vector<std::shared_ptr<std::ifstream>> shards_;
    std::map<std::string, TensorEntry> tensors_;
};

}  // namespace k3::oracle
#endif
