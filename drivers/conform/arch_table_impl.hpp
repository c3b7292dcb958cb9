#ifndef K3_DRIVERS_CONFORM_ARCH_TABLE_IMPL_HPP
#define K3_DRIVERS_CONFORM_ARCH_TABLE_IMPL_HPP
// Fills the table of one arch. For drivers/conform/arch_NAME.cpp only: everything here is compiled with the unit's
// instruction set, so every function is a template over the arch. Row loops run inside core::parallel, which sets the
// contract's floating-point environment, as Forward's do.
#include "drivers/conform/arch_table.hpp"
#include "k3/core/parallel.hpp"
#include "k3/kernels/attention_residual.hpp"
#include "k3/kernels/elementwise.hpp"
#include "k3/kernels/norm.hpp"

namespace k3::conform {

template <simd::Arch A>
void mix_rows(const core::Exec& exec, const float* const* sources, std::size_t count, const float* fold, double eps,
              core::MatView<float> out) noexcept {
    core::parallel(exec, out.rows, 4 * count * out.cols,
                   [&](std::size_t begin, std::size_t end, unsigned thread) noexcept {
        core::Arena local = exec.local_of(thread);
        const float** const rows = local.take<const float*>(count);
        float* const scores = local.take<float>(count);
        for (std::size_t t = begin; t < end; ++t) {
            for (std::size_t s = 0; s < count; ++s) rows[s] = sources[s] + t * out.cols;
            kernels::attention_residual<A>(rows, count, fold, out.cols, eps, out.row(t), scores);
        }
    });
}

template <simd::Arch A>
void rmsnorm_rows(const core::Exec& exec, core::MatView<const float> x, const float* weight, double eps,
                  core::MatView<float> out) noexcept {
    core::parallel(exec, out.rows, 2 * out.cols, [&](std::size_t begin, std::size_t end, unsigned) noexcept {
        for (std::size_t t = begin; t < end; ++t) kernels::rmsnorm<A>(x.row(t), weight, out.cols, eps, out.row(t));
    });
}

template <simd::Arch A>
void add_rows(const core::Exec& exec, core::MatView<const float> a, core::MatView<const float> b,
              core::MatView<float> out) noexcept {
    core::parallel(exec, out.rows, out.cols, [&](std::size_t begin, std::size_t end, unsigned) noexcept {
        for (std::size_t t = begin; t < end; ++t) kernels::add<A>(a.row(t), b.row(t), out.cols, out.row(t));
    });
}

template <simd::Arch A>
constexpr ArchTable make_arch_table() noexcept {
    return {.mix = &mix_rows<A>,
            .rmsnorm = &rmsnorm_rows<A>,
            .add = &add_rows<A>,
            .linear = &layers::linear<A>,
            .kda = &layers::kda<A>,
            .kda_commit = &layers::kda_commit<A>,
            .mla = &layers::mla<A>,
            .mlp = &layers::mlp<A>,
            .moe = &layers::moe<A>,
            .expert = &layers::expert_mlp<A>};
}

}  // namespace k3::conform
#endif
