#include "k3/stream/embedding_rows.hpp"

#include "engine/rig.hpp"
#include "support/doctest.hpp"
#include "support/mini_checkpoint.hpp"

using namespace k3;
using namespace k3::tests;

namespace {
/// An embedding of 5 rows of 3 columns; element (r, c) has the bits 16 r + c.
std::string table(const char* dtype, std::size_t size) {
    MiniTensor t{"language_model.model.embed_tokens.weight", dtype, {5, 3}, std::string(15 * size, '\0')};
    for (std::size_t r = 0; r < 5; ++r)
        for (std::size_t c = 0; c < 3; ++c) t.data[(r * 3 + c) * size] = static_cast<char>(16 * r + c);
    return shard_of({{"before", "U8", {7}}, t, {"after", "U8", {9}}});
}
}  // namespace

TEST_CASE("stream/embedding_rows: rows in the order asked for, twice if asked twice, bf16 and f32; bytes are counted") {
    for (const auto& [dtype, size, format] :
         {std::tuple{"BF16", std::size_t{2}, layers::Format::bf16}, {"F32", std::size_t{4}, layers::Format::f32}}) {
        const TempFolder folder;
        folder.write("model.safetensors", table(dtype, size));
        const auto index = checkpoint::ShardIndex::open(folder.path(), 1);
        stream::EmbeddingRows rows(index, *index.find("language_model.model.embed_tokens.weight"));
        const layers::Weight weight{format, 5, 3, nullptr, nullptr, 0};
        const Ids ids{4, 0, 4, 2};
        std::vector<std::byte> out(ids.size() * 3 * size + 1, std::byte{0x5a});
        CHECK(rows.read_rows(weight, ids.data(), ids.size(), out.data()));
        for (std::size_t i = 0; i < ids.size(); ++i)
            for (std::size_t c = 0; c < 3; ++c)
                CHECK(out[(i * 3 + c) * size] == static_cast<std::byte>(16 * ids[i] + static_cast<int>(c)));
        CHECK(out.back() == std::byte{0x5a});
        CHECK(rows.bytes_read() == ids.size() * 3 * size);
        CHECK_FALSE(rows.failure());
        layers::Panel panel;
        CHECK_FALSE(rows.acquire(weight, 0, true, panel));  // only rows come from here
        std::filesystem::resize_file(folder / "model.safetensors", index.shards()[0].data_begin + 7 + 3 * size);
        CHECK_FALSE(rows.read_rows(weight, ids.data(), ids.size(), out.data()));
        CHECK(holds(rows.failure()->what(), folder / "model.safetensors"));
    }
}
