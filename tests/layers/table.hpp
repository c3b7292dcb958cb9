#ifndef K3_TESTS_LAYERS_TABLE_HPP
#define K3_TESTS_LAYERS_TABLE_HPP
// The layers of one arch as plain pointers: one unit per arch fills its table (arch_<name>.cpp), tests loop over them.
#include "k3/layers/kda.hpp"
#include "k3/layers/mla.hpp"
#include "k3/layers/moe.hpp"

namespace k3::tests {

using In = core::MatView<const float>;
using Out = core::MatView<float>;

struct LayerTable {
    const char* name;
    core::Fault (*linear)(const layers::Context&, const layers::Weight&, In, Out) noexcept;
    core::Fault (*mlp)(const layers::Context&, const layers::MlpWeights&, layers::Situ, In, Out, core::Arena) noexcept;
    core::Fault (*moe)(const layers::Context&, std::size_t, const layers::MoeShape&, const layers::MoeWeights&, In, Out,
                       core::Fault*, core::Arena) noexcept;
    core::Fault (*kda)(const layers::Context&, const layers::KdaShape&, const layers::KdaWeights&, In,
                       const layers::SegmentRows*, std::size_t, Out, core::Arena) noexcept;
    void (*kda_commit)(const core::Exec&, const layers::KdaShape&, const layers::KdaState&, const layers::KdaLog&,
                       std::size_t) noexcept;
    core::Fault (*mla)(const layers::Context&, const layers::MlaShape&, const layers::MlaWeights&, In,
                       const layers::SegmentRows*, std::size_t, Out, core::Arena) noexcept;
    layers::ExpertKernel expert;
};

template <simd::Arch A>
constexpr LayerTable layer_table() noexcept {
    return {A::name,         &layers::linear<A>,     &layers::mlp<A>, &layers::moe<A>,
            &layers::kda<A>, &layers::kda_commit<A>, &layers::mla<A>, &layers::expert_mlp<A>};
}

extern const LayerTable layers_scalar;
extern const LayerTable layers_sse42;
extern const LayerTable layers_avx2;
extern const LayerTable layers_avx512;
extern const LayerTable layers_neon;

}  // namespace k3::tests
#endif
