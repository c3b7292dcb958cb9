#ifndef K3_STREAM_TRUNK_HPP
#define K3_STREAM_TRUNK_HPP
// The trunk: every matrix that each token needs. Some stay in memory; the others pass through a ring of panels that is
// read ahead across layers and across steps, in the order in which the steps use them. A cyclic scan defeats every
// cache, so there is none.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "k3/core/buffer.hpp"
#include "k3/core/error.hpp"
#include "k3/io/reader.hpp"
#include "k3/io/stopwatch.hpp"
#include "k3/layers/weight.hpp"
#include "k3/stream/embedding_rows.hpp"
#include "k3/stream/stream_files.hpp"
#include "k3/stream/trunk_layout.hpp"

namespace k3::stream {

struct TrunkOptions {
    std::vector<bool> pinned{};    // by matrix of the walk
    std::uint64_t ring_bytes = 0;  // at least ring_slot_bytes(), or 0 if all is pinned
    std::uint64_t panel_bytes = kPanelBytes;
    core::Pages pages = core::Pages::huge;
    bool read_ahead = true;  // false: a panel is asked for when it is needed, and not before
};

struct TrunkCounters {
    std::uint64_t pinned_bytes = 0;    // read once, by load()
    std::uint64_t streamed_bytes = 0;  // of panels that were used
    std::uint64_t lm_head_bytes = 0;   // part of streamed_bytes
    std::uint64_t dropped_bytes = 0;   // asked for ahead and not used: a step was taken back
    std::uint64_t panels = 0;
    double wait_seconds = 0;  // a step stood still for a panel
};

/// Serves the walk of one model to one step at a time. Not thread-safe: acquire and release come from the thread that
/// runs the step.
class Trunk final : public layers::WeightSource {
  public:
    /// `weights[i]` is matrix i of the walk in the model; its id is i. All arguments outlive the result.
    /// Errors: Code::plan if the memory is refused.
    Trunk(const std::vector<TrunkMatrix>& walk, std::vector<layers::Weight*> weights, EmbeddingRows& embedding,
          io::Reader& reader, TrunkOptions options)
        : walk_(walk),
          weights_(std::move(weights)),
          embedding_(embedding),
          reader_(reader),
          options_(std::move(options)),
          panels_(cut_panels(walk, options_.pinned, options_.panel_bytes)),
          entries_(std::make_unique<Entry[]>(kEntries)) {
        pinned_ = core::Buffer(stream::pinned_bytes(walk_, options_.pinned), options_.pages);
        if (!panels_.empty()) ring_ = core::Buffer(options_.ring_bytes, options_.pages);
    }
    Trunk(const Trunk&) = delete;
    Trunk& operator=(const Trunk&) = delete;
    ~Trunk() { drop_all(); }

    /// Reads what stays and points its weights at it. progress(done, total) in bytes. Errors: Code::read.
    /// progress must not throw: reads are under way.
    void load(const std::function<void(std::uint64_t, std::uint64_t)>& progress = {}) {
        std::vector<std::unique_ptr<io::Read>> reads;
        std::vector<io::Read*> batch;
        std::vector<std::size_t> matrix;
        std::byte* at = pinned_.data();
        for (std::size_t i = 0; i < walk_.size(); ++i) {
            if (!options_.pinned[i]) {
                weights_[i]->data = nullptr;
                continue;
            }
            auto read = std::make_unique<io::Read>();
            aim(*read, walk_[i].place, at, io::Urgency::now);
            at += walk_[i].window_bytes();
            batch.push_back(read.get());
            reads.push_back(std::move(read));
            matrix.push_back(i);
        }
        const std::uint64_t total = pinned_.size();
        reader_.submit(batch);
        std::optional<Error> failed;
        for (std::size_t k = 0; k < reads.size(); ++k) {
            if (failed || !reader_.wait(*reads[k])) {
                if (!failed) failed = named(reader_.error_of(*reads[k]), matrix[k]);
                reader_.cancel(*reads[k]);
                continue;
            }
            const std::size_t i = matrix[k];
            // To the start of the window: kernels like aligned rows, and values must not be split.
            weights_[i]->data = settle(*reads[k], io::window_of(reads[k]->offset, reads[k]->bytes).skip);
            counters_.pinned_bytes += walk_[i].place.bytes;
            if (progress) progress(counters_.pinned_bytes, total);
        }
        if (failed) throw *failed;
        if (progress) progress(total, total);
    }

