#ifndef K3_DRIVERS_CONFORM_SERVICES_HPP
#define K3_DRIVERS_CONFORM_SERVICES_HPP
// The two services the engine's layers call, made so that nothing big is resident and every seam can be observed.
#include <algorithm>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "drivers/conform/rows.hpp"
#include "k3/checkpoint/tensor_reader.hpp"
#include "k3/core/buffer.hpp"
#include "k3/layers/context.hpp"
#include "k3/layers/mlp.hpp"

namespace k3::conform {

/// Brings matrices by panels of rows, straight from the shards: the head, and all weights of a whole pass.
class ShardSource final : public layers::WeightSource {
  public:
    explicit ShardSource(const checkpoint::ShardIndex& index) : index_(index) {}
    void add(const layers::Weight& weight, const checkpoint::TensorInfo& info) { tensors_[weight.id] = info; }
    void embedding(const checkpoint::TensorInfo& info) { embedding_ = info; }
    const std::string& failure() const noexcept { return failure_; }

    bool acquire(const layers::Weight& weight, std::size_t first, bool whole, layers::Panel& panel) noexcept override {
        return guarded([&] {
            const checkpoint::TensorInfo& info = tensors_.at(weight.id);
            const std::size_t row = row_bytes(weight);
            const std::size_t most = whole ? weight.rows : std::max<std::size_t>(1, kPanelBytes / row);
            const std::size_t rows = std::min(most, weight.rows - first);
            if (panel_.size() < rows * row) panel_ = core::Buffer(std::max(rows * row, std::size_t{1} << 20));
            checkpoint::read_tensor(index_, info, first * row, {panel_.data(), rows * row});
            panel = {panel_.data(), nullptr, first, rows};
        });
    }
    void release(const layers::Weight&, const layers::Panel&) noexcept override {}
    bool read_rows(const layers::Weight& weight, const std::int32_t* rows, std::size_t count,
                   std::byte* out) noexcept override {
        return guarded([&] {
            const std::size_t row = row_bytes(weight);
            for (std::size_t i = 0; i < count; ++i)
                checkpoint::read_tensor(index_, embedding_, static_cast<std::uint64_t>(rows[i]) * row,
                                        {out + i * row, row});
        });
    }

  private:
    static constexpr std::size_t kPanelBytes = std::size_t{16} << 20;
    static std::size_t row_bytes(const layers::Weight& weight) {
        return weight.cols * (weight.format == layers::Format::f32 ? 4 : 2);
    }
    template <class Fn>
    bool guarded(Fn&& fn) noexcept {
        try {
            fn();
            return true;
        } catch (const std::exception& error) {
            failure_ = error.what();
            return false;
        }
    }
    const checkpoint::ShardIndex& index_;
    std::map<std::uint32_t, checkpoint::TensorInfo> tensors_;
    checkpoint::TensorInfo embedding_{};
    core::Buffer panel_;
    std::string failure_;
};

/// Stands in for a layer's last matrix and lets the vector before it through: row r of a probe is the unit vector r +
/// offset, so the "product" is that entry, exact and rounded to itself (-0 becomes +0). Beyond the last column rows are
/// zero. So the intermediate results of the engine's own layer become visible through its public functions.
class ProbeSource final : public layers::WeightSource {
  public:
    static layers::Weight identity(std::size_t rows, std::size_t cols, std::size_t offset = 0) {
        return {layers::Format::bf16, rows, cols, nullptr, nullptr, static_cast<std::uint32_t>(offset)};
    }
    static layers::Weight zero(std::size_t rows, std::size_t cols) { return identity(rows, cols, cols); }

    bool acquire(const layers::Weight& weight, std::size_t first, bool, layers::Panel& panel) noexcept override {
        const std::size_t row = weight.cols * 2,
                          rows = std::min(std::max<std::size_t>(1, kBytes / row), weight.rows - first);
        try {
            panel_.assign(rows * row, std::byte{0});
        } catch (const std::exception&) {
            return false;
        }
        constexpr std::uint16_t kOne = 0x3f80;  // bf16
        for (std::size_t r = 0; r < rows; ++r)
            if (first + r + weight.id < weight.cols)
                std::memcpy(panel_.data() + r * row + 2 * (first + r + weight.id), &kOne, 2);
        panel = {panel_.data(), nullptr, first, rows};
        return true;
    }
    void release(const layers::Weight&, const layers::Panel&) noexcept override {}
    bool read_rows(const layers::Weight&, const std::int32_t*, std::size_t, std::byte*) noexcept override {
        return false;
    }

  private:
    static constexpr std::size_t kBytes = std::size_t{8} << 20;
    std::vector<std::byte> panel_;
};

/// Runs routed experts, reading each when it is wanted. `record` keeps what it was asked and what it answered;
/// `replay` answers from the record, so that a layer can be run again without computing its experts again.
class Experts final : public layers::ExpertService {
  public:
    enum class Mode { plain, record, replay };
    struct Record {
        std::vector<std::int32_t> ids;  ///< [tokens][k]
        Rows z, inner, out;             ///< [tokens][latent], [tokens * k][expert width], [tokens * k][latent]
    };
    Experts(const checkpoint::ShardIndex& index, std::size_t latent, std::size_t width, layers::Situ situ,
            layers::ExpertKernel kernel)
        : index_(index), latent_(latent), width_(width), situ_(situ), kernel_(kernel) {}

