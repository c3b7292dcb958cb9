#ifndef K3_DRIVERS_FETCH_RETRY_HPP
#define K3_DRIVERS_FETCH_RETRY_HPP
// What an answer means for the request that got it, and how long to wait before the next one.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <mutex>
#include <random>
#include <string>
#include <thread>

#include "drivers/fetch/http.hpp"
#include "drivers/sizes.hpp"
#include "k3/core/error.hpp"

namespace k3::fetch {

enum class Verdict {
    good,
    again,        // a cut, a busy or failing server: try later
    unreachable,  // no connection: try later
    not_allowed,  // 401, 403
    missing,      // 404, 410
    wrong,        // anything else a second request will not change
};

inline Verdict verdict(const Answer& answer) noexcept {
    switch (answer.failure) {
        case CURLE_OK: break;
        case CURLE_PEER_FAILED_VERIFICATION:
        case CURLE_SSL_CACERT_BADFILE:
        case CURLE_UNSUPPORTED_PROTOCOL:
        case CURLE_URL_MALFORMAT: return Verdict::wrong;
        case CURLE_COULDNT_RESOLVE_HOST:
        case CURLE_COULDNT_RESOLVE_PROXY:
        case CURLE_COULDNT_CONNECT: return Verdict::unreachable;
        default: return Verdict::again;
    }
    if (answer.good()) return Verdict::good;
    switch (answer.status) {
        case 401:
        case 403: return Verdict::not_allowed;
        case 404:
        case 410: return Verdict::missing;
        case 408:
        case 425:
        case 429: return Verdict::again;
        default: return answer.status >= 500 ? Verdict::again : Verdict::wrong;
    }
}

/// "connection refused", "the server answers 404 (RepoNotFound: ...)": for the middle of a sentence.
inline std::string reason(const Answer& answer) {
    if (answer.failure != CURLE_OK) return drivers::in_quotes(answer.failure_text);
    if (!answer.misled.empty()) return answer.misled;
    std::string text = "the server answers " + std::to_string(answer.status);
    const std::string said = !answer.error_message.empty() ? answer.error_message : answer.error_code;
    return said.empty() ? text : text + ", " + drivers::in_quotes(said);
}

/// What helps where a certificate is not accepted, else `otherwise`.
inline std::string connection_advice(const Answer& answer, const std::string& otherwise) {
    if (answer.failure == CURLE_PEER_FAILED_VERIFICATION || answer.failure == CURLE_SSL_CACERT_BADFILE) {
        return "install ca-certificates, or name the file of your proxy's authority in SSL_CERT_FILE";
    }
    return otherwise;
}

/// Seconds before try `tries` + 1: a quarter, doubled each time, at most 30; up to a quarter more, so that connections
/// that failed together do not come back together.
inline double back_off(unsigned tries) {
    thread_local std::minstd_rand random(std::random_device{}());
    const double base = std::min(30.0, 0.25 * static_cast<double>(1U << std::min(tries - 1, 10U)));
    return base * (1 + std::uniform_real_distribution<double>(0, 0.25)(random));
}

/// When a server asks to wait (Retry-After), all connections do. Thread-safe.
class Gate {
  public:
    explicit Gate(const std::atomic<bool>& stop) : stop_(&stop) {}

    void hold(double seconds) {
        const std::lock_guard lock(guard_);
        open_ = std::max(open_, Clock::now() + duration(seconds));
    }
    /// Until `seconds` are over, and the gate is open, or `stop` is set.
    void wait(double seconds = 0) {
        const Clock::time_point own = Clock::now() + duration(seconds);
        while (!*stop_) {
            const Clock::time_point until = std::max(own, open());
            const Clock::time_point now = Clock::now();
            if (now >= until) return;
            std::this_thread::sleep_for(std::min<Clock::duration>(until - now, std::chrono::milliseconds(50)));
        }
    }

  private:
    using Clock = std::chrono::steady_clock;
    static Clock::duration duration(double seconds) {  // a day is long enough, and keeps the sum in range
        return std::chrono::milliseconds(static_cast<long long>(1000 * std::min(seconds, 86400.0)));
    }
    Clock::time_point open() {
        const std::lock_guard lock(guard_);
        return open_;
    }
    const std::atomic<bool>* stop_;
    std::mutex guard_;
    Clock::time_point open_{};
};

}  // namespace k3::fetch
#endif
