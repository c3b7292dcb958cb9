// parallel and the floating-point environment: every index once, and the same bits whatever the caller has set.
#include <algorithm>
#include <atomic>
#include <thread>

#include "k3/core/parallel.hpp"
#include "support/doctest.hpp"
#include "support/kernel_table.hpp"
#include "support/kernel_table_data.hpp"

#if defined(_OPENMP)
#include <omp.h>
#endif

using namespace k3;
using namespace k3::tests;

namespace {

core::Exec exec_of(unsigned threads) {
    core::Exec exec;
    exec.threads = threads;
    exec.least_work = 0;
    return exec;
}

/// The environment as the caller sees it, its sticky flags apart.
core::FpGuard::Word environment() {
#if defined(__x86_64__)
    return core::FpGuard::read() & ~0x3fU;
#else
    return core::FpGuard::read();
#endif
}
/// Rounding upward, subnormals flushed and taken as zero.
constexpr core::FpGuard::Word kHostile =
#if defined(__x86_64__)
    0x1f80U | 0x4000U | 0x8000U | 0x0040U;
#else
    (std::uint64_t{1} << 22) | (std::uint64_t{1} << 24) | (std::uint64_t{1} << 25);  // RP, FZ, DN
#endif
constexpr core::FpGuard::Word kDownward =
#if defined(__x86_64__)
    0x1f80U | 0x2000U;
#else
    std::uint64_t{2} << 22;
#endif

class Caller {  // another environment for a scope
  public:
    explicit Caller(core::FpGuard::Word word) : saved_(core::FpGuard::read()) { core::FpGuard::write(word); }
    ~Caller() { core::FpGuard::write(saved_); }
    Caller(const Caller&) = delete;

  private:
    core::FpGuard::Word saved_;
};

/// What the kernels give inside parallel(): norms, recurrence, functions, on inputs full of subnormals and ties.
std::vector<float> kernel_bits(const KernelTable& table, unsigned threads) {
    static const std::size_t n = 67;
    static const Floats x(n, Kind::subnormal, 1), w(n, Kind::plain, 2), v(n, Kind::plain, 3);
    const std::size_t parts = 6;
    std::vector<float> out(parts * 6 * n);
    core::parallel(exec_of(threads), parts, 1, [&](std::size_t begin, std::size_t end, unsigned) noexcept {
        for (std::size_t p = begin; p < end; ++p) {
            float* y = out.data() + p * 6 * n;
            table.rmsnorm(x, w, n, 1e-5, y);
            table.exp(v, n, y + n);
            table.situ_glu(v, w, n, 4.0F, 25.0F, y + 2 * n);
            std::copy(v.data(), v.data() + n, y + 3 * n);
            table.scaled_add(0x1p-100F, x, n, y + 3 * n);
            table.add(x, x, n, y + 4 * n);
            table.decay(v, w, n, 3.0F, -5.0F, y + 5 * n);
        }
    });
    return out;
}
std::vector<float> matmul_bits(const KernelTable& table, std::size_t tokens, unsigned threads) {
    const std::size_t rows = 31, cols = 70;
    static const Weights w(kMxfp4, rows, cols, Kind::subnormal, 1);
    const Floats x(tokens * cols, Kind::wide, 2);
    std::vector<float> y(tokens * rows);
    const Run run(threads, table.matmul_scratch(cols));
    table.matmul[kMxfp4](run.exec, w.bytes(), In(x, tokens, cols), {y.data(), tokens, rows});
    return y;
}

}  // namespace

TEST_CASE("core/parallel: every index once, in contiguous ascending parts, at most exec.threads of them") {
    for (unsigned threads = 0; threads <= 9; ++threads)
        for (std::size_t n = 0; n <= 40; ++n) {
            std::vector<int> hits(n, 0);
            std::vector<unsigned> owner(n, 99);
            std::atomic<int> calls{0};
            core::parallel(exec_of(threads), n, 1, [&](std::size_t begin, std::size_t end, unsigned thread) noexcept {
                ++calls;
                for (std::size_t i = begin; i < end; ++i) {
                    ++hits[i];
                    owner[i] = thread;
                }
            });
            CHECK(std::count(hits.begin(), hits.end(), 1) == static_cast<std::ptrdiff_t>(n));
            CHECK(static_cast<unsigned>(calls.load()) <= std::max(1U, threads));
            CHECK((calls == 0) == (n == 0));
            CHECK(std::is_sorted(owner.begin(), owner.end()));  // contiguous: local_of(thread) is nobody else's
            for (const unsigned t : owner) CHECK(t < std::max(1U, threads));
        }
}

TEST_CASE(
    "core/parallel: parts of less than least_work are not made; every index still runs once, also when none is worth "
    "it") {
    for (const std::size_t work : {0U, 1U, 10U, 100U})
        for (std::size_t n = 1; n <= 20; ++n) {
            core::Exec exec = exec_of(4);
            exec.least_work = 50;
            std::atomic<std::size_t> calls{0}, items{0};
            core::parallel(exec, n, work, [&](std::size_t begin, std::size_t end, unsigned) noexcept {
                ++calls;
                items += end - begin;
            });
            CHECK(items == n);
            CHECK(calls <= std::max<std::size_t>(1, n * work / 50));
        }
}

