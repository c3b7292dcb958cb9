#ifndef K3_DRIVERS_FORECAST_PLANNED_HPP
#define K3_DRIVERS_FORECAST_PLANNED_HPP
// The plan of a run as k3 would make it, without running. planned.cpp is compiled once for the programs that ask: it
// takes the whole engine in.
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "drivers/forecast/forecast.hpp"
#include "k3/core/error.hpp"
#include "k3/engine/cpu_arches.hpp"
#include "k3/model/config.hpp"

namespace k3::forecast {

/// Whose memory the plan has to fit in besides the ceiling that was asked for.
enum class Room : std::uint8_t { this_machine, any };

struct Request {
    std::string model_dir{};
    engine::ArchName arch = engine::ArchName::scalar;
    unsigned threads = 1;
    std::size_t positions = 1;               // at most the model's are taken
    std::optional<std::uint64_t> ceiling{};  // bytes; empty: what the machine has
    Room room = Room::this_machine;
};

/// Bytes, as stream::Plan has them.
struct Split {
    std::uint64_t held = 0, reserve = 0, state = 0, workspace = 0, pinned = 0, ring = 0, experts = 0;
    std::uint64_t total = 0, ceiling = 0, available = 0, least = 0;
    std::string limited_by{};
    std::size_t prefill_chunk = 1, positions = 1;
};

struct Planned {
    model::Config shape{};
    std::size_t layers = 0;
    Split split{};
    Work work{};
    std::optional<Error> refusal{};  // why it does not fit
    std::string why_buffered{};      // why its files cannot be read past the page cache; empty: they can
    std::size_t shards = 0, tensors = 0;
    std::uint64_t all_bytes = 0;  // of all tensors, those included that are not asked for; of the release: its shards
    bool stays() const noexcept { return work.streamed == 0; }
};

/// Opens the checkpoint, binds every tensor, plans. Errors: those of engine::Session::open.
Planned plan_model(const Request& request);

/// The same for the released model without its files; request.model_dir is not looked at.
Planned plan_release(const Request& request);

}  // namespace k3::forecast
#endif
