#ifndef K3_IO_JOBS_HPP
#define K3_IO_JOBS_HPP
// Independent jobs over a few std::threads. Not core::parallel: opening and copying files is not arithmetic, jobs
// differ in length and may throw, and the OpenMP team should not exist before the memory plan is made.
#include <atomic>
#include <cstddef>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

namespace k3::io {

/// Calls job(worker, i) once for every i < count, worker < max(1, threads), the caller being worker 0; each worker's
/// calls are in ascending order of i. If the system refuses a thread, the others do its work.
/// Errors: what a job throws ends the work, no further job is begun; the first of them leaves once all have stopped.
template <class Job>
void run_jobs(unsigned threads, std::size_t count, const Job& job) {
    std::atomic<std::size_t> next{0};
    std::atomic<bool> stopped{false};
    std::mutex guard;
    std::exception_ptr failure;
    const auto work = [&](unsigned worker) noexcept {
        try {
            for (std::size_t i = next++; i < count && !stopped; i = next++) job(worker, i);
        } catch (...) {
            const std::lock_guard lock(guard);
            if (!stopped.exchange(true)) failure = std::current_exception();
        }
    };
    std::vector<std::thread> team;
    for (unsigned worker = 1; worker < threads && worker < count; ++worker) {
        try {
            team.emplace_back(work, worker);
        } catch (const std::system_error&) {
            break;
        }
    }
    work(0);
    for (std::thread& thread : team) thread.join();
    if (failure) std::rethrow_exception(failure);
}

}  // namespace k3::io
#endif
