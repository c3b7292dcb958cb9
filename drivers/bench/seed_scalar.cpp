// The seed's scalar kernels. Compiled once for the baseline without the vectoriser, so that they are what their name
// says on every compiler, and once for each arch with it (drivers/bench/meson.build names the table: K3_SEED_LOOPS).
// All functions are local: units with different flags share none.
#include <bit>
#include <cstdint>
#include <cstring>

#include "drivers/bench/seed.hpp"

namespace k3::bench::seed {
namespace {

float bf16_at(const std::byte* row, std::size_t i) {
    std::uint16_t half;
    std::memcpy(&half, row + 2 * i, 2);
    return std::bit_cast<float>(std::uint32_t{half} << 16);
}
float f32_at(const std::byte* row, std::size_t i) {
    float value;
    std::memcpy(&value, row + 4 * i, 4);
    return value;
}

template <float (*At)(const std::byte*, std::size_t)>
void matvec(const std::byte* w, std::size_t row_bytes, std::size_t rows, std::size_t cols, const float* x, float* y) {
    for (std::size_t r = 0; r < rows; ++r, w += row_bytes) {
        double a0 = 0, a1 = 0, a2 = 0, a3 = 0;
        std::size_t i = 0;
        for (; i + 4 <= cols; i += 4) {
            a0 += static_cast<double>(At(w, i)) * static_cast<double>(x[i]);
            a1 += static_cast<double>(At(w, i + 1)) * static_cast<double>(x[i + 1]);
            a2 += static_cast<double>(At(w, i + 2)) * static_cast<double>(x[i + 2]);
            a3 += static_cast<double>(At(w, i + 3)) * static_cast<double>(x[i + 3]);
        }
        double sum = (a0 + a1) + (a2 + a3);
        for (; i < cols; ++i) sum += static_cast<double>(At(w, i)) * static_cast<double>(x[i]);
        y[r] = static_cast<float>(sum);
    }
}

constexpr float kCodes[16] = {0.0F,  0.5F,  1.0F,  1.5F,  2.0F,  3.0F,  4.0F,  6.0F,
                              -0.0F, -0.5F, -1.0F, -1.5F, -2.0F, -3.0F, -4.0F, -6.0F};

void bf16(const std::byte* w, const std::byte*, std::size_t rows, std::size_t cols, const float* x, float* y) {
    matvec<bf16_at>(w, 2 * cols, rows, cols, x, y);
}
void f32(const std::byte* w, const std::byte*, std::size_t rows, std::size_t cols, const float* x, float* y) {
    matvec<f32_at>(w, 4 * cols, rows, cols, x, y);
}

void mxfp4(const std::byte* w, const std::byte* scales, std::size_t rows, std::size_t cols, const float* x, float* y) {
    const std::size_t groups = (cols + 31) / 32;
    for (std::size_t r = 0; r < rows; ++r, w += (cols + 1) / 2, scales += groups) {
        double sum = 0;
        for (std::size_t g = 0; g < groups; ++g) {
            const auto code = static_cast<std::uint64_t>(scales[g]);
            if (code == 255) continue;
            const std::size_t end = 32 * g + 32 < cols ? 32 * g + 32 : cols;
            double part = 0;
            for (std::size_t i = 32 * g; i < end; ++i) {
                const auto pair = static_cast<unsigned>(w[i / 2]);
                const float weight = kCodes[i % 2 == 0 ? pair & 15U : pair >> 4];
                part += static_cast<double>(weight) * static_cast<double>(x[i]);
            }
            sum += part * std::bit_cast<double>((code + (1023 - 127)) << 52);
        }
        y[r] = static_cast<float>(sum);
    }
}

void delta_rule(float* state, std::size_t keys, std::size_t values, const float* q, const float* k, const float* v,
                const float* alpha, float beta, float* out) {
    float u[128];
    for (std::size_t j = 0; j < values; ++j) u[j] = out[j] = 0.0F;
    for (std::size_t i = 0; i < keys; ++i)
        for (std::size_t j = 0; j < values; ++j) state[i * values + j] *= alpha[i];
    for (std::size_t i = 0; i < keys; ++i)
        for (std::size_t j = 0; j < values; ++j) u[j] += k[i] * state[i * values + j];
    for (std::size_t i = 0; i < keys; ++i) {
        const float write = k[i] * beta;
        for (std::size_t j = 0; j < values; ++j) state[i * values + j] += write * (v[j] - u[j]);
    }
    for (std::size_t i = 0; i < keys; ++i)
        for (std::size_t j = 0; j < values; ++j) out[j] += q[i] * state[i * values + j];
}

}  // namespace

constinit const Loops K3_SEED_LOOPS = {{bf16, f32, mxfp4}, delta_rule};

}  // namespace k3::bench::seed
