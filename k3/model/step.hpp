#ifndef K3_MODEL_STEP_HPP
#define K3_MODEL_STEP_HPP
// A step is a batch of segments: one prompt chunk, one decode token, several sequences, the drafts of a speculative
// step are all the same call. Plain types.
#include "k3/layers/context.hpp"

namespace k3::model {

/// The state of one sequence as Forward sees it; owned by model::State.
struct StateView {
    layers::KdaState* kda;       // one for every bound KDA layer
    layers::KdaLog* log;         // the same count; log[i].k is null when the step moves the state in place
    float* const* const* pages;  // one page table for every bound MLA layer
    std::size_t page_positions;
    std::size_t position;  // tokens already committed
};

/// New tokens of one sequence, and which of them want logits.
struct Segment {
    StateView state;
    const std::int32_t* ids;             // [tokens], each below the vocabulary
    const float* const* rows = nullptr;  // [tokens] or null: non-null entries replace an embedding row (images)
    std::size_t tokens = 0;
    std::size_t wanted = 0;   // the last `wanted` tokens get logits
    float* logits = nullptr;  // [wanted, vocab]
    core::Fault fault{};      // out: set if this segment failed; its logits are then meaningless
};

/// Called as a step proceeds: `layer` of `layers` are done. False ends the step with the fault `interrupted`. Runs on
/// the calling thread.
struct Progress {
    bool (*report)(void* user, std::size_t layer, std::size_t layers) noexcept = nullptr;
    void* user = nullptr;
};

/// Called under the step's floating-point environment (nearest even, subnormals kept, nothing traps).
struct Services {
    layers::WeightSource* weights;
    layers::ExpertService* experts;
    Progress progress{};
};

}  // namespace k3::model
#endif
