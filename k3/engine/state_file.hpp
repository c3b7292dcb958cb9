#ifndef K3_ENGINE_STATE_FILE_HPP
#define K3_ENGINE_STATE_FILE_HPP
// Saved states: a run stopped after any step goes on later as if it had never stopped, bit for bit, under another
// budget, arch, number of threads or chunk. The bytes are in docs/FORMATS.md#state-file.
//
// A file that is damaged anywhere, or is of another model, is refused with the reason. What a file says is checked
// before it is believed: sizes come from the model at hand, the file only counts tokens, and must then be exactly as
// long as that makes it. Its checksum guards against accidents, not against forgers.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "k3/checkpoint/shard_index.hpp"
#include "k3/core/digest.hpp"
#include "k3/core/error.hpp"
#include "k3/engine/detail/state_header.hpp"
#include "k3/engine/detail/state_stream.hpp"
#include "k3/io/file.hpp"
#include "k3/io/guess.hpp"
#include "k3/model/bound_model.hpp"
#include "k3/model/state.hpp"

namespace k3::engine {

/// Where the random numbers of a sampler are.
struct SavedSampler {
    std::array<std::uint64_t, 2> generator{};
    std::uint64_t turn = 0;
    friend bool operator==(const SavedSampler&, const SavedSampler&) = default;
};

/// What a run must remember besides the model's state.
struct SavedRun {
    std::vector<std::int32_t> ids{};                // prompt and generated, in order
    std::uint64_t digest = core::Digest{}.value();  // of the logits the generated ids were chosen from
    std::optional<SavedSampler> sampler{};
    bool raw = false;  // begun with ids, not with text: end ids do not stop it
};

/// What a state file is bound to. Both must outlive it.
struct StateOwner {
    const model::BoundModel& model;
    const checkpoint::ShardIndex& index;
};

/// Bytes of a state file of `ids` tokens, `fed` of them in the state.
std::uint64_t state_file_bytes(const model::ModelView& model, std::size_t ids, std::size_t fed, bool logits);

/// A state file that belongs to a model and is whole: every byte of it was read once and its checksum is right.
class StateFile {
  public:
    /// `tokenizer`: text::Tokenizer::checksum(), or 0 if there is none; compared if both sides have one.
    /// Errors: Code::state, naming what differs or is damaged; also if the file cannot be read.
    static StateFile open(const std::string& path, const StateOwner& owner, std::uint64_t tokenizer);

    /// Ids are all below the vocabulary.
    const SavedRun& run() const noexcept { return run_; }
    /// How many of the ids the state holds. The others, if any, are what to feed next.
    std::size_t fed() const noexcept { return static_cast<std::size_t>(header_.fed); }
    /// Whether the logits of the last id are there: only if all ids are fed.
    bool has_logits() const noexcept { return (header_.flags & detail::StateHeader::kLogits) != 0; }
    const std::string& path() const noexcept { return file_.path(); }

    /// Fills `state`, and `logits` ([vocab]) if has_logits(). Errors: Code::state if the model is not the one it was
    /// opened for: nothing is changed; or if the file has changed since: `state` is then empty, `logits` undefined.
    void read(const StateOwner& owner, model::State& state, std::span<float> logits) const;

  private:
    explicit StateFile(io::File file) : file_(std::move(file)) {}
    bool sampler() const noexcept { return (header_.flags & detail::StateHeader::kSampler) != 0; }
    void read_header();
    void read_run(const model::ModelView& model);

