// k3-synth: writes a checkpoint in the released layout, of any size, from a seed.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <mutex>
#include <string>
#include <thread>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "drivers/command_line.hpp"
#include "drivers/exit_code.hpp"
#include "drivers/progress.hpp"
#include "drivers/synth/write.hpp"

namespace {

namespace synth = k3::synth;
using Clock = std::chrono::steady_clock;

std::atomic<bool> g_stop{false};
static_assert(std::atomic<bool>::is_always_lock_free, "set from a signal handler");

struct Arguments {
    synth::Options model;
    synth::WriteOptions write;
    bool dry_run = false, json = false, quiet = false;
};

void declare(CLI::App& app, Arguments& args) {
    app.set_version_flag("--version", std::string("k3-synth " K3_VERSION));
    app.add_option("--out", args.write.out,
                   "folder to write; made if missing, must be empty [needed unless --dry-run]");
    app.add_flag("--force", args.write.force, "write into a folder that is not empty; foreign files are left alone");
    app.add_option("--seed", args.write.seed, "every value follows from it")
        ->check(CLI::NonNegativeNumber)
        ->capture_default_str();
    app.add_flag("--like-release", args.model.like_release,
                 "start from the released widths, with 5 layers and 48 experts");
    app.add_flag("--release", args.model.release,
                 "the released shape itself: 96 shards, 497,220 tensors, 1.56 TB unless --sparse")
        ->excludes("--like-release");
    app.add_flag("--sparse", args.model.sparse,
                 "files with holes: embedding, lm_head, router gates and small tensors are whole, of every other one "
                 "a few 4 KiB blocks; the release takes 8 GB of disk");
    for (std::size_t i = 0; i < synth::kSizeCount; ++i) {
        const synth::SizeOption& option = synth::kSizeOptions[i];
        app.add_option(option.flag, args.model.sizes[i],
                       std::string(option.help) + " [" + std::to_string(option.small) +
                           "; like the release: " + std::to_string(option.released) + "]")
            ->group("Model");
    }
    app.add_option("--full-attn", args.model.full_attn, "MLA layers from 1 on: 4,8,9 [every fourth and the last]")
        ->delimiter(',')
        ->group("Model");
    app.add_option("--threads", args.write.threads, "threads that make and write pieces")
        ->check(CLI::Range(1, 256))
        ->capture_default_str();
    app.add_flag("--dry-run", args.dry_run, "print what would be written and stop");
    app.add_flag("--json", args.json, "print the result as JSON");
    app.add_flag("--quiet", args.quiet, "no progress on stderr");
    app.footer(
        "Without an upper bound on a size, the limit is your disk: see --dry-run.\n"
        "Example: k3-synth --release --sparse --out /data/k3-sparse\n"
        "Exit codes: 0 done, 2 usage, 3 could not write, 5 interrupted.");
}

void print_plan(const synth::Plan& plan, bool as_json) {
    if (as_json) {
        nlohmann::ordered_json root = {{"tensors", plan.tensors},
                                       {"payload_bytes", plan.payload},
                                       {"shard_bytes", plan.file_bytes},
                                       {"disk_bytes", plan.stored}};
        for (const auto& row : plan.shards) {
            root["shards"].push_back({{"name", row.name},
                                      {"tensors", row.tensors},
                                      {"header_bytes", row.header},
                                      {"file_bytes", row.header + row.payload},
                                      {"disk_bytes", row.stored}});
        }
        std::printf("%s\n", root.dump().c_str());
        return;
    }
    for (const auto& row : plan.shards) {
        std::printf("%s %7zu tensors %16llu bytes\n", row.name.c_str(), row.tensors,
                    static_cast<unsigned long long>(row.header + row.payload));
    }
    std::printf("%zu shards, %zu tensors, %llu bytes, %llu of them on disk\n", plan.shards.size(), plan.tensors,
                static_cast<unsigned long long>(plan.file_bytes), static_cast<unsigned long long>(plan.stored));
}

int run(int argc, char** argv) {
    Arguments args;
    args.write.threads = std::clamp(2 * std::thread::hardware_concurrency(), 2U, 16U);
    CLI::App app("Writes a Kimi K3 checkpoint in the released layout with seeded random values.", "k3-synth");
    declare(app, args);
    if (!k3::drivers::parse_command_line(app, argc, argv)) return k3::drivers::kSuccess;
    const synth::ModelShape shape = synth::make_shape(args.model);
    const synth::Plan plan = synth::make_plan(shape, args.write.seed);
    if (args.dry_run) {
        print_plan(plan, args.json);
        return k3::drivers::kSuccess;
    }
    if (args.write.out.empty()) throw k3::Error(k3::Code::usage, "--out is missing", "name a folder, or use --dry-run");
    std::signal(SIGINT, [](int) { g_stop = true; });
    std::signal(SIGTERM, [](int) { g_stop = true; });
    args.write.stop = &g_stop;
    k3::drivers::Progress progress(plan.stored);
    if (!args.quiet) args.write.tick = [&](const std::string& shard, std::uint64_t done) { progress(shard, done); };
    const Clock::time_point start = Clock::now();
    synth::write_checkpoint(shape, plan, args.write);
    const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
    const double rate = static_cast<double>(plan.stored) * 1e-9 / seconds;
    if (args.json) {
        const nlohmann::ordered_json result = {{"out", args.write.out},         {"seed", args.write.seed},
                                               {"shards", plan.shards.size()},  {"tensors", plan.tensors},
                                               {"payload_bytes", plan.payload}, {"shard_bytes", plan.file_bytes},
                                               {"disk_bytes", plan.stored},     {"seconds", seconds},
                                               {"gb_per_second", rate}};
        std::printf("%s\n", result.dump().c_str());
    } else {
        std::printf("%s: %zu shards, %zu tensors, %llu bytes, %llu of them on disk, in %.2f s, %.2f GB/s\n",
                    args.write.out.c_str(), plan.shards.size(), plan.tensors,
                    static_cast<unsigned long long>(plan.file_bytes), static_cast<unsigned long long>(plan.stored),
                    seconds, rate);
    }
    return k3::drivers::kSuccess;
}

}  // namespace

int main(int argc, char** argv) {
    return k3::drivers::guarded_main("k3-synth", [&] { return run(argc, argv); });
}
