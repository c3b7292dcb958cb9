#ifndef K3_DRIVERS_BENCH_DIGEST_HPP
#define K3_DRIVERS_BENCH_DIGEST_HPP
// --digest: one line per arch and case on stdout, "ARCH KERNEL FORMAT SHAPE DIGEST"; differences on stderr. The file of
// --expect and --write has the same lines without the arch: there is one right answer for all of them.
#include <cstdio>
#include <fstream>
#include <map>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "drivers/bench/digest_kernels.hpp"
#include "drivers/bench/options.hpp"
#include "drivers/exit_code.hpp"
#include "drivers/run/output.hpp"
#include "k3/core/error.hpp"
#include "k3/io/file.hpp"

namespace k3::bench {

/// name -> digest, as written in the file.
using Expected = std::map<std::string, std::string>;

/// Lines "NAME DIGEST"; empty lines and lines that start with # are skipped. Errors: Code::usage naming the line.
inline Expected read_expected(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    if (!file) throw Error(Code::usage, "cannot be read", "name a file written by --write", {.path = path});
    Expected expected;
    std::string line;
    for (std::size_t number = 1; std::getline(file, line); ++number) {
        if (line.empty() || line[0] == '#') continue;
        const std::size_t space = line.rfind(' ');
        const std::string digest = space == std::string::npos ? "" : line.substr(space + 1);
        if (digest.size() != 16 || digest.find_first_not_of("0123456789abcdef") != std::string::npos) {
            throw Error(Code::usage, "line " + std::to_string(number) + " is not a name and 16 hexadecimal digits",
                        "name a file written by --write", {.path = path});
        }
        if (!expected.emplace(line.substr(0, space), digest).second) {
            throw Error(Code::usage, "line " + std::to_string(number) + " names a case a second time",
                        "name a file written by --write", {.path = path});
        }
    }
    if (expected.empty()) throw Error(Code::usage, "holds no digest", "name a file written by --write", {.path = path});
    return expected;
}

inline std::string hex(std::uint64_t value) {
    char text[17];
    std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(value));
    return text;
}

namespace detail {

/// All variants of a case on one arch; notes on stderr what does not agree.
inline std::string run_case(const DigestCase& c, const KernelTable& table, std::size_t& differences) {
    const std::uint64_t first = c.run(table, 0);
    for (std::size_t variant = 1; variant < c.variants; ++variant) {
        const std::uint64_t other = c.run(table, variant);
        if (other == first) continue;
        ++differences;
        std::fprintf(stderr, "k3-bench: %s %s: %s gives %s, one thread %s\n", table.name, c.name.c_str(),
                     variant == 1 ? "a run on three threads" : "the single-thread entry", hex(other).c_str(),
                     hex(first).c_str());
    }
    return hex(first);
}

inline std::string header_of_file() {
    return "# Digests of every kernel of k3 (k3-bench --digest --write FILE): KERNEL FORMAT SHAPE FNV-1a-64, the same "
           "on "
           "every\n# arch and machine. A line that changes is a change of results and needs a line in "
           "docs/CHANGELOG.md.\n";
}

}  // namespace detail

/// Returns an exit code: kFailed on any difference.
inline int run_digests(const Options& options) {
    std::vector<DigestCase> cases = digest_cases();
    std::erase_if(cases, [&](const DigestCase& c) { return !options.selects(c.name); });
    if (cases.empty()) {
        throw Error(Code::usage, "no digest has " + drivers::in_quotes(options.filter) + " in its name",
                    "k3-bench --digest lists the names");
    }
    Expected expected;
    if (!options.expect.empty()) expected = read_expected(options.expect);
    std::optional<run::OutputFile> file;
    if (!options.write.empty()) file.emplace(run::OutputFile::open(options.write));

    std::size_t differences = 0, lines = 0;
    std::string text = detail::header_of_file();
    for (const DigestCase& c : cases) {
        std::string first;
        for (const KernelTable* table : options.tables) {
            const std::string digest = detail::run_case(c, *table, differences);
            std::printf("%s %s %s\n", table->name, c.name.c_str(), digest.c_str());
            ++lines;
            if (first.empty()) first = digest;
            if (digest != first) {
                ++differences;
                std::fprintf(stderr, "k3-bench: %s: %s gives %s, %s gives %s\n", c.name.c_str(), table->name,
                             digest.c_str(), options.tables[0]->name, first.c_str());
            }
            if (options.expect.empty()) continue;
            const auto found = expected.find(c.name);
            if (found != expected.end() && found->second == digest) continue;
            ++differences;
            const std::string wanted = found == expected.end() ? "has no such line" : "says " + found->second;
            std::fprintf(stderr, "k3-bench: %s %s: %s, but %s %s\n", table->name, c.name.c_str(), digest.c_str(),
                         options.expect.c_str(), wanted.c_str());
        }
        std::fflush(stdout);
        expected.erase(c.name);
        text += c.name + " " + first + "\n";
    }
    for (const auto& [name, digest] : expected) {  // what is left: unless it was not asked for, a kernel went missing
        if (!options.selects(name)) continue;
        ++differences;
        std::fprintf(stderr, "k3-bench: %s: in %s, but this build has no such case\n", name.c_str(),
                     options.expect.c_str());
    }
    if (file && differences == 0) file->write(text);
    if (file && differences != 0) std::fprintf(stderr, "k3-bench: %s is not written\n", options.write.c_str());
    std::fprintf(stderr, "k3-bench: %zu digests, %zu differences\n", lines, differences);
    return differences == 0 ? drivers::kSuccess : drivers::kFailed;
}

}  // namespace k3::bench
#endif
