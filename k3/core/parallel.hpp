#ifndef K3_CORE_PARALLEL_HPP
#define K3_CORE_PARALLEL_HPP
// The one place where work is split over threads; each part runs under the contract's floating-point environment. A
// body gets a contiguous range; which thread computes an element never changes the order in which that element is
// computed.
#include <cstddef>

#include "k3/core/exec.hpp"
#include "k3/core/fp_env.hpp"

#if defined(_OPENMP)
#include <omp.h>
#endif

namespace k3::core {

namespace detail {
template <class Body>
K3_OPAQUE void call(Body& body, std::size_t begin, std::size_t end, unsigned thread) noexcept {
    body(begin, end, thread);
}

template <class Body>
K3_INLINE void guarded_call(Body& body, std::size_t begin, std::size_t end, unsigned thread) noexcept {
    const FpGuard guard;
    call(body, begin, end, thread);
}
}  // namespace detail

/// Runs body(begin, end, thread) over [0, n) cut into at most exec.threads contiguous parts.
///
/// `work` is the number of multiply-adds (or the like) of one item: parts of less than exec.least_work are not made.
/// Numerics  every part runs under the contract's environment, the caller's part included; the caller's is restored.
/// Requires  body is noexcept and writes only what its range owns. Inside another parallel region one thread runs all.
/// Threads   safe from several threads at once, each with its own Exec.
template <class Body>
K3_INLINE void parallel(const Exec& exec, std::size_t n, std::size_t work, Body&& body) noexcept {
    if (n == 0) return;
#if defined(_OPENMP)
    std::size_t parts = exec.threads < n ? exec.threads : n;
    if (exec.least_work != 0) {
        const std::size_t worth = n * work / exec.least_work;
        parts = parts < worth ? parts : worth;
    }
    // Never nested, whatever the host allows: the thread numbers of an inner team would name the scratch of the outer
    // one.
    if (parts > 1 && !omp_in_parallel()) {
        // Always the same team: GNU OpenMP ends and starts threads whenever a region asks for another number of them.
        const int team_size = static_cast<int>(exec.threads);
#pragma omp parallel num_threads(team_size) default(none) shared(body, n, parts)
        {
            const auto thread = static_cast<std::size_t>(omp_get_thread_num());
            const auto team = static_cast<std::size_t>(omp_get_num_threads());
            const std::size_t cuts = parts < team ? parts : team;
            const std::size_t begin = thread < cuts ? n * thread / cuts : n;
            const std::size_t end = thread < cuts ? n * (thread + 1) / cuts : n;
            if (begin < end) detail::guarded_call(body, begin, end, static_cast<unsigned>(thread));
        }
        return;
    }
#else
    static_cast<void>(exec);
    static_cast<void>(work);
#endif
    detail::guarded_call(body, 0, n, 0);
}

}  // namespace k3::core
#endif
