#ifndef K3_DRIVERS_CONFORM_TENSORS_HPP
#define K3_DRIVERS_CONFORM_TENSORS_HPP
// Weights as float64 for the reference. Bytes come from the shards (k3/checkpoint says where they are); bf16, f32 and
// MXFP4 are decoded here, from docs/FORMATS.md, without k3/formats. A matrix is never whole in memory: blocks of rows,
// at most kBlockBytes of decoded values in all threads together, so a 163,840 x 7,168 head costs no more than a small
// one.
#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <exception>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "drivers/conform/rounding.hpp"
#include "drivers/conform/rows.hpp"
#include "k3/checkpoint/tensor_reader.hpp"

namespace k3::conform {

inline constexpr std::size_t kBlockBytes = std::size_t{64} << 20;

/// fn(i) for i in [0, n) on up to `threads` threads. The first exception is thrown again here.
template <class Fn>
void for_each_index(unsigned threads, Index n, Fn&& fn) {
    std::atomic<Index> next{0};
    std::atomic<bool> failed{false};
    std::exception_ptr error;
    std::mutex mutex;
    const auto work = [&]() noexcept {
        try {
            for (Index i = next++; i < n && !failed; i = next++) fn(i);
        } catch (...) {
            const std::lock_guard lock(mutex);
            if (!failed.exchange(true)) error = std::current_exception();
        }
    };
    std::vector<std::jthread> helpers;
    for (unsigned i = 1; i < threads && static_cast<Index>(i) < n; ++i) helpers.emplace_back(work);
    work();
    helpers.clear();  // joins
    if (error) std::rethrow_exception(error);
}

/// A matrix of a checkpoint, decoded by rows.
class Tensor {
  public:
    /// BF16 or F32; everything before the last `cols` values is rows. A stored tensor may be longer (A_log).
    Tensor(const checkpoint::ShardIndex& index, const std::string& name, std::size_t rows, std::size_t cols)
        : index_(&index), values_(found(index.find(name), name)), rows_(rows), cols_(cols) {}

    /// A matrix of a routed expert: MXFP4, or plain.
    static Tensor expert(const checkpoint::ShardIndex& index, std::size_t layer, std::size_t expert,
                         checkpoint::ExpertMatrix matrix, std::size_t rows, std::size_t cols) {
        using checkpoint::ExpertPart;
        const auto part = [&](ExpertPart which) {
            return index.expert(static_cast<std::uint32_t>(layer), static_cast<std::uint32_t>(expert), matrix, which);
        };
        Tensor t(index, rows, cols);
        t.scales_ = part(ExpertPart::scale);
        const std::string name = "of expert " + std::to_string(expert) + ", layer " + std::to_string(layer);
        t.values_ = found(part(t.scales_ ? ExpertPart::packed : ExpertPart::plain), name);
        return t;
    }

    Index rows() const { return static_cast<Index>(rows_); }
    Index cols() const { return static_cast<Index>(cols_); }

    /// Rows [first, first + count). Safe from several threads.
    Mat block(Index first, Index count) const {
        Mat out(count, cols());
        const auto at = static_cast<std::uint64_t>(first), n = static_cast<std::uint64_t>(count);
        const auto read = [&](const checkpoint::TensorInfo& info, std::uint64_t row_bytes) {
            std::vector<std::byte> raw(n * row_bytes);
            checkpoint::read_tensor(*index_, info, at * row_bytes, raw);
            return raw;
        };
        if (scales_) {
            const std::uint64_t stride = (cols_ + 1) / 2, groups = (cols_ + 31) / 32;
            const auto codes = read(values_, stride), scales = read(*scales_, groups);
            for (std::uint64_t r = 0; r < n; ++r)
                mxfp4_row(codes.data() + r * stride, scales.data() + r * groups, out.data() + r * cols_);
        } else if (values_.dtype == checkpoint::Dtype::f32) {
            const auto raw = read(values_, 4 * cols_);
            for (std::uint64_t i = 0; i < n * cols_; ++i) out.data()[i] = static_cast<double>(load<float>(raw, i));
        } else {  // bf16 is the upper half of a binary32
            const auto raw = read(values_, 2 * cols_);
            for (std::uint64_t i = 0; i < n * cols_; ++i)
                out.data()[i] = static_cast<double>(
                    std::bit_cast<float>(static_cast<std::uint32_t>(load<std::uint16_t>(raw, i)) << 16));
        }
        return out;
    }
    Mat all() const { return block(0, rows()); }
    Vec vector() const { return block(0, rows()).reshaped<Eigen::RowMajor>(); }