    /// A step begins; `logits`: it will use lm_head; `more`: another step is sure to follow, so read ahead into it.
    void begin_step(bool logits, bool more) noexcept {
        ++step_;
        logits_ = logits;
        more_ = more;
        // What was read ahead is this step's beginning, unless a step before was taken back half-way.
        if (count_ == 0 || front().step != step_ || front().panel != 0) {
            drop_all();
            next_step_ = step_;
            next_panel_ = 0;
        }
        fill();
    }

    bool acquire(const layers::Weight& weight, std::size_t first, bool whole, layers::Panel& panel) noexcept override {
        if (acquired_ == count_) fill(true);
        if (acquired_ == count_) return fail(weight.id, "the ring has no room for the next panel");
        Entry& entry = entries_[(oldest_ + acquired_) % kEntries];
        const TrunkPanel& wanted = panels_[entry.panel];
        if (wanted.matrix != weight.id || wanted.first != first || (whole && wanted.rows != weight.rows))
            return fail(weight.id, "the layers ask for panels in another order than the ring has them");
        if (!await(entry)) {
            failure_.emplace(named(reader_.error_of(entry.read), weight.id));
            return false;
        }
        ++acquired_;
        ++counters_.panels;
        const std::uint64_t bytes = wanted.rows * walk_[wanted.matrix].row_bytes;
        counters_.streamed_bytes += bytes;
        if (walk_[wanted.matrix].lm_head) counters_.lm_head_bytes += bytes;
        panel = {entry.data, nullptr, wanted.first, wanted.rows};
        fill();
        return true;
    }

    void release(const layers::Weight&, const layers::Panel& panel) noexcept override {
        for (std::size_t i = 0; i < acquired_; ++i) {
            Entry& entry = entries_[(oldest_ + i) % kEntries];
            if (entry.data == panel.data) entry.released = true;
        }
        while (acquired_ > 0 && front().released) pop();
        fill();
    }

    bool read_rows(const layers::Weight& weight, const std::int32_t* rows, std::size_t count,
                   std::byte* out) noexcept override {
        if (embedding_.read_rows(weight, rows, count, out)) return true;
        failure_ = embedding_.failure();
        return false;
    }

    /// The ring, for io::Reader::register_memory.
    std::span<std::byte> ring() const noexcept { return {ring_.data(), ring_.size()}; }
    const TrunkCounters& counters() const noexcept { return counters_; }
    /// What went wrong when acquire or read_rows returned false.
    const std::optional<Error>& failure() const noexcept { return failure_; }

  private:
    static constexpr std::size_t kEntries = 128;  // panels in the ring at once

    struct Entry {
        io::Read read{};
        std::byte* data = nullptr;        // first byte of the panel, once it is there
        std::uint64_t at = 0, bytes = 0;  // where in the ring
        std::uint64_t step = 0;
        std::size_t panel = 0;
        bool released = false;
    };

    Error named(const Error& error, std::size_t matrix) const {
        return Error(Code::read, "matrix " + std::to_string(matrix) + " of the trunk: " + error.message(), error.next(),
                     error.where());
    }
    bool fail(std::size_t matrix, const char* why) noexcept {
        failure_.emplace(Code::internal, "matrix " + std::to_string(matrix) + " of the trunk: " + why,
                         "please report this");
        return false;
    }

    Entry& front() noexcept { return entries_[oldest_]; }
    void pop() noexcept {
        oldest_ = (oldest_ + 1) % kEntries;
        --count_;
        --acquired_;
    }

