// How long ShardIndex::open takes, and what it holds, on headers of exactly the released shape: 96 shards, 93 layers,
// 896 experts, 497,220 tensors. The data sections are holes, so that the sizes are right and the disk stays empty.
//   index_bench [--threads N] [--runs N] [--dir DIR]
// Prints one line each for: headers alone, and with the 60 MB model.safetensors.index.json beside them.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <stdexcept>
#include <string>
#include <vector>

#include "k3/checkpoint/shard_index.hpp"

namespace {

struct Tensor {
    std::string name, dtype;
    std::vector<std::uint64_t> shape;
};

std::vector<Tensor> layer_tensors(unsigned layer) {
    const std::string at = "language_model.model.layers." + std::to_string(layer) + ".";
    const bool is_mla = layer % 4 == 3 || layer == 92;
    std::vector<Tensor> f32, bf16, u8;
    const auto add =
        [&](std::vector<Tensor>& to, const char* dtype, const std::string& name, std::vector<std::uint64_t> shape) {
        to.push_back({at + name, dtype, std::move(shape)});
    };
    for (const char* name : {"input_layernorm.weight", "post_attention_layernorm.weight",
                             "self_attention_res_norm.weight", "mlp_res_norm.weight"}) {
        add(bf16, "BF16", name, {7168});
    }
    add(bf16, "BF16", "self_attention_res_proj.weight", {1, 7168});
    add(bf16, "BF16", "mlp_res_proj.weight", {1, 7168});
    const std::string self = "self_attn.";
    if (is_mla) {
        add(bf16, "BF16", self + "q_a_proj.weight", {1536, 7168});
        add(bf16, "BF16", self + "q_a_layernorm.weight", {1536});
        add(bf16, "BF16", self + "q_b_proj.weight", {18432, 1536});
        add(bf16, "BF16", self + "kv_a_proj_with_mqa.weight", {576, 7168});
        add(bf16, "BF16", self + "kv_a_layernorm.weight", {512});
        add(bf16, "BF16", self + "kv_b_proj.weight", {24576, 512});
    } else {
        for (const char* name : {"q_proj", "k_proj", "v_proj"}) {
            add(bf16, "BF16", self + name + ".weight", {12288, 7168});
            add(f32, "F32", self + name[0] + "_conv1d.weight", {12288, 1, 4});
        }
        add(bf16, "BF16", self + "f_a_proj.weight", {128, 7168});
        add(bf16, "BF16", self + "f_b_proj.weight", {12288, 128});
        add(bf16, "BF16", self + "b_proj.weight", {96, 7168});
        add(f32, "F32", self + "A_log", {128});
        add(f32, "F32", self + "dt_bias", {12288});
        add(f32, "F32", self + "o_norm.weight", {128});
    }
    add(bf16, "BF16", self + "g_proj.weight", {12288, 7168});
    add(bf16, "BF16", self + "o_proj.weight", {7168, 12288});
    if (layer == 0) {
        add(bf16, "BF16", "mlp.gate_proj.weight", {33792, 7168});
        add(bf16, "BF16", "mlp.up_proj.weight", {33792, 7168});
        add(bf16, "BF16", "mlp.down_proj.weight", {7168, 33792});
    } else {
        const std::string moe = "block_sparse_moe.";
        add(bf16, "BF16", moe + "gate.weight", {896, 7168});
        add(f32, "F32", moe + "gate.e_score_correction_bias", {896});
        add(bf16, "BF16", moe + "routed_expert_down_proj.weight", {3584, 7168});
        add(bf16, "BF16", moe + "routed_expert_up_proj.weight", {7168, 3584});
        add(bf16, "BF16", moe + "routed_expert_norm.weight", {3584});
        add(bf16, "BF16", moe + "shared_experts.gate_proj.weight", {6144, 7168});
        add(bf16, "BF16", moe + "shared_experts.up_proj.weight", {6144, 7168});
        add(bf16, "BF16", moe + "shared_experts.down_proj.weight", {7168, 6144});
        for (unsigned e = 0; e < 896; ++e) {
            const std::string expert = moe + "experts." + std::to_string(e);
            for (const char* w : {".w1", ".w2", ".w3"}) {
                const bool down = w[2] == '2';
                const std::uint64_t rows = down ? 3584 : 3072, cols = down ? 3072 : 3584;
                add(u8, "U8", expert + w + ".weight_packed", {rows, cols / 2});
                add(u8, "U8", expert + w + ".weight_scale", {rows, cols / 32});
            }
        }
    }
    const auto by_name = [](const Tensor& a, const Tensor& b) { return a.name < b.name; };
    for (auto* part : {&f32, &bf16, &u8}) std::sort(part->begin(), part->end(), by_name);  // as the usual writer does
    f32.insert(f32.end(), bf16.begin(), bf16.end());
    f32.insert(f32.end(), u8.begin(), u8.end());
    return f32;
}

std::vector<Tensor> last_shards(unsigned shard) {
    const std::string text = "language_model.model.", vision = "vision_tower.";
    if (shard == 94) {
        return {{"language_model.lm_head.weight", "BF16", {163840, 7168}},
                {text + "embed_tokens.weight", "BF16", {163840, 7168}},
                {text + "norm.weight", "BF16", {7168}},
                {text + "output_attn_res_norm.weight", "BF16", {7168}},
                {text + "output_attn_res_proj.weight", "BF16", {1, 7168}}};
    }
    if (shard == 95) {
        return {{"mm_projector.post_norm.weight", "BF16", {7168}},
                {"mm_projector.proj.0.weight", "BF16", {4096, 4096}},
                {"mm_projector.proj.2.weight", "BF16", {7168, 4096}}};
    }
    std::vector<Tensor> tensors{{vision + "patch_embed.proj.weight", "BF16", {1024, 3, 14, 14}},
                                {vision + "patch_embed.pos_emb.weight", "BF16", {64, 64, 1024}},
                                {vision + "encoder.final_layernorm.weight", "BF16", {1024}}};
    for (int b = 0; b < 27; ++b) {
        const std::string block = vision + "encoder.blocks." + std::to_string(b) + ".";
        tensors.push_back({block + "norm0.weight", "BF16", {1024}});
        tensors.push_back({block + "wqkv.weight", "BF16", {4608, 1024}});
        tensors.push_back({block + "wo.weight", "BF16", {1024, 1536}});
        tensors.push_back({block + "norm1.weight", "BF16", {1024}});
        tensors.push_back({block + "mlp.fc0.weight", "BF16", {4096, 1024}});
        tensors.push_back({block + "mlp.fc1.weight", "BF16", {1024, 4096}});
    }
    return tensors;
}

/// Writes the header and makes the file as long as its data; returns the header's bytes with the length field.
std::uint64_t write_shard(const std::string& path, const std::vector<Tensor>& tensors) {
    std::string json = "{\"__metadata__\":{\"format\":\"pt\"}";
    std::uint64_t end = 0;
    for (const Tensor& tensor : tensors) {
        std::uint64_t bytes = tensor.dtype == "F32" ? 4 : tensor.dtype == "BF16" ? 2 : 1;
        json += ",\"" + tensor.name + "\":{\"dtype\":\"" + tensor.dtype + "\",\"shape\":[";
        for (std::size_t i = 0; i < tensor.shape.size(); ++i) {
            if (i > 0) json += ',';
            json += std::to_string(tensor.shape[i]);
            bytes *= tensor.shape[i];
        }
        json += "],\"data_offsets\":[" + std::to_string(end) + "," + std::to_string(end + bytes) + "]}";
        end += bytes;
    }
    json += "}";
    json.append((8 - json.size() % 8) % 8, ' ');
    const std::uint64_t length = json.size();
    json.insert(0, reinterpret_cast<const char*>(&length), 8);
    const int fd = ::open(path.c_str(), O_CREAT | O_TRUNC | O_WRONLY, 0644);
    const bool good = fd >= 0 && ::write(fd, json.data(), json.size()) == static_cast<ssize_t>(json.size()) &&
                      ::ftruncate(fd, static_cast<off_t>(json.size() + end)) == 0;
    if (fd >= 0) ::close(fd);
    if (!good) throw std::runtime_error("cannot write " + path);
    return json.size();
}

void measure(const char* label, const std::string& dir, unsigned threads, unsigned runs) {
    std::vector<double> seconds, cpu_seconds;  // on a busy machine the second says more
    std::size_t memory = 0, tensors = 0;
    std::uint64_t payload = 0;
    for (unsigned run = 0; run <= runs; ++run) {  // the first warms the page cache
        const auto start = std::chrono::steady_clock::now();
        const std::clock_t cpu_start = std::clock();
        const auto index = k3::checkpoint::ShardIndex::open(dir, threads);
        const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
        if (run > 0) {
            seconds.push_back(took.count());
            cpu_seconds.push_back(static_cast<double>(std::clock() - cpu_start) / CLOCKS_PER_SEC);
        }
        memory = index.memory_bytes();
        tensors = index.size();
        payload = index.payload_bytes();
    }
    std::sort(seconds.begin(), seconds.end());
    std::sort(cpu_seconds.begin(), cpu_seconds.end());
    std::printf(
        "%-18s threads %u  median %.3f s  (min %.3f, max %.3f, %u warm runs)  cpu %.3f s  %zu tensors  index %.2f MiB  "
        "payload %llu bytes\n",
        label, threads, seconds[seconds.size() / 2], seconds.front(), seconds.back(), runs,
        cpu_seconds[cpu_seconds.size() / 2], tensors, static_cast<double>(memory) / (1 << 20),
        static_cast<unsigned long long>(payload));
}

int run(int argc, char** argv) {
    unsigned threads = 2, runs = 5;
    std::string parent = std::filesystem::temp_directory_path().string();
    for (int i = 1; i + 1 < argc; i += 2) {
        const std::string option = argv[i];
        if (option == "--threads") threads = static_cast<unsigned>(std::stoul(argv[i + 1]));
        if (option == "--runs") runs = std::max(1u, static_cast<unsigned>(std::stoul(argv[i + 1])));
        if (option == "--dir") parent = argv[i + 1];
    }
    std::string dir = parent + "/k3-index-bench-XXXXXX";
    if (::mkdtemp(dir.data()) == nullptr) throw std::runtime_error("cannot make a directory in " + parent);
    struct Cleanup {
        const std::string& dir;
        ~Cleanup() {
            std::error_code ignored;
            std::filesystem::remove_all(dir, ignored);
        }
    } cleanup{dir};

    std::string map;
    std::uint64_t headers = 0;
    for (unsigned shard = 1; shard <= 96; ++shard) {
        char file[64];
        std::snprintf(file, sizeof file, "model-%05u-of-000096.safetensors", shard);
        const std::vector<Tensor> tensors = shard <= 93 ? layer_tensors(shard - 1) : last_shards(shard);
        headers += write_shard(dir + "/" + file, tensors);
        for (const Tensor& tensor : tensors) map += ",\n    \"" + tensor.name + "\": \"" + file + "\"";
    }
    std::printf("96 shards, %llu bytes of headers with their length fields\n",
                static_cast<unsigned long long>(headers));
    measure("headers", dir, threads, runs);
    map = "{\n  \"metadata\": {\"total_size\": 0},\n  \"weight_map\": {" + map.substr(1) + "\n  }\n}\n";
    const int fd = ::open((dir + "/model.safetensors.index.json").c_str(), O_CREAT | O_WRONLY, 0644);
    const bool good = fd >= 0 && ::write(fd, map.data(), map.size()) == static_cast<ssize_t>(map.size());
    if (fd >= 0) ::close(fd);
    if (!good) throw std::runtime_error("cannot write the index file");
    measure("headers + index.json", dir, threads, runs);
    return 0;
}

}  // namespace

int main(int argc, char** argv) {
    try {
        return run(argc, argv);
    } catch (const std::exception& error) {
        std::fprintf(stderr, "index_bench: %s\n", error.what());
        return 1;
    }
}
