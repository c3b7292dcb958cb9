// A test of one's own that two arches compute the same bits: one unit for each, this one for the baseline.
#include <cstdint>
#include <cstdio>

std::uint64_t on_scalar() noexcept;
std::uint64_t on_avx2() noexcept;

int main() {
    const std::uint64_t scalar = on_scalar();
    std::printf("scalar %016llx\n", static_cast<unsigned long long>(scalar));
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return 77;  // skipped, as meson counts it
    const std::uint64_t avx2 = on_avx2();
    std::printf("avx2   %016llx\n", static_cast<unsigned long long>(avx2));
    return scalar == avx2 ? 0 : 1;
}
