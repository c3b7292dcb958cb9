#ifndef K3_DRIVERS_CONFORM_REPORT_HPP
#define K3_DRIVERS_CONFORM_REPORT_HPP
// The table, the verdict, the JSON form, and the progress line.
#include <chrono>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <string>
#include <vector>

#include <unistd.h>

#include <nlohmann/json.hpp>

#include "drivers/conform/judge.hpp"
#include "drivers/conform/options.hpp"
#include "drivers/sizes.hpp"

namespace k3::conform {

/// 0.0312 -> "0.031x", 1234567 -> "1.2e+06x".
inline std::string show_ratio(double ratio) {
    char text[32];
    std::snprintf(text, sizeof text, ratio < 1000 ? "%.3fx" : "%.2gx", ratio);
    return text;
}

/// "L87 KDA PASS 3 stages worst 0.03x budget (recurrence)  chained 1.2e-06", and a line for each stage that failed or
/// that has a wide budget.
inline void print_layer(const LayerResult& layer) {
    if (layer.stages.empty()) return;
    const Stage& worst = layer.worst();
    std::printf("%-5s %-3s %s %2zu stages worst %s budget (%s)", layer.label.c_str(), layer.kind.c_str(),
                layer.passed() ? "PASS" : "FAIL", layer.stages.size(), show_ratio(worst.worst).c_str(),
                worst.name.c_str());
    if (!std::isnan(layer.chained)) std::printf("  chained %.2g", layer.chained);
    if (layer.other_choices != 0)
        std::printf("  the chain alone would choose %zu of %zu experts otherwise", layer.other_choices, layer.choices);
    std::printf("\n");
    for (const Stage& stage : layer.stages)
        if (!stage.passed())
            std::printf("      %s %s: %s budget at %s\n", layer.label.c_str(), stage.name.c_str(),
                        show_ratio(stage.worst).c_str(), stage.failure.c_str());
    for (const Stage& stage : layer.stages)
        if (stage.wide())
            std::printf("      %s %s: wide budget, %.2g of the largest value: a pass says little there\n",
                        layer.label.c_str(), stage.name.c_str(), stage.relative_budget);
    std::fflush(stdout);  // a long run is read while it goes on
}

struct Summary {
    std::size_t layers = 0, stages = 0, failed = 0, wide = 0;
    double worst = 0;
    std::string where = "nothing", first_failure{};
};
inline Summary summarise(const std::vector<LayerResult>& results) {
    Summary s;
    for (const LayerResult& layer : results) {
        s.layers += layer.kind == "KDA" || layer.kind == "MLA";
        for (const Stage& stage : layer.stages) {
            ++s.stages;
            s.failed += !stage.passed();
            s.wide += stage.wide();
            if (!stage.passed() && s.first_failure.empty()) s.first_failure = layer.label + " " + stage.name;
            if (stage.worst <= s.worst) continue;
            s.worst = stage.worst;
            s.where = layer.label + " " + stage.name;
        }
    }
    return s;
}

/// The verdict, and what to do next.
inline void print_verdict(const Options& o, const Summary& s) {
    std::printf("%s: %zu layers, %zu stages", s.failed == 0 ? "PASS" : "FAIL", s.layers, s.stages);
    if (s.failed != 0) std::printf(", %zu failed, the first %s", s.failed, s.first_failure.c_str());
    std::printf(", worst %s budget (%s)", show_ratio(s.worst).c_str(), s.where.c_str());
    if (s.wide != 0) std::printf(", %zu stage%s with a wide budget", s.wide, s.wide == 1 ? "" : "s");
    std::printf("\n");
    if (s.failed == 0)
        std::printf("next: k3 %s %s\n", o.engine_dir.c_str(),
                    std::filesystem::exists(o.engine_dir + "/tiktoken.model") ? "--prompt TEXT" : "--ids 1,2,3");
    else if (o.engine_dir != o.model_dir || o.engine_config != o.config_path)
        std::printf("next: compare that layer's tensors and config of the two sides (k3-inspect DIR --dump TENSOR)\n");
    else if (o.arch != engine::ArchName::scalar)
        std::printf("next: run again with --arch scalar: if that passes, the %s kernels are wrong\n",
                    engine::name(o.arch));
    else
        std::printf(
            "next: the scalar kernels are wrong on this build or the checkpoint is outside what NUMERICS "
            "covers: please report\n");
}

inline nlohmann::ordered_json to_json(const Options& o, const std::vector<std::int32_t>& ids,
                                      const std::vector<LayerResult>& results, double seconds) {
    const Summary s = summarise(results);
    nlohmann::ordered_json root = {{"version", K3_VERSION},
                                   {"model", o.model_dir},
                                   {"engine_model", o.engine_dir},
                                   {"arch", engine::name(o.arch)},
                                   {"threads", o.threads},
                                   {"tokens", o.tokens},
                                   {"seed", o.seed},
                                   {"ids", ids},
                                   {"verdict", s.failed == 0 ? "PASS" : "FAIL"},
                                   {"worst", s.worst},
                                   {"where", s.where},
                                   {"stages", s.stages},
                                   {"failed", s.failed},
                                   {"wide", s.wide},
                                   {"seconds", seconds}};
    for (const LayerResult& layer : results) {
        if (layer.stages.empty()) continue;
        nlohmann::ordered_json row = {{"label", layer.label},
                                      {"kind", layer.kind},
                                      {"verdict", layer.passed() ? "PASS" : "FAIL"},
                                      {"worst", layer.worst().worst},
                                      {"chained", layer.chained},
                                      {"choices", layer.choices},
                                      {"other_choices", layer.other_choices},
                                      {"seconds", layer.seconds}};
        for (const Stage& stage : layer.stages) {
            nlohmann::ordered_json entry = {{"name", stage.name},
                                            {"worst", stage.worst},
                                            {"relative_budget", stage.relative_budget},
                                            {"verdict", stage.passed() ? "PASS" : "FAIL"}};
            if (!stage.passed()) entry["failure"] = stage.failure;
            row["stages"].push_back(std::move(entry));
        }
        root["layers"].push_back(std::move(row));
    }
    return root;
}

/// On a terminal one line that is rewritten; elsewhere a line now and then, so that a log stays readable.
class Progress {
  public:
    explicit Progress(bool quiet) : quiet_(quiet) {}
    Progress(const Progress&) = delete;
    Progress& operator=(const Progress&) = delete;
    /// Open only where an exception ended the work: the line stays, and the message gets its own.
    ~Progress() {
        if (open_) std::fputc('\n', stderr);
    }
    /// `part` of the work is done.
    void show(const std::string& what, double part) {
        const Clock::time_point now = Clock::now();
        if (quiet_ || now - shown_ < (terminal_ ? std::chrono::milliseconds(100) : std::chrono::seconds(30))) return;
        shown_ = now;
        const double spent = std::chrono::duration<double>(now - began_).count();
        std::string line = what;
        if (part > 0) line += ", " + drivers::show_seconds(spent * (1 - part) / part) + " to go";
        std::fprintf(stderr, terminal_ ? "\r%s\033[K" : "%s\n", line.c_str());
        std::fflush(stderr);
        open_ = terminal_;
    }
    void clear() {
        if (open_) std::fputs("\r\033[K", stderr);
        open_ = false;
    }
    double seconds() const { return std::chrono::duration<double>(Clock::now() - began_).count(); }

  private:
    using Clock = std::chrono::steady_clock;
    bool quiet_, terminal_ = ::isatty(STDERR_FILENO) != 0, open_ = false;
    Clock::time_point began_ = Clock::now(), shown_ = terminal_ ? Clock::time_point{} : began_;
};

}  // namespace k3::conform
#endif
