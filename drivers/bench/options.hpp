#ifndef K3_DRIVERS_BENCH_OPTIONS_HPP
#define K3_DRIVERS_BENCH_OPTIONS_HPP
// The command line of k3-bench. Values are read as text and checked as a whole.
#include <algorithm>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <CLI/CLI.hpp>

#include "drivers/command_line.hpp"
#include "drivers/kernel_table/cpu.hpp"
#include "drivers/sizes.hpp"
#include "k3/core/error.hpp"
#include "k3/io/cpu_limits.hpp"

namespace k3::bench {

using kernel_table::KernelTable;

struct Options {
    bool digest = false, quick = false, json = false;
    std::string expect{}, write{}, filter{}, chart{};
    std::vector<const KernelTable*> tables{};  // arches to run, narrowest first
    std::vector<unsigned> threads{};           // 1, and all if that is more
    std::vector<std::size_t> tokens{};
    std::size_t repeats = 5;

    bool selects(std::string_view name) const { return name.find(filter) != std::string_view::npos; }
    bool has_tokens(std::size_t t) const { return std::find(tokens.begin(), tokens.end(), t) != tokens.end(); }
};

/// Parses argv. Empty: --help or --version was asked for and printed. Errors: Code::usage.
std::optional<Options> parse_options(int argc, char** argv);

// ---------------------------------------------------------------------------------------------------------------------

namespace detail {

inline constexpr std::size_t kMostTokens = 512;

struct Words {
    std::string expect, write, filter, arch, threads, tokens, repeats, chart;
};

inline void declare(CLI::App& app, Words& words, Options& options) {
    app.set_version_flag("--version", std::string("k3-bench " K3_VERSION));
    auto* digest = app.add_flag("--digest", options.digest,
                                "print a digest per arch, kernel, format and shape; exit 1 if arches differ");
    app.add_option("--expect", words.expect,
                   "with --digest: exit 1 unless all are as this file says [compared among arches only]")
        ->type_name("FILE")
        ->needs(digest);
    app.add_option("--write", words.write, "with --digest: write them to this file [none]")
        ->type_name("FILE")
        ->needs(digest);
    app.add_option("--filter", words.filter, "only what has this in its name, such as 'matmul mxfp4' [all]")
        ->type_name("TEXT");
    app.add_option("--arch", words.arch, "only this instruction set [all of this CPU]")->type_name("NAME");
    auto* threads =
        app.add_option("--threads", words.threads, "measure with 1 and with N threads [cores this process may use]")
            ->type_name("N");
    auto* tokens = app.add_option("--tokens", words.tokens, "tokens a matrix is multiplied with [1,2,4,16,64,256]")
                       ->type_name("LIST");
    auto* repeats = app.add_option("--repeats", words.repeats, "rounds over all candidates [5]")->type_name("N");
    auto* quick = app.add_flag("--quick", options.quick, "fewer shapes and tokens, 3 rounds: a look, not a figure");
    auto* json = app.add_flag("--json", options.json, "print the results as JSON");
    auto* chart =
        app.add_option("--chart", words.chart, "draw the matrix products to this file [none]")->type_name("FILE.svg");
    for (auto* timing : {threads, tokens, repeats, quick, json, chart}) digest->excludes(timing);
    app.footer(
        "Measures every kernel beside the limits of the machine, the seed's kernels, Eigen and OpenBLAS, in turn.\n"
        "docs/BENCHMARKING.md says what each column means. Needs about 3 GB of memory, 1.5 GB with --quick.\n"
        "Exit codes: 0 done; 1 digests differ; 2 usage; 3 a result could not be written.\n"
        "Example: k3-bench --digest --expect tests/golden/kernel_digests.txt");
}

inline std::vector<const KernelTable*> take_arch(const std::string& name) {
    const auto here = kernel_table::tables_of_this_cpu();
    if (name.empty()) return here;
    std::string names;
    for (const KernelTable* table : here) {
        if (name == table->name) return {table};
        names += (names.empty() ? "" : ", ") + std::string(table->name);
    }
    throw Error(Code::usage, "--arch: " + drivers::in_quotes(name) + " is not an instruction set of this CPU and build",
                "this CPU has " + names);
}

inline std::vector<std::size_t> take_tokens(const std::string& text) {
    std::vector<std::size_t> tokens;
    for (std::size_t at = 0; at <= text.size();) {
        const std::size_t comma = std::min(text.find(',', at), text.size());
        tokens.push_back(
            drivers::parse_count("--tokens", std::string_view(text).substr(at, comma - at), 1, kMostTokens));
        at = comma + 1;
    }
    std::sort(tokens.begin(), tokens.end());
    tokens.erase(std::unique(tokens.begin(), tokens.end()), tokens.end());
    return tokens;
}

inline void check_path(const char* option, const CLI::App& app, const std::string& path) {
    if (app.count(option) == 0 || !(path.empty() || path == "-")) return;
    throw Error(Code::usage, std::string(option) + ": " + drivers::in_quotes(path) + " is not a path it takes",
                "name a file");
}

}  // namespace detail

inline std::optional<Options> parse_options(int argc, char** argv) {
    Options options;
    detail::Words words;
    CLI::App app("Measures the kernels of k3 on this machine, or compares their digests.", "k3-bench");
    detail::declare(app, words, options);
    if (!drivers::parse_command_line(app, argc, argv)) return std::nullopt;
    detail::check_path("--expect", app, words.expect);
    detail::check_path("--write", app, words.write);
    detail::check_path("--chart", app, words.chart);
    options.expect = words.expect;
    options.write = words.write;
    options.chart = words.chart;
    options.filter = words.filter;
    options.tables = detail::take_arch(words.arch);
    const auto count = [&app](const char* option, const std::string& text, std::size_t otherwise, std::size_t most) {
        return app.count(option) == 0 ? otherwise
                                      : static_cast<std::size_t>(drivers::parse_count(option, text, 1, most));
    };
    const auto all = static_cast<unsigned>(count("--threads", words.threads, io::usable_cores(), 1024));
    options.threads = all > 1 ? std::vector<unsigned>{1, all} : std::vector<unsigned>{1};
    options.repeats = count("--repeats", words.repeats, options.quick ? 3 : 5, 1000);
    const char* const otherwise = options.quick ? "1,2,16" : "1,2,4,16,64,256";
    options.tokens = detail::take_tokens(app.count("--tokens") == 0 ? otherwise : words.tokens);
    return options;
}

}  // namespace k3::bench
#endif
