#ifndef K3_DRIVERS_FETCH_PROGRESS_HPP
#define K3_DRIVERS_FETCH_PROGRESS_HPP
// How far it is, on stderr: a line for each file that is done, and a line for all of it: on a terminal the last one,
// renewed; elsewhere after a second, then every ten. The rate is that of the last seconds: bytes of an earlier run do
// not count.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <deque>
#include <mutex>
#include <string>

#include "drivers/sizes.hpp"

namespace k3::fetch {

/// Thread-safe.
class Progress {
  public:
    explicit Progress(bool quiet) : quiet_(quiet) {}

    /// A stage of `total` bytes begins, `done` of which are there from before. `verb` is "fetched" or "checked".
    void begin(const std::string& verb, std::uint64_t done, std::uint64_t total) {
        const std::lock_guard lock(guard_);
        verb_ = verb, total_ = total;
        start_ = Clock::now();
        shown_ = start_ - (terminal_ ? std::chrono::seconds(1) : std::chrono::seconds(9));
        past_.assign(1, {start_, done});
    }

    /// One line that stays.
    void note(const std::string& line) {
        const std::lock_guard lock(guard_);
        put(line);
    }

    /// `now` says what is under way: "model-00012-of-000096.safetensors 43 %, 3 more".
    void show(std::uint64_t done, const std::string& now) {
        const std::lock_guard lock(guard_);
        const Clock::time_point time = Clock::now();
        if (quiet_ || time - shown_ < (terminal_ ? std::chrono::milliseconds(200) : std::chrono::milliseconds(10000)))
            return;
        shown_ = time;
        past_.push_back({time, done});
        while (past_.size() > 2 && time - past_[1].time > std::chrono::seconds(15)) past_.pop_front();
        const double seconds = std::chrono::duration<double>(time - past_.front().time).count();
        // Bytes that arrived and were dropped again take the sum back.
        const double rate = static_cast<double>(done - std::min(done, past_.front().bytes)) / std::max(seconds, 1e-9);
        const std::uint64_t left = total_ - std::min(done, total_);
        char share[32];
        std::snprintf(share, sizeof share, "%5.1f %%  ",
                      100.0 * static_cast<double>(done) / static_cast<double>(std::max<std::uint64_t>(total_, 1)));
        const std::string text = share + drivers::show_bytes(done) + " of " + drivers::show_bytes(total_) + " " +
                                 verb_ + "  " + drivers::show_bytes(static_cast<std::uint64_t>(rate)) + "/s  " +
                                 (rate > 0 ? drivers::show_seconds(static_cast<double>(left) / rate) + " to go" : "") +
                                 (now.empty() ? "" : "  " + now);
        if (!terminal_) return put(text);
        std::fprintf(stderr, "\r\x1b[K%s", text.c_str());
        open_ = true;
    }

    /// Before anything else is written: the running line ends.
    void end() {
        const std::lock_guard lock(guard_);
        if (open_) std::fputc('\n', stderr);
        open_ = false;
    }

  private:
    using Clock = std::chrono::steady_clock;
    struct Point {
        Clock::time_point time;
        std::uint64_t bytes;
    };

    void put(const std::string& line) {
        if (quiet_) return;
        std::fprintf(stderr, "%sk3-fetch: %s\n", open_ ? "\r\x1b[K" : "", line.c_str());
        open_ = false;
    }

    bool quiet_, terminal_ = ::isatty(2) != 0, open_ = false;
    std::string verb_;
    std::uint64_t total_ = 0;
    Clock::time_point start_{}, shown_{};
    std::deque<Point> past_;
    std::mutex guard_;
};

}  // namespace k3::fetch
#endif
