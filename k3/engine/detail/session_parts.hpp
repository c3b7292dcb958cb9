#ifndef K3_ENGINE_DETAIL_SESSION_PARTS_HPP
#define K3_ENGINE_DETAIL_SESSION_PARTS_HPP
// The two halves of a session: the checkpoint as it was opened, and what streams it once memory was planned.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "k3/checkpoint/shard_index.hpp"
#include "k3/engine/session_options.hpp"
#include "k3/io/reader.hpp"
#include "k3/model/bound_model.hpp"
#include "k3/model/config_reader.hpp"
#include "k3/stream/embedding_rows.hpp"
#include "k3/stream/expert_cache.hpp"
#include "k3/stream/expert_places.hpp"
#include "k3/stream/plan.hpp"
#include "k3/stream/stream_files.hpp"
#include "k3/stream/trunk.hpp"

namespace k3::engine::detail {

/// A list that grows by doubling takes up to three times its contents while it moves.
inline constexpr std::uint64_t kGrowth = 3;

/// What others point into: it stays where it is when the Session moves.
struct SessionParts {
    explicit SessionParts(const Options& o)
        : config(model::read_config(o.config_path.empty() ? o.model_dir + "/config.json" : o.config_path)),
          index(checkpoint::ShardIndex::open(o.model_dir, std::max(1U, o.threads))),
          bound(config, index, o.layers == 0 ? config.shape.layers : o.layers),
          files(index, o.reader == io::ReaderKind::buffered ? io::Access::buffered : io::Access::direct, o.trunk_dir),
          walk(stream::make_walk(bound, files)),
          places(config.shape, files, bound.view().layer_count),
          embedding(index, bound.embedding_info()) {}
    model::ModelConfig config;
    checkpoint::ShardIndex index;
    model::BoundModel bound;
    stream::StreamFiles files;
    std::vector<stream::TrunkMatrix> walk;
    stream::ExpertPlaces places;
    stream::EmbeddingRows embedding;
};

/// What load() makes.
struct SessionStreaming {
    SessionStreaming(SessionParts& p, const Options& o, const Plan& plan, std::uint64_t trace_bytes)
        : reader({.kind = o.reader}),
          trunk(
              p.walk, p.bound.weights(), p.embedding, reader,
              {.pinned = plan.pinned_matrices, .ring_bytes = plan.ring, .pages = o.pages, .read_ahead = o.read_ahead}),
          experts(p.places, stream::situ_of(p.config.shape), reader,
                  {.slots = plan.expert_slots,
                   .look_ahead = look_ahead(p, o, plan),
                   .policy = o.policy,
                   .pages = o.pages,
                   .most_tokens = plan.prefill_chunk,
                   .trace_bytes = trace_bytes / kGrowth}) {
        // Memory that is read into again and again. Registering pins it; a larger cache stays as it is.
        constexpr std::size_t kMost = std::size_t{1} << 30;
        for (const std::span<std::byte> memory : {trunk.ring(), experts.memory()})
            if (!memory.empty() && memory.size() <= kMost) reader.register_memory(memory);
    }
    /// Automatic look-ahead only helps a disk that would idle: one that streams the trunk has enough to do.
    static stream::LookAhead look_ahead(const SessionParts& p, const Options& o, const Plan& plan) {
        if (o.look_ahead) return {.automatic = false, .count = *o.look_ahead};
        const bool idle = plan.streamed_bytes == 0 && plan.expert_slots < p.places.count();
        return {.automatic = true, .count = idle ? p.places.top_k() : 0};
    }
    io::Reader reader;
    stream::Trunk trunk;
    stream::ExpertCache experts;
};

}  // namespace k3::engine::detail
#endif