    /// Waits for a panel's bytes, and moves them down where they would split a value.
    bool await(Entry& entry) noexcept {
        if (entry.read.state.load(std::memory_order_acquire) != io::ReadState::done) {
            const io::Stopwatch watch(counters_.wait_seconds);
            reader_.promote(entry.read);
            if (!reader_.wait(entry.read)) return false;
        }
        entry.data = settle(entry.read, entry.read.offset % walk_[panels_[entry.panel].matrix].element_bytes);
        return true;
    }

    /// Where `need` bytes fit behind the youngest panel; nothing if they do not.
    std::optional<std::uint64_t> room(std::uint64_t need) noexcept {
        if (count_ == kEntries) return std::nullopt;
        const std::uint64_t capacity = ring_.size();
        if (count_ == 0) return need <= capacity ? std::optional<std::uint64_t>(0) : std::nullopt;
        const Entry& last = entries_[(oldest_ + count_ - 1) % kEntries];
        const std::uint64_t begin = front().at, end = last.at + last.bytes;
        if (end > begin) {
            if (capacity - end >= need) return end;
            return begin >= need ? std::optional<std::uint64_t>(0) : std::nullopt;
        }
        return begin - end >= need ? std::optional<std::uint64_t>(end) : std::nullopt;
    }

    /// The next panel that is sure to be used, if it is known yet.
    bool known() noexcept {
        for (;; ++next_panel_) {
            if (next_panel_ == panels_.size()) {
                ++next_step_;
                next_panel_ = 0;
            }
            if (panels_.empty() || next_step_ > step_ + (more_ ? 1 : 0)) return false;
            if (!walk_[panels_[next_panel_].matrix].lm_head) return true;
            if (next_step_ > step_) return false;  // whether that step wants logits is not known yet
            if (logits_) return true;
        }
    }

    /// Asks for as many panels as there is room for. One at a time if there is no read-ahead.
    void fill(bool needed = false) noexcept {
        if (!options_.read_ahead && !needed) return;
        std::array<io::Read*, kEntries> batch;
        std::size_t asked = 0;
        while (known()) {
            const TrunkPanel& panel = panels_[next_panel_];
            const TrunkMatrix& m = walk_[panel.matrix];
            const Place place{m.place.file, m.place.offset + panel.first * m.row_bytes, panel.rows * m.row_bytes};
            const std::uint64_t bytes = io::window_of(place.offset, place.bytes).bytes;
            const auto at = room(bytes);
            if (!at) break;
            Entry& entry = entries_[(oldest_ + count_) % kEntries];
            entry.at = *at;
            entry.bytes = bytes;
            entry.step = next_step_;
            entry.panel = next_panel_++;
            entry.released = false;
            entry.data = nullptr;
            aim(entry.read, place, ring_.data() + *at, needed ? io::Urgency::now : io::Urgency::ahead);
            batch[asked++] = &entry.read;
            ++count_;
            if (!options_.read_ahead) break;
        }
        if (asked != 0) reader_.submit({batch.data(), asked});
    }

    void drop_all() noexcept {
        for (; count_ > 0; --count_) {
            Entry& entry = front();
            if (acquired_ > 0) {
                --acquired_;
            } else {
                reader_.cancel(entry.read);
                counters_.dropped_bytes += entry.read.bytes;
            }
            oldest_ = (oldest_ + 1) % kEntries;
        }
    }

    const std::vector<TrunkMatrix>& walk_;
    std::vector<layers::Weight*> weights_;
    EmbeddingRows& embedding_;
    io::Reader& reader_;
    TrunkOptions options_;
    std::vector<TrunkPanel> panels_;
    core::Buffer pinned_, ring_;
    std::unique_ptr<Entry[]> entries_;
    std::size_t oldest_ = 0, count_ = 0, acquired_ = 0;  // the first `acquired_` of `count_` are in use
    std::uint64_t step_ = 0, next_step_ = 0;
    std::size_t next_panel_ = 0;
    bool logits_ = false, more_ = false;
    TrunkCounters counters_;
    std::optional<Error> failure_;
};

}  // namespace k3::stream
#endif
