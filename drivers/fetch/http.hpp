#ifndef K3_DRIVERS_FETCH_HTTP_HPP
#define K3_DRIVERS_FETCH_HTTP_HPP
// One HTTP connection after another, by libcurl: GET with a range, redirects followed here so that the token's header
// is set anew, or left out, for every host on the way. No cookies, no netrc, no compressed answers (a compressing
// server has no ranges). TLS certificates are checked; an https address never leads to an http one.
#include <curl/curl.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "drivers/fetch/address.hpp"
#include "k3/core/error.hpp"

namespace k3::fetch {

struct Range {
    std::uint64_t begin = 0, end = 0;  // end is not in it

    std::uint64_t size() const noexcept { return end - begin; }
    bool operator==(const Range&) const = default;
};

/// Of the last answer on the way, but for `commit`.
struct Answer {
    CURLcode failure = CURLE_OK;  // of the connection; CURLE_OK: an answer came, whole
    std::string failure_text{};
    bool aborted = false;   // `stop` was set
    bool declined = false;  // the receiver did not want the body
    long status = 0;
    std::string url{};  // that answered in the end
    std::string content_type{}, link{}, error_code{}, error_message{};
    std::string commit{};  // X-Repo-Commit of the first answer that has it
    std::optional<std::uint64_t> length{};
    std::optional<Range> range{};          // Content-Range
    std::optional<std::uint64_t> total{};  // size of the whole file, from Content-Range
    std::optional<double> retry_after{};   // seconds
    std::string misled{};                  // why a redirect was not followed

    /// Only then is the body the file or a part of it: that of 202 or 203 is anything.
    bool has_body() const noexcept { return status == 200 || status == 206; }
    bool good() const noexcept { return failure == CURLE_OK && has_body(); }
};

/// What becomes of a body. Both may throw; the request ends and the exception leaves get().
struct Receiver {
    std::function<bool(const Answer&)> accept;             // of status 200 or 206, before its body; false: do not send
    std::function<bool(std::span<const std::byte>)> take;  // false: no more
};

struct HttpOptions {
    std::string token{};         // empty: none
    std::string token_origin{};  // the only one that gets it
    bool https_only = true;
    long timeout = 30;      // seconds to connect in, and without a byte
    std::string ca_file{};  // empty: the system's
    const std::atomic<bool>* stop = nullptr;
};

/// `text` of a server for a message, a log or a file: where it repeats the token, in whatever case, "***" stands.
inline std::string without_token(std::string text, const std::string& token) {
    constexpr std::size_t kShortest = 8;  // less is a word that may be anywhere
    if (token.size() < kShortest) return text;
    const auto same = [](char a, char b) {
        const auto lower = [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; };
        return lower(a) == lower(b);
    };
    for (auto from = text.begin();;) {
        const auto found = std::search(from, text.end(), token.begin(), token.end(), same);
        if (found == text.end()) return text;
        const auto at = found - text.begin();
        text.replace(static_cast<std::size_t>(at), token.size(), "***");
        from = text.begin() + at + 3;
    }
}

/// One at a time, each in its own thread. curl_global_init has been called.
class Http {
  public:
    explicit Http(const HttpOptions& options) : options_(&options), handle_(curl_easy_init(), curl_easy_cleanup) {
        if (!handle_) throw Error(Code::internal, "libcurl cannot start", "check the installation of libcurl");
    }

    /// Errors: what `receiver` throws. Everything else is told by the Answer, whose texts do not hold the token.
    Answer get(std::string url, std::optional<Range> range, const Receiver& receiver) {
        constexpr int kMostRedirects = 10;
        std::string commit;
        for (int hop = 0;; ++hop) {
            Exchange exchange{.answer = {}, .receiver = &receiver, .stop = options_->stop};
            perform(url, range, exchange);
            if (exchange.thrown) std::rethrow_exception(exchange.thrown);
            Answer& answer = exchange.answer;
            if (commit.empty()) commit = answer.commit;
            answer.commit = commit;
            answer.url = url;
            char* next = nullptr;
            curl_easy_getinfo(handle_.get(), CURLINFO_REDIRECT_URL, &next);
            if (answer.failure != CURLE_OK || answer.status < 300 || answer.status > 399 || next == nullptr)
                return answer;
            answer.misled = objection_to(url, next);
            if (answer.misled.empty() && hop == kMostRedirects)
                answer.misled = "more than 10 redirects, the last to " + shown_origin(next);
            if (!answer.misled.empty()) return answer;
            url = next;  // as it is: it may be signed
        }
    }

