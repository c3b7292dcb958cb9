#ifndef K3_LAYERS_CONTEXT_HPP
#define K3_LAYERS_CONTEXT_HPP
// What every layer is handed: threads and scratch, the services, and where the rows of a step belong. Plain types.
#include "k3/core/exec.hpp"
#include "k3/core/fault.hpp"
#include "k3/core/view.hpp"
#include "k3/layers/experts.hpp"
#include "k3/layers/weight.hpp"

namespace k3::layers {

struct Context {
    const core::Exec& exec;
    WeightSource* weights;  // may be null when every weight is resident
    ExpertService* experts;
};

/// State of one sequence in one KDA layer.
struct KdaState {
    float* recurrent;  // [heads, dim, dim]: key rows, value columns
    float* conv[3];    // q, k, v: [taps - 1, heads * dim] inputs before the next token, oldest first
};

/// What a step that may be taken back keeps instead of moving the state: enough to replay any prefix of its tokens.
struct KdaLog {
    float* k = nullptr;  // [tokens, heads * dim] after the norm; null: there is no log, the state moves in place
    float* v = nullptr;
    float* alpha = nullptr;
    float* beta = nullptr;  // [tokens, heads]
    float* conv[3] = {};    // [tokens, heads * dim], inputs of the convolution
};

/// The latent cache of one sequence in one MLA layer; `length` positions are there before the step.
struct LatentState {
    float* const* pages;
    std::size_t page_positions;
    std::size_t length;
};

/// Rows [first, first + tokens) of a step belong to one sequence; the states are those of the layer at hand.
struct SegmentRows {
    std::size_t first, tokens;
    KdaState kda;
    KdaLog log;
    LatentState latent;
};

}  // namespace k3::layers
#endif
