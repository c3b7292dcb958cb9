#ifndef K3_DRIVERS_BENCH_PEERS_HPP
#define K3_DRIVERS_BENCH_PEERS_HPP
// Eigen and OpenBLAS, where they are. Eigen is a set of templates: compiled wide and linked into this program, a weak
// copy of one of its functions, or of a std:: function it uses, could be the one the linker keeps for baseline code. So
// each vectorised Eigen is a module: a linker map makes all its symbols but one local, so that the two programs share
// no function in either direction, and it is loaded only after the CPU was asked. A helper executable would separate as
// well, but could not take turns with the kernels on the same memory within one run. OpenBLAS is a shared library with
// a C interface, looked for at run time.
#include <dlfcn.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <system_error>
#include <vector>

#include "drivers/bench/peer.hpp"
#include "drivers/kernel_table/kernel_table.hpp"

namespace k3::bench {

struct Peer {
    std::string name{};
    const kernel_table::KernelTable* arch = nullptr;  // whose f32 peak bounds it
    PeerFn product = nullptr;
};

namespace detail {

inline constexpr int kRowMajor = 101, kNoTrans = 111, kTrans = 112;  // of the C interface of BLAS
using SgemvFn = void (*)(int order, int trans, int m, int n, float alpha, const float* a, int lda, const float* x,
                         int incx, float beta, float* y, int incy);
using SgemmFn = void (*)(int order, int trans_a, int trans_b, int m, int n, int k, float alpha, const float* a, int lda,
                         const float* b, int ldb, float beta, float* c, int ldc);
inline SgemvFn sgemv = nullptr;
inline SgemmFn sgemm = nullptr;

inline void openblas_product(const float* w, std::size_t rows, std::size_t cols, const float* x, std::size_t tokens,
                             float* y, std::size_t y_stride) {
    const int r = static_cast<int>(rows), c = static_cast<int>(cols), t = static_cast<int>(tokens);
    if (tokens == 1)
        sgemv(kRowMajor, kNoTrans, r, c, 1.0F, w, c, x, 1, 0.0F, y, 1);
    else
        sgemm(kRowMajor, kNoTrans, kTrans, t, r, c, 1.0F, x, c, w, c, 0.0F, y, static_cast<int>(y_stride));
}

/// A pointer to a function out of a loaded library; null if it has no such symbol.
template <class Fn>
Fn symbol(void* library, const char* name) {
    return reinterpret_cast<Fn>(::dlsym(library, name));
}

inline void find_eigen(const std::vector<const kernel_table::KernelTable*>& tables, std::vector<Peer>& peers) {
    std::error_code ignored;
    const auto here = std::filesystem::read_symlink("/proc/self/exe", ignored).parent_path();
    for (const kernel_table::KernelTable* table : tables) {
        const std::string file = std::string("k3_bench_eigen_") + table->name + ".so";
        for (const auto& folder : {here / "bench", std::filesystem::path(K3_MODULE_DIR)}) {
            void* const library = ::dlopen((folder / file).c_str(), RTLD_NOW | RTLD_LOCAL);
            if (library == nullptr) continue;
            const auto product = symbol<PeerFn>(library, "k3_bench_eigen_sgemm");
            if (product != nullptr) peers.push_back({std::string("eigen ") + table->name, table, product});
            break;
        }
    }
}

inline void find_openblas(const kernel_table::KernelTable* widest, std::vector<Peer>& peers) {
    // Its own threads would spin while others are measured; rows are split here instead.
    ::setenv("OPENBLAS_NUM_THREADS", "1", 1);
    for (const char* name : {"libopenblas.so.0", "libopenblas.so"}) {
        void* const library = ::dlopen(name, RTLD_NOW | RTLD_LOCAL);
        if (library == nullptr) continue;
        sgemv = symbol<SgemvFn>(library, "cblas_sgemv");
        sgemm = symbol<SgemmFn>(library, "cblas_sgemm");
        if (sgemv != nullptr && sgemm != nullptr) peers.push_back({"openblas", widest, openblas_product});
        return;
    }
}

}  // namespace detail

/// Peers for the arches that are measured. None is an answer too.
inline std::vector<Peer> find_peers(const std::vector<const kernel_table::KernelTable*>& tables) {
    std::vector<Peer> peers;
    detail::find_eigen(tables, peers);
    detail::find_openblas(tables.back(), peers);
    return peers;
}

}  // namespace k3::bench
#endif
