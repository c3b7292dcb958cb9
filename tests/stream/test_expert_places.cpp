#include <algorithm>

#include "engine/rewrite.hpp"
#include "engine/rig.hpp"
#include "support/doctest.hpp"

using namespace k3;
using namespace k3::tests;
using engine::ArchName;

namespace {

Floats logits_of(Loaded& model, ArchName arch) {
    Runner runner(model, arch, 2);
    Sequence sequence(runner);
    return sequence.feed_all(runner, some_ids(30, runner.vocab(), 3), 11);
}

/// Golden B with its tensors in another order over several shards.
void write_shards(const TempFolder& folder, const std::vector<MiniTensor>& tensors, unsigned shards) {
    folder.write("config.json", io::File::read_text(golden_dir("B") + "/config.json"));
    for (unsigned s = 0; s < shards; ++s) {
        std::vector<MiniTensor> mine;
        for (std::size_t i = s; i < tensors.size(); i += shards) mine.push_back(tensors[i]);
        folder.write(shard_name(s + 1, shards), shard_of(mine));
    }
}

}  // namespace

TEST_CASE(
    "stream/expert_places: golden B stores its experts away from their trunk (the fixture is what it claims to "
    "be)") {
    const auto index = checkpoint::ShardIndex::open(golden_dir("B"), 1);
    std::size_t away = 0;
    for (std::uint32_t layer = 1; layer < 9; ++layer) {
        const auto trunk = *index.find(model::names::layer(layer, model::names::kInputNorm));
        for (std::uint32_t e = 0; e < 7; ++e)
            away += index.expert(layer, e, checkpoint::ExpertMatrix::gate, checkpoint::ExpertPart::packed)->shard !=
                    trunk.shard;
    }
    CHECK(away > 0);
}

TEST_CASE("stream/expert_places: traps 49 and 50, experts scattered over shards in any order give the same bits") {
    Loaded original(golden_dir("B"));
    const Floats want = logits_of(original, ArchName::scalar);
    REQUIRE(all_finite(want));
    std::vector<MiniTensor> tensors = tensors_of(golden_dir("B"));
    for (const unsigned shards : {1U, 3U})
        for (int order = 0; order < 3; ++order) {
            if (order == 0) std::reverse(tensors.begin(), tensors.end());
            if (order == 1)
                std::sort(tensors.begin(), tensors.end(),
                          [](const MiniTensor& a, const MiniTensor& b) { return a.data.size() < b.data.size(); });
            if (order == 2) std::rotate(tensors.begin(), tensors.begin() + 17, tensors.end());
            const TempFolder folder;
            write_shards(folder, tensors, shards);
            Loaded model(folder.path());
            for (const ArchName arch : engine::arches_of_this_cpu()) CHECK(same_bits(logits_of(model, arch), want));
        }
}
