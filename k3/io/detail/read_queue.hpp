#ifndef K3_IO_DETAIL_READ_QUEUE_HPP
#define K3_IO_DETAIL_READ_QUEUE_HPP
// What is to be read and in which order, who waits for what, and the account of it: one mutex, two lists of Reads
// (`now`, `ahead`). Submitting allocates nothing and cannot fail. A Read stays at the front of its list until its last
// piece is issued.
#include <algorithm>
#include <cassert>
#include <cerrno>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <mutex>
#include <span>
#include <string>

#include "k3/core/error.hpp"
#include "k3/io/detail/depth_meter.hpp"
#include "k3/io/detail/piece.hpp"
#include "k3/io/detail/read.hpp"
#include "k3/io/detail/read_list.hpp"

namespace k3::io {

/// The account of a Reader since it was made.
struct ReaderStats {
    std::uint64_t bytes = 0;         ///< moved, with the parts of windows that nobody asked for
    std::uint64_t pieces = 0;        ///< finished
    std::uint64_t reads_now = 0;     ///< submitted
    std::uint64_t reads_ahead = 0;   ///< submitted
    std::uint64_t failed_reads = 0;  ///< Reads that failed
    std::uint64_t retries = 0;       ///< requests repeated after a short, interrupted or postponed one
    std::uint64_t lost_direct = 0;   ///< files opened direct whose direct reads were refused later
    double busy_seconds = 0;         ///< with a piece or more in flight
    double mean_depth = 0;           ///< pieces in flight, mean over busy_seconds
    double starved_seconds = 0;      ///< with nothing in flight while pieces were queued: should be nothing
    double longest_gap_seconds = 0;  ///< the longest such time
};

namespace detail {

class ReadQueue {
  public:
    explicit ReadQueue(std::size_t piece) noexcept : piece_(piece) {}

    // For callers of the Reader; see there.

    /// True if there is something to issue.
    bool submit(std::span<Read* const> batch) noexcept {
        Read *chain[2] = {nullptr, nullptr}, **end[2] = {&chain[0], &chain[1]};
        std::size_t count[2] = {0, 0};
        bool settled = false;
        for (Read* const read : batch) {
            if (read == nullptr) continue;
            assert(read->state != ReadState::queued && "a Read is submitted once at a time");
            read->progress = {};
            read->progress.lane = read->urgency;
            if (!admit(*read)) {
                settled = true;
                continue;
            }
            const auto lane = static_cast<std::size_t>(read->urgency);
            *end[lane] = read;
            end[lane] = &read->progress.after;
            ++count[lane];
        }
        for (std::size_t lane = 0; lane < 2; ++lane) {
            Read* rest = chain[lane];
            if (count[lane] > 0) chain[lane] = sort_chain(rest, count[lane]);
        }
        const std::lock_guard lock(mutex_);
        tick();
        stats_.reads_now += count[0];
        stats_.reads_ahead += count[1];
        for (std::size_t lane = 0; lane < 2; ++lane) lists_[lane].append_chain(chain[lane]);
        if (settled) finished_.notify_all();
        if (count[0] + count[1] > 0) work_.notify_one();
        return count[0] + count[1] > 0;
    }

    void promote(Read& read) noexcept {
        const std::lock_guard lock(mutex_);
        ReadProgress& p = read.progress;
        if (read.state != ReadState::queued || !p.listed || p.lane == Urgency::now) return;
        list_of(read).unlink(read);
        p.lane = Urgency::now;
        list_of(read).append(read);
    }

    bool wait(Read& read) noexcept {
        std::unique_lock lock(mutex_);
        finished_.wait(lock, [&] { return read.state != ReadState::queued; });
        return read.state == ReadState::done;
    }

    std::size_t wait_any(std::span<Read* const> reads) noexcept {
        std::unique_lock lock(mutex_);
        for (;;) {
            bool pending = false;
            for (std::size_t i = 0; i < reads.size(); ++i) {
                if (reads[i] == nullptr) continue;
                const ReadState state = reads[i]->state;
                if (state == ReadState::done || state == ReadState::failed) return i;
                pending = pending || state == ReadState::queued;
            }
            if (!pending) return reads.size();
            finished_.wait(lock);
        }
    }

    bool cancel(Read& read) noexcept {
        std::unique_lock lock(mutex_);
        if (read.state != ReadState::queued) return false;
        tick();
        drop(read);
        finished_.wait(lock, [&] { return read.state != ReadState::queued; });
        return true;
    }

    Error error_of(const Read& read) const {
        const std::lock_guard lock(mutex_);
        const ReadProgress& p = read.progress;
        return {Code::read,
                "read of " + std::to_string(p.failed_bytes) +
                    " bytes failed: " + (p.reason == 0 ? "the file ended early" : std::strerror(p.reason)),
                p.reason == 0 ? "download the file again" : "check the disk",
                {.path = read.file->path(), .offset = p.failed_offset}};
    }

