// Multiplies a vector by an MXFP4 matrix from a file: its codes, then its scales.
#include <cstdio>
#include <vector>

#include "k3/kernels.hpp"
using namespace k3;

int main(int argc, char** argv) {
    using A = simd::scalar;    // the definition; simd::avx2 in a unit with -mavx2 -mfma gives the same bits
    using F = formats::mxfp4;  // two codes a byte, low nibble first; one scale for every 32 columns of a row
    constexpr std::size_t rows = 2, cols = 64;
    std::vector<std::byte> codes(rows * F::row_bytes(cols)), scales(rows * F::scale_bytes(cols));
    std::FILE* const file = argc == 2 ? std::fopen(argv[1], "rb") : nullptr;
    if (file == nullptr || std::fread(codes.data(), 1, codes.size(), file) != codes.size() ||
        std::fread(scales.data(), 1, scales.size(), file) != scales.size()) {
        std::fprintf(stderr, "usage: mxfp4_file FILE, of %zu bytes\n", codes.size() + scales.size());
        return 2;
    }
    std::fclose(file);

    float x[cols], y[rows];
    for (std::size_t i = 0; i < cols; ++i) x[i] = static_cast<float>(i) / 8 - 4;
    constexpr kernels::MatmulScratch need = kernels::matmul_scratch(cols);
    alignas(64) static std::byte local[need.local_bytes], shared[need.shared_bytes];
    const core::Exec exec{1, local, sizeof local, shared, sizeof shared};
    const formats::Packed<F> weights{codes.data(), scales.data(), rows, cols};
    kernels::matmul<F, A>(exec, weights, core::MatView<const float>(x, 1, cols), core::MatView<float>(y, 1, rows));
    std::printf("%g %g\n", static_cast<double>(y[0]), static_cast<double>(y[1]));
}
