#ifndef K3_IO_DETAIL_URING_BACKEND_HPP
#define K3_IO_DETAIL_URING_BACKEND_HPP
// Works off a ReadQueue with io_uring and one thread. It sleeps in one place, io_uring_submit_and_wait; new work wakes
// it through an eventfd that the ring polls. Only if K3_HAVE_URING is defined to 1, by the build that also links
// liburing: finding the header would not be enough.
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "k3/io/detail/read_queue.hpp"

#if defined(K3_HAVE_URING) && K3_HAVE_URING
#include <liburing.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <mutex>
#include <new>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "k3/io/detail/piece.hpp"
#endif

namespace k3::io {

/// For tests: offset in the file and result of a request (bytes or a negative errno) to the result to go on with.
using CompletionHook = std::function<int(std::uint64_t, int)>;

namespace detail {

#if defined(K3_HAVE_URING) && K3_HAVE_URING

class UringBackend {
  public:
    /// Null, with the reason in `why`, where io_uring does not work.
    static std::unique_ptr<UringBackend> start(ReadQueue& queue, unsigned depth, CompletionHook hook,
                                               std::string& why) {
        std::unique_ptr<UringBackend> backend(new UringBackend(queue, depth, std::move(hook)));
        why = backend->set_up();
        if (!why.empty()) return nullptr;
        return backend;
    }
    ~UringBackend() {
        if (thread_.joinable()) {
            queue_.stop();
            wake();
            thread_.join();
        }
        if (ring_there_) ::io_uring_queue_exit(&ring_);
        if (event_ >= 0) ::close(event_);
    }
    UringBackend(const UringBackend&) = delete;
    UringBackend& operator=(const UringBackend&) = delete;

    /// There is new work, or the end.
    void wake() noexcept {
        {
            const std::lock_guard lock(mutex_);
            begun_ = true;
        }
        const std::uint64_t one = 1;
        while (::write(event_, &one, sizeof one) < 0 && errno == EINTR) {
        }
    }

    /// Until the first wake() the thread has not touched the ring, so that this needs no order with it: kernels before
    /// 5.13 wait for all requests, the poll's too, before they register buffers.
    bool register_memory(std::span<std::byte> memory) noexcept {
        constexpr std::size_t kMost = std::size_t{1} << 30;  // the kernel's limit for one
        const std::lock_guard lock(mutex_);
        if (begun_ || memory.empty()) return false;
        const std::size_t before = fixed_.size();
        try {
            for (std::size_t at = 0; at < memory.size(); at += kMost)
                fixed_.push_back({memory.data() + at, std::min(kMost, memory.size() - at)});
        } catch (const std::bad_alloc&) {
            fixed_.resize(before);
            return false;
        }
        if (before > 0) ::io_uring_unregister_buffers(&ring_);
        const auto all = [&] {
            return !fixed_.empty() &&
                   ::io_uring_register_buffers(&ring_, fixed_.data(), static_cast<unsigned>(fixed_.size())) == 0;
        };
        if (all()) return true;
        fixed_.resize(before);
        if (!all()) fixed_.clear();
        return false;
    }

    unsigned depth() const noexcept { return depth_; }

  private:
    UringBackend(ReadQueue& queue, unsigned depth, CompletionHook hook)
        : queue_(queue), depth_(depth), hook_(std::move(hook)), slots_(depth) {
        free_.reserve(depth);
        for (unsigned i = depth; i > 0; --i) free_.push_back(i - 1);
    }

    // Empty, or why io_uring does not work here.
    std::string set_up() {
        const auto because = [](const std::string& what, int reason) {
            return what + " (" + std::strerror(reason) + ")";
        };
        // One entry per slot and one for the poll: there is always a free one.
        if (const int got = ::io_uring_queue_init(depth_ + 1, &ring_, 0); got < 0)
            return because("the kernel refuses io_uring", -got);
        ring_there_ = true;
        ::io_uring_probe* const probe = ::io_uring_get_probe_ring(&ring_);
        const bool able = probe != nullptr && ::io_uring_opcode_supported(probe, IORING_OP_READ) != 0;
        ::io_uring_free_probe(probe);
        if (!able) return "the kernel's io_uring is too old (before Linux 5.6)";
        // Filters may allow the set-up and refuse the use.
        ::io_uring_prep_nop(::io_uring_get_sqe(&ring_));
        int got = 0;
        do {
            got = ::io_uring_submit_and_wait(&ring_, 1);
        } while (got == -EINTR);
        if (got < 0) return because("the kernel refuses io_uring's requests", -got);
        ::io_uring_cq_advance(&ring_, 1);
        event_ = ::eventfd(0, EFD_CLOEXEC);
        if (event_ < 0) return because("no eventfd", errno);
        try {
            thread_ = std::thread([this] { run(); });
        } catch (const std::system_error& error) {
            return "the system gives no thread: " + std::string(error.what());
        }
        return {};
    }

