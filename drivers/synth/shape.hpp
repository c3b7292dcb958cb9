#ifndef K3_DRIVERS_SYNTH_SHAPE_HPP
#define K3_DRIVERS_SYNTH_SHAPE_HPP
// What to write: the options of k3-synth, the two sets of values they start from, and the checks that turn them into a
// model::Config and a layer map.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <optional>
#include <string>
#include <vector>

#include "k3/core/error.hpp"
#include "k3/model/config.hpp"

namespace k3::synth {

/// One option that sets one size.
struct SizeOption {
    const char* flag;
    std::size_t model::Config::*field;
    std::size_t small, released;  // the value without and with --like-release
    std::size_t limit;            // keeps every product far below 2^64, and names a typing error
    const char* help;
};

inline constexpr std::size_t kMaxWidth = std::size_t{1} << 20;

// The small set is a model of a few megabytes whose sizes all differ, so that a swapped pair shows.
inline constexpr SizeOption kSizeOptions[] = {
    {"--layers", &model::Config::layers, 5, 5, 9999, "decoder layers; the first has a dense MLP"},
    {"--hidden", &model::Config::hidden, 256, 7168, kMaxWidth, "residual width"},
    {"--experts", &model::Config::experts, 16, 48, 65536, "routed experts a layer (896 in the release)"},
    {"--topk", &model::Config::experts_per_token, 4, 16, 64, "experts a token"},
    {"--latent", &model::Config::latent, 160, 3584, kMaxWidth, "width the routed experts work in"},
    {"--expert-width", &model::Config::expert_width, 96, 3072, kMaxWidth, "inner width of an expert"},
    {"--shared", &model::Config::shared_experts, 2, 2, 1024, "width of the shared expert, in expert widths"},
    {"--dense-width", &model::Config::dense_width, 448, 33792, kMaxWidth, "inner width of the dense MLP"},
    {"--kda-heads", &model::Config::kda_heads, 6, 96, 65536, "KDA heads"},
    {"--kda-dim", &model::Config::kda_head_dim, 32, 128, 65536, "KDA head width, keys and values alike"},
    {"--heads", &model::Config::heads, 5, 96, 65536, "MLA heads"},
    {"--q-lora", &model::Config::q_lora, 80, 1536, kMaxWidth, "rank of the MLA queries"},
    {"--kv-lora", &model::Config::kv_lora, 64, 512, kMaxWidth, "rank of the MLA keys and values"},
    {"--nope", &model::Config::qk_nope, 40, 128, 65536, "MLA key width besides the shared slot"},
    {"--rope", &model::Config::qk_rope, 16, 64, 65536, "width of the shared key slot (never rotated)"},
    {"--v-head", &model::Config::v_head, 24, 128, 65536, "MLA value width"},
    {"--vocab", &model::Config::vocab, 1024, 163840, std::size_t{1} << 24, "tokens, special slots included"},
    {"--block", &model::Config::attn_res_block, 3, 12, 65536, "layers between attention residual snapshots"},
};
// What --release changes in the released set, which --like-release keeps small.
inline constexpr std::size_t kReleasedLayers = 93, kReleasedExperts = 896;

/// The image part of the release. It has no options: the text model is what is tried out.
namespace vision {
inline constexpr std::size_t kWidth = 1024, kAttention = 1536, kInner = 4096, kBlocks = 27, kHeads = 12;
inline constexpr std::size_t kPatch = 14, kGrid = 64, kFrames = 4;
}  // namespace vision

inline constexpr std::size_t kSizeCount = std::size(kSizeOptions);
inline constexpr std::size_t kTopkIndex = 3;
static_assert(kSizeOptions[kTopkIndex].field == &model::Config::experts_per_token);

struct Options {
    std::optional<std::size_t> sizes[kSizeCount]{};  // in the order of kSizeOptions; empty = the set's value
    std::vector<std::size_t> full_attn{};            // one-based; empty = every fourth and the last
    bool like_release = false;
    bool release = false;  // the released sizes and the image part
    bool sparse = false;   // files with holes; see sparse.hpp
};

struct ModelShape {
    model::Config config;
    std::vector<std::size_t> mla_layers;  // one-based and ascending, as config.json has them
    bool images = false, sparse = false;

