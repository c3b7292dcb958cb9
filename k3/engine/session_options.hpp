#ifndef K3_ENGINE_SESSION_OPTIONS_HPP
#define K3_ENGINE_SESSION_OPTIONS_HPP
// What a session is asked for and what it reports: plain structs.
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>

#include "k3/core/buffer.hpp"
#include "k3/core/exec.hpp"
#include "k3/engine/arches.hpp"
#include "k3/io/reader.hpp"
#include "k3/stream/expert_cache.hpp"
#include "k3/stream/plan.hpp"
#include "k3/stream/replacement.hpp"
#include "k3/stream/trunk.hpp"

namespace k3::engine {

struct Options {
    std::string model_dir{};
    std::string config_path{};  // empty: config.json in model_dir
    std::string trunk_dir{};    // a packed trunk; empty: the trunk is read from the shards
    std::size_t layers = 0;     // 0: all of them
    ArchName arch = ArchName::scalar;
    unsigned threads = 1;
    std::size_t prefill_chunk = 0;  // 0: up to 512, as memory allows
    stream::MemoryRequest memory{};
    io::ReaderKind reader = io::ReaderKind::automatic;
    stream::Policy policy = stream::Policy::lfru;
    core::Pages pages = core::Pages::huge;
    bool read_ahead = true;
    std::optional<std::size_t> look_ahead{};  // experts predicted for the next layer, 0: none; empty: automatic
    bool trace = false;                       // record which experts are asked for
    bool all_logits = false;                  // room for the logits of a whole chunk: Session::feed_all
    std::size_t least_work = core::Exec{}.least_work;  // see core::Exec; tests set 0 to split everything
};

using Plan = stream::Plan;

/// What was read and what stood still for it, since load().
struct Traffic {
    stream::TrunkCounters trunk{};
    stream::CacheCounters experts{};
    stream::ExpertTraffic expert_bytes{};
    std::uint64_t embedding_bytes = 0;
    io::ReaderStats reader{};
    std::size_t look_ahead = 0;  // experts guessed for each layer now
    std::uint64_t bytes() const noexcept {
        return trunk.pinned_bytes + trunk.streamed_bytes + expert_bytes.bytes + embedding_bytes;
    }
    double wait_seconds() const noexcept { return trunk.wait_seconds + expert_bytes.wait_seconds; }
};

/// progress(tokens done, tokens, layer done, layers), on the calling thread: false ends the feeding there, with
/// Code::interrupted and the current step taken back. It must not throw: it runs inside the step.
using FeedProgress = std::function<bool(std::size_t, std::size_t, std::size_t, std::size_t)>;
/// rows(number of the first id, logits [ids, vocab]) of the ids of a chunk, once it is part of the sequence. The logits
/// are valid until it returns. What it throws ends the feeding there.
using LogitRows = std::function<void(std::size_t, std::span<const float>)>;
/// progress(bytes done, bytes)
using LoadProgress = std::function<void(std::uint64_t, std::uint64_t)>;

}  // namespace k3::engine
#endif
