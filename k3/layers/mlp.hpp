#ifndef K3_LAYERS_MLP_HPP
#define K3_LAYERS_MLP_HPP
// y = W_down situ_glu(W_gate x, W_up x): the dense MLP of the first layer, the shared expert, and a routed expert.
#include "k3/kernels/elementwise.hpp"
#include "k3/layers/linear.hpp"

namespace k3::layers {

struct MlpWeights {
    Weight gate, up, down;
};

}  // namespace k3::layers

namespace k3::layers::inline K3_TARGET {

K3_INLINE std::size_t mlp_bytes(std::size_t tokens, std::size_t width) noexcept {
    return 2 * tokens * width * sizeof(float) + 2 * core::Arena::kAlign;
}

/// Shapes: x [T, in], y [T, out]. Scratch: mlp_bytes(T, width).
template <simd::Arch A>
[[nodiscard]] core::Fault mlp(const Context& context, const MlpWeights& w, Situ situ, core::MatView<const float> x,
                              core::MatView<float> y, core::Arena scratch) noexcept {
    const std::size_t width = w.gate.rows;
    const core::MatView<float> gate(scratch.take<float>(x.rows * width), x.rows, width);
    const core::MatView<float> up(scratch.take<float>(x.rows * width), x.rows, width);
    if (const core::Fault fault = linear<A>(context, w.gate, x, gate)) return fault;
    if (const core::Fault fault = linear<A>(context, w.up, x, up)) return fault;
    core::parallel(context.exec, x.rows * width, 64, [&](std::size_t begin, std::size_t end, unsigned) noexcept {
        kernels::situ_glu<A>(gate.data + begin, up.data + begin, end - begin, situ.beta, situ.linear_beta,
                             gate.data + begin);
    });
    return linear<A>(context, w.down, gate, y);
}

/// layers::ExpertKernel for this arch; expert weights are resident when it is called.
template <simd::Arch A>
[[nodiscard]] core::Fault expert_mlp(const core::Exec& exec, const ExpertWeights& w, Situ situ,
                                     core::MatView<const float> z, core::MatView<float> out,
                                     core::Arena scratch) noexcept {
    const Context context{exec, nullptr, nullptr};
    return mlp<A>(context, MlpWeights{w.gate, w.up, w.down}, situ, z, out, scratch);
}

}  // namespace k3::layers::inline K3_TARGET
#endif
