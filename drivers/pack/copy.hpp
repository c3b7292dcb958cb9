#ifndef K3_DRIVERS_PACK_COPY_HPP
#define K3_DRIVERS_PACK_COPY_HPP
// Writes trunk.bin and trunk.json: in pieces of 8 MiB, from several threads, past the page cache, under temporary names
// until both are whole. trunk.json comes last: without it there is no packed trunk.
#include <fcntl.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <functional>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "drivers/pack/plan.hpp"
#include "k3/checkpoint/safetensors_writer.hpp"
#include "k3/checkpoint/shard_index.hpp"
#include "k3/core/error.hpp"
#include "k3/io/atomic_file.hpp"
#include "k3/io/file.hpp"
#include "k3/io/jobs.hpp"

namespace k3::pack {

struct CopyOptions {
    std::string out;
    unsigned threads = 1;
    bool force = false, verify = false;
    const std::atomic<bool>* stop = nullptr;                                   // set from a signal handler
    std::function<void(const std::string& stage, std::uint64_t done)> tick{};  // from any thread, serialised
};

/// A sum over the bytes that any single changed word changes, at the speed of memory.
class Checksum {
  public:
    void add(std::span<const std::byte> bytes) noexcept {
        std::size_t at = 0;
        for (std::uint64_t word = 0; at + 8 <= bytes.size(); at += 8) {
            std::memcpy(&word, bytes.data() + at, 8);
            add(word);
        }
        for (; at < bytes.size(); ++at) add(std::to_integer<std::uint64_t>(bytes[at]));
    }
    // Each step is a bijection of the sum for a given word, and of the word for a given sum.
    void add(std::uint64_t word) noexcept {
        sum_ = (sum_ ^ word) * 0x9e3779b97f4a7c15U;
        sum_ ^= sum_ >> 32;
    }
    std::uint64_t value() const noexcept { return sum_; }

