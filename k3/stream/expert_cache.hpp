#ifndef K3_STREAM_EXPERT_CACHE_HPP
#define K3_STREAM_EXPERT_CACHE_HPP
// Routed experts out of a cache of slots: who is where is decided by ExpertSlots, bytes come from the reader, work
// starts on each expert as it arrives. Which expert is computed first depends on the disk; what is computed does not:
// outputs are kept by (token, rank) and summed in rank order by the layer.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "k3/core/buffer.hpp"
#include "k3/core/error.hpp"
#include "k3/core/parallel.hpp"
#include "k3/io/reader.hpp"
#include "k3/io/stopwatch.hpp"
#include "k3/layers/experts.hpp"
#include "k3/simd/fence.hpp"
#include "k3/stream/expert_batch.hpp"
#include "k3/stream/expert_places.hpp"
#include "k3/stream/expert_slots.hpp"
#include "k3/stream/stream_files.hpp"
#include "k3/stream/trace.hpp"

namespace k3::stream {

/// Router look-ahead of decode steps: how many experts of the next layer are read before they are asked for.
struct LookAhead {
    bool automatic = true;  // ends by itself when more than a twentieth of what is read is read in vain
    std::size_t count = 0;  // 0: off
};

struct ExpertCacheOptions {
    std::size_t slots = 0;  // at least least_slots()
    LookAhead look_ahead{};
    Policy policy = Policy::lfru;
    core::Pages pages = core::Pages::huge;
    std::size_t most_tokens = 1;    // of a step
    std::uint64_t trace_bytes = 0;  // what is asked for is recorded until this much is used; 0: it is not
};

struct ExpertTraffic {
    std::uint64_t bytes = 0;  // read, of experts that were used; a guess counts when it is first used
    double wait_seconds = 0;  // no expert was ready to compute
};

/// The betas of SiTU, rounded as the kernels round.
inline layers::Situ situ_of(const model::Config& config) {
    layers::Situ situ{};
    core::parallel(core::Exec{}, 1, 1, [&](std::size_t, std::size_t, unsigned) noexcept {
        situ = {simd::round32(config.situ_beta), simd::round32(config.situ_linear_beta)};
    });
    return situ;
}

/// The fewest slots a model can run with: what one token needs, and one more for the next read.
constexpr std::size_t least_slots(std::size_t top_k, std::size_t experts_in_all) noexcept {
    return experts_in_all == 0 ? 0 : std::min(top_k + 1, experts_in_all);
}

/// Not thread-safe: submit comes from the thread that runs the step.
class ExpertCache final : public layers::ExpertService {
  public:
    /// All arguments outlive the result. Errors: Code::plan if there are too few slots or the memory is refused.
    ExpertCache(const ExpertPlaces& places, layers::Situ situ, io::Reader& reader, const ExpertCacheOptions& options)
        : places_(places),
          situ_(situ),
          reader_(reader),
          slots_(options.slots, places.keys(), options.policy, places.experts()),
          arena_(options.slots * places.slot_bytes(), options.pages),
          flights_(std::make_unique<Flight[]>(kFlights)),
          flight_of_(options.slots, kNoFlight),
          look_ahead_(options.look_ahead) {
        look_ahead_.count = std::min(look_ahead_.count, places.top_k());
        // A guess must not push out what the present token needs, nor what was guessed beside it.
        if (options.slots < places.top_k() + 1 + look_ahead_.count) look_ahead_.count = 0;
        ahead_.reserve(kFlights);
        if (options.trace_bytes != 0)
            recorder_.emplace(
                TraceShape{static_cast<std::uint32_t>(places.layers()), static_cast<std::uint32_t>(places.experts()),
                           static_cast<std::uint32_t>(places.top_k()), places.expert_bytes()},
                options.trace_bytes);
        if (const std::size_t least = least_slots(places.top_k(), places.count()); options.slots < least)
            throw Error(Code::plan,
                        std::to_string(options.slots) + " expert slots are fewer than the " + std::to_string(least) +
                            " that a token needs",
                        "give the expert cache at least " + std::to_string(least * places.slot_bytes()) + " bytes");
        work_.resize(places.experts());
        keys_.reserve(options.most_tokens * places.top_k());
        wanted_.reserve(kFlights * 6);
        fresh_.reserve(kFlights * 6);
        for (std::size_t f = kFlights; f-- > 0;) free_flights_.push_back(static_cast<std::uint32_t>(f));
    }
    ExpertCache(const ExpertCache&) = delete;
    ExpertCache& operator=(const ExpertCache&) = delete;
    ~ExpertCache() {
        for (std::size_t f = 0; f < kFlights; ++f) cancel(flights_[f]);
    }

