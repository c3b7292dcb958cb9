// k3-inspect: what is in a checkpoint: census, budget and heat map, the plan of a run, tensor listing, tensor dump, the
// difference to another checkpoint, what coarser numbers would lose, token ids of a text and back.
#include <algorithm>
#include <charconv>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "drivers/command_line.hpp"
#include "drivers/exit_code.hpp"
#include "drivers/inspect/census.hpp"
#include "drivers/inspect/diff.hpp"
#include "drivers/inspect/dump.hpp"
#include "drivers/inspect/heat_map.hpp"
#include "drivers/inspect/plan.hpp"
#include "drivers/inspect/quant_study.hpp"
#include "drivers/inspect/report.hpp"
#include "drivers/sizes.hpp"
#include "drivers/text_input.hpp"
#include "k3/checkpoint/shard_index.hpp"
#include "k3/core/error.hpp"
#include "k3/io/atomic_file.hpp"
#include "k3/io/cpu_limits.hpp"
#include "k3/io/file.hpp"
#include "k3/model/config_reader.hpp"
#include "k3/text/tokenizer.hpp"

namespace {

namespace inspect = k3::inspect;
using k3::Code;
using k3::Error;

struct Arguments {
    std::string model, match, dump, out, rows, encode, encode_file, decode;
    std::string memory, positions, disk, cores, svg, diff;
    bool list = false, no_specials = false, json = false, plan = false, quant_study = false;
};

void declare(CLI::App& app, Arguments& args) {
    app.set_version_flag("--version", std::string("k3-inspect " K3_VERSION));
    app.add_option("model", args.model, "folder of the checkpoint")->required();
    app.add_flag("--json", args.json, "print the result as JSON");
    auto* list = app.add_flag("--list", args.list, "list the tensors: name, dtype, shape, shard, offset, bytes");
    app.add_option("--match", args.match, "with --list and --quant-study: only names that contain this [all]");
    auto* dump =
        app.add_option("--dump", args.dump, "print a tensor; .../experts.3.w1 without its suffix is dequantised");
    app.add_option("--out", args.out, "with --dump: write this .npy file [text]")->needs(dump);
    app.add_option("--rows", args.rows, "with --dump: first:end of the first dimension, end not included [all]")
        ->needs(dump);
    auto* encode = app.add_option("--encode", args.encode, "print the token ids of a text");
    auto* file =
        app.add_option("--encode-file", args.encode_file, "print the token ids of a file; - is standard input");
    app.add_flag("--no-specials", args.no_specials, "names of special tokens in the text are plain characters");
    auto* decode = app.add_option("--decode", args.decode, "print the text of token ids: 1,2,3");
    auto* plan = app.add_flag("--plan", args.plan, "what a run keeps, streams and caches, and what a token reads");
    app.add_option("--memory", args.memory, "with --plan: ceiling on everything, like 8G [what is here]")->needs(plan);
    app.add_option("--positions", args.positions, "with --plan: tokens of prompt and answer [512]")->needs(plan);
    auto* disk =
        app.add_option("--disk-gbs", args.disk, "with --plan: GB/s of the disk, for seconds a token [no forecast]")
            ->needs(plan);
    app.add_option(
           "--cores-gbs", args.cores,
           "with --disk-gbs: GB/s of weights that the cores multiply with (k3-doctor measures it) [not counted]")
        ->needs(disk);
    auto* diff =
        app.add_option("--diff", args.diff, "compare with the headers of this checkpoint; exit 1 if they differ");
    auto* quant = app.add_flag("--quant-study", args.quant_study,
                               "what the trunk would lose in int8 and int4, one scale a row; reads all of it");
    auto* svg = app.add_option("--svg", args.svg, "census: also write bytes by layer and class to this SVG file");
    // One job a run: each excludes the others.
    const std::vector<CLI::Option*> jobs = {list, dump, encode, file, decode, plan, diff, quant, svg};
    for (std::size_t i = 0; i < jobs.size(); ++i) {
        jobs[i]->group("Instead of the census (at most one)");
        for (std::size_t j = i + 1; j < jobs.size(); ++j) jobs[i]->excludes(jobs[j]);
    }
    app.footer(
        "Exit codes: 0 done, 1 a damaged checkpoint, an unknown tensor or a difference, 2 usage, configuration, plan "
        "or "
        "tokenizer, 3 could not write.\n"
        "Example: k3-inspect tests/demo/model --list --match experts.3.");
}

std::optional<inspect::Rows> parse_rows(const std::string& text) {
    if (text.empty()) return std::nullopt;
    const std::size_t colon = text.find(':');
    if (colon == std::string::npos) throw Error(Code::usage, "--rows " + text + " has no colon", "give first:end");
    constexpr std::uint64_t kMost = std::numeric_limits<std::uint64_t>::max();
    const auto number = [](std::string_view word) { return k3::drivers::parse_count("--rows", word, 0, kMost); };
    return inspect::Rows{number(std::string_view(text).substr(0, colon)),
                         number(std::string_view(text).substr(colon + 1))};
}

k3::checkpoint::ShardIndex open_index(const Arguments& args) {
    return k3::checkpoint::ShardIndex::open(args.model, std::thread::hardware_concurrency());
}

void finish_stdout() {
    if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) {
        throw Error(Code::write, "standard output could not be written", "check where it goes");
    }
}

