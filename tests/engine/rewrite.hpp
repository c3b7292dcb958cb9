#ifndef K3_TESTS_ENGINE_REWRITE_HPP
#define K3_TESTS_ENGINE_REWRITE_HPP
// A checkpoint read into memory tensor by tensor, changed, and written again: other dtypes, other order, missing parts.
#include <bit>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "k3/checkpoint/shard_index.hpp"
#include "k3/checkpoint/tensor_reader.hpp"
#include "k3/io/file.hpp"
#include "support/mini_checkpoint.hpp"

namespace k3::tests {

/// All tensors of a checkpoint, by shard, then by offset.
inline std::vector<MiniTensor> tensors_of(const std::string& dir) {
    const checkpoint::ShardIndex index = checkpoint::ShardIndex::open(dir, 1);
    std::vector<MiniTensor> all;
    index.for_each([&](std::string_view name, const checkpoint::TensorInfo& info) {
        const std::vector<std::byte> bytes = checkpoint::read_tensor(index, info);
        const char* const dtype = info.dtype == checkpoint::Dtype::f32    ? "F32"
                                  : info.dtype == checkpoint::Dtype::bf16 ? "BF16"
                                                                          : "U8";
        all.push_back({std::string(name),
                       dtype,
                       {info.shape.dims().begin(), info.shape.dims().end()},
                       std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size())});
    });
    return all;
}

/// Writes a one-shard checkpoint with the config of `config_dir`.
inline void write_checkpoint(const TempFolder& folder, const std::string& config_dir,
                             const std::vector<MiniTensor>& tensors) {
    folder.write("config.json", io::File::read_text(config_dir + "/config.json"));
    folder.write("model.safetensors", shard_of(tensors));
}

inline MiniTensor widened_to_f32(const MiniTensor& t) {
    MiniTensor wide{t.name, "F32", t.shape, std::string(t.data.size() * 2, '\0')};
    for (std::size_t i = 0; i < t.data.size() / 2; ++i)
        std::memcpy(wide.data.data() + 4 * i + 2, t.data.data() + 2 * i, 2);
    return wide;
}

/// MXFP4 to BF16 or F32, from the text of the specification; exact for the scales a checkpoint in reach of binary32
/// has. A packed shape is ambiguous for odd columns: `cols` is given.
inline MiniTensor dequantised(const MiniTensor& packed, const MiniTensor& scales, std::uint64_t cols,
                              const char* dtype) {
    const std::uint64_t rows = packed.shape[0], row_bytes = packed.shape[1], groups = scales.shape[1];
    MiniTensor out{packed.name.substr(0, packed.name.size() - std::string("_packed").size()), dtype, {rows, cols}};
    static const double kMagnitude[8] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
    for (std::uint64_t r = 0; r < rows; ++r)
        for (std::uint64_t c = 0; c < cols; ++c) {
            const auto byte = static_cast<unsigned char>(packed.data[r * row_bytes + c / 2]);
            const unsigned code = c % 2 == 0 ? byte & 15U : byte >> 4U;
            const auto scale = static_cast<unsigned char>(scales.data[r * groups + c / 32]);
            const double size = scale == 255 ? 0 : std::ldexp(kMagnitude[code & 7U], scale - 127);
            const float value = static_cast<float>(scale != 255 && code >= 8 ? -size : size);
            const auto bits = std::bit_cast<std::uint32_t>(value);
            char raw[4];
            std::memcpy(raw, &bits, 4);
            if (std::string(dtype) == "F32")
                out.data.append(raw, 4);
            else
                out.data.append(raw + 2, 2);  // a value E2M1 * 2^k has no bit below BF16's
        }
    return out;
}

inline bool ends_with(const std::string& text, const std::string& end) {
    return text.size() >= end.size() && text.compare(text.size() - end.size(), end.size(), end) == 0;
}

/// The same checkpoint with every routed expert as plain BF16 or F32.
inline std::vector<MiniTensor> plain_experts(const std::vector<MiniTensor>& tensors, std::uint64_t latent,
                                             std::uint64_t width, const char* dtype) {
    std::vector<MiniTensor> out;
    for (const MiniTensor& t : tensors) {
        if (ends_with(t.name, ".weight_scale")) continue;
        if (!ends_with(t.name, ".weight_packed")) {
            out.push_back(t);
            continue;
        }
        const std::string scale = t.name.substr(0, t.name.size() - 6) + "scale";
        for (const MiniTensor& s : tensors)
            if (s.name == scale) out.push_back(dequantised(t, s, holds(t.name, ".w2.") ? width : latent, dtype));
    }
    return out;
}

}  // namespace k3::tests
#endif