    io::File file_;
    std::uint64_t checksum_ = 0;
    detail::StateHeader header_{};
    SavedRun run_{};
};

/// Writes `state`, whose position must not exceed run.ids.size(). `logits`: of the last id if all are fed, else empty.
/// Errors: Code::write, also if the disk has too little room; a file of that name is then as it was.
void write_state_file(const std::string& path, const StateOwner& owner, std::uint64_t tokenizer, const SavedRun& run,
                      const model::State& state, std::span<const float> logits);

// ---------------------------------------------------------------------------------------------------------------------

inline std::uint64_t state_file_bytes(const model::ModelView& model, std::size_t ids, std::size_t fed, bool logits) {
    return detail::kStateHeaderBytes + std::uint64_t{ids} * sizeof(std::int32_t) +
           (logits ? model.config.vocab * sizeof(float) : 0) + model::State::part_floats(model, fed) * sizeof(float) +
           sizeof(std::uint64_t);
}

inline void write_state_file(const std::string& path, const StateOwner& owner, std::uint64_t tokenizer,
                             const SavedRun& run, const model::State& state, std::span<const float> logits) {
    if (run.ids.size() < state.position())
        throw Error(Code::internal, "a state of more tokens than ids was to be saved", "please report this");
    if (run.ids.size() != state.position()) logits = {};
    detail::StateHeader header = detail::binding_of(owner.model, owner.index, tokenizer);
    if (!logits.empty()) header.flags |= detail::StateHeader::kLogits;
    if (run.sampler) header.flags |= detail::StateHeader::kSampler;
    if (run.raw) header.flags |= detail::StateHeader::kRaw;
    header.ids = run.ids.size();
    header.fed = state.position();
    header.digest = run.digest;
    if (run.sampler) {
        std::copy_n(run.sampler->generator.begin(), 2, header.generator);
        header.turn = run.sampler->turn;
    }
    const std::uint64_t bytes = state_file_bytes(owner.model.view(), run.ids.size(), state.position(), !logits.empty());
    detail::StateWriter out(path, bytes);
    const std::uint64_t sum = header.checksum();
    out.put(&header, sizeof header);
    out.put(&sum, sizeof sum);
    out.put(run.ids.data(), run.ids.size() * sizeof(std::int32_t));
    out.put(logits.data(), logits.size_bytes());
    state.for_each_part([&](const float* part, std::size_t count) { out.put(part, count * sizeof(float)); });
    out.commit();
}

inline StateFile StateFile::open(const std::string& path, const StateOwner& owner, std::uint64_t tokenizer) {
    std::optional<io::File> opened;
    try {
        opened.emplace(io::File::open(path));
    } catch (const Error& error) {
        detail::refuse_state(path, error.message(), "check the path, or start without a state");
    }
    StateFile file(std::move(*opened));
    file.read_header();
    detail::check_binding(path, file.header_, detail::binding_of(owner.model, owner.index, tokenizer),
                          owner.model.view().config);
    file.read_run(owner.model.view());
    return file;
}

inline void StateFile::read_header() {
    const std::uint64_t size = file_.size();
    const std::string again = "save it again, or start without a state";
    std::string head(static_cast<std::size_t>(std::min<std::uint64_t>(size, detail::kStateHeaderBytes)), '\0');
    try {
        file_.read(0, std::as_writable_bytes(std::span(head)));
    } catch (const Error& error) {
        detail::refuse_state(path(), error.message(), "check the disk, or start without a state");
    }
    std::memcpy(&header_, head.data(), std::min(head.size(), sizeof header_));
    if (size >= sizeof header_.magic && header_.magic != detail::kStateMagic) {
        const auto known = head.starts_with("K3ST") ? io::Guess{"a state of another engine", ""} : io::guess(head);
        detail::refuse_state(path(), "is not a state file of k3" + (known ? ": it is " + std::string(known->what) : ""),
                             "name a file that --save-state wrote");
    }
    if (size >= offsetof(detail::StateHeader, flags) && header_.version != detail::kStateVersion)
        detail::refuse_state(path(),
                             "has version " + std::to_string(header_.version) + " of the format, this k3 reads " +
                                 std::to_string(detail::kStateVersion),
                             "use the k3 that wrote it");
    if (head.size() < detail::kStateHeaderBytes)
        detail::refuse_state(path(),
                             "is cut short: it has " + std::to_string(size) + " bytes, its header alone has " +
                                 std::to_string(detail::kStateHeaderBytes),
                             again);
    std::uint64_t sum = 0;
    std::memcpy(&sum, head.data() + sizeof header_, sizeof sum);
    if (sum != header_.checksum()) detail::refuse_state(path(), "is damaged: its header has another checksum", again);
    const std::uint64_t known_flags =
        detail::StateHeader::kLogits | detail::StateHeader::kSampler | detail::StateHeader::kRaw;
    if ((header_.flags & ~known_flags) != 0 ||
        (!sampler() && (header_.generator[0] | header_.generator[1] | header_.turn) != 0) ||
        header_.fed > header_.ids || (has_logits() && header_.fed != header_.ids))
        detail::refuse_state(path(), "contradicts itself", again);
}

inline void StateFile::read_run(const model::ModelView& model) {
    const std::string again = "save it again, or start without a state";
    if (header_.ids > std::uint64_t{model.config.max_positions} + 1)  // the last one need not be fed
        detail::refuse_state(path(),
                             "has " + std::to_string(header_.ids) + " tokens, more than the model's " +
                                 std::to_string(model.config.max_positions) + " positions",
                             "start without a state");
    const auto count = static_cast<std::size_t>(header_.ids);
    const std::uint64_t bytes = state_file_bytes(model, count, fed(), has_logits());
    if (file_.size() != bytes)
        detail::refuse_state(path(),
                             (file_.size() < bytes ? "is cut short: it has " : "goes on after its end: it has ") +
                                 std::to_string(file_.size()) + " bytes instead of " + std::to_string(bytes),
                             again);
    run_.ids.resize(count);
    detail::StateReader in(file_);
    in.skip(detail::kStateHeaderBytes);
    in.get(run_.ids.data(), count * sizeof(std::int32_t));
    const std::optional<std::uint64_t> sum = in.checksum_if_right();
    if (!sum) detail::refuse_state(path(), "is damaged: its checksum is another", again);
    checksum_ = *sum;
    for (const std::int32_t id : run_.ids)
        if (id < 0 || static_cast<std::size_t>(id) >= model.config.vocab)
            detail::refuse_state(path(), "holds the id " + std::to_string(id) + ", which is outside the vocabulary",
                                 again);
    run_.digest = header_.digest;
    run_.raw = (header_.flags & detail::StateHeader::kRaw) != 0;
    if (sampler()) run_.sampler = SavedSampler{{header_.generator[0], header_.generator[1]}, header_.turn};
}

inline void StateFile::read(const StateOwner& owner, model::State& state, std::span<float> logits) const {
    const model::ModelView& view = owner.model.view();
    detail::check_binding(path(), header_, detail::binding_of(owner.model, owner.index, header_.tokenizer),
                          view.config);
    state.reset();
    detail::StateReader in(file_);
    in.skip(detail::kStateHeaderBytes + run_.ids.size() * sizeof(std::int32_t));
    if (has_logits()) in.get(logits.data(), logits.size_bytes());
    state.restore(fed(), [&](float* part, std::size_t count) { in.get(part, count * sizeof(float)); });
    if (in.checksum_if_right() == checksum_) return;
    state.reset();
    detail::refuse_state(path(), "changed while it was read", "load it again when nothing writes it");
}

}  // namespace k3::engine
#endif
