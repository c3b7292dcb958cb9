#ifndef K3_STREAM_EMBEDDING_ROWS_HPP
#define K3_STREAM_EMBEDDING_ROWS_HPP
// The embedding table never is in memory: one row is read per new token. By itself the weight source of a resident
// model.
#include <cstddef>
#include <cstdint>
#include <optional>

#include "k3/checkpoint/shard_index.hpp"
#include "k3/core/error.hpp"
#include "k3/io/file.hpp"
#include "k3/layers/weight.hpp"

namespace k3::stream {

class EmbeddingRows final : public layers::WeightSource {
  public:
    EmbeddingRows(const checkpoint::ShardIndex& index, const checkpoint::TensorInfo& table)
        : file_(&index.shard(table).file), table_(table) {}

    bool acquire(const layers::Weight&, std::size_t, bool, layers::Panel&) noexcept override { return false; }
    void release(const layers::Weight&, const layers::Panel&) noexcept override {}

    bool read_rows(const layers::Weight& weight, const std::int32_t* rows, std::size_t count,
                   std::byte* out) noexcept override {
        const std::size_t row_bytes = weight.cols * (weight.format == layers::Format::f32 ? 4 : 2);
        try {
            for (std::size_t i = 0; i < count; ++i)
                file_->read(table_.offset + static_cast<std::uint64_t>(rows[i]) * row_bytes,
                            {out + i * row_bytes, row_bytes});
        } catch (const Error& error) {
            failure_ = error;
            return false;
        }
        bytes_read_ += count * row_bytes;
        return true;
    }

    std::uint64_t bytes_read() const noexcept { return bytes_read_; }
    /// What went wrong in the last read_rows that returned false.
    const std::optional<Error>& failure() const noexcept { return failure_; }

  private:
    const io::File* file_;
    checkpoint::TensorInfo table_;
    std::uint64_t bytes_read_ = 0;
    std::optional<Error> failure_;
};

}  // namespace k3::stream
#endif