    ReaderStats stats() const noexcept {
        const std::lock_guard lock(mutex_);
        tick();
        ReaderStats stats = stats_;
        stats.busy_seconds = meter_.busy_seconds();
        stats.mean_depth = meter_.mean_depth();
        stats.starved_seconds = meter_.starved_seconds();
        stats.longest_gap_seconds = meter_.longest_gap_seconds();
        return stats;
    }

    /// Cancels what is queued; wait_and_take() returns false from now on. What is in flight goes on.
    void stop() noexcept {
        const std::lock_guard lock(mutex_);
        stopping_ = true;
        tick();
        for (const ReadList& list : lists_)
            while (list.front() != nullptr) drop(*list.front());
        work_.notify_all();
    }

    // For backends.

    bool stopping() const noexcept {
        const std::lock_guard lock(mutex_);
        return stopping_;
    }

    /// The next piece, if there is one. It is in flight until finish().
    bool take(Piece& piece) noexcept {
        const std::lock_guard lock(mutex_);
        return issue(piece);
    }

    /// The same, but sleeps until there is one; false: the reader ends.
    bool wait_and_take(Piece& piece) noexcept {
        std::unique_lock lock(mutex_);
        work_.wait(lock, [&] { return stopping_ || any_queued(); });
        if (!issue(piece)) return false;
        if (any_queued()) work_.notify_one();  // submit() woke one thread; each wakes the next
        return true;
    }

    /// The piece's last request is over; `failed`: for the reason in it.
    void finish(const Piece& piece, bool failed) noexcept {
        const std::lock_guard lock(mutex_);
        tick();
        --in_flight_;
        ++stats_.pieces;
        stats_.bytes += piece.got;
        stats_.retries += piece.retries;
        stats_.lost_direct += piece.lost_direct ? 1 : 0;
        Read& read = *piece.read;
        ReadProgress& p = read.progress;
        --p.in_flight;
        if (failed && !p.failed) {
            p.failed = true;
            p.reason = piece.reason;
            p.failed_offset = piece.offset;
            p.failed_bytes = piece.left;
            if (p.listed) list_of(read).unlink(read);  // the rest of it is of no use
        }
        settle(read);
    }

  private:
    // False: it is done or failed without a request. Before it is visible to others.
    bool admit(Read& read) noexcept {
        if (read.bytes == 0) {
            read.state = ReadState::done;
            return false;
        }
        constexpr auto kEnd = static_cast<std::uint64_t>(std::numeric_limits<off_t>::max()) - kBlock;
        const bool far = read.offset > kEnd || read.bytes > kEnd - read.offset;
        if (far || reinterpret_cast<std::uintptr_t>(read.window) % kBlock != 0 || read.window == nullptr) {
            read.progress.failed = true;
            read.progress.reason = far ? EOVERFLOW : EINVAL;
            read.progress.failed_offset = read.offset;
            read.progress.failed_bytes = read.bytes;
            read.state = ReadState::failed;
            return false;
        }
        read.state = ReadState::queued;
        return true;
    }

    ReadList& list_of(const Read& read) noexcept { return lists_[static_cast<std::size_t>(read.progress.lane)]; }
    void drop(Read& read) noexcept {
        read.progress.cancelled = true;
        if (read.progress.listed) list_of(read).unlink(read);
        settle(read);
    }
    // The store to `state` is the last access to the Read: its owner may destroy it from then on.
    void settle(Read& read) noexcept {
        const ReadProgress& p = read.progress;
        if (p.listed || p.in_flight > 0) return;
        if (p.failed && !p.cancelled) ++stats_.failed_reads;
        read.state = p.cancelled ? ReadState::idle : p.failed ? ReadState::failed : ReadState::done;
        finished_.notify_all();
    }

    bool any_queued() const noexcept { return lists_[0].front() != nullptr || lists_[1].front() != nullptr; }

    bool issue(Piece& piece) noexcept {
        Read* const read = lists_[0].front() != nullptr ? lists_[0].front() : lists_[1].front();
        if (read == nullptr) return false;
        tick();
        ReadProgress& p = read->progress;
        const Window window = window_of(read->offset, read->bytes);
        const std::size_t bytes = std::min(piece_, window.bytes - p.issued);
        piece = Piece{};
        piece.read = read;
        piece.file = read->file;
        piece.begin = piece.offset = window.begin + p.issued;
        piece.at = read->window + p.issued;
        piece.left = bytes;
        piece.needed = std::min(bytes, window.skip + read->bytes - p.issued);
        p.issued += bytes;
        ++p.in_flight;
        ++in_flight_;
        if (p.issued == window.bytes) list_of(*read).unlink(*read);
        return true;
    }

    // Before each change of what is queued or in flight.
    void tick() const noexcept { meter_.book(in_flight_, any_queued()); }

    const std::size_t piece_;
    mutable std::mutex mutex_;
    std::condition_variable finished_, work_;
    ReadList lists_[2];  // by Urgency
    unsigned in_flight_ = 0;
    bool stopping_ = false;
    ReaderStats stats_;  // but for the times
    mutable DepthMeter meter_;
};

}  // namespace detail
}  // namespace k3::io
#endif
