// How fast io::Reader reads, beside a probe that shares no code with it: plain threads, O_DIRECT, pread of 1 MiB, an
// open of their own, the same sizes in the same pattern. Its memory is on huge pages as the reader's is: with small
// ones a disk may see twice as many requests and be half as fast.
//   read_bench FILE|FOLDER [--depths 1,4,16,32] [--mb N] [--rounds N] [--kinds uring,threads,buffered] [--fixed]
// Each line: GB/s (median of the rounds, least, most), the ratio to the probe (median over rounds; both take turns, so
// that a disk that changes its speed hits both), pieces in flight (mean while any), and the share of time in which
// nothing was in flight although pieces were queued. --fixed registers the buffers with io_uring.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <filesystem>
#include <map>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "k3/core/buffer.hpp"
#include "k3/io/reader.hpp"

namespace {

using namespace k3;

constexpr std::size_t kPiece = std::size_t{1} << 20;
constexpr std::size_t kExpert = 17547264;  // the three matrices of a routed expert, with scales

struct Block {
    std::size_t file;
    std::uint64_t offset;
    std::size_t bytes;
};

struct Result {
    double gb_per_second = 0, mean_depth = 0, idle = 0;
};

double seconds_since(std::chrono::steady_clock::time_point start) {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

Result probe(const std::vector<std::string>& paths, const std::vector<Block>& blocks, unsigned depth) {
    std::vector<int> files;
    for (const std::string& path : paths) {
        files.push_back(::open(path.c_str(), O_RDONLY | O_DIRECT));
        if (files.back() < 0) throw std::runtime_error("the probe cannot open " + path + " with O_DIRECT");
    }
    std::vector<Block> pieces;
    std::uint64_t total = 0;
    for (const Block& block : blocks) {
        for (std::size_t at = 0; at < block.bytes; at += kPiece)
            pieces.push_back({block.file, block.offset + at, std::min(kPiece, block.bytes - at)});
        total += block.bytes;
    }
    std::atomic<std::size_t> next{0};
    std::atomic<bool> bad{false};
    std::vector<std::thread> threads;
    const auto start = std::chrono::steady_clock::now();
    for (unsigned i = 0; i < depth; ++i) {
        threads.emplace_back([&] {
            constexpr std::size_t kHuge = std::size_t{2} << 20;
            void* const memory = std::aligned_alloc(kHuge, kHuge);
            ::madvise(memory, kHuge, MADV_HUGEPAGE);
            for (std::size_t k = next++; k < pieces.size(); k = next++) {
                const ssize_t got =
                    ::pread(files[pieces[k].file], memory, pieces[k].bytes, static_cast<off_t>(pieces[k].offset));
                if (got != static_cast<ssize_t>(pieces[k].bytes)) bad = true;
            }
            std::free(memory);
        });
    }
    for (std::thread& thread : threads) thread.join();
    const double seconds = seconds_since(start);
    for (const int file : files) ::close(file);
    if (bad) throw std::runtime_error("a read of the probe failed");
    return {static_cast<double>(total) / 1e9 / seconds, 0, 0};
}

Result read_with(io::ReaderKind kind, const std::vector<std::string>& paths, const std::vector<Block>& blocks,
                 unsigned depth, bool fixed) {
    std::deque<io::StreamFile> files;
    for (const std::string& path : paths) files.push_back(io::StreamFile::open(path));
    // As many Reads queued as keep two queues' worth of pieces ready.
    const std::size_t longest = blocks.front().bytes;
    const std::size_t count = std::min(blocks.size(), 2 + 2 * depth * kPiece / longest);
    const core::Buffer memory(count * longest);
    for (std::size_t at = 0; at < memory.size(); at += 4096) memory.data()[at] = std::byte{1};
    std::deque<io::Read> reads(count);
    io::Reader reader({.kind = kind, .depth = depth, .piece = kPiece});
    if (fixed) reader.register_memory({memory.data(), memory.size()});
    std::vector<io::Read*> open;
    std::size_t next = 0;
    std::uint64_t total = 0;
    const auto fill = [&](io::Read& read) {
        read.file = &files[blocks[next].file];
        read.offset = blocks[next].offset;
        read.bytes = blocks[next].bytes;
        ++next;
    };
    const auto start = std::chrono::steady_clock::now();
    for (std::size_t i = 0; i < count; ++i) {
        reads[i].window = memory.data() + i * longest;
        fill(reads[i]);
        open.push_back(&reads[i]);
    }
    // One by one: a batch would be sorted, and the order is the caller's matter here.
    for (io::Read* read : open) reader.submit(*read);
    for (std::size_t i = reader.wait_any(open); i < open.size(); i = reader.wait_any(open)) {
        if (open[i]->state != io::ReadState::done) throw reader.error_of(*open[i]);
        total += open[i]->bytes;
        if (next == blocks.size()) {
            open[i] = nullptr;
        } else {
            fill(*open[i]);
            reader.submit(*open[i]);
        }
    }
    const double seconds = seconds_since(start);
    const io::ReaderStats stats = reader.stats();
    return {static_cast<double>(total) / 1e9 / seconds, stats.mean_depth, stats.starved_seconds / seconds};
}

double median(std::vector<double> values) {
    std::sort(values.begin(), values.end());
    return values[values.size() / 2];
}

std::vector<std::string> words(const std::string& list) {
    std::vector<std::string> out{""};
    for (const char c : list) {
        if (c == ',')
            out.emplace_back();
        else
            out.back() += c;
    }
    return out;
}

int run(int argc, char** argv) {
    std::string place;
    std::vector<std::string> depths{"1", "4", "16", "32"}, kinds{"uring", "threads", "buffered"};
    std::uint64_t megabytes = 1024;
    unsigned rounds = 4;
    bool fixed = false;
    for (int i = 1; i < argc; ++i) {
        const std::string word = argv[i];
        const auto value = [&] {
            if (i + 1 == argc) throw std::runtime_error(word + " wants a value");
            return std::string(argv[++i]);
        };
        if (word == "--depths")
            depths = words(value());
        else if (word == "--kinds")
            kinds = words(value());
        else if (word == "--mb")
            megabytes = std::stoull(value());
        else if (word == "--rounds")
            rounds = std::max(1U, static_cast<unsigned>(std::stoul(value())));
        else if (word == "--fixed")
            fixed = true;
        else
            place = word;
    }
    std::vector<std::string> paths;
    if (std::filesystem::is_directory(place)) {
        for (const auto& entry : std::filesystem::directory_iterator(place))
            if (entry.is_regular_file() && entry.file_size() >= 2 * kExpert) paths.push_back(entry.path().string());
        std::sort(paths.begin(), paths.end());
    } else if (std::filesystem::is_regular_file(place) && std::filesystem::file_size(place) >= 2 * kExpert) {
        paths.push_back(place);
    }
    if (paths.empty()) throw std::runtime_error("give a file of 36 MB or more, or a folder of such");
    for (const std::string& path : paths) {
        const io::StreamFile file = io::StreamFile::open(path);
        if (file.access() != io::Access::direct)
            std::printf("%s is read buffered: %s\n", path.c_str(), file.why_buffered().c_str());
        ::posix_fadvise(file.buffered_descriptor(), 0, 0, POSIX_FADV_DONTNEED);
    }
    const std::map<std::string, io::ReaderKind> all{
        {"uring", io::ReaderKind::uring}, {"threads", io::ReaderKind::threads}, {"buffered", io::ReaderKind::buffered}};
    std::printf("%zu files, %llu MB a run, %u rounds\n%-18s %5s  %-8s %24s %7s %7s %7s\n", paths.size(),
                static_cast<unsigned long long>(megabytes), rounds, "blocks", "depth", "reader", "GB/s (least, most)",
                "ratio", "mean", "idle");
    std::mt19937_64 random(1);
    for (const bool sequential : {true, false}) {
        for (const std::size_t bytes : {kExpert, kPiece}) {
            std::vector<Block> places;
            for (std::size_t f = 0; f < paths.size(); ++f)
                for (std::uint64_t at = 0; at + bytes <= std::filesystem::file_size(paths[f]); at += bytes)
                    places.push_back({f, at, bytes});
            for (const std::string& depth_word : depths) {
                const auto depth = static_cast<unsigned>(std::stoul(depth_word));
                std::map<std::string, std::vector<Result>> results;
                std::vector<std::string> lines{"probe"};
                lines.insert(lines.end(), kinds.begin(), kinds.end());
                for (unsigned round = 0; round < rounds; ++round) {
                    for (std::size_t k = 0; k < lines.size(); ++k) {  // another one is first each time
                        const std::string& kind = lines[(k + round) % lines.size()];
                        // Its own blocks: what another has just read may be in a cache behind the disk.
                        if (sequential)
                            std::rotate(places.begin(),
                                        places.begin() + static_cast<std::ptrdiff_t>(random() % places.size()),
                                        places.end());
                        else
                            std::shuffle(places.begin(), places.end(), random);
                        const std::vector<Block> blocks(
                            places.begin(), places.begin() + static_cast<std::ptrdiff_t>(std::min<std::uint64_t>(
                                                                 places.size(), megabytes * 1000000 / bytes + 1)));
                        results[kind].push_back(kind == "probe" ? probe(paths, blocks, depth)
                                                                : read_with(all.at(kind), paths, blocks, depth, fixed));
                    }
                }
                for (const std::string& kind : lines) {
                    std::vector<double> speed, ratio, mean, idle;
                    for (unsigned round = 0; round < rounds; ++round) {
                        const Result& result = results[kind][round];
                        speed.push_back(result.gb_per_second);
                        ratio.push_back(result.gb_per_second / results["probe"][round].gb_per_second);
                        mean.push_back(result.mean_depth);
                        idle.push_back(result.idle);
                    }
                    const auto [least, most] = std::minmax_element(speed.begin(), speed.end());
                    std::printf("%-10s %4.1f MB %5u  %-8s %8.2f (%5.2f, %5.2f)", sequential ? "in order" : "random",
                                static_cast<double>(bytes) / 1e6, depth, kind.c_str(), median(speed), *least, *most);
                    if (kind != "probe")
                        std::printf(" %7.3f %7.1f %6.2f%%", median(ratio), median(mean), 100 * median(idle));
                    std::printf("\n");
                    std::fflush(stdout);
                }
            }
        }
    }
    return 0;
}

}  // namespace

int main(int argc, char** argv) {
    try {
        return run(argc, argv);
    } catch (const std::exception& error) {
        std::fprintf(stderr, "read_bench: %s\n", error.what());
        return 1;
    }
}
