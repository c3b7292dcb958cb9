#ifndef K3_DRIVERS_PROGRESS_HPP
#define K3_DRIVERS_PROGRESS_HPP
// How far a long copy is, on stderr: a line a stage, and on a terminal a running line a few times a second.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <string>

#include "drivers/sizes.hpp"

namespace k3::drivers {

/// Not thread-safe: callers serialise.
class Progress {
  public:
    explicit Progress(std::uint64_t total) : total_(total) {}

    /// `stage` names what is under way (a shard, a layer); `done` of the total bytes are finished.
    void operator()(const std::string& stage, std::uint64_t done) {
        const Clock::time_point now = Clock::now();
        const bool finished = done == total_;
        if (!finished && stage == stage_ && (!terminal_ || now - shown_ < std::chrono::milliseconds(200))) return;
        stage_ = stage;
        shown_ = now;
        const double seconds = std::chrono::duration<double>(now - start_).count();
        const double share = static_cast<double>(done) / static_cast<double>(total_);
        std::fprintf(stderr, "%s%s  %5.1f %%  %.2f of %.2f GB  %.2f GB/s  %s to go%s", terminal_ ? "\r" : "",
                     stage.c_str(), 100.0 * share, static_cast<double>(done) * 1e-9, static_cast<double>(total_) * 1e-9,
                     static_cast<double>(done) * 1e-9 / std::max(seconds, 1e-9),
                     show_seconds(seconds / std::max(share, 1e-9) * (1 - share)).c_str(),
                     terminal_ && !finished ? "   " : "\n");
    }

  private:
    using Clock = std::chrono::steady_clock;
    std::uint64_t total_;
    bool terminal_ = ::isatty(2) != 0;
    std::string stage_;
    Clock::time_point start_ = Clock::now(), shown_ = start_;
};

}  // namespace k3::drivers
#endif
