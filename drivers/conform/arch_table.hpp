#ifndef K3_DRIVERS_CONFORM_ARCH_TABLE_HPP
#define K3_DRIVERS_CONFORM_ARCH_TABLE_HPP
// One layer at a time needs finer entry points than model::Forward, which runs them all. They are the library's public
// layer functions, gathered in a table of plain pointers that one unit per arch fills (drivers/conform/arch_NAME.cpp);
// the tool itself is compiled for the baseline. The table is not part of drivers/arch_NAME.cpp because host projects
// copy that unit, and it holds the seam and nothing else.
#include "k3/core/exec.hpp"
#include "k3/core/fault.hpp"
#include "k3/core/view.hpp"
#include "k3/layers/kda.hpp"
#include "k3/layers/mla.hpp"
#include "k3/layers/mlp.hpp"
#include "k3/layers/moe.hpp"

namespace k3::conform {

struct ArchTable {
    using In = core::MatView<const float>;
    using Out = core::MatView<float>;

    /// out[t] = attention residual over `count` sources, each [T, D]. Per-thread scratch: count pointers and floats.
    void (*mix)(const core::Exec& exec, const float* const* sources, std::size_t count, const float* fold, double eps,
                Out out) noexcept;
    void (*rmsnorm)(const core::Exec& exec, In x, const float* weight, double eps, Out out) noexcept;
    void (*add)(const core::Exec& exec, In a, In b, Out out) noexcept;
    core::Fault (*linear)(const layers::Context& context, const layers::Weight& weight, In x, Out y) noexcept;
    core::Fault (*kda)(const layers::Context& context, const layers::KdaShape& shape, const layers::KdaWeights& w, In x,
                       const layers::SegmentRows* segments, std::size_t count, Out y, core::Arena scratch) noexcept;
    void (*kda_commit)(const core::Exec& exec, const layers::KdaShape& shape, const layers::KdaState& state,
                       const layers::KdaLog& log, std::size_t tokens) noexcept;
    core::Fault (*mla)(const layers::Context& context, const layers::MlaShape& shape, const layers::MlaWeights& w, In x,
                       const layers::SegmentRows* segments, std::size_t count, Out y, core::Arena scratch) noexcept;
    core::Fault (*mlp)(const layers::Context& context, const layers::MlpWeights& w, layers::Situ situ, In x, Out y,
                       core::Arena scratch) noexcept;
    core::Fault (*moe)(const layers::Context& context, std::size_t layer, const layers::MoeShape& shape,
                       const layers::MoeWeights& w, In x, Out y, core::Fault* faults, core::Arena scratch) noexcept;
    layers::ExpertKernel expert;
};

extern const ArchTable kScalarTable;
#if defined(__x86_64__)
extern const ArchTable kSse42Table, kAvx2Table, kAvx512Table;
#elif defined(__aarch64__)
extern const ArchTable kNeonTable;
#endif

}  // namespace k3::conform
#endif
