#ifndef K3_LAYERS_LINEAR_HPP
#define K3_LAYERS_LINEAR_HPP
// y = W x over whatever panels the weight comes in.
#include "k3/formats/bf16.hpp"
#include "k3/formats/f32.hpp"
#include "k3/formats/mxfp4.hpp"
#include "k3/kernels/matmul.hpp"
#include "k3/layers/context.hpp"

namespace k3::layers::inline K3_TARGET {

/// Calls fn.template operator()<F>() for the format: the one switch from a stored format to a type.
template <simd::Arch A, class Fn>
K3_INLINE void with_format(Format format, Fn&& fn) noexcept {
    switch (format) {
        case Format::bf16: fn.template operator()<formats::bf16>(); break;
        case Format::f32: fn.template operator()<formats::f32>(); break;
        case Format::mxfp4: fn.template operator()<formats::mxfp4>(); break;
    }
}

/// Calls fn(panel) for panels that cover the rows in order: one for a resident weight, as many as its source cuts for a
/// streamed one. Fault: weight_failed if the source fails or breaks its promise.
template <simd::Arch A, class Fn>
[[nodiscard]] K3_INLINE core::Fault for_each_panel(const Context& context, const Weight& weight, Fn&& fn) noexcept {
    if (weight.data != nullptr) {
        fn(Panel{weight.data, weight.scales, 0, weight.rows});
        return {};
    }
    for (std::size_t first = 0; first < weight.rows;) {
        Panel panel;
        if (context.weights == nullptr || !context.weights->acquire(weight, first, false, panel))
            return {.code = core::FaultCode::weight_failed};
        const bool right = panel.first == first && panel.rows > 0 && panel.rows <= weight.rows - first;
        if (right) fn(panel);
        context.weights->release(weight, panel);
        if (!right) return {.code = core::FaultCode::weight_failed};
        first += panel.rows;
    }
    return {};
}

/// y[t][rows of the panel] = W x[t]
template <simd::Arch A>
K3_INLINE void multiply_panel(const Context& context, const Weight& weight, const Panel& panel,
                              core::MatView<const float> x, core::MatView<float> y) noexcept {
    with_format<A>(weight.format, [&]<class F>() noexcept {
        const formats::Packed<F> packed{panel.data, panel.scales, panel.rows, weight.cols};
        kernels::matmul<F, A>(context.exec, packed, x, y.col_range(panel.first, panel.rows));
    });
}

/// y[t] = W x[t]. Shapes: x [T, cols], y [T, rows]. Fault: weight_failed.
template <simd::Arch A>
[[nodiscard]] core::Fault linear(const Context& context, const Weight& weight, core::MatView<const float> x,
                                 core::MatView<float> y) noexcept {
    return for_each_panel<A>(context, weight,
                             [&](const Panel& panel) noexcept { multiply_panel<A>(context, weight, panel, x, y); });
}

}  // namespace k3::layers::inline K3_TARGET
#endif