    void use(layers::ExpertKernel kernel) noexcept { kernel_ = kernel; }
    /// A step begins: failure() is about it from now on. Errors: std::bad_alloc of a trace.
    void begin_step(StepMode mode, std::size_t tokens) {
        failure_.reset();
        if (mode != StepMode::decode) before_decode_ = slots_.counters();
        if (recorder_) recorder_->begin_step(mode, tokens, look_ahead_.count);
    }

    void submit(const core::Exec& exec, std::size_t layer, const layers::Routes& routes, core::MatView<const float> z,
                core::MatView<float> e, core::Fault* faults, core::Arena scratch) noexcept override {
        end_arrived_look_aheads();
        const ExpertBatch batch(routes, places_.experts(), scratch);
        const std::uint32_t base = static_cast<std::uint32_t>(layer * places_.experts());
        keys_.clear();
        for (std::size_t i = 0; i < routes.tokens * routes.top_k; ++i)
            if (routes.ids[i] >= 0) keys_.push_back(base + static_cast<std::uint32_t>(routes.ids[i]));
        if (recorder_) recorder_->batch(keys_);
        first_open_ = reserved_ = 0;
        const auto compute = [&](Work& work) noexcept {
            const auto tokens = batch.of(work.key - base);
            core::Fault fault{.code = core::FaultCode::expert_failed};
            const bool there = land(work.key, work.slot, !work.guessed);
            if (!there && work.guessed) {  // a guess that failed says nothing: now it is needed, so read it again
                work.guessed = false;
                depart(work.slot, places_.at(layer, work.key - base, slot_at(work.slot)), io::Urgency::now);
                return send();
            }
            if (there) fault = run_expert(exec, kernel_, work.weights, situ_, routes.top_k, tokens, z, e, scratch);
            if (there) traffic_.bytes += work.bytes;
            work.sound = !fault;
            work.finished = true;
            if (work.sound) return;
            for (const std::uint32_t slot : tokens)
                faults[slot / routes.top_k] = {.code = core::FaultCode::expert_failed,
                                               .layer = static_cast<std::int32_t>(layer),
                                               .token = static_cast<std::int32_t>(slot / routes.top_k),
                                               .expert = static_cast<std::int32_t>(work.key - base)};
        };
        slots_.batch(
            keys_,
            [&](std::size_t i, std::uint32_t key, std::uint32_t slot, Outcome outcome) noexcept {
            Work& work = work_[i];
            const ExpertLoad load = places_.at(layer, key - base, slot_at(slot));
            work = {
                key,   slot, load.weights, outcome == Outcome::resident ? 0 : load.bytes, outcome == Outcome::lookahead,
                false, true};
            if (outcome == Outcome::miss) depart(slot, load, io::Urgency::now);
            if (outcome == Outcome::lookahead && flight_of_[slot] != kNoFlight) hurry(flights_[flight_of_[slot]]);
            reserved_ = i + 1;
            },
            [&](std::size_t i, std::uint32_t, std::uint32_t) noexcept {
            send();
            while (!work_[i].finished) compute(next_ready());
            return work_[i].sound;
        });
    }

    std::size_t wants_prediction(std::size_t) const noexcept override { return look_ahead_.count; }