    void run() noexcept {
        sleep_on_event();
        { const std::lock_guard lock(mutex_); }  // what register_memory() wrote is seen from here on
        poll_event();
        unsigned refusals = 0;
        for (;;) {
            while (!free_.empty() && queue_.take(slots_[free_.back()])) {
                const unsigned slot = free_.back();
                free_.pop_back();
                request(slot);
            }
            if (free_.size() == depth_ && queue_.stopping()) return;
            const int got = ::io_uring_submit_and_wait(&ring_, 1);
            const bool passing = got == -EAGAIN || got == -EBUSY || got == -ENOBUFS || got == -ENOMEM;
            if (passing && ++refusals < 1000)
                pause();
            else if (got < 0 && got != -EINTR)
                return surrender(-got);
            if (got >= 0) refusals = 0;
            reap();
        }
    }

    void reap() noexcept {
        unsigned head = 0, count = 0;
        ::io_uring_cqe* cqe = nullptr;
        io_uring_for_each_cqe(&ring_, head, cqe) {
            ++count;
            if (cqe->user_data == kEvent) {
                sleep_on_event();  // does not sleep: it is ready
                poll_event();
                continue;
            }
            const auto slot = static_cast<unsigned>(cqe->user_data);
            Piece& piece = slots_[slot];
            const Next next = piece.judge(hook_ ? hook_(piece.offset, cqe->res) : cqe->res);
            if (next == Next::again || next == Next::later) {
                if (next == Next::later) pause();
                request(slot);
                continue;
            }
            piece.drop_pages();
            queue_.finish(piece, next == Next::failed);
            free_.push_back(slot);
        }
        ::io_uring_cq_advance(&ring_, count);
    }

    void request(unsigned slot) noexcept {
        Piece& piece = slots_[slot];
        piece.aim(false);
        ::io_uring_sqe* const sqe = ::io_uring_get_sqe(&ring_);
        const auto bytes = static_cast<unsigned>(piece.left);
        std::size_t fixed = 0;
        while (fixed < fixed_.size() && !holds(fixed_[fixed], piece)) ++fixed;
        if (fixed < fixed_.size())
            ::io_uring_prep_read_fixed(sqe, piece.fd, piece.at, bytes, piece.offset, static_cast<int>(fixed));
        else
            ::io_uring_prep_read(sqe, piece.fd, piece.at, bytes, piece.offset);
        sqe->user_data = slot;
    }
    static bool holds(const iovec& memory, const Piece& piece) noexcept {
        const auto* const begin = static_cast<const std::byte*>(memory.iov_base);
        return piece.at >= begin && piece.at + piece.left <= begin + memory.iov_len;
    }

    void poll_event() noexcept {
        ::io_uring_sqe* const sqe = ::io_uring_get_sqe(&ring_);
        ::io_uring_prep_poll_add(sqe, event_, POLLIN);
        sqe->user_data = kEvent;
    }
    void sleep_on_event() const noexcept {
        std::uint64_t count = 0;
        while (::read(event_, &count, sizeof count) < 0 && errno == EINTR) {
        }
    }
    static void pause() noexcept { std::this_thread::sleep_for(std::chrono::milliseconds(1)); }

    // The kernel takes no more requests, which no kernel should do after set_up(). Closing the ring ends what is in
    // flight; then all there is and all that comes fails.
    void surrender(int reason) noexcept {
        ::io_uring_queue_exit(&ring_);
        ring_there_ = false;
        std::vector<bool> unused(depth_, false);
        for (const unsigned slot : free_) unused[slot] = true;
        for (unsigned slot = 0; slot < depth_; ++slot)
            if (!unused[slot]) fail(slots_[slot], reason);
        while (!queue_.stopping()) {
            for (Piece piece; queue_.take(piece);) fail(piece, reason);
            sleep_on_event();
        }
    }
    void fail(Piece& piece, int reason) noexcept {
        piece.reason = reason;
        queue_.finish(piece, true);
    }

    static constexpr std::uint64_t kEvent = ~std::uint64_t{0};
    ReadQueue& queue_;
    const unsigned depth_;
    CompletionHook hook_;
    std::vector<Piece> slots_;
    std::vector<unsigned> free_;
    ::io_uring ring_{};
    bool ring_there_ = false;
    int event_ = -1;
    std::mutex mutex_;
    bool begun_ = false;        // guarded by mutex_
    std::vector<iovec> fixed_;  // written under mutex_ until begun_, read by the thread afterwards
    std::thread thread_;
};

#else

class UringBackend {
  public:
    static std::unique_ptr<UringBackend> start(ReadQueue&, unsigned, const CompletionHook&, std::string& why) {
        why = "k3 was built without liburing";
        return nullptr;
    }
    void wake() noexcept {}
    bool register_memory(std::span<std::byte>) noexcept { return false; }
    unsigned depth() const noexcept { return 0; }
};

#endif

}  // namespace detail
}  // namespace k3::io
#endif
