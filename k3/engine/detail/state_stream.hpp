#ifndef K3_ENGINE_DETAIL_STATE_STREAM_HPP
#define K3_ENGINE_DETAIL_STATE_STREAM_HPP
// A file from its first byte to its last through one small buffer, with a checksum of all of it at the end: a state may
// be most of a GB, and the memory plan has no room for a second one.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "k3/core/checksum.hpp"
#include "k3/core/error.hpp"
#include "k3/io/atomic_file.hpp"
#include "k3/io/file.hpp"

namespace k3::engine::detail {

inline constexpr std::size_t kStateBuffer = std::size_t{1} << 18;

class StateWriter {
  public:
    /// A file of exactly `bytes`, its checksum included. Errors: Code::write, also if the disk has no room.
    StateWriter(const std::string& path, std::uint64_t bytes)
        : file_(io::PendingFile::create(path)), bytes_(bytes), buffer_(kStateBuffer) {
        const std::size_t slash = path.rfind('/');
        io::require_free_space(slash == std::string::npos ? "." : path.substr(0, slash + 1), bytes,
                               "free some space or choose another disk");
        file_.reserve(bytes);
    }

    void put(const void* data, std::size_t bytes) {
        const auto* from = static_cast<const std::byte*>(data);
        while (bytes != 0) {
            const std::size_t count = std::min(bytes, buffer_.size() - used_);
            std::memcpy(buffer_.data() + used_, from, count);
            used_ += count;
            from += count;
            bytes -= count;
            if (used_ == buffer_.size()) flush();
        }
    }

    /// The file appears under its name.
    void commit() {
        flush();
        const std::uint64_t sum = checksum_.value();
        if (at_ + sizeof sum != bytes_)
            throw Error(Code::internal, "a state has another size than was reckoned", "please report this");
        file_.write(at_, std::as_bytes(std::span(&sum, 1)));
        file_.commit();
    }

  private:
    void flush() {
        const std::span<const std::byte> piece(buffer_.data(), used_);
        checksum_.add(piece);
        file_.write(at_, piece);
        at_ += used_;
        used_ = 0;
    }
    io::PendingFile file_;
    std::uint64_t bytes_;
    std::vector<std::byte> buffer_;
    std::size_t used_ = 0;
    std::uint64_t at_ = 0;
    core::Checksum checksum_;
};

class StateReader {
  public:
    /// `file` must outlive the reader and be at least 8 bytes long.
    explicit StateReader(const io::File& file)
        : file_(file), left_(file.size() - sizeof(std::uint64_t)), buffer_(kStateBuffer) {}

    /// Neither beyond the last 8 bytes. Errors: Code::state if the disk fails.
    void get(void* data, std::size_t bytes) {
        auto* to = static_cast<std::byte*>(data);
        while (bytes != 0) {
            if (used_ == filled_) fill();
            const std::size_t count = std::min(bytes, filled_ - used_);
            std::memcpy(to, buffer_.data() + used_, count);
            used_ += count;
            to += count;
            bytes -= count;
        }
    }

    void skip(std::uint64_t bytes) {
        while (bytes != 0) {
            if (used_ == filled_) fill();
            const auto count = static_cast<std::size_t>(std::min<std::uint64_t>(bytes, filled_ - used_));
            used_ += count;
            bytes -= count;
        }
    }

    /// Reads what is left. The checksum of all but the last 8 bytes, if those agree.
    std::optional<std::uint64_t> checksum_if_right() {
        while (left_ != 0) fill();
        std::uint64_t sum = 0;
        read(std::as_writable_bytes(std::span(&sum, 1)));
        if (sum != checksum_.value()) return std::nullopt;
        return sum;
    }

  private:
    void fill() {
        filled_ = static_cast<std::size_t>(std::min<std::uint64_t>(buffer_.size(), left_));
        if (filled_ == 0) throw Error(Code::internal, "read past the end of a state", "please report this");
        const std::span<std::byte> piece(buffer_.data(), filled_);
        read(piece);
        checksum_.add(piece);
        left_ -= filled_;
        used_ = 0;
    }
    void read(std::span<std::byte> out) {
        try {
            file_.read(at_, out);
        } catch (const Error& error) {  // to whoever started the program this is a refused state file
            throw Error(Code::state, error.message(), "check the disk, or start without a state", error.where());
        }
        at_ += out.size();
    }
    const io::File& file_;
    std::uint64_t at_ = 0, left_;
    std::vector<std::byte> buffer_;
    std::size_t used_ = 0, filled_ = 0;
    core::Checksum checksum_;
};

}  // namespace k3::engine::detail
#endif