  private:
    struct Exchange {
        Answer answer;
        const Receiver* receiver;
        const std::atomic<bool>* stop;
        bool begun = false;
        std::uint64_t dropped = 0;
        std::exception_ptr thrown{};
    };

    std::string shown_origin(const std::string& url) const {
        return without_token(Url::parse(url)->origin(), options_->token);
    }

    /// Why a redirect may not be followed, or "".
    std::string objection_to(const std::string& from, const char* to) const {
        const auto url = Url::parse(to);
        if (url && (!options_->https_only || url->scheme() == "https")) return "";
        return shown_origin(from) + " redirects to " +
               (url ? shown_origin(to) + ", which is not https" : "what is not a web address");
    }

    void perform(const std::string& url, std::optional<Range> range, Exchange& exchange) {
        CURL* curl = handle_.get();
        curl_easy_reset(curl);  // connections stay
        curl_easy_setopt(curl, CURLOPT_URL, url.c_str());
        curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
        curl_easy_setopt(curl, CURLOPT_PROTOCOLS_STR, options_->https_only ? "https" : "http,https");
        // Several connections are the point; streams of one would share its window.
        curl_easy_setopt(curl, CURLOPT_HTTP_VERSION, static_cast<long>(CURL_HTTP_VERSION_1_1));
        curl_easy_setopt(curl, CURLOPT_USERAGENT, "k3-fetch/" K3_VERSION);
        curl_easy_setopt(curl, CURLOPT_CONNECTTIMEOUT, options_->timeout);
        curl_easy_setopt(curl, CURLOPT_LOW_SPEED_LIMIT, 1L);
        curl_easy_setopt(curl, CURLOPT_LOW_SPEED_TIME, options_->timeout);
        curl_easy_setopt(curl, CURLOPT_BUFFERSIZE, 512L * 1024);
        if (!options_->ca_file.empty()) curl_easy_setopt(curl, CURLOPT_CAINFO, options_->ca_file.c_str());
        char why[CURL_ERROR_SIZE] = "";
        curl_easy_setopt(curl, CURLOPT_ERRORBUFFER, why);
        curl_easy_setopt(curl, CURLOPT_HEADERFUNCTION, &on_header);
        curl_easy_setopt(curl, CURLOPT_HEADERDATA, &exchange);
        curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, &on_body);
        curl_easy_setopt(curl, CURLOPT_WRITEDATA, &exchange);
        curl_easy_setopt(curl, CURLOPT_NOPROGRESS, 0L);
        curl_easy_setopt(curl, CURLOPT_XFERINFOFUNCTION, &on_progress);
        curl_easy_setopt(curl, CURLOPT_XFERINFODATA, &exchange);

        curl_slist* list = curl_slist_append(nullptr, "Accept-Encoding: identity");
        if (!options_->token.empty() && Url::parse(url)->origin() == options_->token_origin)
            list = curl_slist_append(list, ("Authorization: Bearer " + options_->token).c_str());
        if (range) {
            const std::string bytes = std::to_string(range->begin) + "-" + std::to_string(range->end - 1);
            list = curl_slist_append(list, ("Range: bytes=" + bytes).c_str());
        }
        const std::unique_ptr<curl_slist, decltype(&curl_slist_free_all)> headers(list, curl_slist_free_all);
        curl_easy_setopt(curl, CURLOPT_HTTPHEADER, headers.get());

        Answer& answer = exchange.answer;
        answer.failure = curl_easy_perform(curl);
        if (answer.good()) begin(exchange);  // a body of no bytes
        if (answer.failure == CURLE_WRITE_ERROR && (answer.declined || exchange.thrown)) answer.failure = CURLE_OK;
        answer.aborted = answer.failure == CURLE_ABORTED_BY_CALLBACK;
        if (answer.failure != CURLE_OK) answer.failure_text = *why != 0 ? why : curl_easy_strerror(answer.failure);
        for (std::string* text : {&answer.failure_text, &answer.error_code, &answer.error_message, &answer.link})
            *text = without_token(std::move(*text), options_->token);
        curl_easy_setopt(curl, CURLOPT_ERRORBUFFER, nullptr);
        curl_off_t wait = 0;
        if (curl_easy_getinfo(curl, CURLINFO_RETRY_AFTER, &wait) == CURLE_OK && wait > 0)
            answer.retry_after = static_cast<double>(wait);
    }