    /// y = W x for both sequences of an exact input, with the budget of the engine's dot: binary64 sums in eight lanes,
    /// one rounding. Each exact product meets fewer than n binary64 roundings there and as many here, and by
    /// Cauchy-Schwarz sum_c |w_c x_c| <= |w|_2 |x|_2:   b = rounded(|y|, 2 n u64 |w_r|_2 |x_t|_2).
    Value times(const Mat& both, unsigned threads) const {
        const Index tokens = both.rows() / 2;
        Value y{Mat(both.rows(), rows()), Mat(tokens, rows())};
        const Vec norms = both.topRows(tokens).rowwise().norm();
        const double n64 = 2 * static_cast<double>(cols()) * rounding::kU64;
        const auto room = static_cast<Index>(kBlockBytes / sizeof(double) / std::max(1U, threads));
        const Index step =
            std::clamp<Index>(std::min<Index>(room, Index{1} << 20) / std::max<Index>(1, cols()), 1, 1024);
        for_each_index(threads, (rows() + step - 1) / step, [&](Index i) {
            const Index first = i * step, count = std::min(step, rows() - first);
            const Mat w = block(first, count);
            y.value.middleCols(first, count).noalias() = both * w.transpose();
            for (Index r = 0; r < count; ++r) {
                const double size = w.row(r).norm();
                for (Index t = 0; t < tokens; ++t)
                    y.budget(t, first + r) = rounding::rounded(y.value(t, first + r), n64 * size * norms(t));
            }
        });
        return y;
    }

  private:
    Tensor(const checkpoint::ShardIndex& index, std::size_t rows, std::size_t cols)
        : index_(&index), values_{}, rows_(rows), cols_(cols) {}

    static checkpoint::TensorInfo found(std::optional<checkpoint::TensorInfo> info, const std::string& name) {
        if (!info) throw Error(Code::tensor, "there is no tensor " + name, "check the checkpoint with k3-inspect");
        return *info;
    }
    template <class T>
    static T load(const std::vector<std::byte>& raw, std::uint64_t i) {
        T value;
        std::memcpy(&value, raw.data() + i * sizeof(T), sizeof(T));
        return value;
    }
    /// Low nibble = even column; a scale covers 32 columns of its row: 2^(byte - 127), 255 makes them +0.
    void mxfp4_row(const std::byte* codes, const std::byte* scales, double* out) const {
        static constexpr double kMagnitudes[8] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
        for (std::size_t first = 0; first < cols_; first += 32) {
            const int exponent = std::to_integer<int>(scales[first / 32]);
            double table[16] = {};
            for (std::size_t i = 0; i < 16 && exponent != 255; ++i)
                table[i] = std::ldexp(i < 8 ? kMagnitudes[i] : -kMagnitudes[i - 8], exponent - 127);
            for (std::size_t c = first; c < std::min(cols_, first + 32); ++c) {
                const auto pair = std::to_integer<unsigned>(codes[c / 2]);
                out[c] = table[c % 2 == 0 ? pair & 15U : pair >> 4];
            }
        }
    }

    const checkpoint::ShardIndex* index_;
    checkpoint::TensorInfo values_;
    std::optional<checkpoint::TensorInfo> scales_{};
    std::size_t rows_, cols_;
};

}  // namespace k3::conform
#endif
