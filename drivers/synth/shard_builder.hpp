#ifndef K3_DRIVERS_SYNTH_SHARD_BUILDER_HPP
#define K3_DRIVERS_SYNTH_SHARD_BUILDER_HPP
// Collects the tensors of one shard with what fills them, and puts them in the order of the release's writer.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "drivers/synth/sparse.hpp"
#include "drivers/synth/values.hpp"
#include "k3/checkpoint/expert_name.hpp"
#include "k3/checkpoint/safetensors_writer.hpp"

namespace k3::synth {

struct Shard {
    std::vector<checkpoint::WriterTensor> tensors;
    std::vector<Rule> rules;   // one a tensor
    std::vector<Pages> pages;  // one a tensor; what is stored of it in a sparse checkpoint
};

namespace detail {

class ShardBuilder {
  public:
    ShardBuilder(std::string prefix, bool sparse) : prefix_(std::move(prefix)), sparse_(sparse) {}

    void add(const std::string& name, Dtype dtype, checkpoint::Shape shape, Rule rule) {
        rows_.push_back({{prefix_ + name, dtype, shape}, rule, Pages{}});
    }
    void norm(const std::string& name, std::uint64_t size) {
        add(name, Dtype::bf16, {size}, {Rule::Kind::near_one, 0.1});
    }
    /// `gain` is the standard deviation of an output for inputs of unit variance.
    void whole_matrix(const std::string& name, std::uint64_t rows, std::uint64_t cols, double gain = 1.0) {
        add(name, Dtype::bf16, {rows, cols}, {Rule::Kind::normal, gain / std::sqrt(static_cast<double>(cols))});
    }
    /// A matrix of which a sparse checkpoint stores a page in every `window` bytes, if it is a large one.
    void matrix(const std::string& name, std::uint64_t rows, std::uint64_t cols, std::uint64_t window = kWindow) {
        const bool paged = sparse_ && 2 * rows * cols >= kSmallTensor;
        whole_matrix(name, rows, cols, paged ? kPagedGain : 1.0);
        if (paged) rows_.back().pages = {Pages::Kind::windows, window};
    }
    /// The codes and the scales of one expert matrix.
    void packed(const checkpoint::ExpertName& name, std::uint64_t rows, std::uint64_t cols) {
        using checkpoint::ExpertPart;
        const std::uint64_t row_bytes = (cols + 1) / 2, groups = (cols + 31) / 32;
        const bool paged = sparse_ && rows * row_bytes >= kSmallTensor;
        const double spread = (paged ? kPagedExpertGain : 1.0) / std::sqrt(static_cast<double>(cols));
        for (const ExpertPart part : {ExpertPart::packed, ExpertPart::scale}) {
            const bool codes = part == ExpertPart::packed;
            checkpoint::ExpertName full = name;
            full.part = part;
            rows_.push_back({{to_string(full), Dtype::u8, {rows, codes ? row_bytes : groups}},
                             {codes ? Rule::Kind::bytes : Rule::Kind::exponents, spread},
                             Pages{}});
            if (paged) {
                rows_.back().pages = {codes ? Pages::Kind::codes : Pages::Kind::scales, 0,
                                      std::uint64_t{name.layer} << 32 | name.expert};
            }
        }
    }

    /// The order of the release's writer: wide elements first, then by name. It makes the trunk one run at the start
    /// and an expert's six tensors neighbours; experts come as 0, 1, 10, 100, ...
    Shard finish() {
        std::sort(rows_.begin(), rows_.end(), [](const Row& a, const Row& b) {
            const unsigned wide_a = bits(a.tensor.dtype), wide_b = bits(b.tensor.dtype);
            return wide_a != wide_b ? wide_a > wide_b : a.tensor.name < b.tensor.name;
        });
        Shard shard;
        for (Row& row : rows_) {
            shard.tensors.push_back(std::move(row.tensor));
            shard.rules.push_back(row.rule);
            shard.pages.push_back(row.pages);
        }
        return shard;
    }

  private:
    struct Row {
        checkpoint::WriterTensor tensor;
        Rule rule;
        Pages pages;
    };
    std::string prefix_;
    bool sparse_;
    std::vector<Row> rows_;
};

}  // namespace detail
}  // namespace k3::synth
#endif
