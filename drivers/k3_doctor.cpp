// k3-doctor: what this machine is and can do, whether a checkpoint is whole and fits, how long a token will take, and
// the next command.
#include <charconv>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "drivers/command_line.hpp"
#include "drivers/doctor/diagnosis.hpp"
#include "drivers/doctor/report.hpp"
#include "drivers/exit_code.hpp"
#include "drivers/run/waiting_threads.hpp"
#include "drivers/sizes.hpp"
#include "k3/core/error.hpp"
#include "k3/engine/cpu_arches.hpp"
#include "k3/io/cpu_limits.hpp"

namespace {

namespace doctor = k3::doctor;
using k3::Code;
using k3::Error;

struct Arguments {
    std::string model, memory, positions, threads, arch, seconds, scratch;
    bool json = false;
};

void declare(CLI::App& app, Arguments& args) {
    app.set_version_flag("--version", std::string("k3-doctor " K3_VERSION));
    app.add_option("model", args.model, "folder of a checkpoint; without it: the machine, and the release on it");
    app.add_option("--memory", args.memory, "ceiling on everything, like 8G or 8GiB; default: what the machine has");
    app.add_option("--positions", args.positions, "tokens of prompt and answer together; default 512");
    app.add_option("--threads", args.threads, "default: as k3");
    app.add_option("--arch", args.arch, "instruction set; default: as k3");
    app.add_option("--seconds", args.seconds, "how long the disk is measured; default 6, 0 measures nothing");
    app.add_option("--scratch", args.scratch,
                   "folder for a file to read where the model has too little; default: the model's, else this one");
    app.add_flag("--json", args.json, "print the findings as JSON");
    app.footer(
        "The disk is measured on the model's shards, past the page cache. Without them a file of up to 1 GiB is made "
        "and removed.\n"
        "Example: k3-doctor MODEL_DIR --memory 8G\n"
        "Exit codes: 0 it can run, 1 it cannot (the last line says why), 2 usage, 3 could not write.");
}

double parse_seconds(const std::string& text) {
    double value = 0;
    const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (failure != std::errc{} || end != text.data() + text.size() || !(value >= 0) || !(value <= 3600))
        throw Error(Code::usage, "--seconds: " + k3::drivers::in_quotes(text) + " is not a time",
                    "give seconds from 0 to 3600");
    return value;
}

std::string parse_arch(const std::string& text) {
    std::string names;
    for (const auto arch : k3::engine::arches_of_this_cpu()) {
        if (text == k3::engine::name(arch)) return text;
        names += (names.empty() ? "" : ", ") + std::string(k3::engine::name(arch));
    }
    throw Error(Code::usage, "--arch: " + k3::drivers::in_quotes(text) + " is not an instruction set of this CPU",
                "this CPU has " + names);
}

/// As k3-fetch has it.
std::string hub_of_environment() {
    const char* const given = std::getenv("HF_ENDPOINT");
    std::string hub = given == nullptr || *given == 0 ? "https://huggingface.co" : given;
    while (hub.ends_with('/')) hub.pop_back();
    return hub;
}

doctor::Options options_of(const Arguments& args, const char* program) {
    using k3::drivers::parse_count;
    doctor::Options options;
    options.model_dir = args.model;
    options.program = program;
    options.hub = hub_of_environment();
    options.scratch_dir = args.scratch;
    options.memory_word = args.memory;
    options.threads_word = args.threads;
    options.arch_word = args.arch;
    options.json = args.json;
    if (!args.memory.empty()) options.memory = k3::drivers::parse_size("--memory", args.memory, 0);
    if (!args.positions.empty()) options.positions = parse_count("--positions", args.positions, 1, 1 << 24);
    options.threads = args.threads.empty() ? k3::io::usable_cores()
                                           : static_cast<unsigned>(parse_count("--threads", args.threads, 1, 1024));
    options.arch = args.arch.empty() ? k3::engine::name(k3::engine::widest_arch()) : parse_arch(args.arch);
    if (!args.seconds.empty()) options.seconds = parse_seconds(args.seconds);
    return options;
}

int run(int argc, char** argv) {
    Arguments args;
    CLI::App app("Looks at the machine and at a Kimi K3 checkpoint: does it run, how fast, what next.", "k3-doctor");
    declare(app, args);
    if (!k3::drivers::parse_command_line(app, argc, argv)) return k3::drivers::kSuccess;
    const doctor::Options options = options_of(args, argv[0]);
    const doctor::Diagnosis found = doctor::diagnose(options);
    (options.json ? doctor::print_json : doctor::print_text)(options, found);
    if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0)
        throw Error(Code::write, "standard output could not be written", "check where it goes");
    return found.reason.empty() ? k3::drivers::kSuccess : k3::drivers::kFailed;
}

}  // namespace

int main(int argc, char** argv) {
    k3::run::limit_spinning(argv);
    return k3::drivers::guarded_main("k3-doctor", [&] { return run(argc, argv); });
}
