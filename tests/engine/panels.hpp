#ifndef K3_TESTS_ENGINE_PANELS_HPP
#define K3_TESTS_ENGINE_PANELS_HPP
// A weight source for tests: serves a few rows at a time from copies that live exactly as long as the panel is held, so
// that a layer that reads beyond its panel or after its release reads poison (or is stopped by a sanitizer).
#include <cstring>
#include <limits>
#include <map>
#include <memory>
#include <vector>

#include "k3/layers/weight.hpp"

namespace k3::tests {

class PanelSource final : public layers::WeightSource {
  public:
    static constexpr std::size_t kAll = std::numeric_limits<std::size_t>::max();

    /// `rows` at a time; acquire number `fail_at` (from 0) fails.
    explicit PanelSource(std::size_t rows, std::size_t fail_at = kAll) : rows_(rows), fail_at_(fail_at) {}

    /// Takes a resident weight over: its data pointer becomes null and its rows come from here.
    void take(layers::Weight& weight) {
        if (weight.rows == 0) return;
        weight.id = static_cast<std::uint32_t>(originals_.size());
        originals_.push_back(weight);
        weight.data = nullptr;
        weight.scales = nullptr;
    }
    layers::WeightSource* embedding = nullptr;  // read_rows goes there

    std::size_t acquired = 0, whole_acquired = 0, outstanding = 0, most_outstanding = 0, mistakes = 0;
    std::uint32_t last_whole = 0;

    bool acquire(const layers::Weight& weight, std::size_t first, bool whole, layers::Panel& panel) noexcept override {
        if (acquired++ == fail_at_) return false;
        const layers::Weight& from = originals_.at(weight.id);
        if (from.rows != weight.rows || from.cols != weight.cols || from.format != weight.format || first >= from.rows)
            ++mistakes;
        const std::size_t left = from.rows - first, rows = whole ? left : std::min(rows_, left);
        if (whole) {
            ++whole_acquired;
            last_whole = weight.id;
        }
        Held& held = held_[next_];
        const std::size_t row = row_bytes(from),
                          scale = from.format == layers::Format::mxfp4 ? (from.cols + 31) / 32 : 0;
        held.data = copy(from.data + first * row, rows * row);
        if (scale != 0) held.scales = copy(from.scales + first * scale, rows * scale);
        held.bytes = rows * row;
        held.scale_bytes = rows * scale;
        panel = {held.data.get(), held.scales.get(), first, rows};
        ++next_;
        most_outstanding = std::max(most_outstanding, ++outstanding);
        return true;
    }
    void release(const layers::Weight&, const layers::Panel& panel) noexcept override {
        for (auto at = held_.begin(); at != held_.end(); ++at) {
            if (at->second.data.get() != panel.data) continue;
            std::memset(at->second.data.get(), 0xff, at->second.bytes);  // NaN in every format
            if (at->second.scale_bytes != 0) std::memset(at->second.scales.get(), 0xee, at->second.scale_bytes);
            held_.erase(at);
            --outstanding;
            return;
        }
        ++mistakes;  // a panel that is not held
    }
    bool read_rows(const layers::Weight& weight, const std::int32_t* rows, std::size_t count,
                   std::byte* out) noexcept override {
        return embedding != nullptr && embedding->read_rows(weight, rows, count, out);
    }

    static std::size_t row_bytes(const layers::Weight& w) noexcept {
        return w.format == layers::Format::mxfp4 ? (w.cols + 1) / 2
                                                 : w.cols * (w.format == layers::Format::f32 ? 4 : 2);
    }

  private:
    struct Held {
        std::unique_ptr<std::byte[]> data, scales;
        std::size_t bytes = 0, scale_bytes = 0;
    };
    static std::unique_ptr<std::byte[]> copy(const std::byte* from, std::size_t bytes) {
        auto to = std::make_unique<std::byte[]>(bytes);
        std::memcpy(to.get(), from, bytes);
        return to;
    }
    std::size_t rows_, fail_at_, next_ = 0;
    std::vector<layers::Weight> originals_;
    std::map<std::size_t, Held> held_;
};

}  // namespace k3::tests
#endif