  private:
    std::uint64_t sum_ = 0xcbf29ce484222325U;
};

namespace detail {

inline constexpr std::uint64_t kPiece = checkpoint::SafetensorsWriter::kPiece;

/// Runs body(piece, buffer) for every piece. body returns the bytes it moved and the name of the stage they belong to.
template <class Body>
void for_pieces(std::uint64_t bytes, const CopyOptions& options, std::uint64_t& done, Body&& body) {
    const std::size_t pieces = static_cast<std::size_t>((bytes + kPiece - 1) / kPiece);
    std::mutex guard;
    std::vector<checkpoint::SafetensorsWriter::Buffer> buffers(std::max(1U, options.threads));
    io::run_jobs(options.threads, pieces, [&](unsigned worker, std::size_t piece) {
        if (options.stop != nullptr && options.stop->load()) {
            throw Error(Code::interrupted, "interrupted, nothing is left behind", "run it again to start over");
        }
        auto& buffer = buffers[worker];
        if (!buffer) buffer = checkpoint::SafetensorsWriter::make_buffer();
        const std::uint64_t begin = piece * kPiece, count = std::min(kPiece, bytes - begin);
        const std::string stage = body(piece, begin, std::span(buffer.get(), static_cast<std::size_t>(count)));
        const std::lock_guard lock(guard);
        done += count;
        if (options.tick) options.tick(stage, done);
    });
}

/// Reads without keeping the bytes in the page cache: a trunk would push out everything else there.
inline void read_once(const io::File& file, std::uint64_t offset, std::span<std::byte> out) {
    file.read(offset, out);
    ::posix_fadvise(file.descriptor(), static_cast<off_t>(offset), static_cast<off_t>(out.size()), POSIX_FADV_DONTNEED);
}

/// Bytes [begin, begin + out.size()) of trunk.bin. Returns "layer N", the one it begins in.
inline std::string gather(const Plan& plan, const checkpoint::ShardIndex& index, std::uint64_t begin,
                          std::span<std::byte> out) {
    std::memset(out.data(), 0, out.size());
    const std::uint64_t end = begin + out.size();
    auto span = std::partition_point(plan.spans.begin(), plan.spans.end(),
                                     [begin](const Span& s) { return s.to + s.bytes <= begin; });
    const std::string stage = "layer " + std::to_string(span == plan.spans.end() ? 0 : span->layer);
    for (; span != plan.spans.end() && span->to < end; ++span) {
        const std::uint64_t first = std::max(begin, span->to), last = std::min(end, span->to + span->bytes);
        read_once(index.shards()[span->shard].file, span->from + (first - span->to),
                  out.subspan(static_cast<std::size_t>(first - begin), static_cast<std::size_t>(last - first)));
    }
    return stage;
}

inline void prepare_folder(const CopyOptions& options) {
    namespace fs = std::filesystem;
    std::error_code failure;
    fs::create_directories(options.out, failure);
    if (failure || !fs::is_directory(options.out, failure)) {
        throw Error(Code::write, "cannot be made into a folder" + (failure ? ": " + failure.message() : ""),
                    "give another path", {.path = options.out});
    }
    for (const char* name : {"trunk.bin", "trunk.json"}) {
        if (!options.force && fs::exists(options.out + "/" + name, failure)) {
            throw Error(Code::usage, "is already there", "choose another folder, or add --force to replace it",
                        {.path = options.out + "/" + name});
        }
    }
}

}  // namespace detail

/// Returns the checksum of trunk.bin. Errors: Code::usage if the pair exists, Code::read from the shards, Code::write
/// from the disk or when what is read back differs, Code::interrupted; then nothing of this call is left, and a pair
/// that was there before is as it was.
inline std::uint64_t write_trunk(const Plan& plan, const checkpoint::ShardIndex& index, const CopyOptions& options) {
    detail::prepare_folder(options);
    const std::string json = trunk_json(plan);
    io::require_free_space(options.out, plan.bytes + json.size() + (std::uint64_t{1} << 20));
    io::PendingFile bin = io::PendingFile::create(options.out + "/trunk.bin", true);
    bin.reserve(plan.bytes);
    std::vector<std::uint64_t> sums(static_cast<std::size_t>((plan.bytes + detail::kPiece - 1) / detail::kPiece));
    std::uint64_t done = 0;
    detail::for_pieces(plan.bytes, options, done,
                       [&](std::size_t piece, std::uint64_t begin, std::span<std::byte> bytes) {
        std::string stage = detail::gather(plan, index, begin, bytes);
        Checksum sum;
        sum.add(bytes);
        sums[piece] = sum.value();
        bin.write(begin, bytes);
        return stage;
    });
    bin.sync();
    if (options.verify) {
        const io::File written = io::File::open(bin.temporary_path());
        ::posix_fadvise(written.descriptor(), 0, 0, POSIX_FADV_DONTNEED);  // from the disk, not from memory
        detail::for_pieces(plan.bytes, options, done,
                           [&](std::size_t piece, std::uint64_t begin, std::span<std::byte> bytes) {
            detail::read_once(written, begin, bytes);
            Checksum sum;
            sum.add(bytes);
            if (sum.value() != sums[piece]) {
                throw Error(Code::write, "reads back other bytes than were written",
                            "check the disk and its cable, then run it again", {.path = bin.path(), .offset = begin});
            }
            return std::string("verify");
        });
    }
    io::PendingFile description = io::PendingFile::create(options.out + "/trunk.json");
    description.write(0, std::as_bytes(std::span(json.data(), json.size())));
    description.sync();
    // From here on only names change. An old description must not meet the new bytes.
    std::error_code ignored;
    std::filesystem::remove(description.path(), ignored);
    bin.commit();
    description.commit();
    Checksum all;
    for (const std::uint64_t sum : sums) all.add(sum);
    return all.value();
}

}  // namespace k3::pack
#endif
