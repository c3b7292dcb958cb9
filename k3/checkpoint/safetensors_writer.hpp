#ifndef K3_CHECKPOINT_SAFETENSORS_WRITER_HPP
#define K3_CHECKPOINT_SAFETENSORS_WRITER_HPP
// Writes one safetensors shard of any size without holding it: u64 little-endian header length, JSON header padded with
// spaces to 8 bytes, then the tensors in the order given, without gaps.
//
// The file is cut into pieces of 8 MiB at aligned offsets. The writer asks the caller for the bytes of one piece at a
// time, in any order and from any number of threads, so whoever makes the bytes decides how parallel that is. Pieces go
// past the page cache where the file system allows it: about twice as fast as a plain write followed by fsync on the
// machines tried, and the page cache stays free for whoever reads next.
//
// A shard may also be made with holes: then nothing is reserved, the caller writes the extents it wants, and the rest
// reads as zeros.
//
// What is *not* here: the values, and the choice of what is in which shard or extent.
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "k3/checkpoint/tensor_info.hpp"
#include "k3/core/error.hpp"
#include "k3/io/atomic_file.hpp"

namespace k3::checkpoint {

/// One tensor to write.
struct WriterTensor {
    std::string name;
    Dtype dtype;
    Shape shape;

    /// Precondition: the product fits 64 bits, as it does for anything that can be stored.
    std::uint64_t bytes() const noexcept { return byte_count(dtype, shape).value_or(0); }
};

/// The length field and the header, byte for byte as the release's writer makes them (checked against the published
/// shard sizes by tests/drivers/test_synth.py).
inline std::string safetensors_header(std::span<const WriterTensor> tensors) {
    std::string json = "{";
    std::uint64_t offset = 0;
    for (const WriterTensor& tensor : tensors) {
        if (json.size() > 1) json += ',';
        json += nlohmann::json(tensor.name).dump() + ":{\"dtype\":\"";
        json += name(tensor.dtype);
        json += "\",\"shape\":[";
        for (std::size_t i = 0; i < tensor.shape.rank(); ++i) {
            if (i > 0) json += ',';
            json += std::to_string(tensor.shape[i]);
        }
        json += "],\"data_offsets\":[" + std::to_string(offset) + ',' + std::to_string(offset + tensor.bytes()) + "]}";
        offset += tensor.bytes();
    }
    json += '}';
    json.append((8 - json.size() % 8) % 8, ' ');
    static_assert(std::endian::native == std::endian::little, "the format is little-endian and so is this writer");
    const std::uint64_t length = json.size();
    std::string head(8, '\0');
    std::memcpy(head.data(), &length, 8);
    return head + json;
}

/// One shard being written. Movable, not copyable; write_piece is thread-safe.
class SafetensorsWriter {
  public:
    enum class Layout : std::uint8_t {
        full,   ///< every piece is written
        sparse  ///< extents are written through the page cache; the file system leaves the rest out
    };
    static constexpr std::size_t kPiece = std::size_t{8} << 20;
    static constexpr std::size_t kAlign = 4096;

    /// Lays the shard out and, if it is to be full, reserves its blocks. `tensors` must outlive the writer. Errors:
    /// Code::write.
    static SafetensorsWriter create(const std::string& path, std::span<const WriterTensor> tensors,
                                    Layout layout = Layout::full) {
        return {path, tensors, layout};
    }

    std::uint64_t size() const noexcept { return size_; }
    std::size_t pieces() const noexcept { return static_cast<std::size_t>((size_ + kPiece - 1) / kPiece); }
    std::uint64_t piece_bytes(std::size_t piece) const noexcept {
        return std::min<std::uint64_t>(kPiece, size_ - piece * kPiece);
    }

    /// Makes and writes piece number `piece`, once each. fill(tensor, first, out) must fill `out` with the bytes of
    /// tensor number `tensor` from byte `first` on. `buffer` has kPiece bytes at a kAlign address (make_buffer).
    template <class Fill>
    void write_piece(std::size_t piece, std::span<std::byte> buffer, Fill&& fill) const {
        const std::uint64_t begin = std::uint64_t{piece} * kPiece;
        write_extent(begin, begin + piece_bytes(piece), buffer, fill);
        written_->fetch_add(1);
    }

    /// The same for bytes [begin, end) of a sparse shard: at most kPiece of them; both are multiples of kAlign, or
    /// `end` is the end of the file.
    template <class Fill>
    void write_extent(std::uint64_t begin, std::uint64_t end, std::span<std::byte> buffer, Fill&& fill) const {
        std::uint64_t at = begin;
        if (at < header_.size()) {
            const auto count = static_cast<std::size_t>(std::min<std::uint64_t>(end, header_.size()) - at);
            std::memcpy(buffer.data(), header_.data() + at, count);
            at += count;
        }
        // ends_[i] is the file offset after tensor i; the first end beyond `at` is the tensor that holds it.
        auto tensor = static_cast<std::size_t>(std::upper_bound(ends_.begin(), ends_.end(), at) - ends_.begin());
        for (; at < end; ++tensor) {
            const auto count = static_cast<std::size_t>(std::min(end, ends_[tensor]) - at);
            const std::uint64_t first = at - (ends_[tensor] - tensors_[tensor].bytes());
            fill(tensor, first, buffer.subspan(static_cast<std::size_t>(at - begin), count));
            at += count;
        }
        // Direct I/O moves whole blocks: the last piece is padded and the file cut to its size in commit().
        const auto used = static_cast<std::size_t>(end - begin), whole = (used + kAlign - 1) / kAlign * kAlign;
        std::memset(buffer.data() + used, 0, whole - used);
        file_.write(begin, buffer.first(whole));
    }

    /// Errors: Code::internal if a piece of a full shard was left out, Code::write if the disk refuses.
    void commit() {
        if (layout_ == Layout::full && written_->load() != pieces()) {
            throw Error(Code::internal,
                        std::to_string(written_->load()) + " of " + std::to_string(pieces()) + " pieces were written",
                        "please report this", {.path = file_.path()});
        }
        file_.truncate(size_);
        file_.commit();
    }

    struct Release {
        void operator()(std::byte* bytes) const noexcept { std::free(bytes); }
    };
    using Buffer = std::unique_ptr<std::byte[], Release>;
    static Buffer make_buffer() {
        auto* bytes = static_cast<std::byte*>(std::aligned_alloc(kAlign, kPiece));
        if (bytes == nullptr) throw std::bad_alloc();
        return Buffer(bytes);
    }

  private:
    SafetensorsWriter(const std::string& path, std::span<const WriterTensor> tensors, Layout layout)
        : tensors_(tensors),
          layout_(layout),
          header_(safetensors_header(tensors)),
          file_(io::PendingFile::create(path, layout == Layout::full)) {
        size_ = header_.size();
        for (const WriterTensor& tensor : tensors) ends_.push_back(size_ += tensor.bytes());
        if (layout == Layout::full) {
            file_.reserve((size_ + kAlign - 1) / kAlign * kAlign);
        } else {
            file_.truncate(size_);  // first: a file that grows by writing makes some file systems reserve ahead
        }
    }

    std::span<const WriterTensor> tensors_;
    Layout layout_;
    std::string header_;
    io::PendingFile file_;
    std::vector<std::uint64_t> ends_;
    std::uint64_t size_ = 0;
    std::unique_ptr<std::atomic<std::size_t>> written_ = std::make_unique<std::atomic<std::size_t>>(0);
};

}  // namespace k3::checkpoint
#endif
