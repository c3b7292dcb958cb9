#ifndef K3_DRIVERS_DOCTOR_DIAGNOSIS_HPP
#define K3_DRIVERS_DOCTOR_DIAGNOSIS_HPP
// What k3-doctor found out: the machine, its speeds, the model, the plan that fits, the forecast, and what to do next.
#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "drivers/doctor/disk.hpp"
#include "drivers/doctor/folder.hpp"
#include "drivers/doctor/machine.hpp"
#include "drivers/doctor/products.hpp"
#include "drivers/forecast/forecast.hpp"
#include "drivers/forecast/planned.hpp"
#include "drivers/next_command.hpp"
#include "drivers/release_size.hpp"
#include "k3/core/error.hpp"

namespace k3::doctor {

namespace forecast = k3::forecast;

struct Options {
    std::string model_dir{};  // empty: the machine alone, and what it could do with the release
    std::string program{};    // argv[0]: the other programs are beside it
    std::string hub{};        // HF_ENDPOINT, or its default: where k3-fetch takes OWNER/NAME from
    std::string scratch_dir{};
    std::optional<std::uint64_t> memory{};
    std::string memory_word{}, arch_word{}, threads_word{};  // as given, for the next command
    std::string arch{};
    unsigned threads = 1;
    std::size_t positions = 512;
    double seconds = 6;  // of reading the disk; 0: nothing is measured
    bool json = false;
};

/// Seconds a token: with the median of the measured speeds, with the best, with the worst.
struct Expectation {
    forecast::Forecast usual{};
    double best = 0, worst = 0;
};

struct Diagnosis {
    Facts facts{};
    Products products{};
    Disk disk{};
    std::optional<forecast::Planned> model{};
    bool released = false;  // `model` is the release, which is not there
    Folder folder{};        // what lies there
    std::size_t holey_shards = 0;
    bool text = false;  // a tokenizer is there
    Expectation expectation{};
    std::vector<std::pair<forecast::Planned, Expectation>> ladder{};  // of the release, at other sizes of memory
    std::string reason{};                                             // why it cannot run; empty: it can
    std::string next{};                                               // the next command
};

namespace detail {

using drivers::shell_word;
using drivers::sibling;

inline std::vector<std::string> shards_of(const std::string& dir) {
    std::vector<std::string> shards;
    std::error_code failed;
    for (std::filesystem::directory_iterator at(dir, failed), end; !failed && at != end; at.increment(failed)) {
        const std::string name = at->path().filename().string();
        if (is_shard_name(name)) shards.push_back(at->path().string());
    }
    std::sort(shards.begin(), shards.end());
    return shards;
}

inline std::string run_command(const Options& options, bool text, const std::string& memory) {
    std::string command = sibling(options.program, "k3") + " " + shell_word(options.model_dir);
    if (!memory.empty()) command += " --memory " + shell_word(memory);
    if (!options.threads_word.empty()) command += " --threads " + options.threads_word;
    if (!options.arch_word.empty()) command += " --arch " + options.arch_word;
    return command + (text ? " --prompt \"The capital of France is\" --gen 16" : " --ids 1,2,3 --gen 8");
}

/// k3-fetch is not built without libcurl.
inline bool can_fetch() {
    std::error_code failed;
    const auto program = std::filesystem::read_symlink("/proc/self/exe", failed);
    return !failed && std::filesystem::exists(program.parent_path() / "k3-fetch", failed);
}
inline std::string fetch_command(const Options& options, const std::string& dir) {
    return sibling(options.program, "k3-fetch") + " moonshotai/Kimi-K3 " + shell_word(dir);
}

/// Fetches what is missing or wrong from where the rest was fetched: nothing that is whole is fetched again.
inline std::string fetch_rest_command(const Options& options, const Folder& folder) {
    const std::string source = folder.endpoint == options.hub ? folder.repo : folder.endpoint + "/" + folder.repo;
    return sibling(options.program, "k3-fetch") + " " + shell_word(source) + " " + shell_word(options.model_dir) +
           (folder.revision == "main" ? "" : " --revision " + shell_word(folder.revision));
}

/// How to come by a checkpoint: the release where there is room for it, else a synthetic one of its widths, else a
/// small one.
inline std::string model_command(const Options& options) {
    const std::string dir = options.model_dir.empty() ? "k3-model" : options.model_dir;
    std::error_code failed;
    std::filesystem::path there = std::filesystem::absolute(dir, failed);
    while (!there.empty() && !std::filesystem::exists(there, failed) && there != there.parent_path())
        there = there.parent_path();
    const auto space = std::filesystem::space(there, failed);
    const std::uint64_t room = failed ? 0 : space.available;
    if (can_fetch() && room > drivers::kReleaseBytes) return fetch_command(options, dir);
    constexpr std::uint64_t kLikeRelease = 16'000'000'000;
    return sibling(options.program, "k3-synth") + " --out " + shell_word(dir) +
           (room > kLikeRelease ? " --like-release" : "");
}

inline Expectation expect(const forecast::Planned& model, const Products& products, const Disk& disk) {
    const auto with = [&](double Rate::*which) {
        return forecast::forecast(model.work, {.in_order = disk.in_order().*which,
                                               .at_random = disk.at_random().*which,
                                               .trunk = products.trunk.*which,
                                               .experts = products.experts.*which});
    };
    Expectation expectation;
    expectation.usual = with(&Rate::median);
    forecast::Forecast best = with(&Rate::most);
    // Where the whole trunk stays, experts are read on the guess of the router before: at best all guesses are right.
    if (model.stays() && best.seconds > 0)
        best.seconds = std::max(best.experts_read, best.trunk_product + best.experts_product);
    expectation.best = best.seconds;
    expectation.worst = with(&Rate::least).seconds;
    return expectation;
}

/// The model as it lies there; if it cannot run, the reason.
inline void look_at_model(const Options& options, const forecast::Request& request, Diagnosis& found) {
    std::error_code failed;
    const std::string& dir = options.model_dir;
    found.text = std::filesystem::exists(dir + "/tiktoken.model", failed);
    if (!std::filesystem::is_directory(dir, failed)) {
        const bool file = std::filesystem::exists(dir, failed);
        found.reason = dir + (file ? " is not a folder" : ": there is no such folder");
        return;
    }
    found.folder = look_into(dir);
    for (const std::string& shard : shards_of(dir)) found.holey_shards += detail::holds_data(shard) ? 0 : 1;
    try {
        found.model = forecast::plan_model(request);
        if (found.model->refusal) found.reason = found.model->refusal->what();
    } catch (const std::exception& error) {  // k3::Error, or no memory for the index itself
        found.reason = error.what();
    }
}

/// The release on this machine, and on others with the same disk and cores.
inline void look_at_release(const forecast::Request& request, Diagnosis& found) {
    found.released = true;
    found.model = forecast::plan_release(request);
    if (found.model->refusal) found.reason = found.model->refusal->what();
    for (const std::uint64_t gigabytes : {4, 8, 16, 32, 64, 128, 256, 1600}) {
        forecast::Request other = request;
        other.ceiling = gigabytes * 1'000'000'000;
        other.room = forecast::Room::any;
        found.ladder.emplace_back(forecast::plan_release(other), Expectation{});
    }
}

}  // namespace detail

/// The speeds, and what follows from them. Takes memory and time.
inline void measure_speeds(const Options& options, Diagnosis& found) {
    const forecast::Planned& model = *found.model;
    if (options.seconds > 0) {
        found.products = measure_products(model.shape, options.arch, options.threads, found.facts.machine.cache_bytes);
        DiskRequest disk{.scratch_dir = options.scratch_dir, .seconds = options.seconds};
        if (!found.released) disk.shards = detail::shards_of(options.model_dir);
        if (model.work.expert != 0) disk.expert = model.work.expert;
        if (disk.scratch_dir.empty()) disk.scratch_dir = found.released ? "." : options.model_dir;
        found.disk = measure_disk(disk);
    } else {
        found.disk.why_not = "it was not asked for";
    }
    found.expectation = detail::expect(model, found.products, found.disk);
    for (auto& [other, expectation] : found.ladder) expectation = detail::expect(other, found.products, found.disk);
}

/// Nothing is thrown for a model that cannot run: that is a finding.
inline Diagnosis diagnose(const Options& options) {
    Diagnosis found;
    found.facts = this_machine();
    const forecast::Request request{.model_dir = options.model_dir,
                                    .arch = engine::arch_named(options.arch).value_or(engine::ArchName::scalar),
                                    .threads = options.threads,
                                    .positions = options.positions,
                                    .ceiling = options.memory};
    // First the plan: what is measured takes memory.
    if (options.model_dir.empty())
        detail::look_at_release(request, found);
    else
        detail::look_at_model(options, request, found);
    if (found.reason.empty()) {
        measure_speeds(options, found);
        found.next = found.released ? detail::model_command(options)
                                    : detail::run_command(options, found.text, options.memory_word);
        return found;
    }
    std::error_code failed;
    if (found.model && !found.released) {  // all is there, but it does not fit
        const forecast::Split& split = found.model->split;
        if (split.least <= split.available)
            found.next = detail::run_command(options, found.text, std::to_string(split.least / 1'000'000 + 2) + "M");
    } else if (!std::filesystem::exists(options.model_dir, failed) || found.folder.nothing()) {
        found.next = detail::model_command(options);
    } else if (!found.folder.repo.empty() && detail::can_fetch()) {
        found.next = detail::fetch_rest_command(options, found.folder);
    } else if (found.folder.released_names && detail::can_fetch()) {
        found.next = detail::fetch_command(options, options.model_dir);
    }
    return found;
}

}  // namespace k3::doctor
#endif
