#ifndef K3_CHECKPOINT_DETAIL_SHARD_INDEX_IMPL_HPP
#define K3_CHECKPOINT_DETAIL_SHARD_INDEX_IMPL_HPP
// Bodies of shard_index.hpp; include that one.
#include <filesystem>
#include <iterator>
#include <limits>
#include <system_error>
#include <tuple>

#include "k3/checkpoint/detail/index_file.hpp"
#include "k3/checkpoint/detail/problems.hpp"
#include "k3/checkpoint/detail/shard_files.hpp"
#include "k3/checkpoint/header.hpp"
#include "k3/checkpoint/shard_index.hpp"
#include "k3/core/checksum.hpp"
#include "k3/io/jobs.hpp"

namespace k3::checkpoint {

struct ShardIndex::Part {
    std::optional<Shard> shard;
    std::vector<ExpertEntry> experts;  // by key
    std::vector<NamedEntry> named;
    std::optional<Error> error;
    void read(const std::string& path, std::uint32_t number, HeaderReader& reader);
};

inline void ShardIndex::Part::read(const std::string& path, std::uint32_t number, HeaderReader& reader) {
    constexpr std::uint64_t kSmall = std::numeric_limits<std::uint32_t>::max();
    shard.emplace(Shard{io::File::open(path)});
    const std::span<const HeaderTensor> tensors = reader.read(shard->file, number);
    shard->data_begin = reader.data_begin();
    shard->tensors = tensors.size();
    shard->payload = shard->file.size() - shard->data_begin;
    for (const HeaderTensor& tensor : tensors) {
        const TensorInfo& info = tensor.info;
        const auto coordinates = parse_expert_name(tensor.name);
        if (coordinates && info.shape.rank() == 2 && info.shape[0] <= kSmall && info.shape[1] <= kSmall) {
            experts.push_back({coordinates->key(), info.offset, static_cast<std::uint32_t>(info.shape[0]),
                               static_cast<std::uint32_t>(info.shape[1]), number, info.dtype});
        } else {
            named.push_back({std::string(tensor.name), info});
        }
    }
    std::sort(experts.begin(), experts.end(), [](const ExpertEntry& a, const ExpertEntry& b) { return a.key < b.key; });
}

namespace detail {

/// Runs `action`; what it throws becomes an Error that can be kept until the others have finished.
template <class Action>
std::optional<Error> caught(const std::string& path, const Action& action) {
    try {
        action();
    } catch (const Error& error) {
        return error;
    } catch (const std::exception& error) {  // bad_alloc, say
        return Error(Code::checkpoint, error.what(), "check the memory that is free", {.path = path});
    }
    return std::nullopt;
}

inline void add_missing_files(const std::string& path, const IndexFile& index, const std::vector<std::string>& names,
                              std::vector<Error>& errors) {
    std::vector<std::string> missing;
    for (const std::string_view file : index.files()) {
        if (!std::binary_search(names.begin(), names.end(), file)) missing.push_back(printable(file));
    }
    if (missing.empty()) return;
    std::sort(missing.begin(), missing.end());
    errors.emplace_back(Code::checkpoint, "names shards that are not there: " + join_some(missing, ", "),
                        kDownloadMissing, Where{.path = path});
}

/// Every listed tensor must be in the shard that the file names, and every shard must be named.
inline void check_listed(const std::string& path, const IndexFile& index, const std::vector<std::string>& names,
                         const ShardIndex& tensors, unsigned threads) {
    std::vector<std::uint32_t> shard_of_file;
    std::vector<bool> is_named(names.size());
    for (const std::string_view file : index.files()) {
        const auto place = std::lower_bound(names.begin(), names.end(), file) - names.begin();
        shard_of_file.push_back(static_cast<std::uint32_t>(place));
        is_named[static_cast<std::size_t>(place)] = true;
    }
    std::vector<std::string> foreign;
    for (std::size_t i = 0; i < names.size(); ++i) {
        if (!is_named[i]) foreign.push_back(names[i]);
    }
    if (!foreign.empty()) {
        throw Error(Code::checkpoint, "does not name these shards: " + join_some(foreign, ", "),
                    "move them away if they belong to another checkpoint, or delete the index file", {.path = path});
    }
    constexpr std::size_t kChunk = 8192;
    const auto& listed = index.listed();
    std::vector<std::vector<std::string>> wrong((listed.size() + kChunk - 1) / kChunk);
    io::run_jobs(threads, wrong.size(), [&](unsigned, std::size_t chunk) {
        for (std::size_t i = chunk * kChunk; i < std::min(listed.size(), (chunk + 1) * kChunk); ++i) {
            const auto info = tensors.find(listed[i].tensor);
            if (!info || info->shard != shard_of_file[listed[i].file]) {
                wrong[chunk].push_back(printable(listed[i].tensor) + " (" + names[shard_of_file[listed[i].file]] + ")");
            }
        }
    });
    for (std::size_t chunk = 1; chunk < wrong.size(); ++chunk) {
        wrong[0].insert(wrong[0].end(), wrong[chunk].begin(), wrong[chunk].end());
    }
    if (!wrong.empty() && !wrong[0].empty()) {
        throw Error(Code::checkpoint, "lists tensors that are not in the shard it names: " + join_some(wrong[0], ", "),
                    "download the checkpoint's shards and its index again", {.path = path});
    }
}

}  // namespace detail

inline ShardIndex ShardIndex::open(const std::string& model_dir, unsigned threads) {
    threads = std::max(threads, 1u);
    const std::vector<std::string> names = detail::find_shards(model_dir);
    std::vector<Error> errors;
    detail::check_numbering(model_dir, names, errors);

    const std::string index_path = model_dir + "/model.safetensors.index.json";
    std::error_code ignored;
    const bool has_index = std::filesystem::exists(index_path, ignored);
    detail::IndexFile index_file;
    std::optional<Error> index_error;
    std::vector<Part> parts(names.size());
    std::vector<HeaderReader> readers(std::min<std::size_t>(threads, names.size() + 1));
    // Job 0 is the longest by far, so it starts first.
    io::run_jobs(static_cast<unsigned>(readers.size()), names.size() + 1, [&](unsigned worker, std::size_t job) {
        if (job == 0) {
            if (has_index) index_error = detail::caught(index_path, [&] { index_file.parse(index_path); });
            return;
        }
        const std::string path = model_dir + "/" + names[job - 1];
        Part& part = parts[job - 1];
        const auto number = static_cast<std::uint32_t>(job - 1);
        part.error = detail::caught(path, [&] { part.read(path, number, readers[worker]); });
    });
    readers.clear();
    for (const Part& part : parts) {
        if (part.error) errors.push_back(*part.error);
    }
    if (index_error) errors.push_back(*index_error);
    if (has_index && !index_error) detail::add_missing_files(index_path, index_file, names, errors);
    detail::throw_all(model_dir, errors);

    ShardIndex index;
    index.directory_ = model_dir;
    index.add(parts);
    index.check_duplicates();
    if (has_index) detail::check_listed(index_path, index_file, names, index, threads);
    return index;
}

inline void ShardIndex::add(std::vector<Part>& parts) {
    std::size_t experts = 0, named = 0;
    for (const Part& part : parts) {
        experts += part.experts.size();
        named += part.named.size();
    }
    experts_.reserve(experts);
    named_.reserve(named);
    shards_.reserve(parts.size());
    for (Part& part : parts) {
        shards_.push_back(std::move(*part.shard));
        experts_.insert(experts_.end(), part.experts.begin(), part.experts.end());
        std::move(part.named.begin(), part.named.end(), std::back_inserter(named_));
        part = Part{};  // frees it now: the peak stays near the final size
    }
    const auto by_key = [](const ExpertEntry& a, const ExpertEntry& b) {
        return std::pair(a.key, a.shard) < std::pair(b.key, b.shard);
    };
    // A shard holds one layer in the release, so this is normally sorted already.
    if (!std::is_sorted(experts_.begin(), experts_.end(), by_key)) std::sort(experts_.begin(), experts_.end(), by_key);
    std::sort(named_.begin(), named_.end(), [](const NamedEntry& a, const NamedEntry& b) {
        return std::tie(a.name, a.info.shard) < std::tie(b.name, b.info.shard);
    });
}

inline void ShardIndex::check_duplicates() const {
    std::vector<std::string> twins;
    const auto note = [&](const std::string& name, std::uint32_t a, std::uint32_t b) {
        twins.push_back(printable(name) + " in " + detail::base_name(shards_[a].file.path()) + " and " +
                        detail::base_name(shards_[b].file.path()));
    };
    for (std::size_t i = 1; i < experts_.size(); ++i) {
        if (experts_[i].key == experts_[i - 1].key) {
            note(to_string(ExpertName::from_key(experts_[i].key)), experts_[i - 1].shard, experts_[i].shard);
        }
    }
    for (std::size_t i = 0; i < named_.size(); ++i) {
        const NamedEntry& entry = named_[i];
        if (i > 0 && entry.name == named_[i - 1].name) note(entry.name, named_[i - 1].info.shard, entry.info.shard);
        // An expert tensor that is no matrix is kept by name; its twin may be among the coordinates.
        const auto coordinates = parse_expert_name(entry.name);
        const ExpertEntry* twin = coordinates ? find_expert(coordinates->key()) : nullptr;
        if (twin != nullptr) note(entry.name, twin->shard, entry.info.shard);
    }
    if (twins.empty()) return;
    throw Error(Code::checkpoint, "the same tensor is in two shards: " + detail::join_some(twins, ", "),
                "keep the files of one checkpoint only", {.path = directory_});
}

inline TensorInfo ShardIndex::info_of(const ExpertEntry& entry) noexcept {
    return {entry.dtype, Shape{entry.rows, entry.cols}, entry.shard, entry.offset, bytes_of(entry)};
}

inline const ShardIndex::ExpertEntry* ShardIndex::find_expert(std::uint64_t key) const noexcept {
    const auto place =
        std::lower_bound(experts_.begin(), experts_.end(), key,
                         [](const ExpertEntry& entry, std::uint64_t wanted) { return entry.key < wanted; });
    return place != experts_.end() && place->key == key ? &*place : nullptr;
}

inline std::optional<TensorInfo> ShardIndex::find(std::string_view name) const {
    if (const auto coordinates = parse_expert_name(name)) {
        if (const ExpertEntry* entry = find_expert(coordinates->key())) return info_of(*entry);
    }
    const auto place =
        std::lower_bound(named_.begin(), named_.end(), name,
                         [](const NamedEntry& entry, std::string_view wanted) { return entry.name < wanted; });
    if (place == named_.end() || place->name != name) return std::nullopt;
    return place->info;
}

inline std::optional<TensorInfo> ShardIndex::expert(std::uint32_t layer, std::uint32_t expert, ExpertMatrix matrix,
                                                    ExpertPart part) const {
    const ExpertName name{layer, expert, matrix, part};
    if (const ExpertEntry* entry = find_expert(name.key())) return info_of(*entry);
    return find(to_string(name));
}

inline std::uint64_t ShardIndex::payload_bytes() const noexcept {
    std::uint64_t total = 0;
    for (const Shard& shard : shards_) total += shard.payload;
    return total;
}

inline std::uint64_t ShardIndex::checksum() const noexcept {
    core::Checksum checksum;
    const auto add = [&checksum](std::uint64_t number) { checksum.add_value(number); };
    for (const ExpertEntry& entry : experts_)
        for (const std::uint64_t number :
             {entry.key, std::uint64_t{entry.rows}, std::uint64_t{entry.cols}, static_cast<std::uint64_t>(entry.dtype)})
            add(number);
    for (const NamedEntry& entry : named_) {
        add(entry.name.size());
        checksum.add(std::as_bytes(std::span(entry.name)));
        add(static_cast<std::uint64_t>(entry.info.dtype));
        add(entry.info.shape.rank());
        for (const std::uint64_t dim : entry.info.shape.dims()) add(dim);
    }
    return checksum.value();
}

inline std::size_t ShardIndex::memory_bytes() const noexcept {
    std::size_t total = experts_.capacity() * sizeof(ExpertEntry) + named_.capacity() * sizeof(NamedEntry) +
                        shards_.capacity() * sizeof(Shard);
    const std::size_t in_place = std::string().capacity();  // short strings need no heap
    const auto add = [&](const std::string& text) {
        if (text.capacity() > in_place) total += text.capacity() + 1;
    };
    for (const NamedEntry& entry : named_) add(entry.name);
    for (const Shard& shard : shards_) add(shard.file.path());
    return total;
}

template <class Callback>
void ShardIndex::for_each(Callback&& callback) const {
    struct Place {
        std::uint64_t offset, bytes;
        std::uint32_t shard, entry;  // entry: an expert, or a name after all experts
        bool operator<(const Place& other) const noexcept {
            return std::tie(shard, offset, bytes, entry) <
                   std::tie(other.shard, other.offset, other.bytes, other.entry);
        }
    };
    std::vector<Place> places;
    places.reserve(size());
    for (const ExpertEntry& entry : experts_) {
        places.push_back({entry.offset, bytes_of(entry), entry.shard, static_cast<std::uint32_t>(places.size())});
    }
    for (const NamedEntry& entry : named_) {
        places.push_back(
            {entry.info.offset, entry.info.bytes, entry.info.shard, static_cast<std::uint32_t>(places.size())});
    }
    std::sort(places.begin(), places.end());
    for (const Place& place : places) {
        if (place.entry < experts_.size()) {
            const ExpertEntry& entry = experts_[place.entry];
            const std::string name = to_string(ExpertName::from_key(entry.key));
            callback(std::string_view(name), info_of(entry));
        } else {
            const NamedEntry& entry = named_[place.entry - experts_.size()];
            callback(std::string_view(entry.name), entry.info);
        }
    }
}

}  // namespace k3::checkpoint
#endif
