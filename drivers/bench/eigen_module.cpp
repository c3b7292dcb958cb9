// Eigen's float GEMV and GEMM, vectorised for one arch, as a module of its own (peers.hpp says why). Includes nothing
// of k3.
#define EIGEN_DONT_PARALLELIZE  // rows are split by the caller, as for every other candidate
#include <Eigen/Core>

#include "drivers/bench/peer.hpp"

namespace {
using Matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using Vector = Eigen::Matrix<float, Eigen::Dynamic, 1>;
}  // namespace

extern "C" [[gnu::visibility("default")]] void k3_bench_eigen_sgemm(const float* w, std::size_t rows, std::size_t cols,
                                                                    const float* x, std::size_t tokens, float* y,
                                                                    std::size_t y_stride) {
    const auto r = static_cast<Eigen::Index>(rows), c = static_cast<Eigen::Index>(cols);
    const auto t = static_cast<Eigen::Index>(tokens);
    const Eigen::Map<const Matrix> weights(w, r, c);
    if (tokens == 1) {  // a vector by its type: Eigen then takes its GEMV
        Eigen::Map<Vector>(y, r).noalias() = weights * Eigen::Map<const Vector>(x, c);
        return;
    }
    Eigen::Map<Matrix, 0, Eigen::OuterStride<>> out(y, t, r, Eigen::OuterStride<>(static_cast<Eigen::Index>(y_stride)));
    out.noalias() = Eigen::Map<const Matrix>(x, t, c) * weights.transpose();
}