    Mode mode = Mode::plain;
    Record record{};
    const std::string& failure() const noexcept { return failure_; }

    std::size_t wants_prediction(std::size_t) const noexcept override { return 0; }
    void predict(std::size_t, const std::int32_t*, std::size_t) noexcept override {}

    void submit(const core::Exec& exec, std::size_t layer, const layers::Routes& routes, core::MatView<const float> z,
                core::MatView<float> e, core::Fault* faults, core::Arena scratch) noexcept override {
        try {
            const std::size_t slots = routes.tokens * routes.top_k;
            if (mode == Mode::replay) {
                for (std::size_t s = 0; s < slots; ++s)
                    std::memcpy(e.row(s), record.out.view().row(s), latent_ * sizeof(float));
                return;
            }
            if (mode == Mode::record) {
                record = {
                    {routes.ids, routes.ids + slots}, {routes.tokens, latent_}, {slots, width_}, {slots, latent_}};
                for (std::size_t t = 0; t < routes.tokens; ++t)
                    std::memcpy(record.z.view().row(t), z.row(t), latent_ * sizeof(float));
            }
            std::map<std::int32_t, std::vector<std::size_t>> work;
            for (std::size_t s = 0; s < slots; ++s)
                if (routes.ids[s] >= 0) work[routes.ids[s]].push_back(s);
            for (const auto& [expert, wanted] : work) run(exec, layer, expert, wanted, routes.top_k, z, e, scratch);
        } catch (const std::exception& error) {
            failure_ = error.what();
            for (std::size_t t = 0; t < routes.tokens; ++t)
                faults[t] = {.code = core::FaultCode::expert_failed, .layer = static_cast<std::int32_t>(layer)};
        }
    }

  private:
    layers::Weight read(std::size_t layer, std::int32_t expert, checkpoint::ExpertMatrix matrix, std::size_t rows,
                        std::size_t cols, core::Buffer (&memory)[2]) const {
        using checkpoint::ExpertPart;
        const auto find = [&](ExpertPart part) {
            return index_.expert(static_cast<std::uint32_t>(layer), static_cast<std::uint32_t>(expert), matrix, part);
        };
        const auto load = [&](const checkpoint::TensorInfo& info, core::Buffer& into) {
            if (into.size() < info.bytes) into = core::Buffer(info.bytes);
            checkpoint::read_tensor(index_, info, 0, {into.data(), info.bytes});
            return into.data();
        };
        layers::Weight w{layers::Format::mxfp4, rows, cols};
        if (const auto packed = find(ExpertPart::packed)) {
            w.data = load(*packed, memory[0]);
            w.scales = load(find(ExpertPart::scale).value(), memory[1]);
        } else {
            const checkpoint::TensorInfo plain = find(ExpertPart::plain).value();
            w.format = plain.dtype == checkpoint::Dtype::f32 ? layers::Format::f32 : layers::Format::bf16;
            w.data = load(plain, memory[0]);
        }
        return w;
    }
    void run(const core::Exec& exec, std::size_t layer, std::int32_t expert, const std::vector<std::size_t>& slots,
             std::size_t top_k, core::MatView<const float> z, core::MatView<float> e, core::Arena scratch) {
        using checkpoint::ExpertMatrix;
        layers::ExpertWeights w{read(layer, expert, ExpertMatrix::gate, width_, latent_, gate_),
                                read(layer, expert, ExpertMatrix::up, width_, latent_, up_),
                                read(layer, expert, ExpertMatrix::down, latent_, width_, down_)};
        Rows in(slots.size(), latent_), out(slots.size(), latent_), inner(slots.size(), width_);
        for (std::size_t i = 0; i < slots.size(); ++i)
            std::memcpy(in.view().row(i), z.row(slots[i] / top_k), latent_ * sizeof(float));
        if (kernel_(exec, w, situ_, in.in(), out.view(), scratch)) throw std::runtime_error("an expert kernel failed");
        for (std::size_t i = 0; i < slots.size(); ++i)
            std::memcpy(e.row(slots[i]), out.view().row(i), latent_ * sizeof(float));
        if (mode != Mode::record) return;
        if (identity_.empty()) {  // kernels of experts take resident weights
            identity_.resize(width_ * width_, 0);
            for (std::size_t i = 0; i < width_; ++i) identity_[i * (width_ + 1)] = 0x3f80;  // bf16 1
        }
        w.down = {layers::Format::bf16, width_, width_, reinterpret_cast<const std::byte*>(identity_.data())};
        if (kernel_(exec, w, situ_, in.in(), inner.view(), scratch))
            throw std::runtime_error("an expert kernel failed");
        for (std::size_t i = 0; i < slots.size(); ++i) {
            std::memcpy(record.inner.view().row(slots[i]), inner.view().row(i), width_ * sizeof(float));
            std::memcpy(record.out.view().row(slots[i]), out.view().row(i), latent_ * sizeof(float));
        }
    }

    const checkpoint::ShardIndex& index_;
    std::size_t latent_, width_;
    layers::Situ situ_;
    layers::ExpertKernel kernel_;
    core::Buffer gate_[2], up_[2], down_[2];
    std::vector<std::uint16_t> identity_;
    std::string failure_;
};

}  // namespace k3::conform
#endif
