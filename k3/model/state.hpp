#ifndef K3_MODEL_STATE_HPP
#define K3_MODEL_STATE_HPP
// The state of one sequence: recurrent matrices and convolution histories of the KDA layers, latent cache of the MLA
// layers. It knows nothing of threads, budgets or arches. A step commits or leaves nothing behind.
#include <algorithm>
#include <cassert>
#include <cstring>
#include <vector>

#include "k3/core/buffer.hpp"
#include "k3/kernels/latent_attention.hpp"
#include "k3/model/model_view.hpp"
#include "k3/model/step.hpp"

namespace k3::model {

class State {
  public:
    /// Steps of up to this many tokens are logged (about 20 MB a token at full size) and may be committed in part;
    /// longer ones keep a copy of the state instead (465 MB) and are committed whole or not at all.
    static constexpr std::size_t kLogTokens = 8;
    static constexpr std::size_t kPagePositions = 256;

    explicit State(const ModelView& model) {
        const Config& c = model.config;
        for (std::size_t i = 0; i < model.layer_count; ++i)
            ++(model.layers[i].kind == LayerKind::kda ? kda_layers_ : mla_layers_);
        width_ = c.kda_width();
        heads_ = c.kda_heads;
        history_ = (c.conv_kernel - 1) * width_;
        recurrent_ = c.kda_heads * c.kda_head_dim * c.kda_head_dim;
        latent_ = c.kv_lora;
        rope_ = c.qk_rope;
        row_floats_ = kernels::LatentCache::pad(latent_) + kernels::LatentCache::pad(rope_);
        allocate();
    }

    /// Bytes of a state that will hold `positions` tokens, log or copy included: what a plan must count.
    static std::size_t bytes(const ModelView& model, std::size_t positions, std::size_t step_tokens) {
        const Config& c = model.config;
        std::size_t kda = 0, mla = 0;
        for (std::size_t i = 0; i < model.layer_count; ++i) ++(model.layers[i].kind == LayerKind::kda ? kda : mla);
        const std::size_t floats = kda_floats(c);
        const std::size_t row = kernels::LatentCache::pad(c.kv_lora) + kernels::LatentCache::pad(c.qk_rope);
        const std::size_t log = std::min(step_tokens, kLogTokens) * (6 * c.kda_width() + c.kda_heads);
        const std::size_t undo = step_tokens > kLogTokens ? floats : 0;
        const std::size_t pages = (positions + kPagePositions - 1) / kPagePositions;
        return sizeof(float) * (kda * (floats + log + undo) + mla * pages * kPagePositions * row);
    }

    /// Floats that for_each_part() passes at `positions`.
    static std::uint64_t part_floats(const ModelView& model, std::size_t positions) noexcept {
        const Config& c = model.config;
        std::uint64_t floats = 0;
        for (std::size_t i = 0; i < model.layer_count; ++i)
            floats += model.layers[i].kind == LayerKind::kda ? kda_floats(c) : positions * c.cache_width();
        return floats;
    }

    std::size_t position() const noexcept { return position_; }

    /// Prepares a step of `tokens` more tokens: memory for the latents, and the means to take the step back.
    void begin(std::size_t tokens) {
        abandon();  // a step that was begun and never advanced
        make_pages(position_ + tokens);
        step_tokens_ = tokens;
        logged_ = tokens <= kLogTokens;
        if (logged_)
            make_log(tokens);
        else
            save_copy();
    }

    /// The step of begin() succeeded for its first `tokens` tokens (all of them if it was not logged). Call after
    /// Forward::commit.
    void advance(std::size_t tokens) noexcept {
        assert(tokens == step_tokens_ || (logged_ && tokens <= step_tokens_));
        position_ += tokens;
        step_tokens_ = 0;
    }

    /// Takes the step of begin() back.
    void abandon() noexcept {
        if (step_tokens_ != 0 && !logged_) std::memcpy(memory_.data(), undo_.data(), memory_.size());
        step_tokens_ = 0;
    }

    /// Back to the start of the sequence; keeps its memory.
    void reset() noexcept {
        std::memset(memory_.data(), 0, memory_.size());
        position_ = 0;
        step_tokens_ = 0;
    }

    /// part(const float*, count) for all that a later step reads, always in the same order: layer by layer the
    /// recurrent matrix and the histories of the KDA layers; then, MLA layer by MLA layer and position by position, the
    /// latent and the shared key slot, without padding. Not in the middle of a step.
    template <class Part>
    void for_each_part(Part&& part) const {
        each_part(position_, [&](float* at, std::size_t count) { part(static_cast<const float*>(at), count); });
    }

    /// The sequence becomes one of `positions` tokens whose parts fill(float*, count) writes, in the same order.
    /// Errors: what fill throws, Code::plan; the sequence is then empty.
    template <class Fill>
    void restore(std::size_t positions, Fill&& fill) {
        reset();
        try {
            make_pages(positions);
            each_part(positions, fill);
        } catch (...) {
            reset();
            throw;
        }
        position_ = positions;
    }

