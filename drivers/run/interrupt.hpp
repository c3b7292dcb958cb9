#ifndef K3_DRIVERS_RUN_INTERRUPT_HPP
#define K3_DRIVERS_RUN_INTERRUPT_HPP
// Ctrl-C: the first one asks for an orderly end after the current step, the second one kills, as it would without this.
#include <signal.h>
#include <unistd.h>

#include <cerrno>

namespace k3::run {

namespace detail {
inline volatile sig_atomic_t interrupt_seen = 0;
inline volatile sig_atomic_t interrupt_quiet = 0;

// Only async-signal-safe calls.
inline void on_interrupt(int) {
    const int saved = errno;
    if (interrupt_seen == 0 && interrupt_quiet == 0) {
        static constexpr char kText[] =
            "\nk3: ending, a token under way is completed; interrupt again to end at once\n";
        [[maybe_unused]] const ssize_t put = ::write(STDERR_FILENO, kText, sizeof kText - 1);
    }
    interrupt_seen = 1;
    errno = saved;
}
}  // namespace detail

/// From here on SIGINT and SIGTERM are remembered; one that came before is forgotten. One that is being ignored (nohup,
/// a background job) stays ignored.
inline void catch_interrupts(bool quiet) {
    detail::interrupt_seen = 0;
    detail::interrupt_quiet = quiet ? 1 : 0;
    for (const int signal : {SIGINT, SIGTERM}) {
        struct sigaction before {};
        if (::sigaction(signal, nullptr, &before) == 0 && before.sa_handler == SIG_IGN) continue;
        struct sigaction action {};
        action.sa_handler = detail::on_interrupt;
        // RESETHAND: the second one kills. RESTART: no read of a shard is cut short.
        action.sa_flags = static_cast<int>(SA_RESETHAND) | SA_RESTART;
        sigemptyset(&action.sa_mask);
        ::sigaction(signal, &action, nullptr);
    }
}

/// While the user is asked for something: Ctrl-C ends the program at once, as it would without this.
inline void release_interrupts() {
    for (const int signal : {SIGINT, SIGTERM}) {
        struct sigaction now {};
        if (::sigaction(signal, nullptr, &now) == 0 && now.sa_handler == detail::on_interrupt)
            ::signal(signal, SIG_DFL);
    }
}

inline bool interrupted() noexcept { return detail::interrupt_seen != 0; }

}  // namespace k3::run
#endif