    void predict(std::size_t layer, const std::int32_t* ids, std::size_t count) noexcept override {
        end_arrived_look_aheads();
        const std::uint32_t base = static_cast<std::uint32_t>(layer * places_.experts());
        for (std::size_t i = 0; i < count && free_flights_.size() > kMostInFlight; ++i) {  // a batch needs the others
            const std::uint32_t key = base + static_cast<std::uint32_t>(ids[i]);
            if (recorder_) recorder_->lookahead(key);
            const auto slot = slots_.prefetch(key);
            if (!slot) continue;
            depart(*slot, places_.at(layer, static_cast<std::size_t>(ids[i]), slot_at(*slot)), io::Urgency::ahead);
            ahead_.push_back(key);
        }
        send();
        give_up_if_it_loses();
    }

    /// All slots, for io::Reader::register_memory.
    std::span<std::byte> memory() const noexcept { return {arena_.data(), arena_.size()}; }
    const CacheCounters& counters() const noexcept { return slots_.counters(); }
    /// Experts predicted for each layer now; 0 if look-ahead is off or has switched itself off.
    std::size_t look_ahead() const noexcept { return look_ahead_.count; }
    /// What was asked for so far; null if it is not recorded.
    const Trace* trace() const noexcept { return recorder_ ? &recorder_->trace() : nullptr; }
    const ExpertTraffic& traffic() const noexcept { return traffic_; }
    std::size_t slots() const noexcept { return slots_.slots(); }
    Policy policy() const noexcept { return slots_.policy(); }
    /// What the first failed load failed of.
    const std::optional<Error>& failure() const noexcept { return failure_; }

  private:
    static constexpr std::size_t kFlights = 2 * kMostInFlight;  // a batch's, and look-aheads
    static constexpr std::uint32_t kNoFlight = ~std::uint32_t{0};

    /// An expert on its way.
    struct Flight {
        std::array<io::Read, 6> reads;
        std::array<std::size_t, 6> shift{};
        std::size_t count = 0;
    };
    /// An expert of the present batch.
    struct Work {
        std::uint32_t key = 0, slot = 0;
        layers::ExpertWeights weights{};
        std::uint64_t bytes = 0;  // read for it
        bool guessed = false;     // a look-ahead brings it
        bool finished = false, sound = true;
    };

    std::byte* slot_at(std::uint32_t slot) const noexcept { return arena_.data() + slot * places_.slot_bytes(); }

    /// Frees the flights of look-aheads that have arrived. One that failed is forgotten: its expert is read again when
    /// it is asked for.
    void end_arrived_look_aheads() noexcept {
        std::size_t kept = 0;
        for (const std::uint32_t key : ahead_) {
            const std::uint32_t slot = slots_.slot_of(key),
                                f = slot == ExpertSlots::kNone ? kNoFlight : flight_of_[slot];
            if (f == kNoFlight) continue;  // used or pushed out meanwhile
            if (!there(flights_[f])) {
                ahead_[kept++] = key;
            } else if (!land(key, slot, false)) {
                slots_.drop(key);
            }
        }
        ahead_.resize(kept);
    }
    /// Automatic look-ahead ends when, over some hundreds of guesses, more than a twentieth of the experts read since
    /// the prompt were read in vain: a disk that is waited for has better things to do. (With two guesses of three
    /// right, steps were measured a tenth slower with look-ahead than without.)
    void give_up_if_it_loses() noexcept {
        constexpr std::uint64_t kSample = 256;
        const CacheCounters c = slots_.counters() - before_decode_;
        if (!look_ahead_.automatic || c.lookahead_loads < kSample) return;
        const std::uint64_t open = look_ahead_.count;  // the latest may still be asked for
        if (20 * (c.lookahead_loads - std::min(c.lookahead_loads, c.lookahead_hits + open)) > c.loads())
            look_ahead_.count = 0;
    }
    void hurry(Flight& flight) noexcept {
        for (std::size_t p = 0; p < flight.count; ++p) reader_.promote(flight.reads[p]);
    }

