#include "k3/checkpoint/dtype.hpp"
#include "k3/checkpoint/expert_name.hpp"
#include "k3/checkpoint/tensor_info.hpp"
#include "support/doctest.hpp"

using namespace k3::checkpoint;

TEST_CASE("checkpoint/dtype: every name leads to its type and back") {
    for (unsigned i = 0; i < 22; ++i) {
        const auto dtype = static_cast<Dtype>(i);
        REQUIRE(dtype_named(name(dtype)).has_value());
        CHECK(*dtype_named(name(dtype)) == dtype);
    }
    CHECK(!dtype_named("bf16"));
    CHECK(!dtype_named(""));
    CHECK(!dtype_named("Q4_K"));
}

TEST_CASE("checkpoint/dtype: the rows of the table are in the order of the enum") {
    CHECK(name(Dtype::boolean) == "BOOL");
    CHECK(name(Dtype::u8) == "U8");
    CHECK(name(Dtype::f8_e8m0) == "F8_E8M0");
    CHECK(name(Dtype::bf16) == "BF16");
    CHECK(name(Dtype::f32) == "F32");
    CHECK(name(Dtype::u64) == "U64");
    CHECK(element_bytes(Dtype::bf16) == 2);
    CHECK(element_bytes(Dtype::f32) == 4);
    CHECK(bits(Dtype::f6_e3m2) == 6);
    CHECK(element_bytes(Dtype::f4) == 0);
}

TEST_CASE("checkpoint/tensor_info: a scalar has one element, a zero anywhere makes none, an overflow is noticed") {
    CHECK(element_count(Shape{}) == 1u);
    CHECK(element_count(Shape{0}) == 0u);
    CHECK(element_count(Shape{1ull << 33, 1ull << 31, 0}) == 0u);
    CHECK(!element_count(Shape{1ull << 32, 1ull << 32}));
    CHECK(!element_count(Shape{1ull << 63, 2}));
    CHECK(byte_count(Dtype::bf16, Shape{1ull << 62}) == 1ull << 63);  // its bits alone would overflow
    CHECK(!byte_count(Dtype::f32, Shape{1ull << 62}));
    CHECK(byte_count(Dtype::f4, Shape{6}) == 3u);
    CHECK(!byte_count(Dtype::f4, Shape{7}));
    CHECK(byte_count(Dtype::f6_e2m3, Shape{4}) == 3u);
}

TEST_CASE("checkpoint/expert_name: names and coordinates convert both ways, and near misses stay names") {
    const std::string text = "language_model.model.layers.92.block_sparse_moe.experts.895.w2.weight_scale";
    const auto parsed = parse_expert_name(text);
    REQUIRE(parsed.has_value());
    CHECK(*parsed == ExpertName{92, 895, ExpertMatrix::down, ExpertPart::scale});
    CHECK(to_string(*parsed) == text);
    CHECK(ExpertName::from_key(parsed->key()) == *parsed);
    const std::string head = "language_model.model.layers.";
    for (const char* tail :
         {"1.block_sparse_moe.experts.01.w1.weight", "01.block_sparse_moe.experts.1.w1.weight",
          "1.block_sparse_moe.experts.1.w4.weight", "1.block_sparse_moe.experts.1.w1.weights",
          "1.block_sparse_moe.experts.1.w1.", "1.block_sparse_moe.experts.-1.w1.weight", "1.block_sparse_moe.experts.",
          "1.block_sparse_moe.experts.4294967296.w1.weight", "99999999999.block_sparse_moe.experts.1.w1.weight"}) {
        CHECK_MESSAGE(!parse_expert_name(head + tail), tail);
    }
    CHECK(!parse_expert_name("model.layers.1.block_sparse_moe.experts.1.w1.weight"));
}
