#ifndef K3_DRIVERS_SYNTH_WRITE_HPP
#define K3_DRIVERS_SYNTH_WRITE_HPP
// Puts a synthetic checkpoint on disk: shards piece by piece from several threads, then the index, the tokenizer and,
// last, config.json, so that an unfinished folder is not taken for a model. Nothing is ever held but one piece a
// thread. A sparse checkpoint is made the same way, out of the extents it stores.
#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "drivers/synth/shape.hpp"
#include "drivers/synth/sparse.hpp"
#include "drivers/synth/tensors.hpp"
#include "drivers/synth/text_files.hpp"
#include "drivers/synth/values.hpp"
#include "k3/checkpoint/safetensors_writer.hpp"
#include "k3/core/error.hpp"
#include "k3/io/atomic_file.hpp"
#include "k3/io/jobs.hpp"

namespace k3::synth {

/// What a checkpoint will be, known before a byte is made.
struct Plan {
    struct Row {
        std::string name;
        std::size_t tensors;
        std::uint64_t header, payload;
        std::uint64_t stored;  // on disk: less than header and payload if the shard has holes
    };
    std::vector<Row> shards;
    std::size_t tensors = 0;
    std::uint64_t payload = 0, file_bytes = 0, stored = 0;  // shards only
};

namespace detail {
inline std::vector<Extent> extents_of(const Shard& shard, std::size_t number, std::uint64_t header,
                                      std::uint64_t seed) {
    return stored_extents(shard.tensors, shard.pages, header, key_of(seed, "shard " + std::to_string(number)));
}
}  // namespace detail

inline Plan make_plan(const ModelShape& shape, std::uint64_t seed) {
    Plan plan;
    const std::size_t count = shard_count(shape);
    for (std::size_t number = 0; number < count; ++number) {
        const Shard shard = make_shard(shape, number);
        Plan::Row row{shard_name(number, count), shard.tensors.size(),
                      checkpoint::safetensors_header(shard.tensors).size(), 0, 0};
        for (const checkpoint::WriterTensor& tensor : shard.tensors) row.payload += tensor.bytes();
        row.stored =
            shape.sparse ? stored_bytes(detail::extents_of(shard, number, row.header, seed)) : row.header + row.payload;
        plan.tensors += row.tensors;
        plan.payload += row.payload;
        plan.file_bytes += row.header + row.payload;
        plan.stored += row.stored;
        plan.shards.push_back(std::move(row));
    }
    return plan;
}

struct WriteOptions {
    std::string out;
    std::uint64_t seed = 0;
    unsigned threads = 1;
    bool force = false;
    const std::atomic<bool>* stop = nullptr;                                   // set from a signal handler
    std::function<void(const std::string& shard, std::uint64_t done)> tick{};  // from any thread, serialised
};

namespace detail {

/// The folder is made if missing. Without force it must be empty; with force, files of our names are replaced and
/// everything else stays, but shards that would be read as part of this model are refused.
inline void prepare_folder(const WriteOptions& options, const Plan& plan) {
    namespace fs = std::filesystem;
    std::error_code failure;
    fs::create_directories(options.out, failure);
    if (failure || !fs::is_directory(options.out, failure)) {
        throw Error(Code::write, "cannot be made into a folder: " + failure.message(), "give --out another path",
                    {.path = options.out});
    }
    std::set<std::string> ours;
    for (const Plan::Row& row : plan.shards) ours.insert(row.name);
    for (fs::directory_iterator entry(options.out, failure), end; !failure && entry != end; entry.increment(failure)) {
        if (!options.force) {
            throw Error(Code::usage, "the folder is not empty", "choose another, or add --force to write into it",
                        {.path = options.out});
        }
        const std::string name = entry->path().filename().string();
        if (entry->path().extension() == ".safetensors" && ours.count(name) == 0) {
            throw Error(Code::usage, "holds " + name + ", which belongs to another checkpoint and is left alone",
                        "choose another folder or move it away", {.path = options.out});
        }
    }
    if (failure) {
        throw Error(Code::write, "cannot be listed: " + failure.message(), "check its permissions",
                    {.path = options.out});
    }
}

/// One shard: its tensors, the file that refers to them, and the parts to write. Stays where it is.
struct Job {
    Job(const ModelShape& shape, std::size_t number, const Plan::Row& row, const WriteOptions& options)
        : shard(make_shard(shape, number)),
          file(checkpoint::SafetensorsWriter::create(options.out + "/" + row.name, shard.tensors,
                                                     shape.sparse ? checkpoint::SafetensorsWriter::Layout::sparse
                                                                  : checkpoint::SafetensorsWriter::Layout::full)),
          sparse(shape.sparse) {
        if (!sparse) return;
        for (Extent extent : extents_of(shard, number, row.header, options.seed)) {
            for (; extent.begin < extent.end; extent.begin += checkpoint::SafetensorsWriter::kPiece) {
                extents.push_back(
                    {extent.begin, std::min(extent.end, extent.begin + checkpoint::SafetensorsWriter::kPiece)});
            }
        }
    }
    std::size_t parts() const noexcept { return sparse ? extents.size() : file.pieces(); }
    /// Returns the bytes written.
    template <class Fill>
    std::uint64_t write(std::size_t part, std::span<std::byte> space, Fill&& fill) const {
        if (!sparse) {
            file.write_piece(part, space, fill);
            return file.piece_bytes(part);
        }
        file.write_extent(extents[part].begin, extents[part].end, space, fill);
        return stored_bytes({&extents[part], 1});
    }

