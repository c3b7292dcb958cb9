#ifndef K3_CHECKPOINT_DETAIL_JOBS_HPP
#define K3_CHECKPOINT_DETAIL_JOBS_HPP
// Independent jobs over a few std::threads. Not core::parallel: opening files is not arithmetic, jobs differ in length,
// and the OpenMP team should not exist before the memory plan is made.
#include <atomic>
#include <cstddef>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

namespace k3::checkpoint::detail {

/// Calls job(worker, i) once for every i < count, worker < max(1, threads), the caller being worker 0. `job` must not
/// throw. If the system refuses a thread, the others do its work.
template <class Job>
void run_jobs(unsigned threads, std::size_t count, const Job& job) {
    std::atomic<std::size_t> next{0};
    const auto work = [&](unsigned worker) {
        for (std::size_t i = next++; i < count; i = next++) job(worker, i);
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
}

}  // namespace k3::checkpoint::detail
#endif
