#ifndef K3_STREAM_RESIDENT_EXPERTS_HPP
#define K3_STREAM_RESIDENT_EXPERTS_HPP
// The expert service for a model whose routed experts all fit in memory.
#include <functional>
#include <vector>

#include "k3/checkpoint/shard_index.hpp"
#include "k3/core/buffer.hpp"
#include "k3/io/parallel_read.hpp"
#include "k3/model/config_reader.hpp"
#include "k3/model/model_view.hpp"
#include "k3/stream/expert_batch.hpp"

namespace k3::stream {

class ResidentExperts final : public layers::ExpertService {
  public:
    /// Lays the experts of the first `layers` layers out; load() reads them. `index` must outlive the result.
    ResidentExperts(const model::ModelConfig& config, const checkpoint::ShardIndex& index, std::size_t layers)
        : experts_(config.shape.experts), first_moe_(config.shape.first_dense) {
        core::parallel(core::Exec{}, 1, 1, [&](std::size_t, std::size_t, unsigned) noexcept {
            situ_ = {simd::round32(config.shape.situ_beta), simd::round32(config.shape.situ_linear_beta)};
        });
        for (std::size_t n = first_moe_; n < layers; ++n)
            for (std::size_t e = 0; e < experts_; ++e)
                place(config.shape, index, static_cast<std::uint32_t>(n), static_cast<std::uint32_t>(e));
    }

    std::uint64_t bytes() const noexcept { return bytes_; }

    /// Errors: Code::plan, Code::read.
    void load(unsigned threads, const std::function<void(std::uint64_t, std::uint64_t)>& progress) {
        if (arena_.size() != 0) return;  // they are there
        arena_ = core::Buffer(bytes_);
        std::vector<io::ReadJob> jobs;
        for (const Piece& piece : pieces_)
            jobs.push_back({piece.file, piece.offset, {arena_.data() + piece.at, piece.bytes}});
        io::parallel_read(jobs, threads, progress);
        for (layers::ExpertWeights& w : weights_)
            for (layers::Weight* m : {&w.gate, &w.up, &w.down}) {
                m->data = arena_.data() + reinterpret_cast<std::size_t>(m->data);
                m->scales = m->format == layers::Format::mxfp4
                                ? arena_.data() + reinterpret_cast<std::size_t>(m->scales)
                                : nullptr;
            }
        pieces_ = {};
    }
    void use(layers::ExpertKernel kernel) noexcept { kernel_ = kernel; }

    void submit(const core::Exec& exec, std::size_t layer, const layers::Routes& routes, core::MatView<const float> z,
                core::MatView<float> e, core::Fault* faults, core::Arena scratch) noexcept override {
        const ExpertBatch batch(routes, experts_, scratch);
        batch.for_each([&](std::size_t expert, std::span<const std::uint32_t> slots) noexcept {
            const layers::ExpertWeights& weights = weights_[(layer - first_moe_) * experts_ + expert];
            if (!run_expert(exec, kernel_, weights, situ_, routes.top_k, slots, z, e, scratch)) return;
            for (const std::uint32_t slot : slots)
                faults[slot / routes.top_k] = {.code = core::FaultCode::expert_failed,
                                               .layer = static_cast<std::int32_t>(layer),
                                               .token = static_cast<std::int32_t>(slot / routes.top_k),
                                               .expert = static_cast<std::int32_t>(expert)};
        });
    }

  private:
    struct Piece {
        const io::File* file;
        std::uint64_t offset, bytes, at;
    };

    /// Until load() a weight's pointers hold offsets into the arena to come.
    void place(const model::Config& c, const checkpoint::ShardIndex& index, std::uint32_t layer, std::uint32_t expert) {
        using checkpoint::ExpertMatrix, checkpoint::ExpertPart;
        layers::ExpertWeights w;
        const auto add = [&](const checkpoint::TensorInfo& info) {
            const std::uint64_t at = bytes_;
            bytes_ += info.bytes;
            const io::File* const file = &index.shard(info).file;
            if (!pieces_.empty() && pieces_.back().file == file &&
                pieces_.back().offset + pieces_.back().bytes == info.offset &&
                pieces_.back().at + pieces_.back().bytes == at) {
                pieces_.back().bytes += info.bytes;  // neighbours in the file: one read
            } else {
                pieces_.push_back({file, info.offset, info.bytes, at});
            }
            return reinterpret_cast<const std::byte*>(static_cast<std::size_t>(at));
        };
        const auto matrix = [&](ExpertMatrix which, layers::Weight& weight) {
            weight.rows = which == ExpertMatrix::down ? c.latent : c.expert_width;
            weight.cols = which == ExpertMatrix::down ? c.expert_width : c.latent;
            if (const auto packed = index.expert(layer, expert, which, ExpertPart::packed)) {
                weight.format = layers::Format::mxfp4;
                weight.data = add(*packed);
                weight.scales = add(*index.expert(layer, expert, which, ExpertPart::scale));
            } else {
                const auto plain = *index.expert(layer, expert, which, ExpertPart::plain);
                weight.format = plain.dtype == checkpoint::Dtype::f32 ? layers::Format::f32 : layers::Format::bf16;
                bytes_ = (bytes_ + 3) / 4 * 4;  // read as values, not as bytes
                weight.data = add(plain);
            }
        };
        matrix(ExpertMatrix::gate, w.gate);
        matrix(ExpertMatrix::down, w.down);
        matrix(ExpertMatrix::up, w.up);
        bytes_ = (bytes_ + 63) / 64 * 64;
        weights_.push_back(w);
    }

    std::size_t experts_;
    layers::Situ situ_{};
    std::size_t first_moe_;
    std::uint64_t bytes_ = 0;
    std::vector<Piece> pieces_;
    std::vector<layers::ExpertWeights> weights_;
    core::Buffer arena_;
    layers::ExpertKernel kernel_ = nullptr;
};

}  // namespace k3::stream
#endif
