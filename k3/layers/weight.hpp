#ifndef K3_LAYERS_WEIGHT_HPP
#define K3_LAYERS_WEIGHT_HPP
// A weight matrix as a layer sees it, and the service that brings the rows of those that are not in memory. Plain
// types, the same in every unit.
#include <cstddef>
#include <cstdint>

#include "k3/core/check.hpp"

namespace k3::layers {

/// How the values are stored; chosen once when a model is bound.
enum class Format : std::uint8_t { bf16, f32, mxfp4 };

/// A matrix [rows][cols]. `data` is null when it is streamed: its panels then come from the WeightSource.
struct Weight {
    Format format = Format::bf16;
    std::size_t rows = 0, cols = 0;
    const std::byte* data = nullptr;
    const std::byte* scales = nullptr;  // mxfp4 only
    std::uint32_t id = 0;               // names the weight to its source
};

/// Whole rows [first, first + rows) of a weight. Rows are independent, so the size of a panel moves no bit.
struct Panel {
    const std::byte* data = nullptr;
    const std::byte* scales = nullptr;
    std::size_t first = 0, rows = 0;
};

/// Brings weights that are not resident. One of the two services below the engine that are virtual (a type-erased
/// service keeps Forward at one template parameter). Called by one thread at a time, in the order of the layers.
class WeightSource {
  public:
    /// Rows from `first` on: at least one, all that are left if `whole`. Valid until release. False: the read failed.
    virtual bool acquire(const Weight& weight, std::size_t first, bool whole, Panel& panel) noexcept = 0;
    virtual void release(const Weight& weight, const Panel& panel) noexcept = 0;
    /// Copies the packed bytes of `count` rows, one after another, to `out`. Embedding rows come this way.
    virtual bool read_rows(const Weight& weight, const std::int32_t* rows, std::size_t count,
                           std::byte* out) noexcept = 0;

  protected:
    ~WeightSource() = default;
};

}  // namespace k3::layers
#endif
