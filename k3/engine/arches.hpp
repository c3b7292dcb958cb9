#ifndef K3_ENGINE_ARCHES_HPP
#define K3_ENGINE_ARCHES_HPP
// The one place where an arch's name turns into a type. Names, and what this CPU supports, are in cpu_arches.hpp.
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "k3/core/error.hpp"
#include "k3/engine/cpu_arches.hpp"
#include "k3/model/forward.hpp"

namespace k3::engine {

/// model::Forward of any arch. The virtual calls are per step, far above the kernels.
class AnyForward {
  public:
    virtual ~AnyForward() = default;
    virtual bool arithmetic_is_exact() const noexcept = 0;
    virtual model::StepBytes step_bytes(std::size_t tokens, std::size_t segments,
                                        std::size_t positions) const noexcept = 0;
    virtual core::Fault run(const core::Exec& exec, const model::Services& services, model::Segment* segments,
                            std::size_t count, core::Arena workspace) const noexcept = 0;
    virtual void commit(const core::Exec& exec, const model::StateView& state, std::size_t tokens) const noexcept = 0;
    virtual layers::ExpertKernel expert_kernel() const noexcept = 0;
    virtual std::int64_t argmax(const float* logits, std::size_t count) const noexcept = 0;
};

namespace detail {

template <simd::Arch A>
class ForwardOf final : public AnyForward {
  public:
    explicit ForwardOf(const model::ModelView& model) : forward_(model) {}
    bool arithmetic_is_exact() const noexcept override { return model::Forward<A>::arithmetic_is_exact(); }
    model::StepBytes step_bytes(std::size_t tokens, std::size_t segments,
                                std::size_t positions) const noexcept override {
        return forward_.step_bytes(tokens, segments, positions);
    }
    core::Fault run(const core::Exec& exec, const model::Services& services, model::Segment* segments,
                    std::size_t count, core::Arena workspace) const noexcept override {
        return forward_.run(exec, services, segments, count, workspace);
    }
    void commit(const core::Exec& exec, const model::StateView& state, std::size_t tokens) const noexcept override {
        forward_.commit(exec, state, tokens);
    }
    layers::ExpertKernel expert_kernel() const noexcept override { return model::Forward<A>::expert_kernel(); }
    std::int64_t argmax(const float* logits, std::size_t count) const noexcept override {
        return model::Forward<A>::argmax(logits, count);
    }

  private:
    model::Forward<A> forward_;
};

}  // namespace detail

namespace detail {
inline std::unique_ptr<AnyForward> forward_of(ArchName arch, const model::ModelView& model) {
    switch (arch) {
#if defined(__x86_64__)
        case ArchName::sse42: return std::make_unique<detail::ForwardOf<simd::sse42>>(model);
        case ArchName::avx2: return std::make_unique<detail::ForwardOf<simd::avx2>>(model);
        case ArchName::avx512: return std::make_unique<detail::ForwardOf<simd::avx512>>(model);
#elif defined(__aarch64__)
        case ArchName::neon: return std::make_unique<detail::ForwardOf<simd::neon>>(model);
#endif
        default: return std::make_unique<detail::ForwardOf<simd::scalar>>(model);
    }
}
}  // namespace detail

/// Requires an arch of arches_of_this_cpu(). A host project links one unit per arch (k3/model/forward_impl.hpp).
/// Errors: Code::internal if that unit's arithmetic does not round as written (the canary).
inline std::unique_ptr<AnyForward> make_forward(ArchName arch, const model::ModelView& model) {
    auto forward = detail::forward_of(arch, model);
    if (!forward->arithmetic_is_exact()) {
        throw Error(Code::internal, std::string("the ") + name(arch) + " kernels of this build do not round as written",
                    "rebuild without flags that change floating-point results");
    }
    return forward;
}

}  // namespace k3::engine
#endif
