#ifndef K3_DRIVERS_BENCH_REPORT_HPP
#define K3_DRIVERS_BENCH_REPORT_HPP
// The results as a table for people and as JSON for programs.
#include <cstdio>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "drivers/bench/machine.hpp"
#include "drivers/bench/options.hpp"
#include "drivers/bench/targets.hpp"
#include "drivers/sizes.hpp"

namespace k3::bench {

struct Report {
    Machine machine{};
    std::vector<std::string> peers{};
    std::size_t pool_bytes = 0;  // 0: no matrix product was measured
    Results results{};
    std::vector<Target> targets{};
};

namespace detail {

/// "12.34" or "-" if there is nothing to say.
inline std::string cell(double value, const char* form) {
    if (!(value > 0)) return "-";
    char text[32];
    std::snprintf(text, sizeof text, form, value);
    return text;
}

inline void print_row(const Row& row) {
    std::string kernel = row.kernel + " " + row.format;
    std::string shape = row.shape;
    if (row.panel != 0) shape += " T=" + std::to_string(row.tokens);
    const std::string rows = row.panel == 0 ? "-" : row.cut ? std::to_string(row.panel) : "all";
    const std::string limit = row.limit_share > 0 ? cell(row.limit_share, "%.2f ") + row.limit : "-";
    const double ns = row.elements > 0 ? row.seconds / row.elements * 1e9 : 0;
    std::printf("%-22s %-18s %6s %3u  %-16s %11.3f %6.1f%% %8s %8s %8s  %-15s %7s %7s  %s%s\n", kernel.c_str(),
                shape.c_str(), rows.c_str(), row.threads, row.who.c_str(), row.seconds * 1e6,
                100 * (row.most - row.least) / row.seconds,
                cell(row.passes * row.bytes / row.seconds / 1e9, "%.2f").c_str(),
                cell(row.flops / row.seconds / 1e9, "%.2f").c_str(), cell(ns, "%.3f").c_str(), limit.c_str(),
                cell(row.of_seed, "%.2f").c_str(), cell(row.of_auto, "%.2f").c_str(),
                row.digest.empty() ? "-" : row.digest.c_str(), row.cached ? " cached" : "");
}

}  // namespace detail

inline void print_text(const Report& report, const Options& options) {
    std::printf("k3-bench %s  %s  last-level cache %s  %s\n", K3_VERSION, report.machine.cpu.c_str(),
                drivers::show_bytes(report.machine.cache_bytes).c_str(), report.machine.compiler.c_str());
    std::printf("%zu rounds, medians; spread is (largest - smallest) / median", options.repeats);
    if (report.pool_bytes != 0) std::printf("; weights from %s", drivers::show_bytes(report.pool_bytes).c_str());
    std::string peers;
    for (const std::string& peer : report.peers) peers += (peers.empty() ? "" : ", ") + peer;
    std::printf("\npeers: %s\n\n", peers.empty() ? "none found" : peers.c_str());
    std::printf("%-22s %-18s %6s %3s  %-16s %11s %7s %8s %8s %8s  %-15s %7s %7s  %s\n", "kernel", "shape", "rows",
                "thr", "who", "us", "spread", "GB/s", "GFLOP/s", "ns/elem", "of limit", "x seed", "x auto", "digest");
    std::string last;
    for (const Row& row : report.results.rows) {
        const std::string group =
            row.kernel + row.format + row.shape + std::to_string(row.tokens) + "/" + std::to_string(row.threads);
        if (!last.empty() && group != last) std::printf("\n");
        last = group;
        detail::print_row(row);
    }
    std::printf("\nlimits of this run (the largest of all groups)\n");
    for (const auto& limit : report.results.limits)
        std::printf("  %-14s %3u thread%s %9.2f %s\n", limit.name.c_str(), limit.threads,
                    limit.threads == 1 ? " " : "s", limit.value / 1e9, limit.name[0] == 'r' ? "GB/s" : "GFLOP/s");
    std::printf("\ntargets (medians of this run)\n");
    for (const Target& target : report.targets) {
        std::printf("  %-12s %-85s %s %.2f", target.verdict(), target.text.c_str(),
                    target.at_least ? ">=" : "<=", target.bound);
        if (target.got) std::printf("  got %.3f", *target.got);
        std::printf("\n");
    }
}

inline void print_json(const Report& report, const Options& options) {
    using Json = nlohmann::ordered_json;
    Json out;
    out["version"] = K3_VERSION;
    out["machine"] = {{"cpu", report.machine.cpu},
                      {"cache_bytes", report.machine.cache_bytes},
                      {"compiler", report.machine.compiler}};
    out["rounds"] = options.repeats;
    out["quick"] = options.quick;
    out["pool_bytes"] = report.pool_bytes;
    out["peers"] = report.peers;
    out["limits"] = Json::array();
    for (const auto& limit : report.results.limits)
        out["limits"].push_back({{"name", limit.name}, {"threads", limit.threads}, {"per_second", limit.value}});
    out["rows"] = Json::array();
    const auto positive = [](double value) { return value > 0 ? Json(value) : Json(nullptr); };
    for (const Row& row : report.results.rows) {
        Json line = {{"kernel", row.kernel},    {"format", row.format},   {"shape", row.shape},
                     {"tokens", row.tokens},    {"threads", row.threads}, {"who", row.who},
                     {"panel", row.panel},      {"seconds", row.seconds}, {"seconds_least", row.least},
                     {"seconds_most", row.most}};
        line["gb_per_s"] = positive(row.passes * row.bytes / row.seconds / 1e9);
        line["gflop_per_s"] = positive(row.flops / row.seconds / 1e9);
        line["ns_per_element"] = row.elements > 0 ? Json(row.seconds / row.elements * 1e9) : Json(nullptr);
        line["limit"] = row.limit_share > 0 ? Json(row.limit) : Json(nullptr);
        line["of_limit"] = positive(row.limit_share);
        line["of_bandwidth"] = positive(row.read_share);
        line["of_seed"] = positive(row.of_seed);
        line["of_seed_auto"] = positive(row.of_auto);
        line["cached"] = row.cached;
        line["digest"] = row.digest.empty() ? Json(nullptr) : Json(row.digest);
        out["rows"].push_back(std::move(line));
    }
    out["targets"] = Json::array();
    for (const Target& target : report.targets)
        out["targets"].push_back({{"text", target.text},
                                  {"at_least", target.at_least},
                                  {"bound", target.bound},
                                  {"got", target.got ? Json(*target.got) : Json(nullptr)},
                                  {"verdict", target.verdict()}});
    out["differences"] = report.results.differences;
    std::printf("%s\n", out.dump(1, ' ', false, Json::error_handler_t::replace).c_str());
}

}  // namespace k3::bench
#endif
