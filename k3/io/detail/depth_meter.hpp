#ifndef K3_IO_DETAIL_DEPTH_METER_HPP
#define K3_IO_DETAIL_DEPTH_METER_HPP
// How well the device was kept at work: a time-weighted account. The one place under k3/ with a clock; nothing that is
// computed depends on it.
#include <algorithm>
#include <chrono>

namespace k3::io::detail {

/// Not thread-safe.
class DepthMeter {
  public:
    /// Books the time since the last call, during which `in_flight` pieces were at the device and pieces were queued or
    /// not: called before each change of either.
    void book(unsigned in_flight, bool queued) noexcept {
        const auto now = std::chrono::steady_clock::now();
        const double seconds = std::chrono::duration<double>(now - last_).count();
        last_ = now;
        if (in_flight > 0) {
            busy_ += seconds;
            depth_seconds_ += seconds * in_flight;
        }
        gap_ = in_flight == 0 && queued ? gap_ + seconds : 0;
        if (gap_ > 0) starved_ += seconds;
        longest_gap_ = std::max(longest_gap_, gap_);
    }

    /// With a piece or more in flight.
    double busy_seconds() const noexcept { return busy_; }
    /// Over busy_seconds().
    double mean_depth() const noexcept { return busy_ > 0 ? depth_seconds_ / busy_ : 0; }
    /// With nothing in flight while pieces were queued.
    double starved_seconds() const noexcept { return starved_; }
    double longest_gap_seconds() const noexcept { return longest_gap_; }

  private:
    double busy_ = 0, depth_seconds_ = 0, starved_ = 0, gap_ = 0, longest_gap_ = 0;
    std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
};

}  // namespace k3::io::detail
#endif
