#ifndef K3_STREAM_EXPERT_PLACES_HPP
#define K3_STREAM_EXPERT_PLACES_HPP
// Where the bytes of a routed expert are, and how they lie in a cache slot. In the release the six tensors of an expert
// are neighbours: one read of 17,547,264 bytes. Anything else that is legal works too, with up to six reads.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "k3/io/stream_file.hpp"
#include "k3/layers/experts.hpp"
#include "k3/model/config.hpp"
#include "k3/stream/stream_files.hpp"

namespace k3::stream {

/// One expert in a slot: what to read where, and its matrices once the reads are done.
struct ExpertLoad {
    struct Piece {
        Place place;
        std::size_t at;     // of its window, from the start of the slot
        std::size_t shift;  // afterwards, bytes move down by this much: a value must not lie across two
    };
    std::array<Piece, 6> pieces;
    std::size_t count = 0;
    std::size_t slot_bytes = 0;     // of all windows together
    std::uint64_t bytes = 0;        // of its tensors
    layers::ExpertWeights weights;  // pointers into the slot
};

class ExpertPlaces {
  public:
    /// For the experts of the first `layers` layers. All arguments outlive the result.
    ExpertPlaces(const model::Config& config, const StreamFiles& files, std::size_t layers)
        : config_(config), files_(files), layers_(layers) {
        for (std::size_t n = config.first_dense; n < layers; ++n)
            for (std::size_t e = 0; e < config.experts; ++e) {
                const ExpertLoad load = at(n, e, nullptr);
                slot_bytes_ = std::max(slot_bytes_, load.slot_bytes);
                expert_bytes_ = std::max(expert_bytes_, load.bytes);
                all_bytes_ += load.bytes;
            }
    }

    std::size_t layers() const noexcept { return layers_; }
    std::size_t first_moe() const noexcept { return config_.first_dense; }
    std::size_t experts() const noexcept { return config_.experts; }
    std::size_t top_k() const noexcept { return config_.experts_per_token; }
    /// Experts of all layers together.
    std::size_t count() const noexcept { return layers_ > first_moe() ? (layers_ - first_moe()) * experts() : 0; }
    /// Keys name experts by layer * experts() + expert, dense layers included: those of traces.
    std::size_t keys() const noexcept { return layers_ * experts(); }
    /// What any expert needs, in memory and on disk, and all of them on disk.
    std::size_t slot_bytes() const noexcept { return slot_bytes_; }
    std::uint64_t expert_bytes() const noexcept { return expert_bytes_; }
    std::uint64_t all_bytes() const noexcept { return all_bytes_; }

    /// An expert as it will lie in a slot that starts at `slot` (null: only sizes and places are meant).
    ExpertLoad at(std::size_t layer, std::size_t expert, std::byte* slot) const noexcept {
        using checkpoint::ExpertMatrix, checkpoint::ExpertPart;
        struct Part {
            Place place;
            std::size_t element;
            const std::byte** to;
        };
        std::array<Part, 6> parts;
        std::size_t count = 0;
        ExpertLoad load;
        const auto matrix = [&](ExpertMatrix which, layers::Weight& weight) {
            const auto n = static_cast<std::uint32_t>(layer), e = static_cast<std::uint32_t>(expert);
            const auto find = [&](ExpertPart part) { return files_.index().expert(n, e, which, part); };
            const auto add = [&](const checkpoint::TensorInfo& info, std::size_t element, const std::byte*& to) {
                parts[count++] = {files_.shard_place(info), element, &to};
            };
            weight.rows = which == ExpertMatrix::down ? config_.latent : config_.expert_width;
            weight.cols = which == ExpertMatrix::down ? config_.expert_width : config_.latent;
            if (const auto packed = find(ExpertPart::packed)) {
                weight.format = layers::Format::mxfp4;
                add(*packed, 1, weight.data);
                add(*find(ExpertPart::scale), 1, weight.scales);
            } else {
                const auto plain = *find(ExpertPart::plain);
                const bool f32 = plain.dtype == checkpoint::Dtype::f32;
                weight.format = f32 ? layers::Format::f32 : layers::Format::bf16;
                add(plain, f32 ? 4 : 2, weight.data);
            }
        };
        matrix(ExpertMatrix::gate, load.weights.gate);
        matrix(ExpertMatrix::down, load.weights.down);
        matrix(ExpertMatrix::up, load.weights.up);
        const auto before = [](const Part& a, const Part& b) noexcept {
            return a.place.file != b.place.file ? a.place.file < b.place.file : a.place.offset < b.place.offset;
        };
        for (std::size_t i = 1; i < count; ++i)  // into the order of the file, by insertion
            for (std::size_t j = i; j > 0 && before(parts[j], parts[j - 1]); --j) std::swap(parts[j], parts[j - 1]);
        for (std::size_t i = 0; i < count; ++i) {
            const Part& part = parts[i];
            load.bytes += part.place.bytes;
            const std::size_t shift = part.place.offset % part.element;
            ExpertLoad::Piece* piece = load.count == 0 ? nullptr : &load.pieces[load.count - 1];
            const bool joins = piece != nullptr && shift == 0 && piece->shift == 0 &&
                               piece->place.file == part.place.file &&
                               piece->place.offset + piece->place.bytes == part.place.offset;
            if (joins) {
                piece->place.bytes += part.place.bytes;
            } else {
                if (piece != nullptr) load.slot_bytes = end_of(*piece);
                piece = &load.pieces[load.count++];
                *piece = {part.place, load.slot_bytes, shift};
            }
            const std::uint64_t window = io::window_of(piece->place.offset, piece->place.bytes).begin;
            if (slot != nullptr) *part.to = slot + piece->at + (part.place.offset - window) - shift;
        }
        if (load.count != 0) load.slot_bytes = end_of(load.pieces[load.count - 1]);
        return load;
    }

  private:
    static std::size_t end_of(const ExpertLoad::Piece& piece) noexcept {
        return piece.at + io::window_of(piece.place.offset, piece.place.bytes).bytes;
    }

    const model::Config& config_;
    const StreamFiles& files_;
    std::size_t layers_;
    std::size_t slot_bytes_ = 0;
    std::uint64_t expert_bytes_ = 0, all_bytes_ = 0;
};

}  // namespace k3::stream
#endif
