// Mistakes of the engine itself, where tests/drivers/test_conform.py damages the engine's weights: the layer functions
// that k3-conform calls through its table are replaced by ones with a mistake, and the walk must name the stage.
#include "drivers/conform/walk.hpp"
#include "support/doctest.hpp"

namespace conform = k3::conform;
namespace layers = k3::layers;

namespace {

constexpr std::size_t kTokens = 6, kMoeLayer = 3;
const std::string kModel = K3_SOURCE_DIR "/tests/golden/F/model";

/// All stages of layers 0 to kMoeLayer of golden F, judged on an engine with this table.
std::vector<conform::LayerResult> walk(const conform::ArchTable& table) {
    conform::Engine engine({.model_dir = kModel,
                            .config_path = kModel + "/config.json",
                            .layers = kMoeLayer + 1,
                            .tokens = kTokens,
                            .table = &table});
    engine.allocate();
    const conform::Reference reference{engine.index(), engine.c(), 1};
    conform::Walk walk(engine, reference, 1, kTokens);
    std::vector<conform::LayerResult> results{walk.begin(0)};
    for (std::size_t n = 0; n <= kMoeLayer; ++n) results.push_back(walk.layer(n));
    return results;
}

/// "L03 moe output" for every stage that failed, in order.
std::string failed(const std::vector<conform::LayerResult>& results) {
    std::string text;
    for (const conform::LayerResult& result : results)
        for (const conform::Stage& stage : result.stages)
            if (!stage.passed()) text += (text.empty() ? "" : ", ") + result.label + " " + stage.name;
    return text;
}

const conform::ArchTable& sound() { return conform::kScalarTable; }

/// The sound moe, with a shared expert whose last matrix is zero; where the tool looks at the shared expert alone it
/// calls mlp and finds it sound. In layer kMoeLayer only.
k3::core::Fault moe_without_shared(const layers::Context& context, std::size_t layer, const layers::MoeShape& shape,
                                   const layers::MoeWeights& w, conform::ArchTable::In x, conform::ArchTable::Out y,
                                   k3::core::Fault* faults, k3::core::Arena scratch) noexcept {
    static const std::vector<std::byte> zeros(std::size_t{1} << 20);
    layers::MoeWeights dropped = w;
    if (layer == kMoeLayer && w.shared.down.data != nullptr) dropped.shared.down.data = zeros.data();
    return sound().moe(context, layer, shape, dropped, x, y, faults, scratch);
}

/// The sound moe with the shared expert of half the size: as if it were one of two experts to be averaged.
k3::core::Fault moe_with_half_of_shared(const layers::Context& context, std::size_t layer,
                                        const layers::MoeShape& shape, const layers::MoeWeights& w,
                                        conform::ArchTable::In x, conform::ArchTable::Out y, k3::core::Fault* faults,
                                        k3::core::Arena scratch) noexcept {
    const k3::core::Fault fault = sound().moe(context, layer, shape, w, x, y, faults, scratch);
    if (fault || layer != kMoeLayer || w.shared.down.data == nullptr) return fault;
    std::vector<float> with(y.rows * y.cols);
    for (std::size_t t = 0; t < y.rows; ++t) std::copy_n(y.row(t), y.cols, with.data() + t * y.cols);
    const k3::core::Fault again = moe_without_shared(context, layer, shape, w, x, y, faults, scratch);
    for (std::size_t t = 0; t < y.rows; ++t)
        for (std::size_t i = 0; i < y.cols; ++i) y.row(t)[i] = 0.5F * (y.row(t)[i] + with[t * y.cols + i]);
    return again;
}

}  // namespace

TEST_CASE("conform/walk: the engine's own layers pass through a table that a test gives") {
    CHECK(failed(walk(sound())) == "");
}

TEST_CASE(
    "conform/walk: an engine that drops the shared expert fails at the output of that layer's moe, nowhere else") {
    conform::ArchTable table = sound();
    table.moe = moe_without_shared;
    CHECK(failed(walk(table)) == "L03 moe output");
}

TEST_CASE("conform/walk: an engine that halves the shared expert fails at the same place") {
    conform::ArchTable table = sound();
    table.moe = moe_with_half_of_shared;
    CHECK(failed(walk(table)) == "L03 moe output");
}
