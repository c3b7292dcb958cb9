// decode_bench MODEL_DIR [--prompt N] [--gen N] [--threads N] [--arch NAME]
// Seconds a token for a prefill and for decode of a resident model, and the share of the machine's read bandwidth that
// decode reaches: bytes of weights a token must touch, over its time, over the bandwidth measured in the same run.
#include <algorithm>
#include <cstdio>
#include <exception>
#include <string>
#include <vector>

#include "drivers/bench/bandwidth.hpp"
#include "k3/core/digest.hpp"
#include "k3/engine/session.hpp"
#include "k3/io/cpu_limits.hpp"

namespace {

using namespace k3;

int run(int argc, char** argv) {
    engine::Options options;
    options.arch = engine::widest_arch();
    options.threads = io::usable_cores();
    std::size_t prompt = 64, gen = 16;
    for (int i = 1; i < argc; ++i) {
        const std::string arg = argv[i];
        const auto value = [&]() -> std::string {
            if (i + 1 >= argc) throw Error(Code::usage, arg + " needs a value", "see the head of decode_bench.cpp");
            return argv[++i];
        };
        if (arg == "--prompt")
            prompt = std::stoul(value());
        else if (arg == "--gen")
            gen = std::stoul(value());
        else if (arg == "--threads")
            options.threads = static_cast<unsigned>(std::stoul(value()));
        else if (arg == "--arch")
            options.arch = engine::arch_named(value()).value();
        else
            options.model_dir = arg;
    }
    if (options.model_dir.empty() || prompt == 0 || gen == 0) {
        std::puts("usage: decode_bench MODEL_DIR [--prompt N] [--gen N] [--threads N] [--arch NAME]");
        return 2;
    }
    engine::Session session = engine::Session::open(options);
    const engine::Plan plan = session.plan(prompt + gen);
    if (plan.streamed_bytes != 0 || plan.expert_slots < plan.all_experts) {
        std::fputs("decode_bench: the model does not fit: take fewer layers or bench/streaming\n", stderr);
        return 1;
    }
    session.load(plan);

    const model::Config& c = session.config().shape;
    std::vector<std::int32_t> ids;  // spread over the vocabulary, so that tokens route differently
    for (std::size_t i = 0; i < prompt; ++i) ids.push_back(static_cast<std::int32_t>((i * 7919 + 3) % c.vocab));
    double start = bench::seconds_now();
    std::span<const float> logits = session.feed(ids);
    const double prefill = bench::seconds_now() - start;

    core::Digest digest;
    std::vector<double> steps;
    for (std::size_t i = 0; i < gen; ++i) {
        digest.add(logits.data(), logits.size());
        const std::int32_t id = session.argmax(logits, i);
        start = bench::seconds_now();
        logits = session.feed(std::span(&id, 1));
        steps.push_back(bench::seconds_now() - start);
    }
    std::sort(steps.begin(), steps.end());
    const double decode = steps[steps.size() / 2];

    // What one token must read: the whole trunk and the chosen experts.
    const std::size_t moe_layers = session.layers() - std::min(session.layers(), c.first_dense);
    const double experts = static_cast<double>(moe_layers * c.experts_per_token * session.experts().expert_bytes());
    const double bytes = static_cast<double>(plan.trunk_bytes) + experts;
    core::Buffer probe(std::size_t{2} << 30);
    for (std::size_t i = 0; i < probe.size(); i += 4096) probe.data()[i] = std::byte{1};
    const double limit = bench::read_bandwidth(probe.data(), probe.size(), options.threads);
    std::printf("arch %s  threads %u  layers %zu  weights %.2f GB  experts %.2f GB  digest %016llx\n",
                engine::name(options.arch), options.threads, session.layers(),
                static_cast<double>(plan.trunk_bytes) / 1e9, static_cast<double>(session.experts().all_bytes()) / 1e9,
                static_cast<unsigned long long>(digest.value()));
    std::printf("prefill  %zu tokens  %.3f s  %.4f s/token\n", prompt, prefill, prefill / static_cast<double>(prompt));
    std::printf("decode   %zu tokens  median %.4f s/token  min %.4f  max %.4f\n", gen, decode, steps.front(),
                steps.back());
    std::printf("decode reads %.3f GB a token: %.2f GB/s, read limit of this run %.2f GB/s, share %.2f\n", bytes / 1e9,
                bytes / decode / 1e9, limit / 1e9, bytes / decode / limit);
    return 0;
}

}  // namespace

int main(int argc, char** argv) {
    try {
        return run(argc, argv);
    } catch (const std::exception& error) {
        std::fprintf(stderr, "decode_bench: %s\n", error.what());
        return 1;
    }
}
