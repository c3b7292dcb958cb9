#ifndef K3_LAYERS_EXPERTS_HPP
#define K3_LAYERS_EXPERTS_HPP
// Routed experts are work, not bytes: a layer submits which token wants which experts and gets their outputs back. A
// local service fetches weights and calls an arch kernel; a remote one would answer by message. Plain types.
#include "k3/core/exec.hpp"
#include "k3/core/fault.hpp"
#include "k3/core/view.hpp"
#include "k3/layers/weight.hpp"

namespace k3::layers {

/// One routed expert: w1 gate and w3 up are [width, latent], w2 down is [latent, width].
struct ExpertWeights {
    Weight gate, up, down;
};

/// The SiTU betas, RN32 once.
struct Situ {
    float beta, linear_beta;
};

/// out[t] = W2 situ_glu(W1 z[t], W3 z[t]) for the tokens of one expert; z, out: [n, latent]. Instantiated per arch.
/// A fault says that nothing was computed.
using ExpertKernel = core::Fault (*)(const core::Exec& exec, const ExpertWeights& weights, Situ situ,
                                     core::MatView<const float> z, core::MatView<float> out,
                                     core::Arena scratch) noexcept;

/// Which experts each token of a step wants. An id of -1 marks a token that already failed: nothing is computed for it.
struct Routes {
    const std::int32_t* ids;  // [tokens, top_k], in rank order
    std::size_t tokens, top_k;
};

/// The other virtual service (see WeightSource). Called by one thread at a time, in the order of the layers.
class ExpertService {
  public:
    /// Computes e[token][rank] = expert ids[token][rank] of z[token].
    ///
    /// Shapes   z: [tokens, latent]; e: [tokens * top_k, latent]; faults: [tokens], set where an expert failed.
    /// Numerics each output is a pure function of z[token] and the expert: grouping and order of arrival move no bit.
    virtual void submit(const core::Exec& exec, std::size_t layer, const Routes& routes, core::MatView<const float> z,
                        core::MatView<float> e, core::Fault* faults, core::Arena scratch) noexcept = 0;

    /// How many experts of a layer to come it would like to have predicted; 0: none.
    virtual std::size_t wants_prediction(std::size_t layer) const noexcept = 0;
    /// A guess at what submit(layer) will ask for, the likeliest first. Changes when bytes move, never a result.
    virtual void predict(std::size_t layer, const std::int32_t* ids, std::size_t count) noexcept = 0;

  protected:
    ~ExpertService() = default;
};

}  // namespace k3::layers
#endif