    /// A copy at the same position. Not in the middle of a step.
    State clone() const {
        State copy(*this, Shape{});
        std::memcpy(copy.memory_.data(), memory_.data(), memory_.size());
        for (std::size_t i = 0; i < mla_layers_; ++i)
            for (const core::Buffer& page : pages_[i]) {
                copy.tables_[i].reserve(copy.pages_[i].size() + 1);
                copy.pages_[i].emplace_back(page.size());
                std::memcpy(copy.pages_[i].back().data(), page.data(), page.size());
                copy.tables_[i].push_back(copy.pages_[i].back().as<float>());
            }
        copy.point_at_tables();
        return copy;
    }

    StateView view() noexcept { return {kda_.data(), log_.data(), table_pointers_.data(), kPagePositions, position_}; }

  private:
    struct Shape {};
    /// An empty state of the same shape.
    State(const State& other, Shape)
        : kda_layers_(other.kda_layers_),
          mla_layers_(other.mla_layers_),
          width_(other.width_),
          heads_(other.heads_),
          history_(other.history_),
          recurrent_(other.recurrent_),
          latent_(other.latent_),
          rope_(other.rope_),
          row_floats_(other.row_floats_),
          position_(other.position_) {
        allocate();
    }
    void allocate() {
        memory_ = core::Buffer(kda_layers_ * kda_floats() * sizeof(float));
        for (std::size_t i = 0; i < kda_layers_; ++i) {
            float* const at = memory_.as<float>() + i * kda_floats();
            layers::KdaState state{at, {}};
            for (std::size_t j = 0; j < 3; ++j) state.conv[j] = at + recurrent_ + j * history_;
            kda_.push_back(state);
        }
        log_.resize(kda_layers_);
        tables_.resize(mla_layers_);
        pages_.resize(mla_layers_);
    }
    void make_pages(std::size_t positions) {
        const std::size_t page_count = (positions + kPagePositions - 1) / kPagePositions;
        for (std::size_t i = 0; i < mla_layers_; ++i) {
            while (pages_[i].size() < page_count) {
                tables_[i].reserve(pages_[i].size() + 1);  // the two stay in step even if memory runs out
                pages_[i].emplace_back(kPagePositions * row_floats_ * sizeof(float));
                tables_[i].push_back(pages_[i].back().as<float>());
            }
        }
        point_at_tables();
    }
    template <class Part>
    void each_part(std::size_t positions, Part&& part) const {
        for (const layers::KdaState& layer : kda_) {
            part(layer.recurrent, recurrent_);
            for (float* const history : layer.conv) part(history, history_);
        }
        for (const auto& table : tables_)
            for (std::size_t p = 0; p < positions; ++p) {
                float* const row = table[p / kPagePositions] + p % kPagePositions * row_floats_;
                part(row, latent_);
                part(row + kernels::LatentCache::pad(latent_), rope_);
            }
    }
    void point_at_tables() {
        table_pointers_.clear();
        for (const auto& table : tables_) table_pointers_.push_back(table.data());
    }
    static std::size_t kda_floats(const Config& c) noexcept {
        return c.kda_heads * c.kda_head_dim * c.kda_head_dim + 3 * (c.conv_kernel - 1) * c.kda_width();
    }
    std::size_t kda_floats() const noexcept { return recurrent_ + 3 * history_; }

    void make_log(std::size_t tokens) {
        const std::size_t each = 6 * width_ + heads_;
        if (log_memory_.size() == 0)
            log_memory_ = core::Buffer(kda_layers_ * kLogTokens * each * sizeof(float),
                                       core::Pages::ordinary);  // a short step touches a part of each layer's
        for (std::size_t i = 0; i < kda_layers_; ++i) {
            float* at = log_memory_.as<float>() + i * kLogTokens * each;
            const auto take = [&at](std::size_t n) {
                float* const p = at;
                at += n;
                return p;
            };
            const std::size_t n = tokens * width_;
            layers::KdaLog& log = log_[i];
            log.k = take(n);
            log.v = take(n);
            log.alpha = take(n);
            for (float*& input : log.conv) input = take(n);
            log.beta = take(tokens * heads_);
        }
    }
    void save_copy() {
        if (undo_.size() == 0) undo_ = core::Buffer(memory_.size());
        std::memcpy(undo_.data(), memory_.data(), memory_.size());
        std::fill(log_.begin(), log_.end(), layers::KdaLog{});
    }

    std::size_t kda_layers_ = 0, mla_layers_ = 0;
    std::size_t width_ = 0, heads_ = 0, history_ = 0, recurrent_ = 0;
    std::size_t latent_ = 0, rope_ = 0, row_floats_ = 0;
    std::size_t position_ = 0, step_tokens_ = 0;
    bool logged_ = false;
    core::Buffer memory_, undo_, log_memory_;
    std::vector<layers::KdaState> kda_;
    std::vector<layers::KdaLog> log_;
    std::vector<std::vector<core::Buffer>> pages_;
    std::vector<std::vector<float*>> tables_;
    std::vector<float* const*> table_pointers_;
};

}  // namespace k3::model
#endif
