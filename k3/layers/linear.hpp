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

/// y[t] = W x[t]. Shapes: x [T, cols], y [T, rows]. Fault: weight_failed.
template <simd::Arch A>
[[nodiscard]] core::Fault linear(const Context& context, const Weight& weight, core::MatView<const float> x,
                                 core::MatView<float> y) noexcept {
    for (std::size_t first = 0; first < weight.rows;) {
        Panel panel{weight.data, weight.scales, 0, weight.rows};
        if (weight.data == nullptr && (context.weights == nullptr || !context.weights->acquire(weight, first, false, panel)))
            return {.code = core::FaultCode::weight_failed};
        with_format<A>(weight.format, [&]<class F>() noexcept {
            const formats::Packed<F> packed{panel.data, panel.scales, panel.rows, weight.cols};
            kernels::matmul<F, A>(context.exec, packed, x, y.col_range(panel.first, panel.rows));
        });
        if (weight.data == nullptr) context.weights->release(weight, panel);
        first = panel.first + panel.rows;
    }
    return {};
}

}  // namespace k3::layers::inline K3_TARGET
#endif
