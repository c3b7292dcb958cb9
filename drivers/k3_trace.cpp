// k3-trace: replays a recorded expert trace at any capacity and policy, beside Belady's bound; checks a recorded run.
#include <sys/stat.h>

#include <charconv>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <CLI/CLI.hpp>

#include "drivers/command_line.hpp"
#include "drivers/exit_code.hpp"
#include "drivers/sizes.hpp"
#include "drivers/trace/chart.hpp"
#include "drivers/trace/report.hpp"
#include "drivers/trace/sweep.hpp"
#include "k3/core/error.hpp"
#include "k3/io/atomic_file.hpp"
#include "k3/stream/trace_reader.hpp"

namespace {

namespace trace = k3::trace;
namespace stream = k3::stream;
using k3::Code;
using k3::Error;

struct Arguments {
    std::string path, capacity, policy = "all", expert_bytes, disk, chart, top_k, experts;
    bool json = false, check = false, no_lookahead = false;
};

void declare(CLI::App& app, Arguments& args) {
    app.set_version_flag("--version", std::string("k3-trace " K3_VERSION));
    app.add_option("trace", args.path, "folder written by k3 --dump-cache-trace, or a file of JSON lines")->required();
    auto* check = app.add_flag("--check", args.check,
                               "replay the recorded run at its own slots and policy; exit 1 unless every counter is "
                               "the same");
    app.add_option("--capacity", args.capacity,
                   "list of slots (2052), memory (8G, 8GiB) or shares of all experts (10%) [a sweep]")
        ->excludes(check);
    app.add_option("--policy", args.policy, "lru, lfru, s3fifo or all [all]")->excludes(check);
    app.add_option("--expert-bytes", args.expert_bytes, "bytes of one expert [what the trace says]");
    app.add_option("--disk", args.disk, "GB/s the disk reads: adds seconds a token [none]");
    app.add_option("--top-k", args.top_k,
                   "experts of a token in a layer, for traces without expert_trace.json [what the trace says]");
    app.add_option("--experts", args.experts, "experts of a layer, for JSON lines [the largest id + 1]");
    app.add_flag("--no-lookahead", args.no_lookahead, "leave the recorded look-aheads out")->excludes(check);
    app.add_flag("--json", args.json, "print the table, or the check, as JSON");
    app.add_option("--chart", args.chart, "write hit rate against capacity to this SVG file [none]")->excludes(check);
    app.footer(
        "The hit rate is the share of requests that caused no load. Belady's bound knows the future; the compulsory "
        "one "
        "loads every expert once. Neither can be beaten.\n"
        "Example: k3 MODEL --prompt Hello --gen 64 --dump-cache-trace /tmp/t && "
        "k3-trace /tmp/t --capacity 16G,32G,64G --disk 6 --chart /tmp/t.svg\n"
        "Exit codes: 0 done, 1 a damaged trace or a check that failed, 2 usage, 3 could not write.");
}

template <class T>
std::optional<T> optional_count(const char* option, const std::string& text, std::uint64_t most) {
    if (text.empty()) return std::nullopt;
    return static_cast<T>(k3::drivers::parse_count(option, text, 1, most));
}

double parse_disk(const std::string& text) {
    if (text.empty()) return 0;
    double value = 0;
    const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (failure != std::errc{} || end != text.data() + text.size() || !(value > 0) || !(value < 1e6))
        throw Error(Code::usage, "--disk: " + k3::drivers::in_quotes(text) + " is not a speed",
                    "give 10^9 bytes a second, like 6.5");
    return value * 1e9;
}

std::vector<stream::Policy> parse_policies(const std::string& text) {
    if (text == "all") return {stream::kPolicies.begin(), stream::kPolicies.end()};
    const auto policy = stream::parse_policy(text);
    if (!policy)
        throw Error(Code::usage, "--policy: " + k3::drivers::in_quotes(text) + " is not a policy",
                    "give lru, lfru, s3fifo or all");
    return {*policy};
}

stream::Trace read(const Arguments& args) {
    const stream::TraceHints hints{.top_k = optional_count<std::uint32_t>("--top-k", args.top_k, 1 << 16),
                                   .experts = optional_count<std::uint32_t>("--experts", args.experts, 1 << 20)};
    struct stat info {};
    const bool folder = ::stat(args.path.c_str(), &info) == 0 && S_ISDIR(info.st_mode);
    if (!folder && args.path.ends_with(".bin"))
        throw Error(Code::usage, "is one file of a trace", "give the folder it is in", {.path = args.path});
    return folder ? stream::read_trace_folder(args.path, hints) : stream::read_trace_lines(args.path, hints);
}

/// Says on stderr how far it is, once the work has taken more than a second.
class Progress {
  public:
    void operator()(std::size_t done, std::size_t all) {
        const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count();
        if (seconds < next_) return;
        std::fprintf(stderr, "k3-trace: %zu of %zu replays, %.0f s\n", done, all, seconds);
        next_ = seconds + 2;
    }

  private:
    std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
    double next_ = 1;
};

int run(int argc, char** argv) {
    Arguments args;
    CLI::App app("Replays a recorded expert trace at any capacity and policy.", "k3-trace");
    declare(app, args);
    if (!k3::drivers::parse_command_line(app, argc, argv)) return k3::drivers::kSuccess;
    const auto policies = parse_policies(args.policy);
    const double disk = parse_disk(args.disk);
    const auto expert_bytes =
        optional_count<std::uint64_t>("--expert-bytes", args.expert_bytes, std::uint64_t{1} << 40);
    const stream::Trace recorded = read(args);
    int code = k3::drivers::kSuccess;
    if (args.check) {
        if (!trace::check(recorded, args.json)) code = k3::drivers::kFailed;
    } else {
        const trace::Scale scale{expert_bytes.value_or(recorded.shape.expert_bytes), disk};
        if (disk > 0 && scale.expert_bytes == 0)
            throw Error(Code::usage, "--disk needs the size of an expert, which this trace does not say",
                        "give --expert-bytes");
        const trace::Facts facts = trace::facts_of(recorded);
        const auto capacities = args.capacity.empty()
                                    ? trace::usual_capacities(recorded, facts)
                                    : trace::parse_capacities(args.capacity, recorded, facts, scale.expert_bytes);
        std::optional<k3::io::PendingFile> chart;  // opened first: a wrong path is not found after the work
        if (!args.chart.empty()) chart.emplace(k3::io::PendingFile::create(args.chart));
        const auto rows =
            trace::sweep(recorded, facts, capacities, policies,
                         args.no_lookahead ? stream::Lookahead::none : stream::Lookahead::as_recorded, Progress{});
        if (chart) {
            const std::string text = trace::chart_of(recorded, facts, rows, scale);
            chart->write(0, std::as_bytes(std::span(text.data(), text.size())));
            chart->commit();
        }
        (args.json ? trace::print_json : trace::print_text)(recorded, facts, rows, scale);
    }
    if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0)
        throw Error(Code::write, "standard output could not be written", "check where it goes");
    return code;
}

}  // namespace

int main(int argc, char** argv) {
    return k3::drivers::guarded_main("k3-trace", [&] { return run(argc, argv); });
}