    bool is_mla(std::size_t layer) const noexcept {
        return std::binary_search(mla_layers.begin(), mla_layers.end(), layer + 1);
    }
};

/// Single-byte tokens need 256 ids; the special slots come after all ranks. 256 slots as in the release, or 16, just
/// enough for the named ones, where the vocabulary is too small for that.
inline std::size_t special_slots(std::size_t vocab) noexcept { return vocab >= 512 ? 256 : 16; }

namespace detail {
inline std::size_t preset(const Options& options, const SizeOption& option) noexcept {
    if (options.release && option.field == &model::Config::layers) return kReleasedLayers;
    if (options.release && option.field == &model::Config::experts) return kReleasedExperts;
    return options.release || options.like_release ? option.released : option.small;
}

inline void check_map(const std::vector<std::size_t>& mla, std::size_t layers) {
    const auto refuse = [](const std::string& what) {
        throw Error(Code::usage, "--full-attn " + what, "give ascending layer numbers from 1 on, for instance 4,8,9");
    };
    for (std::size_t i = 0; i < mla.size(); ++i) {
        if (mla[i] < 1 || mla[i] > layers) {
            refuse("names layer " + std::to_string(mla[i]) + ", outside 1.." + std::to_string(layers));
        }
        if (i > 0 && mla[i] <= mla[i - 1]) refuse("is not strictly ascending at " + std::to_string(mla[i]));
    }
    if (mla.size() >= layers) refuse("leaves no KDA layer");
}
}  // namespace detail

/// Applies the defaults and checks everything. Errors: Code::usage naming the option and its range.
inline ModelShape make_shape(const Options& options) {
    ModelShape shape{};
    shape.images = options.release;
    shape.sparse = options.sparse;
    model::Config& c = shape.config;
    for (std::size_t i = 0; i < kSizeCount; ++i) {
        const SizeOption& option = kSizeOptions[i];
        const std::size_t value = options.sizes[i].value_or(detail::preset(options, option));
        if (value < 1 || value > option.limit) {
            throw Error(Code::usage,
                        std::string(option.flag) + " " + std::to_string(value) + " is outside 1.." +
                            std::to_string(option.limit),
                        "choose a value in that range");
        }
        c.*option.field = value;
    }
    if (!options.sizes[kTopkIndex]) c.experts_per_token = std::min(c.experts_per_token, c.experts);
    if (c.layers < 2) {
        throw Error(Code::usage, "--layers 1 cannot hold both kinds of attention", "ask for at least 2 layers");
    }
    if (c.experts_per_token > c.experts) {
        throw Error(Code::usage,
                    "--topk " + std::to_string(c.experts_per_token) + " exceeds --experts " + std::to_string(c.experts),
                    "lower --topk or raise --experts");
    }
    if (c.vocab < 272) {
        throw Error(
            Code::usage,
            "--vocab " + std::to_string(c.vocab) + " has no room for 256 single-byte tokens and 16 special ones",
            "ask for at least 272");
    }
    c.rms_norm_eps = 1e-5;
    c.mla_norm_eps = 1e-6;  // the reader's own value: not written, as in the release
    c.conv_kernel = 4;
    c.gate_lower_bound = -5.0;
    c.mla_output_gate = c.latent_norm = c.renormalize = true;
    c.routed_scale = 1.0;
    c.first_dense = 1;
    c.situ_beta = 4.0;
    c.situ_linear_beta = 25.0;
    c.max_positions = 1048576;
    shape.mla_layers = options.full_attn;
    if (shape.mla_layers.empty()) {
        for (std::size_t layer = 4; layer < c.layers; layer += 4) shape.mla_layers.push_back(layer);
        shape.mla_layers.push_back(c.layers);
    }
    detail::check_map(shape.mla_layers, c.layers);
    return shape;
}

}  // namespace k3::synth
#endif
