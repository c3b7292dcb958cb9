#ifndef K3_TESTS_ENGINE_SMALL_WORK_HPP
#define K3_TESTS_ENGINE_SMALL_WORK_HPP
// Session options for checkpoints of a few kilobytes.
#include <cstddef>
#include <string>

#include "k3/engine/session_options.hpp"

namespace k3::tests {

/// Threads split even the smallest work, which they would leave to one of them otherwise.
inline engine::Options small_work(const std::string& dir, std::size_t chunk, unsigned threads, engine::ArchName arch) {
    engine::Options options;
    options.model_dir = dir;
    options.prefill_chunk = chunk;
    options.threads = threads;
    options.arch = arch;
    options.least_work = 0;
    return options;
}

}  // namespace k3::tests
#endif
