// How fast text becomes ids on one core, and whether the time is linear in the length: the mixed text of the parity
// test (tests/text/parity_corpus.hpp) at several sizes, then single pieces of 1 MiB without the official cuts, where a
// merge loop that looks for the best pair again and again would take hours.
//
//   tokenizer_bench [--ranks DIR] [--mib 1,4,16,64] [--runs N] [--tests DIR]
//
// DIR of --ranks holds tiktoken.model and tokenizer_config.json of 163,584 ranks and 256 specials (tests/text/parity.sh
// makes one from o200k_base). bench/text/compare.py runs this and tiktoken in turn on the same bytes.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <ctime>
#include <exception>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "k3/core/digest.hpp"
#include "k3/text/tokenizer.hpp"
#include "text/parity_corpus.hpp"

namespace {

using namespace k3;
using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

std::string repeat(const std::string& unit, std::size_t bytes) {
    std::string text;
    while (text.size() < bytes) text += unit;
    return text;
}

/// One line: processor time, as wall time on a machine that does other work says little; both are printed. The digest
/// shows that both programs of a comparison did the same work.
void measure_text(const text::Tokenizer& tokenizer, const std::string& text, unsigned runs) {
    std::vector<double> seconds, wall;
    std::vector<text::TokenId> ids;
    for (unsigned run = 0; run < runs; ++run) {
        ids.clear();
        const auto start = Clock::now();
        const std::clock_t cpu = std::clock();
        tokenizer.encode(text, text::Specials::as_text, ids);
        seconds.push_back(static_cast<double>(std::clock() - cpu) / CLOCKS_PER_SEC);
        wall.push_back(seconds_since(start));
    }
    std::sort(seconds.begin(), seconds.end());
    std::sort(wall.begin(), wall.end());
    core::Digest digest;
    digest.add_bytes(ids.data(), ids.size() * sizeof(text::TokenId));
    const double median = seconds[seconds.size() / 2];
    std::printf("%zu bytes  %zu ids  digest %016llx  %.4f s (%.4f, %.4f)  %.2f MB/s  wall %.4f s\n", text.size(),
                ids.size(), static_cast<unsigned long long>(digest.value()), median, seconds.front(), seconds.back(),
                static_cast<double>(text.size()) / 1e6 / median, wall[wall.size() / 2]);
    std::fflush(stdout);
}

void measure_piece(const text::RankFile& ranks, const char* name, const std::string& piece) {
    text::Merger merger;
    std::vector<text::TokenId> ids;
    const auto start = Clock::now();
    merger.encode(piece, ranks, ids);
    std::printf("one piece of %zu bytes, %s: %zu ids in %.3f s\n", piece.size(), name, ids.size(),
                seconds_since(start));
}

int run(int argc, char** argv) {
    unsigned runs = 3;
    std::string dir, tests = "tests", sizes = "1,4,16,64";
    for (int i = 1; i < argc; i += 2) {
        const std::string option = argv[i];
        if (i + 1 == argc) throw std::runtime_error(option + " needs a value");
        const std::string value = argv[i + 1];
        if (option == "--ranks") {
            dir = value;
        } else if (option == "--mib") {
            sizes = value;
        } else if (option == "--runs") {
            runs = std::max(1U, static_cast<unsigned>(std::stoul(value)));
        } else if (option == "--tests") {
            tests = value;
        } else {
            throw std::runtime_error("unknown option " + option);
        }
    }
    const test::ParityCorpus corpus(tests);
    if (dir.empty()) throw std::runtime_error("--ranks DIR is needed; tests/text/parity.sh makes such a directory");
    const auto start = Clock::now();
    const text::Tokenizer tokenizer = text::Tokenizer::open(dir, 163840);
    std::printf("opened in %.3f s\n", seconds_since(start));
    std::stringstream list(sizes);
    for (std::string mib; std::getline(list, mib, ',');)
        measure_text(tokenizer, corpus.mixture(std::stoul(mib) << 20, 1), runs);
    if (sizes.find(',') == std::string::npos) return 0;  // one size: compare.py

    const text::RankFile ranks = text::RankFile::parse(io::File::read_text(dir + "/tiktoken.model"), dir);
    constexpr std::size_t kSize = 1U << 20;
    for (const char* unit : {"a", " ", "\n", "^", "\xE4\xB8\x96", "\xF0\x9F\x99\x82", "ab "})
        for (const std::size_t size : {kSize, 4 * kSize})
            measure_piece(ranks, unit[0] == '\n' ? "newline" : unit, repeat(unit, size));
    test::Random32 random(1);
    std::string letters(4 * kSize, ' ');
    for (char& c : letters) c = static_cast<char>('a' + random.below(26));
    measure_piece(ranks, "random letters", letters.substr(0, kSize));
    measure_piece(ranks, "random letters", letters);
    return 0;
}

}  // namespace

int main(int argc, char** argv) {
    try {
        return run(argc, argv);
    } catch (const std::exception& error) {
        std::fprintf(stderr, "tokenizer_bench: %s\n", error.what());
        return 1;
    }
}
