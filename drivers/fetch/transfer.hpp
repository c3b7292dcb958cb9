#ifndef K3_DRIVERS_FETCH_TRANSFER_HPP
#define K3_DRIVERS_FETCH_TRANSFER_HPP
// Fetches files in pieces over several connections. A worker is a thread with a connection: it takes the next piece
// from the queue and tries until it is there; the one that finds a file whole compares its digest and gives it its
// name. What arrived is on the disk, and known to be, every two seconds.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "drivers/fetch/digest.hpp"
#include "drivers/fetch/http.hpp"
#include "drivers/fetch/listing.hpp"
#include "drivers/fetch/local.hpp"
#include "drivers/fetch/manifest.hpp"
#include "drivers/fetch/part_file.hpp"
#include "drivers/fetch/progress.hpp"
#include "drivers/fetch/queue.hpp"
#include "drivers/fetch/retry.hpp"
#include "drivers/sizes.hpp"
#include "k3/core/error.hpp"

namespace k3::fetch {

struct TransferOptions {
    unsigned jobs = 1, retries = 0;
    std::uint64_t piece = 0;
    const HttpOptions* http = nullptr;
};

class Transfer {
  public:
    /// Fetches those of `states` that are not good. All arguments outlive it.
    Transfer(const Manifest& manifest, Ledger& ledger, std::vector<FileState>& states, const TransferOptions& options,
             std::atomic<bool>& stop, Progress& progress)
        : manifest_(&manifest),
          ledger_(&ledger),
          options_(options),
          stop_(&stop),
          progress_(&progress),
          gate_(stop),
          queue_(manifest, states, options.piece, stop) {}

    /// Returns when each file is good, or failed with its reason. Errors, once all connections have stopped and what
    /// came is safe: Code::plan (no access), Code::read (no connection), Code::write, Code::interrupted.
    void run() {
        progress_->begin("fetched", queue_.done(), queue_.total());
        std::vector<std::thread> team;
        for (; working_ < options_.jobs; ++working_) {
            try {
                team.emplace_back([this] { work(); });
            } catch (const std::system_error&) {
                break;
            }
        }
        if (team.empty()) throw Error(Code::internal, "no thread can be started", "raise the limit of processes");
        while (ended_ < team.size()) {
            std::this_thread::sleep_for(std::chrono::milliseconds(20));
            progress_->show(queue_.done(), queue_.under_way());
        }
        for (std::thread& thread : team) thread.join();
        progress_->end();
        if (failure_) std::rethrow_exception(failure_);
        if (*stop_) throw Error(Code::interrupted, "interrupted", "run it again");
    }

    /// Bytes that came over the network and were kept.
    std::uint64_t received() const noexcept { return received_; }

  private:
    /// A piece and how far it is.
    struct Stretch {
        Range piece;
        std::uint64_t at, durable;
        std::chrono::steady_clock::time_point saved = std::chrono::steady_clock::now();

        explicit Stretch(Range range) : piece(range), at(range.begin), durable(range.begin) {}
        Range rest() const noexcept { return {at, piece.end}; }
    };
    struct Attempt {
        Answer answer{};
        std::string objection{};  // what is wrong with a body that came
        bool no_ranges = false;
    };

    void work() noexcept {
        try {
            Http http(*options_.http);
            while (const auto job = queue_.take()) {
                std::optional<Range> rest;
                if (job->piece) {
                    rest = fetch(http, *job->item, *job->piece);
                } else {
                    complete(*job->item);
                }
                queue_.give_back(*job->item, rest);
            }
        } catch (...) {
            const std::lock_guard lock(guard_);
            if (!failure_ && !*stop_) failure_ = std::current_exception();
            *stop_ = true;
        }
        ++ended_;
    }

    void complete(Item& item) {
        const RemoteFile& file = item.file();
        std::string found;
        if (file.digest)
            found = digest_of(item.part->temporary_path(), file.digest.kind, From::cache, *stop_, [](std::uint64_t) {});
        if (found != file.digest.hex) {
            PartFile::drop(manifest_->local(file));
            return give_up(item, State::wrong_digest, wrong_digest_text(file.digest, found));
        }
        item.part->finish();
        ledger_->mark(file);
        const std::size_t left = queue_.settle(item, file.digest ? State::verified : State::sized, "");
        progress_->note(file.path + "  " + drivers::show_bytes(file.size) + "  " +
                        (file.digest ? file.digest.kind + " right" : "size right, no digest offered") + "  " +
                        std::to_string(left) + " to go");
    }

    /// The rest of the files goes on. What came of this one is kept for another run.
    void give_up(Item& item, State state, const std::string& why) {
        queue_.settle(item, state, why);
        progress_->note(item.file().path + ": " + why);
    }

    /// What is left of the piece where the server ignores ranges.
    std::optional<Range> fetch(Http& http, Item& item, Range piece) {
        Stretch stretch(piece);
        try {
            const bool no_ranges = persist(http, item, stretch);
            save(item, stretch);
            return no_ranges ? std::optional(stretch.rest()) : std::nullopt;
        } catch (...) {
            try {
                save(item, stretch);
            } catch (const Error&) {  // the disk that ended the run
            }
            throw;
        }
    }

    void save(Item& item, Stretch& stretch) {
        item.part->commit({stretch.durable, stretch.at});
        stretch.durable = stretch.at;
        stretch.saved = std::chrono::steady_clock::now();
    }

