#ifndef K3_DRIVERS_RUN_WAITING_THREADS_HPP
#define K3_DRIVERS_RUN_WAITING_THREADS_HPP
// OpenMP threads that wait for work spin, by default for milliseconds. Where another process wants the core, the one
// they wait for then cannot run: with two busy neighbours a short prompt took many times as long. The run-time
// libraries read their setting before main(), so it is put into the environment and the program starts over, once.
#include <unistd.h>

#include <cstdlib>

namespace k3::run {

/// Lets waiting threads spin for some tens of microseconds (the gap between two kernels) and then sleep. What the user
/// has set stays. Changes no bit.
inline void limit_spinning(char** argv) {
    for (const char* name : {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME"})
        if (std::getenv(name) != nullptr) return;
    ::setenv("GOMP_SPINCOUNT", "10000", 1);  // GNU: turns of the waiting loop
    ::setenv("KMP_BLOCKTIME", "0", 1);       // LLVM: milliseconds
    ::execv("/proc/self/exe", argv);         // returns only if it failed: then we go on as we are
}

}  // namespace k3::run
#endif
