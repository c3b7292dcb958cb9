// k3-pack: copies the trunk of a checkpoint into one file with aligned runs, for a faster or smaller disk of its own.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <string>
#include <thread>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "drivers/command_line.hpp"
#include "drivers/exit_code.hpp"
#include "drivers/pack/copy.hpp"
#include "drivers/pack/plan.hpp"
#include "drivers/progress.hpp"
#include "drivers/sizes.hpp"
#include "k3/checkpoint/shard_index.hpp"
#include "k3/core/error.hpp"
#include "k3/model/config_reader.hpp"

namespace {

namespace pack = k3::pack;
using Clock = std::chrono::steady_clock;

std::atomic<bool> g_stop{false};
static_assert(std::atomic<bool>::is_always_lock_free, "set from a signal handler");

struct Arguments {
    std::string model;
    pack::CopyOptions copy;
    bool json = false, quiet = false;
};

void declare(CLI::App& app, Arguments& args) {
    app.set_version_flag("--version", std::string("k3-pack " K3_VERSION));
    app.add_option("model_dir", args.model, "folder of the checkpoint")->required();
    app.add_option("out_dir", args.copy.out, "folder for trunk.bin and trunk.json; made if missing")->required();
    app.add_flag("--force", args.copy.force, "replace a packed trunk that is there");
    app.add_flag("--verify", args.copy.verify, "read trunk.bin back and compare before it gets its name");
    app.add_option("--threads", args.copy.threads, "threads that read and write pieces")
        ->check(CLI::Range(1, 256))
        ->capture_default_str();
    app.add_flag("--json", args.json, "print the result as JSON");
    app.add_flag("--quiet", args.quiet, "no progress on stderr");
    app.footer(
        "Example: k3-pack /data/Kimi-K3 /nvme/k3-trunk --verify && k3 /data/Kimi-K3 --trunk /nvme/k3-trunk\n"
        "The released model needs 108.8 GB there. Embedding, lm_head and experts stay in the checkpoint.\n"
        "Exit codes: 0 done, 1 bad checkpoint, 2 usage or config, 3 could not write, 5 interrupted.");
}

int run(int argc, char** argv) {
    Arguments args;
    args.copy.threads = std::clamp(2 * std::thread::hardware_concurrency(), 2U, 16U);
    CLI::App app("Packs the trunk of a Kimi K3 checkpoint: everything of its layers but the routed experts.",
                 "k3-pack");
    declare(app, args);
    if (!k3::drivers::parse_command_line(app, argc, argv)) return k3::drivers::kSuccess;
    std::signal(SIGINT, [](int) { g_stop = true; });
    std::signal(SIGTERM, [](int) { g_stop = true; });
    const auto config = k3::model::read_config(args.model + "/config.json");
    const auto index = k3::checkpoint::ShardIndex::open(args.model, std::thread::hardware_concurrency());
    const pack::Plan plan = pack::make_plan(config, index);
    args.copy.stop = &g_stop;
    k3::drivers::Progress progress(args.copy.verify ? 2 * plan.bytes : plan.bytes);
    if (!args.quiet) args.copy.tick = [&](const std::string& stage, std::uint64_t done) { progress(stage, done); };
    const Clock::time_point start = Clock::now();
    const std::uint64_t checksum = pack::write_trunk(plan, index, args.copy);
    const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
    const double rate = static_cast<double>(plan.bytes) * 1e-9 / seconds;
    char digest[17];
    std::snprintf(digest, sizeof digest, "%016llx", static_cast<unsigned long long>(checksum));
    if (args.json) {
        const nlohmann::ordered_json result = {
            {"out", args.copy.out},         {"layers", plan.runs.size()}, {"verbatim_layers", plan.verbatim_layers},
            {"tensors", plan.tensors},      {"bytes", plan.bytes},        {"digest", digest},
            {"verified", args.copy.verify}, {"seconds", seconds},         {"gb_per_second", rate}};
        std::printf("%s\n", result.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace).c_str());
    } else {
        std::printf("%s: %zu layers, %zu tensors, %llu bytes in %.2f s, %.2f GB/s, digest %s%s\n",
                    args.copy.out.c_str(), plan.runs.size(), plan.tensors, static_cast<unsigned long long>(plan.bytes),
                    seconds, rate, digest, args.copy.verify ? ", read back and equal" : "");
    }
    return k3::drivers::kSuccess;
}

}  // namespace

int main(int argc, char** argv) {
    return k3::drivers::guarded_main("k3-pack", [&] { return run(argc, argv); });
}
