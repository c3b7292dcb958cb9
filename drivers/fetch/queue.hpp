#ifndef K3_DRIVERS_FETCH_QUEUE_HPP
#define K3_DRIVERS_FETCH_QUEUE_HPP
// What is still to be fetched, as the workers of a transfer share it: files in order, each cut into pieces, and what
// one request taught for the next (where the hub sends us, whether the server knows ranges, the one commit).
#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "drivers/fetch/http.hpp"
#include "drivers/fetch/listing.hpp"
#include "drivers/fetch/local.hpp"
#include "drivers/fetch/manifest.hpp"
#include "drivers/fetch/part_file.hpp"
#include "k3/core/error.hpp"

namespace k3::fetch {

/// A file under way. Workers that have a job of it may use `part`, `file()`, `over` and `done`; the rest is the
/// queue's.
class Item {
  public:
    explicit Item(FileState& state) : done(state.kept), state_(&state) {}
    const RemoteFile& file() const noexcept { return *state_->file; }

    std::optional<PartFile> part{};
    std::atomic<bool> over{false};  // good, or given up
    std::atomic<std::uint64_t> done;

  private:
    friend class Queue;
    FileState* state_;
    std::deque<Range> todo_{};
    unsigned active_ = 0;
    bool whole_ = false;    // the server ignores ranges: one request from the first missing byte to the end
    std::string direct_{};  // where the hub sent us last
};

/// What a worker does next: a piece of a file, or, once it has all, its end.
struct Job {
    Item* item;
    std::optional<Range> piece;
};

/// Where a request goes, and how.
struct Route {
    std::string url;
    bool direct = false;  // straight to where the hub sent us before
    bool whole = false;
};

/// Thread-safe.
class Queue {
  public:
    /// Of those of `states` that are not good. Arguments outlive it.
    Queue(const Manifest& manifest, std::vector<FileState>& states, std::uint64_t piece, const std::atomic<bool>& stop)
        : manifest_(&manifest), piece_(piece), stop_(&stop), commit_(manifest.listing().commit) {
        for (FileState& state : states) {
            total_ += state.file->size;
            if (state.good()) {
                there_ += state.file->size;
            } else {
                items_.push_back(std::make_unique<Item>(state));
            }
        }
        // Configuration and tokenizer are of use before the first shard is.
        std::ranges::stable_sort(
            items_, {}, [](const std::unique_ptr<Item>& item) { return item->file().path.ends_with(".safetensors"); });
        left_ = items_.size();
    }

    /// The next job of the first file that has one, so that few files are under way at a time. Waits while all that is
    /// left is in other hands. nullopt: no more, or `stop`. Errors: Code::write from opening a file.
    std::optional<Job> take() {
        std::unique_lock lock(guard_);
        while (!*stop_) {
            bool pending = false;
            for (const auto& owner : items_) {
                Item& item = *owner;
                if (item.over) continue;
                pending = true;
                if (!item.part) open(item);
                if (item.whole_ && item.active_ > 0) continue;
                if (item.whole_ && !item.todo_.empty()) {
                    item.todo_ = {{item.part->missing().front().begin, item.file().size}};
                    item.done = item.todo_.front().begin;  // what lies behind comes once more
                }
                if (item.todo_.empty() && item.active_ > 0) continue;
                ++item.active_;
                if (item.todo_.empty()) return Job{&item, std::nullopt};
                const Range piece = item.todo_.front();
                item.todo_.pop_front();
                return Job{&item, piece};
            }
            if (!pending) break;
            changed_.wait_for(lock, std::chrono::milliseconds(100));
        }
        return std::nullopt;
    }

    /// The job is over; `rest` of its piece is still to be fetched, in one request with all that follows.
    void give_back(Item& item, std::optional<Range> rest = std::nullopt) {
        const std::lock_guard lock(guard_);
        if (--item.active_ == 0 && item.over) item.part.reset();  // the space of a dropped one is free then
        if (rest) {
            item.whole_ = true;
            item.todo_.push_front(*rest);
        }
        changed_.notify_all();
    }

    /// The file has `state` from now on; a second call for a file changes nothing. Returns how many files are left.
    std::size_t settle(Item& item, State state, const std::string& why) {
        const std::lock_guard lock(guard_);
        if (item.over.exchange(true)) return left_;
        item.state_->state = state;
        item.state_->why = why;
        return --left_;
    }

    Route route(const Item& item) {
        const std::lock_guard lock(guard_);
        if (!item.direct_.empty()) return {item.direct_, true, item.whole_};
        return {manifest_->source().file(commit_.empty() ? manifest_->source().revision : commit_, item.file().path),
                false, item.whole_};
    }

    /// From an answer of the hub. Errors: Code::read when it is of another commit than those before.
    void learn(Item& item, const std::string& url, const Answer& answer) {
        const std::lock_guard lock(guard_);
        if (answer.good() && answer.url != url) item.direct_ = answer.url;
        if (!is_hex(answer.commit, 40)) return;
        if (commit_.empty()) commit_ = answer.commit;
        if (answer.commit == commit_) return;
        throw Error(Code::read,
                    manifest_->source().revision + " was " + commit_ + " and is " + answer.commit +
                        " now: files of two versions would be mixed",
                    "run it again to fetch the new one", {.path = manifest_->source().repo});
    }
    /// Such an address expires.
    void forget_direct(Item& item) {
        const std::lock_guard lock(guard_);
        item.direct_.clear();
    }

    std::uint64_t total() const noexcept { return total_; }
    std::uint64_t done() const noexcept {
        std::uint64_t sum = there_;
        for (const auto& item : items_) sum += item->done;
        return sum;
    }

    /// "model-00012-of-000096.safetensors 43 %, 3 more"
    std::string under_way() {
        const std::lock_guard lock(guard_);
        std::string text;
        std::size_t more = 0;
        for (const auto& item : items_) {
            if (item->over || item->active_ == 0) continue;
            if (!text.empty()) {
                ++more;
                continue;
            }
            text = item->file().path + " " +
                   std::to_string(100 * item->done / std::max<std::uint64_t>(item->file().size, 1)) + " %";
        }
        return more == 0 ? text : text + ", " + std::to_string(more) + " more";
    }

  private:
    void open(Item& item) {
        const RemoteFile& file = item.file();
        item.part.emplace(PartFile::open(manifest_->local(file), file.size, manifest_->identity(file)));
        std::uint64_t missing = 0;
        for (const Range& gap : item.part->missing()) {
            missing += gap.size();
            for (std::uint64_t at = gap.begin; at < gap.end; at += piece_)
                item.todo_.push_back({at, std::min(gap.end, at + piece_)});
        }
        item.done = file.size - missing;
    }

    const Manifest* manifest_;
    std::uint64_t piece_;
    const std::atomic<bool>* stop_;
    std::string commit_;
    std::vector<std::unique_ptr<Item>> items_;
    std::size_t left_ = 0;
    std::uint64_t total_ = 0, there_ = 0;
    std::mutex guard_;
    std::condition_variable changed_;
};

}  // namespace k3::fetch
#endif
