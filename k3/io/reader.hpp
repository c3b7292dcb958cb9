#ifndef K3_IO_READER_HPP
#define K3_IO_READER_HPP
// The asynchronous disk reader: many reads queued, `depth` pieces of them at the device, what is needed now before what
// is read ahead. One queue (detail/read_queue.hpp), two ways to work it off: io_uring with one thread that sleeps in
// the kernel, or a pool of threads with pread. Nothing polls.
#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "k3/core/error.hpp"
#include "k3/io/detail/read.hpp"
#include "k3/io/detail/read_queue.hpp"
#include "k3/io/detail/thread_backend.hpp"
#include "k3/io/detail/uring_backend.hpp"
#include "k3/io/stream_file.hpp"

namespace k3::io {

/// `automatic` is uring where it works, else threads. `buffered` is threads that read every file through the page
/// cache, whatever its access().
enum class ReaderKind : std::uint8_t { automatic, uring, threads, buffered };

struct ReaderOptions {
    ReaderKind kind = ReaderKind::automatic;
    /// Pieces at the device at a time, 1 to 1024; threads: at most 16. Devices want 16 or more.
    unsigned depth = 32;
    /// Bytes of a piece: a multiple of kBlock up to 1 GiB; 1 to 4 MiB is good.
    std::size_t piece = std::size_t{1} << 20;
    /// For tests: what the threads call instead of pread.
    PreadHook pread{};
    /// For tests: what io_uring's results are replaced with, given the offset in the file and the result.
    CompletionHook completion{};
};

class Reader {
  public:
    /// Errors: Code::usage for an option out of range, or for `uring` where it does not work; Code::plan if the system
    /// gives not one thread.
    explicit Reader(ReaderOptions options = {}) : queue_(checked(options).piece) {
        const bool wants_uring = options.kind == ReaderKind::automatic || options.kind == ReaderKind::uring;
        if (wants_uring) {
            uring_ = detail::UringBackend::start(queue_, options.depth, options.completion, why_);
            if (uring_ == nullptr && options.kind == ReaderKind::uring) {
                throw Error(Code::usage, "io_uring is not there: " + why_,
                            "let the reader choose, or ask for the reader with threads");
            }
        }
        kind_ = uring_ != nullptr                      ? ReaderKind::uring
                : options.kind == ReaderKind::buffered ? ReaderKind::buffered
                                                       : ReaderKind::threads;
        if (uring_ == nullptr) {
            if (!wants_uring) why_ = "it was not asked for";
            threads_ = std::make_unique<detail::ThreadBackend>(queue_, options.depth, std::move(options.pread),
                                                               kind_ == ReaderKind::buffered);
        }
    }
    /// Cancels what is queued and waits for what is in flight. No other thread may be in a call.
    ~Reader() {
        queue_.stop();
        if (uring_ != nullptr) uring_->wake();
    }
    Reader(const Reader&) = delete;
    Reader& operator=(const Reader&) = delete;

    /// Queues reads that are not queued: in the order (file, offset) within the batch, batches of one urgency in the
    /// order submitted; `now` goes before all of `ahead` that is not yet at the device. A Read of no bytes is done at
    /// once. From any thread.
    void submit(std::span<Read* const> batch) noexcept {
        if (queue_.submit(batch) && uring_ != nullptr) uring_->wake();
    }
    void submit(Read& read) noexcept {
        Read* const one = &read;
        submit(std::span<Read* const>(&one, 1));
    }

    /// Pieces not yet at the device become `now`, behind those that are. No effect on a Read that is not queued.
    void promote(Read& read) noexcept { queue_.promote(read); }

    /// Sleeps until the Read is not queued. True if it is done.
    bool wait(Read& read) noexcept { return queue_.wait(read); }

    /// Sleeps until one of them is done or failed; its index, the first such. Null pointers and idle Reads are passed
    /// over; if there is nothing else, reads.size() at once.
    std::size_t wait_any(std::span<Read* const> reads) noexcept { return queue_.wait_any(reads); }

    /// Drops the pieces not yet at the device and waits for the others. True: it was queued and is idle now, its window
    /// unspecified and the caller's again. False: it was not queued, and is as it was (done, failed or idle).
    bool cancel(Read& read) noexcept { return queue_.cancel(read); }

    /// What a failed Read failed of: Code::read with path and the offset of the failing piece. Precondition: it failed.
    Error error_of(const Read& read) const { return queue_.error_of(read); }

    /// Lets io_uring read into this memory without pinning its pages for each read; before the first submit, and the
    /// memory outlives its last read. False if that is not to be had (threads, RLIMIT_MEMLOCK, a submit before): all
    /// works as well without.
    bool register_memory(std::span<std::byte> memory) noexcept {
        return uring_ != nullptr && uring_->register_memory(memory);
    }

    /// What reads: uring, threads or buffered.
    ReaderKind kind() const noexcept { return kind_; }
    /// Why io_uring is not used; empty if it is.
    const std::string& why() const noexcept { return why_; }
    /// The most pieces at the device at a time: the depth asked for, or the number of threads.
    unsigned depth() const noexcept { return uring_ != nullptr ? uring_->depth() : threads_->size(); }
    ReaderStats stats() const noexcept { return queue_.stats(); }

  private:
    static const ReaderOptions& checked(const ReaderOptions& options) {
        if (options.depth < 1 || options.depth > 1024)
            throw Error(Code::usage, "a reader's depth of " + std::to_string(options.depth), "give 1 to 1024");
        if (options.piece < kBlock || options.piece % kBlock != 0 || options.piece > (std::size_t{1} << 30))
            throw Error(Code::usage, "a reader's pieces of " + std::to_string(options.piece) + " bytes",
                        "give a multiple of " + std::to_string(kBlock) + " up to 1 GiB");
        return options;
    }

    detail::ReadQueue queue_;  // outlives the backends, which are joined first
    std::unique_ptr<detail::UringBackend> uring_;
    std::unique_ptr<detail::ThreadBackend> threads_;
    ReaderKind kind_ = ReaderKind::threads;
    std::string why_;
};

}  // namespace k3::io
#endif