void list(const Arguments& args) {
    const auto index = open_index(args);
    std::uint64_t shown = 0;
    nlohmann::ordered_json rows = nlohmann::ordered_json::array();
    index.for_each([&](std::string_view name, const k3::checkpoint::TensorInfo& info) {
        if (name.find(args.match) == std::string_view::npos) return;
        ++shown;
        const std::string& path = index.shard(info).file.path();
        const std::string shard = path.substr(path.rfind('/') + 1);
        if (args.json) {
            rows.push_back({{"name", name},
                            {"dtype", k3::checkpoint::name(info.dtype)},
                            {"shape", info.shape.dims()},
                            {"shard", shard},
                            {"offset", info.offset},
                            {"bytes", info.bytes}});
        } else {
            std::printf("%s %s %s %s offset %llu bytes %llu\n", std::string(name).c_str(),
                        std::string(k3::checkpoint::name(info.dtype)).c_str(), to_string(info.shape).c_str(),
                        shard.c_str(), static_cast<unsigned long long>(info.offset),
                        static_cast<unsigned long long>(info.bytes));
        }
    });
    if (args.json) {
        std::printf("%s\n", rows.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace).c_str());
    }
    std::fprintf(stderr, "%llu of %zu tensors\n", static_cast<unsigned long long>(shown), index.size());
}

k3::text::Tokenizer open_tokenizer(const Arguments& args) {
    const std::size_t vocab = k3::model::read_config(args.model + "/config.json").shape.vocab;
    return k3::text::Tokenizer::open(args.model, vocab);
}

void encode(const Arguments& args) {
    const auto tokenizer = open_tokenizer(args);
    const std::string text =
        args.encode_file.empty() ? args.encode : k3::drivers::read_text("--encode-file", args.encode_file);
    const auto ids =
        tokenizer.encode(text, args.no_specials ? k3::text::Specials::as_text : k3::text::Specials::as_ids);
    std::string line;
    for (const auto id : ids) line += (line.empty() ? "" : ",") + std::to_string(id);
    std::printf(args.json ? "[%s]\n" : "%s\n", line.c_str());
}

void decode(const Arguments& args) {
    const auto tokenizer = open_tokenizer(args);
    const auto ids = k3::drivers::parse_ids("--decode", args.decode, tokenizer.vocab());
    if (args.json) {
        std::printf("%s\n", nlohmann::json(tokenizer.decode(ids)).dump().c_str());
        return;
    }
    const std::string bytes = tokenizer.decode_bytes(ids);  // as they are: output may go to a file
    std::fwrite(bytes.data(), 1, bytes.size(), stdout);
}