    /// Tries until the piece is there, or the file is given up, or the run ends. True: the server ignores ranges.
    bool persist(Http& http, Item& item, Stretch& stretch) {
        for (unsigned tries = 0; stretch.at < stretch.piece.end && !item.over;) {
            gate_.wait();
            if (*stop_) break;
            const Route route = queue_.route(item);
            const std::uint64_t before = stretch.at;
            const Attempt attempt = request(http, item, stretch, route);
            const Answer& answer = attempt.answer;
            if (answer.aborted || *stop_) break;
            if (!route.direct) queue_.learn(item, route.url, answer);
            if (attempt.no_ranges) return true;
            if (stretch.at == stretch.piece.end) break;
            if (stretch.at > before) tries = 0;
            const Verdict what = attempt.objection.empty() ? verdict(answer) : Verdict::again;
            const bool final = what == Verdict::not_allowed || what == Verdict::missing || what == Verdict::wrong;
            if (final && route.direct) {
                queue_.forget_direct(item);
                continue;
            }
            const std::string why = !attempt.objection.empty() ? attempt.objection
                                    : what == Verdict::good    ? "the server ends the body early"
                                                               : reason(answer);
            const std::string origin = Url::parse(answer.url)->origin();
            if (what == Verdict::not_allowed && origin == manifest_->source().origin())
                refuse_access(manifest_->source(), *options_.http, answer);
            if (what == Verdict::missing || what == Verdict::wrong) {
                give_up(item, State::failed, why + more_about(answer, item.file()));
                break;
            }
            // A body that is not what was listed seldom gets better, nor a host that the hub sent us to and that
            // refuses.
            const bool stubborn = !attempt.objection.empty() || what == Verdict::not_allowed;
            if (++tries > (stubborn ? std::min(options_.retries, 2U) : options_.retries)) {
                if (what == Verdict::unreachable) {
                    throw Error(Code::read, "no connection in " + std::to_string(tries) + " tries: " + why,
                                "check the network and the proxy",
                                {.path = without_token(origin, options_.http->token)});
                }
                // Without a digest nothing would find what such a body left.
                if (!attempt.objection.empty() && !item.file().digest) PartFile::drop(manifest_->local(item.file()));
                give_up(item, State::failed, why + ", " + std::to_string(tries) + " times");
                break;
            }
            if (answer.retry_after) gate_.hold(*answer.retry_after);
            const double wait = std::max(back_off(tries), answer.retry_after.value_or(0));
            say(item.file().path + ": " + why + "; again in " + drivers::show_seconds(wait));
            gate_.wait(wait);
        }
        return false;
    }

    static std::string more_about(const Answer& answer, const RemoteFile& file) {
        if (answer.status == 416 && answer.total) {
            return ": its file has " + std::to_string(*answer.total) + " bytes, the listing says " +
                   std::to_string(file.size);
        }
        const std::string advice = connection_advice(answer, "");
        return advice.empty() ? "" : "; " + advice;
    }

    Attempt request(Http& http, Item& item, Stretch& stretch, const Route& route) {
        const std::uint64_t size = item.file().size, from = stretch.at, end = stretch.piece.end;
        const bool all = stretch.piece == Range{0, size};
        Attempt attempt;
        std::uint64_t skip = 0;
        const auto accept = [&](const Answer& head) {
            judge(head, item.file(), {from, end}, attempt.objection);
            if (head.status == 200 && (all || route.whole)) {
                skip = from;
            } else {
                attempt.no_ranges = head.status == 200 && attempt.objection.empty();
            }
            return attempt.objection.empty() && !attempt.no_ranges;
        };
        const auto take = [&](std::span<const std::byte> bytes) {
            const std::size_t jump = static_cast<std::size_t>(std::min<std::uint64_t>(skip, bytes.size()));
            skip -= jump;
            bytes = bytes.subspan(jump);
            if (bytes.size() > end - stretch.at) {
                attempt.objection = "the server sends more bytes than were asked for";
                item.done -= stretch.at - from;
                received_ -= stretch.at - from;
                stretch.at = from;
                stretch.durable = std::min(stretch.durable, from);
                return false;
            }
            item.part->write(stretch.at, bytes);
            stretch.at += bytes.size();
            item.done += bytes.size();
            received_ += bytes.size();
            if (std::chrono::steady_clock::now() - stretch.saved > std::chrono::seconds(2)) save(item, stretch);
            return !item.over;
        };
        std::optional<Range> range = stretch.rest();
        if (all && from == 0) range.reset();
        attempt.answer = http.get(route.url, range, {accept, take});
        return attempt;
    }

    /// What speaks against a body, from its head.
    static void judge(const Answer& head, const RemoteFile& file, Range asked, std::string& objection) {
        const bool page = head.content_type.starts_with("text/html") && !file.path.ends_with(".html");
        const auto total = head.status == 206 ? head.total : head.length;
        if (page) {
            objection = "a web page comes instead of the file";
        } else if (total && *total != file.size) {
            objection =
                "the server has " + std::to_string(*total) + " bytes, the listing says " + std::to_string(file.size);
        } else if (head.status == 206 &&
                   (!head.range || head.range->begin != asked.begin || head.range->end > asked.end)) {
            objection = "the server sends another range than was asked for";
        }
    }

    /// Connections that fail together say so once.
    void say(const std::string& line) {
        const auto now = std::chrono::steady_clock::now();
        {
            const std::lock_guard lock(guard_);
            if (now - said_ < std::chrono::seconds(1)) return;
            said_ = now;
        }
        progress_->note(line);
    }

    const Manifest* manifest_;
    Ledger* ledger_;
    TransferOptions options_;
    std::atomic<bool>* stop_;
    Progress* progress_;
    Gate gate_;
    Queue queue_;
    std::size_t working_ = 0;
    std::atomic<std::size_t> ended_{0};
    std::atomic<std::uint64_t> received_{0};
    std::mutex guard_;
    std::exception_ptr failure_{};
    std::chrono::steady_clock::time_point said_{};
};

}  // namespace k3::fetch
#endif
