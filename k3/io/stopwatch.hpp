#ifndef K3_IO_STOPWATCH_HPP
#define K3_IO_STOPWATCH_HPP
// Adds up the time spent waiting for the disk. With detail/depth_meter.hpp the only place of the library that reads a
// clock: for statistics, never for a decision.
#include <chrono>

namespace k3::io {

/// Adds the seconds of its own life to `total`.
class Stopwatch {
  public:
    explicit Stopwatch(double& total) noexcept : total_(total) {}
    ~Stopwatch() { total_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count(); }
    Stopwatch(const Stopwatch&) = delete;
    Stopwatch& operator=(const Stopwatch&) = delete;

  private:
    double& total_;
    std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

}  // namespace k3::io
#endif