    Shard shard;
    checkpoint::SafetensorsWriter file;
    bool sparse;
    std::vector<Extent> extents;  // of a sparse shard, cut into pieces
};

/// What one thread keeps from piece to piece.
struct Worker {
    checkpoint::SafetensorsWriter::Buffer buffer = checkpoint::SafetensorsWriter::make_buffer();
    std::optional<Filler> filler{};  // of tensor number `current`
    std::size_t current = 0;
};

inline void fill_shard(const Job& job, const WriteOptions& options, const std::function<void(std::uint64_t)>& done) {
    std::mutex guard;
    std::vector<std::optional<Worker>> workers(std::max(1U, options.threads));
    io::run_jobs(options.threads, job.parts(), [&](unsigned number, std::size_t part) {
        if (options.stop != nullptr && options.stop->load()) {
            throw Error(Code::interrupted, "interrupted", "run it again to start over");
        }
        if (!workers[number]) workers[number].emplace();
        Worker& worker = *workers[number];
        const auto fill = [&](std::size_t tensor, std::uint64_t first, std::span<std::byte> out) {
            if (!worker.filler || worker.current != tensor) {
                const checkpoint::WriterTensor& info = job.shard.tensors[tensor];
                worker.filler.emplace(job.shard.rules[tensor], info.dtype, key_of(options.seed, info.name));
                worker.current = tensor;
            }
            worker.filler->fill(first, out);
        };
        const std::span<std::byte> space(worker.buffer.get(), checkpoint::SafetensorsWriter::kPiece);
        const std::uint64_t bytes = job.write(part, space, fill);
        const std::lock_guard lock(guard);
        done(bytes);
    });
}

inline std::string index_json(const ModelShape& shape, const Plan& plan) {
    // Written line by line: at full size the map has half a million entries. Sorted, as Python writes it.
    std::vector<std::pair<std::string, std::size_t>> map;
    map.reserve(plan.tensors);
    for (std::size_t number = 0; number < plan.shards.size(); ++number) {
        for (checkpoint::WriterTensor& tensor : make_shard(shape, number).tensors) {
            map.emplace_back(std::move(tensor.name), number);
        }
    }
    std::sort(map.begin(), map.end());
    std::string text =
        "{\n  \"metadata\": {\n    \"total_size\": " + std::to_string(plan.payload) + "\n  },\n  \"weight_map\": {";
    const char* separator = "\n";
    for (const auto& [name, number] : map) {
        text += separator + ("    " + nlohmann::json(name).dump()) + ": \"" + plan.shards[number].name + '"';
        separator = ",\n";
    }
    return text + "\n  }\n}";  // no newline at the end, as in the release: its index has 59,764,096 bytes
}

}  // namespace detail

/// Writes everything. Errors: Code::usage for the folder, Code::write for the disk, Code::interrupted; shards of this
/// call are then removed again, so that a failed run leaves the disk as it was.
inline void write_checkpoint(const ModelShape& shape, const Plan& plan, const WriteOptions& options) {
    detail::prepare_folder(options, plan);
    constexpr std::uint64_t kSmallFiles = std::uint64_t{4} << 20;  // tokenizer, configurations, block rounding
    io::require_free_space(options.out, plan.stored + plan.tensors * 160 + kSmallFiles);
    if (shape.sparse) io::require_holes(options.out);
    std::vector<std::string> made;
    try {
        std::uint64_t total = 0;
        // The fsync of one shard runs beside the making of the next. The job outlives the future, whose destructor
        // waits.
        std::unique_ptr<detail::Job> flushing;
        std::future<void> flush;
        for (std::size_t number = 0; number < plan.shards.size(); ++number) {
            const std::string& name = plan.shards[number].name;
            auto job = std::make_unique<detail::Job>(shape, number, plan.shards[number], options);
            detail::fill_shard(*job, options, [&](std::uint64_t bytes) {
                total += bytes;
                if (options.tick) options.tick(name, total);
            });
            if (flush.valid()) flush.get();
            made.push_back(options.out + "/" + name);
            flushing = std::move(job);
            flush = std::async(std::launch::async, [file = &flushing->file] { file->commit(); });
        }
        flush.get();
        const auto put = [&](const char* name, const std::string& text) {
            made.push_back(options.out + "/" + name);
            io::write_small_file(made.back(), text);
        };
        put("model.safetensors.index.json", detail::index_json(shape, plan));
        put("tiktoken.model", rank_file(shape.config.vocab));
        put("tokenizer_config.json", tokenizer_config_json(shape.config.vocab));
        put("generation_config.json", generation_config_json(shape));
        put("config.json", config_json(shape));
    } catch (...) {
        std::error_code ignored;  // the first error is the one to report
        for (const std::string& path : made) std::filesystem::remove(path, ignored);
        throw;
    }
}

}  // namespace k3::synth
#endif
