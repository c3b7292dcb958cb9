#ifndef K3_STREAM_EXPERT_BATCH_HPP
#define K3_STREAM_EXPERT_BATCH_HPP
// Turns routes (tokens wanting experts) around: experts with their tokens, each distinct expert once, ids ascending.
#include <cstdint>
#include <cstring>
#include <span>

#include "k3/core/parallel.hpp"
#include "k3/layers/experts.hpp"

namespace k3::stream {

/// The (token, rank) slots of a step sorted by expert. Lives in the arena it is made in.
class ExpertBatch {
  public:
    ExpertBatch(const layers::Routes& routes, std::size_t experts, core::Arena& arena) noexcept : experts_(experts) {
        const std::size_t slots = routes.tokens * routes.top_k;
        begin_ = arena.take<std::uint32_t>(experts + 1);
        slots_ = arena.take<std::uint32_t>(slots);
        std::memset(begin_, 0, (experts + 1) * sizeof(std::uint32_t));
        for (std::size_t i = 0; i < slots; ++i)
            if (routes.ids[i] >= 0) ++begin_[routes.ids[i] + 1];
        for (std::size_t e = 0; e < experts; ++e) begin_[e + 1] += begin_[e];
        for (std::size_t i = 0; i < slots; ++i)  // fills each bucket from its start, which moves to its end
            if (routes.ids[i] >= 0) slots_[begin_[routes.ids[i]]++] = static_cast<std::uint32_t>(i);
        for (std::size_t e = experts; e > 0; --e) begin_[e] = begin_[e - 1];
        begin_[0] = 0;
    }

    /// The slots (token * top_k + rank, ascending) of one expert.
    std::span<const std::uint32_t> of(std::size_t expert) const noexcept {
        return {slots_ + begin_[expert], begin_[expert + 1] - begin_[expert]};
    }

    /// fn(expert, slots): slots are token * top_k + rank, ascending.
    template <class Fn>
    void for_each(Fn&& fn) const noexcept {
        for (std::size_t e = 0; e < experts_; ++e)
            if (begin_[e] < begin_[e + 1]) fn(e, of(e));
    }

  private:
    std::size_t experts_;
    std::uint32_t *begin_, *slots_;
};

/// Runs one expert for its slots: gathers its tokens, one batched product, scatters the outputs to e[slot].
[[nodiscard]] inline core::Fault run_expert(const core::Exec& exec, layers::ExpertKernel kernel,
                                            const layers::ExpertWeights& weights, layers::Situ situ, std::size_t top_k,
                                            std::span<const std::uint32_t> slots, core::MatView<const float> z,
                                            core::MatView<float> e, core::Arena scratch) noexcept {
    if (slots.size() == 1) {
        return kernel(exec, weights, situ, z.row_range(slots[0] / top_k, 1), e.row_range(slots[0], 1), scratch);
    }
    const core::MatView<float> in(scratch.take<float>(slots.size() * z.cols), slots.size(), z.cols);
    const core::MatView<float> out(scratch.take<float>(slots.size() * z.cols), slots.size(), z.cols);
    const auto copy_rows = [&](auto&& copy) noexcept {
        core::parallel(exec, slots.size(), z.cols, [&](std::size_t begin, std::size_t end, unsigned) noexcept {
            for (std::size_t i = begin; i < end; ++i) copy(i);
        });
    };
    copy_rows([&](std::size_t i) noexcept { std::memcpy(in.row(i), z.row(slots[i] / top_k), z.cols * sizeof(float)); });
    if (const core::Fault fault = kernel(exec, weights, situ, in, out, scratch)) return fault;
    copy_rows([&](std::size_t i) noexcept { std::memcpy(e.row(slots[i]), out.row(i), z.cols * sizeof(float)); });
    return {};
}

}  // namespace k3::stream
#endif
