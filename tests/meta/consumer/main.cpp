// A stranger's program: multiplies two vectors by a packed MXFP4 matrix and prints the bits of the result. It is built
// against a copy of k3/, a meson subproject and an installed package, with and without wide flags of its own; all of
// them must print the same line.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <new>
#include <vector>

#include "k3/kernels.hpp"

namespace {

constexpr std::size_t kRows = 5, kCols = 77, kTokens = 2;

// The widest arch this unit was compiled for.
#if K3_HAS_AVX512
using Widest = k3::simd::avx512;
#elif K3_HAS_AVX2
using Widest = k3::simd::avx2;
#elif K3_HAS_SSE42
using Widest = k3::simd::sse42;
#elif K3_HAS_NEON
using Widest = k3::simd::neon;
#else
using Widest = k3::simd::scalar;
#endif

struct Scratch {
    explicit Scratch(std::size_t size) : bytes(static_cast<std::byte*>(::operator new (size, std::align_val_t{64}))) {}
    Scratch(const Scratch&) = delete;
    Scratch& operator=(const Scratch&) = delete;
    ~Scratch() { ::operator delete (bytes, std::align_val_t{64}); }
    std::byte* bytes;
};

template <class Arch>
std::uint64_t product() {
    using Format = k3::formats::mxfp4;
    std::vector<std::byte> codes(kRows * Format::row_bytes(kCols)), scales(kRows * Format::scale_bytes(kCols));
    std::uint32_t state = 1;
    const auto next = [&state] { return (state = state * 1664525U + 1013904223U) >> 16; };
    for (std::byte& code : codes) code = static_cast<std::byte>(next() & 0xffU);
    for (std::byte& scale : scales) scale = static_cast<std::byte>(120U + next() % 15U);
    std::vector<float> x(kTokens * kCols), y(kTokens * kRows);
    for (float& value : x) value = (static_cast<float>(next() % 2001U) - 1000.0F) / 7.0F;

    const auto need = k3::kernels::matmul_scratch(kCols);
    const std::size_t local_bytes = (need.local_bytes + 63) / 64 * 64;
    const Scratch local(2 * local_bytes), shared(need.shared_bytes);
    k3::core::Exec exec;
    exec.threads = 2;
    exec.local = local.bytes;
    exec.local_bytes = local_bytes;
    exec.shared = shared.bytes;
    exec.shared_bytes = need.shared_bytes;

    const k3::formats::Packed<Format> weights{codes.data(), scales.data(), kRows, kCols};
    k3::kernels::matmul<Format, Arch>(exec, weights, k3::core::MatView<const float>(x.data(), kTokens, kCols),
                                      k3::core::MatView<float>(y.data(), kTokens, kRows));
    std::uint64_t hash = 0xcbf29ce484222325U;
    for (const float value : y) {
        std::uint32_t bits;
        std::memcpy(&bits, &value, 4);
        hash = (hash ^ bits) * 0x100000001b3U;
    }
    return hash;
}

}  // namespace

int main() {
    const std::uint64_t plain = product<k3::simd::scalar>(), wide = product<Widest>();
    std::printf("k3 consumer %016llx %s\n", static_cast<unsigned long long>(plain),
                plain == wide ? "on every arch" : "BUT NOT ON THE WIDEST");
    return plain == wide ? 0 : 1;
}
