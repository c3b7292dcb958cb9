#include "k3/io/jobs.hpp"

#include <chrono>
#include <stdexcept>
#include <string>

#include "support/doctest.hpp"

using k3::io::run_jobs;

TEST_CASE("io/jobs: every job is run once, by a worker below the number of threads, each in ascending order") {
    for (const unsigned threads : {0U, 1U, 3U, 16U})
        for (const std::size_t count : {0, 1, 2, 100}) {
            std::vector<std::atomic<int>> calls(count);
            std::vector<std::size_t> last(std::max(1U, threads), 0);
            std::atomic<int> wrong{0};
            run_jobs(threads, count, [&](unsigned worker, std::size_t i) {
                ++calls[i];
                if (worker >= last.size() || i + 1 <= last[worker])
                    ++wrong;
                else
                    last[worker] = i + 1;
            });
            for (const auto& times : calls) CHECK(times == 1);
            CHECK(wrong == 0);
        }
}

TEST_CASE("io/jobs: the first failure leaves after all have stopped, and ends the work") {
    for (const unsigned threads : {1U, 4U}) {
        std::atomic<std::size_t> begun{0}, ended{0};
        std::string what;
        try {
            run_jobs(threads, 1000000, [&](unsigned, std::size_t i) {
                ++begun;
                if (i == 10) {
                    ++ended;
                    throw std::runtime_error("job 10");
                }
                std::this_thread::sleep_for(std::chrono::microseconds(50));
                ++ended;
            });
        } catch (const std::runtime_error& error) {
            what = error.what();
        }
        CHECK(what == "job 10");
        CHECK(begun == ended);
        CHECK(begun < 100000);
    }
}
