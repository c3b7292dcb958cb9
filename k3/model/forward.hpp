#ifndef K3_MODEL_FORWARD_HPP
#define K3_MODEL_FORWARD_HPP
// The seam: everything below it is compiled once per arch. This header declares; forward_impl.hpp defines and is
// included by arch units only, each of which instantiates Forward for its arch explicitly.
#include "k3/core/exec.hpp"
#include "k3/core/fault.hpp"
#include "k3/layers/experts.hpp"
#include "k3/model/model_view.hpp"
#include "k3/model/step.hpp"

namespace k3::model {

/// Scratch a step needs: per thread, shared between parallel steps, and for the buffers of the step itself.
struct StepBytes {
    std::size_t local, shared, workspace;
};

/// The model's forward pass on one arch.
///
/// Threads   const after construction and re-entrant: several callers at once, each with its own Exec and workspace.
/// Numerics  docs/NUMERICS.md; the bits of a token depend on the tokens before it in its sequence and on nothing else.
template <simd::Arch A>
class Forward {
  public:
    explicit Forward(const ModelView& model) noexcept;

    /// False if this unit's arithmetic does not round as written (simd/canary.hpp). Run it once before anything else.
    static bool arithmetic_is_exact() noexcept;

    /// What run() needs for `tokens` rows in all when no sequence is longer than `positions` after the step.
    StepBytes step_bytes(std::size_t tokens, std::size_t segments, std::size_t positions) const noexcept;

    /// Runs a step. A fault of one segment is set in it and leaves the others sound; the return value is a fault of the
    /// whole step (a weight that could not be read, too little scratch). States move in place or into their logs; the
    /// caller then commits or abandons (model/state.hpp).
    [[nodiscard]] core::Fault run(const core::Exec& exec, const Services& services, Segment* segments,
                                  std::size_t count, core::Arena workspace) const noexcept;

    /// Moves a state over the first `tokens` tokens of its log. Needs the per-thread scratch of step_bytes().
    void commit(const core::Exec& exec, const StateView& state, std::size_t tokens) const noexcept;

    /// The kernel a local expert service calls.
    static layers::ExpertKernel expert_kernel() noexcept;

    /// Lowest index of the largest logit, -1 on NaN.
    static std::int64_t argmax(const float* logits, std::size_t count) noexcept;

  private:
    struct Buffers;
    // The bodies of run() and commit(): behind an opaque call, under the contract's floating-point environment.
    K3_OPAQUE core::Fault run_guarded(const core::Exec& exec, const Services& services, Segment* segments,
                                      std::size_t count, core::Arena workspace) const noexcept;
    K3_OPAQUE void commit_guarded(const core::Exec& exec, const StateView& state, std::size_t tokens) const noexcept;
    core::Fault embed(const core::Exec& exec, const Services& services, const Segment* segments, std::size_t count,
                      const Buffers& b) const noexcept;
    void mix(const core::Exec& exec, const Buffers& b, std::size_t blocks, std::size_t first, std::size_t tokens,
             const float* fold) const noexcept;
    core::Fault layer(const layers::Context& context, std::size_t index, const Segment* segments, std::size_t count,
                      const Buffers& b, std::size_t& blocks, core::Arena scratch) const noexcept;
    core::Fault logits(const layers::Context& context, Segment* segments, std::size_t count, const Buffers& b,
                       std::size_t blocks) const noexcept;
    layers::KdaShape kda_shape() const noexcept;
    layers::MlaShape mla_shape() const noexcept;
    layers::MoeShape moe_shape() const noexcept;

    ModelView model_;
};

extern template class Forward<simd::scalar>;
#if defined(__x86_64__)
extern template class Forward<simd::sse42>;
extern template class Forward<simd::avx2>;
extern template class Forward<simd::avx512>;
#elif defined(__aarch64__)
extern template class Forward<simd::neon>;
#endif

}  // namespace k3::model
#endif
