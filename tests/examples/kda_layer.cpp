// One KDA layer on toy weights: five tokens in a step, and the same tokens in two steps, with the state kept between
// them. Prints a digest of what comes out, and whether both ways gave the same bits.
#include <cstdint>
#include <cstdio>
#include <deque>
#include <vector>

#include "k3/kernels.hpp"
using namespace k3;

namespace {

using A = simd::scalar;
constexpr std::size_t kHidden = 48, kRank = 8, kTokens = 5;
constexpr layers::KdaShape kShape{.heads = 2, .dim = 16, .taps = 4, .lower_bound = -5.0F, .eps = 1e-5};
constexpr std::size_t kWidth = kShape.heads * kShape.dim;

/// Values in [-0.5, 0.5) without a file; exact, so the same everywhere.
class Toys {
  public:
    float* floats(std::size_t count) {
        std::vector<float>& values = held_.emplace_back(count);
        for (float& value : values) {
            state_ = state_ * 1664525U + 1013904223U;
            value = static_cast<float>(state_ >> 8) * 0x1p-24F - 0.5F;
        }
        return values.data();
    }
    layers::Weight matrix(std::size_t rows, std::size_t cols) {
        return {.format = layers::Format::f32,  // a checkpoint has bf16: point at its bytes as they are
                .rows = rows,
                .cols = cols,
                .data = reinterpret_cast<const std::byte*>(floats(rows * cols))};
    }

  private:
    std::deque<std::vector<float>> held_{};
    std::uint32_t state_ = 1;
};

/// Scratch is the caller's: aligned to 64 bytes, as large as the *_bytes functions say.
struct alignas(64) Line {
    std::byte bytes[64];
};
std::vector<Line> lines(std::size_t bytes) { return std::vector<Line>((bytes + 63) / 64); }

/// The recurrence and the last inputs of the three convolutions; zero before the first token.
struct State {
    std::vector<float> recurrent = std::vector<float>(kShape.heads * kShape.dim * kShape.dim);
    std::vector<float> conv = std::vector<float>(3 * (kShape.taps - 1) * kWidth);
    layers::KdaState view() {
        const std::size_t each = (kShape.taps - 1) * kWidth;
        return {recurrent.data(), {conv.data(), conv.data() + each, conv.data() + 2 * each}};
    }
};

}  // namespace

int main() {
    Toys toys;
    layers::KdaWeights w{};
    for (layers::Weight* weight : {&w.q, &w.k, &w.v, &w.g}) *weight = toys.matrix(kWidth, kHidden);
    w.o = toys.matrix(kHidden, kWidth);
    w.f_a = toys.matrix(kRank, kHidden);
    w.f_b = toys.matrix(kWidth, kRank);
    w.b = toys.matrix(kShape.heads, kHidden);
    for (const float*& taps : w.conv) taps = toys.floats(kShape.taps * kWidth);
    w.a_log = toys.floats(kShape.heads);
    w.dt_bias = toys.floats(kWidth);
    w.o_norm = toys.floats(kShape.dim);
    const float* const x = toys.floats(kTokens * kHidden);

    constexpr kernels::MatmulScratch matmul = kernels::matmul_scratch(kHidden);  // the widest input of a matrix here
    const std::size_t kda = layers::kda_local_bytes(kShape);
    std::vector<Line> local = lines(matmul.local_bytes > kda ? matmul.local_bytes : kda);
    std::vector<Line> shared = lines(matmul.shared_bytes), work = lines(layers::kda_bytes(kShape, kRank, kTokens));
    const core::Exec exec{1, local[0].bytes, 64 * local.size(), shared[0].bytes, 64 * shared.size()};
    const layers::Context context{exec, nullptr, nullptr};  // every weight is in memory, there are no experts

    const auto step = [&](State& state, std::size_t first, std::size_t tokens, float* y) {
        const layers::SegmentRows rows{.first = 0, .tokens = tokens, .kda = state.view(), .log = {}, .latent = {}};
        return layers::kda<A>(context, kShape, w, {x + first * kHidden, tokens, kHidden}, &rows, 1,
                              {y + first * kHidden, tokens, kHidden}, {work[0].bytes, 64 * work.size()});
    };
    std::vector<float> at_once(kTokens * kHidden), in_two(kTokens * kHidden);
    State one, two;
    if (step(one, 0, kTokens, at_once.data()) || step(two, 0, 2, in_two.data()) || step(two, 2, 3, in_two.data()))
        return 1;
    core::Digest digest;
    digest.add(at_once.data(), at_once.size());
    digest.add(one.recurrent.data(), one.recurrent.size());
    const bool same = at_once == in_two && one.recurrent == two.recurrent;
    std::printf("kda %016llx, %s in two steps\n", static_cast<unsigned long long>(digest.value()),
                same ? "the same" : "ANOTHER");
    return same ? 0 : 1;
}
