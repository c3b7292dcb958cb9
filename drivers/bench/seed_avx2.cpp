// The seed's AVX2 kernels: four f64 lanes, one row, multiply and add apart. Compiled with -mavx2 (no FMA); called only
// where the CPU has it. Nothing here may be inline or a template: see tests/meta/symbols.py.
#include <immintrin.h>

#include <bit>
#include <cstdint>
#include <cstring>

#include "drivers/bench/seed.hpp"

namespace k3::bench::seed {
namespace {

double sum_of(__m256d acc) {
    alignas(32) double lane[4];
    _mm256_store_pd(lane, acc);
    return (lane[0] + lane[1]) + (lane[2] + lane[3]);
}

}  // namespace

void bf16_avx2(const std::byte* w, const std::byte*, std::size_t rows, std::size_t cols, const float* x, float* y) {
    for (std::size_t r = 0; r < rows; ++r, w += 2 * cols) {
        __m256d acc = _mm256_setzero_pd();
        std::size_t i = 0;
        for (; i + 4 <= cols; i += 4) {
            const __m128i halves = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(w + 2 * i));
            const __m128 weights = _mm_castsi128_ps(_mm_slli_epi32(_mm_cvtepu16_epi32(halves), 16));
            acc = _mm256_add_pd(acc, _mm256_mul_pd(_mm256_cvtps_pd(weights), _mm256_cvtps_pd(_mm_loadu_ps(x + i))));
        }
        double sum = sum_of(acc);
        for (; i < cols; ++i) {
            std::uint16_t half;
            std::memcpy(&half, w + 2 * i, 2);
            const float weight = std::bit_cast<float>(std::uint32_t{half} << 16);
            sum += static_cast<double>(weight) * static_cast<double>(x[i]);
        }
        y[r] = static_cast<float>(sum);
    }
}

void f32_avx2(const std::byte* w, const std::byte*, std::size_t rows, std::size_t cols, const float* x, float* y) {
    for (std::size_t r = 0; r < rows; ++r, w += 4 * cols) {
        const auto* row = reinterpret_cast<const float*>(w);
        __m256d acc = _mm256_setzero_pd();
        std::size_t i = 0;
        for (; i + 4 <= cols; i += 4)
            acc = _mm256_add_pd(
                acc, _mm256_mul_pd(_mm256_cvtps_pd(_mm_loadu_ps(row + i)), _mm256_cvtps_pd(_mm_loadu_ps(x + i))));
        double sum = sum_of(acc);
        for (; i < cols; ++i) sum += static_cast<double>(row[i]) * static_cast<double>(x[i]);
        y[r] = static_cast<float>(sum);
    }
}

}  // namespace k3::bench::seed