    /// Takes the reads of an expert up; send() hands them to the reader, all of a batch at once.
    void depart(std::uint32_t slot, const ExpertLoad& load, io::Urgency urgency) noexcept {
        if (flight_of_[slot] != kNoFlight) arrive(slot);  // a wasted look-ahead may still be writing here
        const std::uint32_t f = free_flights_.back();
        free_flights_.pop_back();
        flight_of_[slot] = f;
        Flight& flight = flights_[f];
        flight.count = load.count;
        for (std::size_t p = 0; p < load.count; ++p) {
            io::Read& read = flight.reads[p];
            const ExpertLoad::Piece& piece = load.pieces[p];
            aim(read, piece.place, slot_at(slot) + piece.at, urgency);
            flight.shift[p] = piece.shift;
            fresh_.push_back(&read);
        }
    }
    void send() noexcept {
        if (fresh_.empty()) return;
        reader_.submit(fresh_);
        fresh_.clear();
    }

    bool there(const Flight& flight) const noexcept {
        for (std::size_t p = 0; p < flight.count; ++p)
            if (flight.reads[p].state.load(std::memory_order_acquire) == io::ReadState::queued) return false;
        return true;
    }

    /// An expert of the window that can be computed without waiting; if there is none, waits until there is.
    Work& next_ready() noexcept {
        while (first_open_ < reserved_ && work_[first_open_].finished) ++first_open_;
        for (;;) {
            wanted_.clear();
            for (std::size_t i = first_open_; i < reserved_; ++i) {
                if (work_[i].finished) continue;
                const std::uint32_t f = flight_of_[work_[i].slot];
                if (f == kNoFlight || there(flights_[f])) return work_[i];
                for (std::size_t p = 0; p < flights_[f].count; ++p)
                    if (flights_[f].reads[p].state.load(std::memory_order_acquire) == io::ReadState::queued)
                        wanted_.push_back(&flights_[f].reads[p]);
            }
            const io::Stopwatch watch(traffic_.wait_seconds);
            reader_.wait_any(wanted_);
        }
    }

    /// Ends the flight of an expert whose reads are all done or failed; false if one failed.
    bool land(std::uint32_t key, std::uint32_t slot, bool needed = true) noexcept {
        const std::uint32_t f = flight_of_[slot];
        if (f == kNoFlight) return true;
        const Flight& flight = flights_[f];
        bool sound = true;
        for (std::size_t p = 0; p < flight.count; ++p) {
            const io::Read& read = flight.reads[p];
            if (read.state.load(std::memory_order_acquire) != io::ReadState::done) {
                if (needed && !failure_) failure_.emplace(named(reader_.error_of(read), key));
                sound = false;
            } else {
                settle(read, flight.shift[p]);
            }
        }
        flight_of_[slot] = kNoFlight;
        free_flights_.push_back(f);
        return sound;
    }
    /// Waits for whatever is still being read into a slot, and forgets it.
    void arrive(std::uint32_t slot) noexcept {
        const std::uint32_t f = flight_of_[slot];
        cancel(flights_[f]);
        flight_of_[slot] = kNoFlight;
        free_flights_.push_back(f);
    }
    void cancel(Flight& flight) noexcept {
        for (std::size_t p = 0; p < flight.count; ++p) reader_.cancel(flight.reads[p]);
    }

    Error named(const Error& error, std::uint32_t key) const {
        return Error(Code::expert,
                     "expert " + std::to_string(key % places_.experts()) + " of layer " +
                         std::to_string(key / places_.experts()) + ": " + error.message(),
                     error.next(), error.where());
    }

    const ExpertPlaces& places_;
    layers::Situ situ_;
    io::Reader& reader_;
    ExpertSlots slots_;
    core::Buffer arena_;
    std::unique_ptr<Flight[]> flights_;
    std::vector<std::uint32_t> free_flights_;
    std::vector<std::uint32_t> flight_of_;  // by slot
    layers::ExpertKernel kernel_ = nullptr;
    std::vector<Work> work_;  // of the batch, by number
    std::size_t first_open_ = 0, reserved_ = 0;
    std::vector<std::uint32_t> keys_;
    std::vector<io::Read*> fresh_, wanted_;
    LookAhead look_ahead_;
    CacheCounters before_decode_{};
    std::vector<std::uint32_t> ahead_;  // keys of look-aheads that may be in flight
    ExpertTraffic traffic_;
    std::optional<TraceRecorder> recorder_;
    std::optional<Error> failure_;
};

}  // namespace k3::stream
#endif