    static int on_progress(void* data, curl_off_t, curl_off_t, curl_off_t, curl_off_t) {
        const auto* exchange = static_cast<Exchange*>(data);
        return exchange->stop != nullptr && *exchange->stop ? 1 : 0;
    }

    static std::size_t on_header(char* raw, std::size_t, std::size_t bytes, void* data) {
        Answer& answer = static_cast<Exchange*>(data)->answer;
        try {
            read_header(answer, std::string_view(raw, bytes));
        } catch (...) {
            static_cast<Exchange*>(data)->thrown = std::current_exception();
            return 0;
        }
        return bytes;
    }

    static std::size_t on_body(char* raw, std::size_t, std::size_t bytes, void* data) {
        Exchange& exchange = *static_cast<Exchange*>(data);
        if (!exchange.answer.has_body()) {  // the text of an error or a redirect
            exchange.dropped += bytes;
            exchange.answer.declined = exchange.dropped > (std::uint64_t{1} << 20);
            return exchange.answer.declined ? 0 : bytes;
        }
        try {
            if (!begin(exchange)) return 0;
            if (exchange.receiver->take(std::as_bytes(std::span(raw, bytes)))) return bytes;
            exchange.answer.declined = true;
        } catch (...) {  // not through C
            exchange.thrown = std::current_exception();
        }
        return 0;
    }

    static bool begin(Exchange& exchange) {
        if (!exchange.begun) {
            exchange.begun = true;
            exchange.answer.declined = !exchange.receiver->accept(exchange.answer);
        }
        return !exchange.answer.declined;
    }

    static std::optional<std::uint64_t> number(std::string_view text) {
        std::uint64_t value = 0;
        const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), value);
        if (failure != std::errc{} || end != text.data() + text.size()) return {};
        return value;
    }

    static void read_header(Answer& answer, std::string_view line) {
        while (!line.empty() && (line.back() == '\r' || line.back() == '\n' || line.back() == ' '))
            line.remove_suffix(1);
        if (line.starts_with("HTTP/")) {
            answer = {};
            const std::size_t space = std::min(line.find(' '), line.size());
            answer.status = static_cast<long>(number(line.substr(std::min(space + 1, line.size()), 3)).value_or(0));
            return;
        }
        const std::size_t colon = line.find(':');
        if (colon == std::string_view::npos) return;
        std::string name(line.substr(0, colon));
        for (char& c : name) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
        std::string_view value = line.substr(colon + 1);
        while (!value.empty() && (value.front() == ' ' || value.front() == '\t')) value.remove_prefix(1);
        if (name == "content-type") answer.content_type = value;
        if (name == "content-length") answer.length = number(value);
        if (name == "content-range") read_content_range(answer, value);
        if (name == "link") answer.link += (answer.link.empty() ? "" : ", ") + std::string(value);
        if (name == "x-repo-commit") answer.commit = value;
        if (name == "x-error-code") answer.error_code = value;
        if (name == "x-error-message") answer.error_message = value;
    }

    static void read_content_range(Answer& answer, std::string_view value) {  // "bytes 0-99/1000", "bytes */1000"
        if (!value.starts_with("bytes ")) return;
        value.remove_prefix(6);
        const std::size_t slash = value.find('/'), dash = value.find('-');
        if (slash == std::string_view::npos) return;
        answer.total = number(value.substr(slash + 1));
        if (dash == std::string_view::npos || dash > slash) return;
        const auto first = number(value.substr(0, dash)), last = number(value.substr(dash + 1, slash - dash - 1));
        if (first && last && *first <= *last) answer.range = Range{*first, *last + 1};
    }

    const HttpOptions* options_;
    std::unique_ptr<CURL, decltype(&curl_easy_cleanup)> handle_;
};

}  // namespace k3::fetch
#endif
