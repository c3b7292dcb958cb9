#ifndef K3_DRIVERS_BENCH_PEER_HPP
#define K3_DRIVERS_BENCH_PEER_HPP
// The interface of a peer: somebody else's f32 matrix product on one thread. Plain types only: a peer is compiled apart
// and loaded at run time (peers.hpp says why).
#include <cstddef>

namespace k3::bench {

/// y[t][r] = w[r] . x[t]; all row-major, y with a stride.
using PeerFn = void (*)(const float* w, std::size_t rows, std::size_t cols, const float* x, std::size_t tokens,
                        float* y, std::size_t y_stride);

}  // namespace k3::bench

/// The one symbol an Eigen module exports.
extern "C" void k3_bench_eigen_sgemm(const float* w, std::size_t rows, std::size_t cols, const float* x,
                                     std::size_t tokens, float* y, std::size_t y_stride);
#endif
