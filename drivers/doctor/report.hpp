#ifndef K3_DRIVERS_DOCTOR_REPORT_HPP
#define K3_DRIVERS_DOCTOR_REPORT_HPP
// The findings as text, the last line says what to do or why nothing can be done; or as JSON.
#include <cstdint>
#include <cstdio>
#include <string>
#include <utility>

#include <nlohmann/json.hpp>

#include "drivers/doctor/diagnosis.hpp"
#include "drivers/sizes.hpp"

namespace k3::doctor {
namespace detail {

using drivers::show_bytes;

inline void line(const char* label, const std::string& text) { std::printf("%-10s%s\n", label, text.c_str()); }

inline std::string digits(double value, int after = 2) {
    char text[40];
    std::snprintf(text, sizeof text, "%.*f", after, value);
    return text;
}
inline std::string gb_per_second(const Rate& rate) {
    return digits(rate.median / 1e9) + " GB/s (" + digits(rate.least / 1e9) + " to " + digits(rate.most / 1e9) + ")";
}
inline std::string seconds_of(double seconds) { return digits(seconds, seconds < 10 ? 3 : 1) + " s"; }
inline std::string bytes_or_none(std::uint64_t bytes) {
    return bytes == io::kUnlimited ? "no limit" : show_bytes(bytes);
}

inline void print_machine(const Options& options, const Facts& facts) {
    line("cpu", facts.machine.cpu + ": " + std::to_string(facts.online) + " CPUs, " + std::to_string(facts.cpus.cpus) +
                    " in the affinity mask, " + std::to_string(facts.cpus.cores) + " physical cores among them, " +
                    (facts.cpus.quota > 0 ? "a quota of " + digits(facts.cpus.quota) + " CPUs" : "no quota") +
                    "; k3 runs " + std::to_string(options.threads) + (options.threads == 1 ? " thread" : " threads"));
    std::string arches;
    for (const std::string& arch : facts.arches) arches += (arches.empty() ? "" : ", ") + arch;
    line("isa", arches + "; without --arch k3 takes " + facts.arches.back());
    line("memory", show_bytes(facts.memory_bytes) + " in all, of which k3 may take " +
                       bytes_or_none(facts.least.bytes) + " (" + facts.least.source + ")");
    for (const io::MemoryLimit& limit : facts.limits) line("", "  " + show_bytes(limit.bytes) + "  " + limit.source);
    line("pages", (facts.huge_pages.empty() ? std::string("no huge pages") : "huge pages: " + facts.huge_pages) + "; " +
                      bytes_or_none(facts.lockable) + " may be locked for io_uring");
    std::string found, missing;
    for (const Tool& tool : facts.tools) {
        if (!tool.version.empty())
            found += (found.empty() ? "" : ", ") + std::string(tool.name) + " " + tool.version;
        else
            missing += (missing.empty() ? "" : ", ") + std::string(tool.name) +
                       (tool.needed ? "" : " (can do without)") + ": apt install " + tool.package;
    }
    line("build", "made with " + facts.machine.compiler + "; here: " + (found.empty() ? "nothing" : found));
    if (!missing.empty()) line("", "not found: " + missing);
}

inline void print_speeds(const Options& options, const Diagnosis& found) {
    if (found.products.bytes != 0) {
        line("products", "BF16 " + gb_per_second(found.products.trunk) + ", MXFP4 " +
                             gb_per_second(found.products.experts) + " of weights, " + options.arch + ", " +
                             std::to_string(options.threads) + (options.threads == 1 ? " thread" : " threads"));
        line("", "memory is read at " + gb_per_second(found.products.read));
    } else {
        line("products", options.seconds > 0 ? "not measured: no memory to do it in" : "not measured");
    }
    const Disk& disk = found.disk;
    if (!disk.why_not.empty()) return line("disk", "not measured: " + disk.why_not);
    line("disk", disk.place + ", " + disk.reader + (disk.why_memory.empty() ? ", past the page cache" : ""));
    if (!disk.why_memory.empty()) line("", "  THIS MAY BE MEMORY AND NOT A DISK: " + disk.why_memory);
    for (const Pattern& pattern : disk.patterns)
        line("", "  " + std::string(pattern.in_order ? "in order" : "random  ") + "  " + show_bytes(pattern.block) +
                     ", depth " + std::to_string(pattern.depth) + (pattern.depth < 10 ? " " : "") + "  " +
                     gb_per_second(pattern.rate));
}

inline void print_model(const Options& options, const Diagnosis& found) {
    const forecast::Planned& m = *found.model;
    line("model", (found.released ? std::string("none given; the release has ") : options.model_dir + ": ") +
                      std::to_string(m.layers) + " layers, hidden " + std::to_string(m.shape.hidden) + ", " +
                      std::to_string(m.shape.experts) + " experts top-" + std::to_string(m.shape.experts_per_token) +
                      ", vocabulary " + std::to_string(m.shape.vocab) + ", " + show_bytes(m.all_bytes));
    if (!found.released) {
        line("", "config.json, " + std::to_string(m.shards) + " shards and their sizes, " + std::to_string(m.tensors) +
                     " tensors: all there" + (found.text ? "" : "; no tiktoken.model: ids only, no text"));
        if (found.holey_shards != 0)
            line("",
                 std::to_string(found.holey_shards) +
                     " shards are files with holes: no disk is read there, so a run on them is faster than this says");
    }
    const forecast::Split& s = m.split;
    line("plan", show_bytes(s.pinned) + " trunk + " + (s.ring == 0 ? "" : show_bytes(s.ring) + " ring + ") +
                     show_bytes(s.experts) + " experts + " + show_bytes(s.state) + " state + " +
                     show_bytes(s.workspace) + " scratch + " + show_bytes(s.held) + " program and index + " +
                     show_bytes(s.reserve) + " reserve = " + show_bytes(s.total) + " of " + show_bytes(s.ceiling) +
                     " (" + s.limited_by + ")");
    line("", "for " + std::to_string(s.positions) + " positions; at least " + show_bytes(s.least) + " would do");
    line("", m.stays() ? "all of the trunk stays (" + show_bytes(m.work.trunk) + ")"
                       : show_bytes(m.work.trunk - m.work.streamed) + " of the trunk stays, " +
                             show_bytes(m.work.streamed) + " is read for each token");
    line("", std::to_string(m.work.slots) + " of " + std::to_string(m.work.experts) + " experts at a time, of " +
                 show_bytes(m.work.expert) + " each; a token uses " + std::to_string(m.work.wanted));
}

/// Of a checkpoint that cannot be opened.
inline void print_folder(const Options& options, const Folder& folder) {
    if (folder.nothing()) return line("folder", options.model_dir + ": empty");
    line("folder", options.model_dir + ": " + std::to_string(folder.shards) +
                       (folder.of == 0 ? "" : " of " + std::to_string(folder.of)) + " shards, " +
                       show_bytes(folder.bytes) + "; " + std::to_string(folder.parts) + " files on their way (*.part)");
    if (!folder.repo.empty())
        line("", "fetched from " + folder.endpoint + "/" + folder.repo + ", revision " + folder.revision);
}

inline void print_forecast(const Diagnosis& found) {
    const forecast::Forecast& f = found.expectation.usual;
    line("forecast", std::string(forecast::kFormula) + (f.seconds > 0 ? "" : ": a speed is missing"));
    if (!(f.seconds > 0)) return;
    const forecast::Work& work = found.model->work;
    line("", "  T " + seconds_of(f.trunk_read) + " = " + show_bytes(work.streamed) + " of trunk / disk in order;  E " +
                 seconds_of(f.experts_read) + " = " + digits(f.missed, 0) + " of " + std::to_string(work.wanted) +
                 " experts / disk at random");
    line("", "  C " + seconds_of(f.trunk_product) + " = " + show_bytes(work.trunk) + " / products;  X " +
                 seconds_of(f.experts_product) + " = " + std::to_string(work.wanted) + " experts / products");
    if (work.slots < work.experts)
        line("", "  experts taken as chosen evenly: real routing is not, so a cache does better than this");
    if (!found.disk.why_memory.empty() && f.trunk_read + f.experts_read > 0)
        line("", "  the disk's speed may be that of memory: a model larger than memory would be slower than this");
    line("", seconds_of(f.seconds) + " a token, " + seconds_of(found.expectation.best) + " to " +
                 seconds_of(found.expectation.worst) + " with the extremes of what was measured; " +
                 show_bytes(static_cast<std::uint64_t>(f.bytes)) + " read a token");
    if (found.ladder.empty()) return;
    line("", "  memory     trunk stays  read a token  seconds a token, with this disk and these cores");
    for (const auto& [model, expectation] : found.ladder) {
        if (model.refusal) continue;
        char text[160];
        std::snprintf(text, sizeof text, "  %-9s  %11s  %12s  %s", show_bytes(model.split.ceiling).c_str(),
                      show_bytes(model.work.trunk - model.work.streamed).c_str(),
                      show_bytes(static_cast<std::uint64_t>(expectation.usual.bytes)).c_str(),
                      seconds_of(expectation.usual.seconds).c_str());
        line("", text);
    }
}

}  // namespace detail

inline void print_text(const Options& options, const Diagnosis& found) {
    detail::line("k3-doctor", K3_VERSION);
    detail::print_machine(options, found.facts);
    if (found.model) detail::print_model(options, found);
    if (!found.model && found.folder.there) detail::print_folder(options, found.folder);
    if (found.model && found.reason.empty()) {
        detail::print_speeds(options, found);
        detail::print_forecast(found);
    }
    if (!found.next.empty()) detail::line("next", found.next);
    if (!found.reason.empty()) std::printf("cannot run: %s\n", found.reason.c_str());
}

inline void print_json(const Options& options, const Diagnosis& found) {
    using Json = nlohmann::ordered_json;
    const auto rate = [](const Rate& r) { return Json{{"median", r.median}, {"least", r.least}, {"most", r.most}}; };
    const auto expectation = [](const Expectation& e) {
        const forecast::Forecast& f = e.usual;
        Json json{{"bytes", f.bytes}, {"missed_experts", f.missed}};
        if (!(f.seconds > 0)) return json;
        for (const auto& [key, value] : {std::pair("trunk_read", f.trunk_read),
                                         {"experts_read", f.experts_read},
                                         {"trunk_product", f.trunk_product},
                                         {"experts_product", f.experts_product},
                                         {"seconds", f.seconds},
                                         {"best", e.best},
                                         {"worst", e.worst}})
            json[key] = value;
        return json;
    };
    const auto model = [&](const forecast::Planned& m) {
        const forecast::Split& s = m.split;
        return Json{{"ceiling_bytes", s.ceiling},
                    {"total_bytes", s.total},
                    {"least_bytes", s.least},
                    {"available_bytes", s.available},
                    {"limited_by", s.limited_by},
                    {"positions", s.positions},
                    {"program_bytes", s.held},
                    {"reserve_bytes", s.reserve},
                    {"state_bytes", s.state},
                    {"scratch_bytes", s.workspace},
                    {"trunk_bytes", m.work.trunk},
                    {"trunk_pinned_bytes", s.pinned},
                    {"trunk_ring_bytes", s.ring},
                    {"trunk_streamed_bytes_per_token", m.work.streamed},
                    {"expert_cache_bytes", s.experts},
                    {"expert_bytes", m.work.expert},
                    {"expert_slots", m.work.slots},
                    {"experts", m.work.experts},
                    {"experts_per_token", m.work.wanted},
                    {"fits", !m.refusal}};
    };
    const Facts& facts = found.facts;
    Json root{{"version", K3_VERSION}, {"can_run", found.reason.empty()}};
    root["reason"] = found.reason.empty() ? Json() : Json(found.reason);
    root["next"] = found.next.empty() ? Json() : Json(found.next);
    Json limits = Json::array(), tools = Json::object();
    for (const io::MemoryLimit& limit : facts.limits)
        limits.push_back({{"bytes", limit.bytes}, {"source", limit.source}});
    for (const Tool& tool : facts.tools) tools[tool.name] = tool.version.empty() ? Json() : Json(tool.version);
    root["machine"] = {{"cpu", facts.machine.cpu},
                       {"cpus", facts.online},
                       {"allowed_cpus", facts.cpus.cpus},
                       {"cores", facts.cpus.cores},
                       {"quota", facts.cpus.quota},
                       {"threads", options.threads},
                       {"arches", facts.arches},
                       {"arch", options.arch},
                       {"memory_bytes", facts.memory_bytes},
                       {"memory_limits", limits},
                       {"huge_pages", facts.huge_pages},
                       {"compiler", facts.machine.compiler},
                       {"tools", tools}};
    if (found.model) {
        const forecast::Planned& m = *found.model;
        root["model"] = {{"path", found.released ? Json() : Json(options.model_dir)},
                         {"layers", m.layers},
                         {"hidden", m.shape.hidden},
                         {"bytes", m.all_bytes},
                         {"shards", m.shards},
                         {"tensors", m.tensors},
                         {"shards_with_holes", found.holey_shards}};
        root["plan"] = model(m);
    }
    if (!found.model && found.folder.there) {
        const Folder& f = found.folder;
        root["folder"] = {{"shards", f.shards},
                          {"shards_wanted", f.of == 0 ? Json() : Json(f.of)},
                          {"shard_bytes", f.bytes},
                          {"part_files", f.parts},
                          {"fetched_from", f.repo.empty() ? Json() : Json(f.endpoint + "/" + f.repo)},
                          {"revision", f.repo.empty() ? Json() : Json(f.revision)}};
    }
    if (found.model && found.reason.empty()) {
        root["products"] = {{"trunk", rate(found.products.trunk)},
                            {"experts", rate(found.products.experts)},
                            {"memory", rate(found.products.read)}};
        Json patterns = Json::array();
        for (const Pattern& p : found.disk.patterns)
            patterns.push_back({{"in_order", p.in_order},
                                {"depth", p.depth},
                                {"block_bytes", p.block},
                                {"bytes_per_second", rate(p.rate)}});
        root["disk"] = {{"place", found.disk.place},
                        {"reader", found.disk.reader},
                        {"direct", found.disk.why_memory.empty()},
                        {"may_be_memory", found.disk.why_memory.empty() ? Json() : Json(found.disk.why_memory)},
                        {"not_measured", found.disk.why_not.empty() ? Json() : Json(found.disk.why_not)},
                        {"patterns", patterns}};
        root["forecast"] = expectation(found.expectation);
        for (const auto& [other, expected] : found.ladder) {
            Json row = model(other);
            row["forecast"] = expectation(expected);
            root["release_at"].push_back(row);
        }
    }
    std::printf("%s\n", root.dump(-1, ' ', false, Json::error_handler_t::replace).c_str());
}

}  // namespace k3::doctor
#endif