double parse_speed(const char* option, const std::string& text) {
    if (text.empty()) return 0;
    double value = 0;
    const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (failure != std::errc{} || end != text.data() + text.size() || !(value > 0) || !(value < 1e6))
        throw Error(Code::usage, std::string(option) + ": " + k3::drivers::in_quotes(text) + " is not a speed",
                    "give 10^9 bytes a second, like 6.5");
    return value;
}

void plan(const Arguments& args) {
    const inspect::PlanSpeeds speeds{parse_speed("--disk-gbs", args.disk), parse_speed("--cores-gbs", args.cores)};
    k3::forecast::Request request{.model_dir = args.model, .threads = k3::io::usable_cores(), .positions = 512};
    if (!args.memory.empty()) {  // a question about some machine, not about this one
        request.ceiling = k3::drivers::parse_size("--memory", args.memory, 0);
        request.room = k3::forecast::Room::any;
    }
    if (!args.positions.empty())
        request.positions = k3::drivers::parse_count("--positions", args.positions, 1, std::uint64_t{1} << 24);
    const k3::forecast::Planned planned = k3::forecast::plan_model(request);
    if (planned.refusal) throw *planned.refusal;
    (args.json ? inspect::print_plan_json : inspect::print_plan_text)(planned, speeds);
}

/// True: they are alike.
bool diff(const Arguments& args) {
    const auto first = open_index(args);
    const auto second = k3::checkpoint::ShardIndex::open(args.diff, std::thread::hardware_concurrency());
    const inspect::Differences found = inspect::compare(first, second);
    (args.json ? inspect::print_diff_json : inspect::print_diff_text)(found);
    return found.none();
}

void quant_study(const Arguments& args) {
    const auto list = inspect::study_quantisation(open_index(args), args.match, k3::io::usable_cores());
    (args.json ? inspect::print_quant_json : inspect::print_quant_text)(list);
}

void census(const Arguments& args) {
    std::optional<k3::io::PendingFile> svg;  // opened first: a wrong path is not found after the work
    if (!args.svg.empty()) svg.emplace(k3::io::PendingFile::create(args.svg));
    const auto index = open_index(args);
    const inspect::Census found = inspect::take_census(index);
    std::optional<inspect::Budget> budget;
    try {
        budget = inspect::make_budget(found, k3::model::read_config(args.model + "/config.json"));
    } catch (const Error& error) {  // the census stands without it
        std::fprintf(stderr, "k3-inspect: note: no budget: %s\n", error.what());
    }
    if (svg) {
        const std::string text = inspect::heat_map(found);
        svg->write(0, std::as_bytes(std::span(text.data(), text.size())));
        svg->commit();
    }
    (args.json ? inspect::print_json : inspect::print_text)(found, budget, index.shards().size());
}

int run(int argc, char** argv) {
    Arguments args;
    CLI::App app("Shows what a Kimi K3 checkpoint holds.", "k3-inspect");
    declare(app, args);
    if (!k3::drivers::parse_command_line(app, argc, argv)) return k3::drivers::kSuccess;
    const auto given = [&](const char* option) { return app.count(option) != 0; };
    if (given("--match") && !args.list && !args.quant_study)
        throw Error(Code::usage, "--match goes with --list or --quant-study", "add one of them");
    int code = k3::drivers::kSuccess;
    if (given("--dump")) {
        inspect::dump(open_index(args), args.model, args.dump, parse_rows(args.rows), args.out);
    } else if (given("--encode") || given("--encode-file")) {
        encode(args);
    } else if (given("--decode")) {
        decode(args);
    } else if (args.plan) {
        plan(args);
    } else if (given("--diff")) {
        if (!diff(args)) code = k3::drivers::kFailed;
    } else if (args.quant_study) {
        quant_study(args);
    } else if (args.list) {
        list(args);
    } else {
        census(args);
    }
    finish_stdout();
    return code;
}

}  // namespace

int main(int argc, char** argv) {
    return k3::drivers::guarded_main("k3-inspect", [&] { return run(argc, argv); });
}