TEST_CASE("core/parallel: inside another parallel region one thread runs all, so that local scratch stays private") {
    std::vector<int> hits(4 * 10, 0);
    std::atomic<int> inner_calls{0};
    core::parallel(exec_of(2), 4, 1, [&](std::size_t begin, std::size_t end, unsigned) noexcept {
        for (std::size_t i = begin; i < end; ++i)
            core::parallel(exec_of(3), 10, 1, [&](std::size_t b, std::size_t e, unsigned) noexcept {
                ++inner_calls;
                for (std::size_t j = b; j < e; ++j) ++hits[i * 10 + j];
            });
    });
    CHECK(std::count(hits.begin(), hits.end(), 1) == 40);
#if defined(_OPENMP)
    CHECK(inner_calls == 4);
#endif
}

#if defined(_OPENMP)
TEST_CASE("core/parallel: the promise about nesting also holds in a host that has switched nested regions on") {
    const int levels = omp_get_max_active_levels();
    omp_set_max_active_levels(4);
    std::atomic<int> inner_calls{0};
    core::parallel(exec_of(2), 2, 1, [&](std::size_t begin, std::size_t end, unsigned) noexcept {
        for (std::size_t i = begin; i < end; ++i)
            core::parallel(exec_of(3), 10, 1, [&](std::size_t, std::size_t, unsigned) noexcept { ++inner_calls; });
    });
    omp_set_max_active_levels(levels);
    CHECK(inner_calls == 2);
}
#endif

TEST_CASE("core/parallel: several std::threads at once, each with its own Exec, get the bits of one alone") {
    for (const KernelTable* table : tables_of_this_cpu()) {
        const std::vector<float> want = matmul_bits(*table, 9, 1), more = kernel_bits(*table, 1);
        std::vector<std::string> problems(4);
        std::vector<std::thread> callers;
        for (std::size_t i = 0; i < problems.size(); ++i)
            callers.emplace_back([&, i] {
                for (int round = 0; round < 5 && problems[i].empty(); ++round) {
                    problems[i] = difference(matmul_bits(*table, 9, 1 + static_cast<unsigned>(i) % 3), want);
                    problems[i] += difference(kernel_bits(*table, 1 + static_cast<unsigned>(i) % 3), more);
                }
            });
        for (std::thread& caller : callers) caller.join();
        for (const std::string& problem : problems) CHECK(problem == "");
    }
}

TEST_CASE("core/fp_env: kernels give the same bits whatever rounding mode and flushing the caller has set") {
    for (const KernelTable* table : tables_of_this_cpu())
        for (const unsigned threads : {1U, 2U, 3U}) {
            const std::vector<float> want = kernel_bits(*table, 1), one = matmul_bits(*table, 1, 1),
                                     many = matmul_bits(*table, 9, 1);
            for (const auto word : {kHostile, kDownward}) {
                std::vector<float> got, got_one, got_many;
                bool restored, canary;
                {
                    const Caller caller(word);
                    got = kernel_bits(*table, threads);
                    got_one = matmul_bits(*table, 1, threads);
                    got_many = matmul_bits(*table, 9, threads);
                    canary = table->canary();
                    restored = environment() == word;
                }
                CAPTURE(std::string(table->name));
                CAPTURE(threads);
                CHECK(restored);
                CHECK(canary);
                CHECK(difference(got, want) == "");
                CHECK(difference(got_one, one) == "");
                CHECK(difference(got_many, many) == "");
            }
        }
}

TEST_CASE("core/fp_env: without the guard the hostile environment does change these kernels: the case above can fail") {
    const KernelTable& table = kKernels_scalar;
    const Floats x(67, Kind::subnormal, 1);
    Floats clean(67), y(67);
    table.add(x, x, 67, clean);
    {
        const Caller caller(kHostile);
        table.add(x, x, 67, y);
    }
    CHECK(difference(y, clean) != "");
}

TEST_CASE("core/fp_env: the guard sets the contract on worker threads too, and restores the caller's word exactly") {
    const auto clean = core::FpGuard::read();
    for (const auto word : {kHostile, kDownward, core::FpGuard::kContract}) {
        core::FpGuard::Word after;
        std::atomic<int> wrong{0};
        {
            const Caller caller(word);
            core::parallel(exec_of(3), 30, 1, [&](std::size_t begin, std::size_t end, unsigned) noexcept {
                for (std::size_t i = begin; i < end; ++i) wrong += environment() != core::FpGuard::kContract;
            });
            after = environment();
        }
        CHECK(wrong == 0);
        CHECK(after == word);
    }
    CHECK((core::FpGuard::read() | 0x3fU) == (clean | 0x3fU));
}
