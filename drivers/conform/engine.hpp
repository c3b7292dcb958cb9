#ifndef K3_DRIVERS_CONFORM_ENGINE_HPP
#define K3_DRIVERS_CONFORM_ENGINE_HPP
// The engine's side: a bound checkpoint of which one layer at a time is in memory, and that layer run through the
// library's public functions with its intermediate results made visible (services.hpp says how).
#include <memory>
#include <string>
#include <vector>

#include "drivers/conform/arch_table.hpp"
#include "drivers/conform/services.hpp"
#include "k3/engine/arches.hpp"
#include "k3/io/parallel_read.hpp"
#include "k3/model/bound_model.hpp"
#include "k3/model/tensor_names.hpp"

namespace k3::conform {

inline const ArchTable& arch_table(engine::ArchName arch) {
    switch (arch) {
#if defined(__x86_64__)
        case engine::ArchName::sse42: return kSse42Table;
        case engine::ArchName::avx2: return kAvx2Table;
        case engine::ArchName::avx512: return kAvx512Table;
#elif defined(__aarch64__)
        case engine::ArchName::neon: return kNeonTable;
#endif
        default: return kScalarTable;
    }
}

/// fn(weight, name) for every matrix of a layer that the engine keeps as stored.
template <class Layer, class Fn>
void for_each_matrix(Layer& layer, std::size_t n, bool output_gate, Fn&& fn) {
    namespace names = model::names;
    const auto one = [&](auto& weight, std::string_view suffix) { fn(weight, names::layer(n, suffix)); };
    if (layer.kind == model::LayerKind::kda) {
        auto& w = layer.kda;
        one(w.q, names::kda::kQ);
        one(w.k, names::kda::kK);
        one(w.v, names::kda::kV);
        one(w.b, names::kda::kBeta);
        one(w.f_a, names::kda::kDecayDown);
        one(w.f_b, names::kda::kDecayUp);
        one(w.g, names::kda::kGate);
        one(w.o, names::kda::kOut);
    } else {
        auto& w = layer.mla;
        one(w.q_a, names::mla::kQDown);
        one(w.q_b, names::mla::kQUp);
        one(w.kv_a, names::mla::kKvDown);
        if (output_gate) one(w.g, names::mla::kGate);
        one(w.kv_b, names::mla::kKvUp);
        one(w.o, names::mla::kOut);
    }
    if (layer.dense) {
        one(layer.mlp.gate, names::mlp::kGate);
        one(layer.mlp.up, names::mlp::kUp);
        one(layer.mlp.down, names::mlp::kDown);
        return;
    }
    auto& w = layer.moe;
    one(w.gate, names::moe::kRouter);
    one(w.down, names::moe::kLatentDown);
    one(w.up, names::moe::kLatentUp);
    one(w.shared.gate, names::moe::kSharedGate);
    one(w.shared.up, names::moe::kSharedUp);
    one(w.shared.down, names::moe::kSharedDown);
}

class Engine {
  public:
    struct Options {
        std::string model_dir{}, config_path{};
        std::size_t layers = 0;  // the first so many are bound; 0: all
        std::size_t tokens = 0;
        engine::ArchName arch = engine::ArchName::scalar;
        unsigned threads = 1;
        const ArchTable* table = nullptr;  // other layers than the arch's: tests make an engine with a mistake this way
    };

    explicit Engine(const Options& o)
        : options_(o),
          config_(model::read_config(o.config_path)),
          index_(checkpoint::ShardIndex::open(o.model_dir, o.threads)),
          bound_(config_, index_, o.layers == 0 ? config_.shape.layers : o.layers),
          table_(o.table != nullptr ? *o.table : arch_table(o.arch)),
          forward_(engine::make_forward(o.arch, bound_.view())),
          source_(index_),
          experts_(index_, c().latent, c().expert_width,
                   {static_cast<float>(c().situ_beta), static_cast<float>(c().situ_linear_beta)}, table_.expert) {
        const model::ModelView& view = bound_.view();
        for (std::size_t n = 0; n < view.layer_count; ++n)
            for_each_matrix(
                view.layers[n], n, c().mla_output_gate,
                [&](const layers::Weight& w, const std::string& name) { source_.add(w, *index_.find(name)); });
        source_.add(view.lm_head, *index_.find(model::names::kLmHead));
        source_.embedding(bound_.embedding_info());
    }

    const model::Config& c() const noexcept { return config_.shape; }
    const model::ModelConfig& config() const noexcept { return config_; }
    const model::ModelView& view() const noexcept { return bound_.view(); }
    const checkpoint::ShardIndex& index() const noexcept { return index_; }
    const engine::AnyForward& forward() const noexcept { return *forward_; }
    const ArchTable& table() const noexcept { return table_; }
    const core::Exec& exec() const noexcept { return exec_; }
    core::Arena arena() const noexcept { return {workspace_.data(), workspace_.size()}; }
    ShardSource& source() noexcept { return source_; }
    Experts& experts() noexcept { return experts_; }
    model::DecoderLayer& layer() noexcept { return layer_; }

    /// Scratch for steps of options.tokens, which allocate() must have got before anything runs: the constructor holds
    /// headers and norm vectors only, so that what a run needs is known before it is taken.
    std::uint64_t scratch_bytes() const {
        const model::StepBytes need = step_bytes();
        return options_.threads * need.local + need.shared + need.workspace;
    }
    void allocate() {
        const model::StepBytes need = step_bytes();
        local_ = core::Buffer(options_.threads * need.local);
        shared_ = core::Buffer(need.shared);
        workspace_ = core::Buffer(need.workspace);
        exec_ = {options_.threads, local_.data(), need.local, shared_.data(), need.shared};
    }
    /// Bytes load() holds for a layer.
    std::uint64_t layer_bytes(std::size_t n) const {
        std::uint64_t bytes = 0;
        for_each_matrix(view().layers[n], n, c().mla_output_gate, [&](const layers::Weight&, const std::string& name) {
            bytes += padded(index_.find(name)->bytes);
        });
        return bytes;
    }
    /// Brings the matrices of layer n into memory, in place of those of the layer before.
    void load(std::size_t n) {
        layer_ = view().layers[n];
        const std::uint64_t bytes = layer_bytes(n);
        if (weights_.size() < bytes) {
            weights_ = core::Buffer();  // first, so that two layers are never held
            weights_ = core::Buffer(bytes);
        }
        std::vector<io::ReadJob> jobs;
        std::byte* at = weights_.data();
        for_each_matrix(layer_, n, c().mla_output_gate, [&](layers::Weight& weight, const std::string& name) {
            const checkpoint::TensorInfo info = *index_.find(name);
            weight.data = at;
            jobs.push_back({&index_.shard(info).file, info.offset, {at, info.bytes}});
            at += padded(info.bytes);
        });
        io::parallel_read(jobs, std::max(4U, options_.threads));
    }

    /// Turns a fault of a layer into an Error.
    void require(const core::Fault& fault, std::size_t layer) const {
        if (!fault) return;
        const std::string& why = source_.failure().empty() ? experts_.failure() : source_.failure();
        if (!why.empty()) throw Error(Code::read, "layer " + std::to_string(layer) + ": " + why, "check the disk");
        throw Error(Code::internal,
                    "the engine refused layer " + std::to_string(layer) + " with fault " +
                        std::to_string(static_cast<int>(fault.code)),
                    "report this");
    }

    Rows linear(const layers::Weight& weight, const Rows& x, std::size_t layer) {
        Rows y(x.rows, weight.rows);
        require(table_.linear(context(), weight, x.in(), y.view()), layer);
        return y;
    }
    Rows mix(const std::vector<Rows>& blocks, const Rows& prefix, const float* fold) const {
        std::vector<const float*> sources;
        for (const Rows& block : blocks) sources.push_back(block.data.data());
        sources.push_back(prefix.data.data());
        Rows y(prefix.rows, prefix.cols);
        table_.mix(exec_, sources.data(), sources.size(), fold, c().rms_norm_eps, y.view());
        return y;
    }
    Rows rmsnorm(const Rows& x, const float* weight, double eps) const {
        Rows y(x.rows, x.cols);
        table_.rmsnorm(exec_, x.in(), weight, eps, y.view());
        return y;
    }
    Rows add(const Rows& a, const Rows& b) const {
        Rows y(a.rows, a.cols);
        table_.add(exec_, a.in(), b.in(), y.view());
        return y;
    }
    /// Weights that are not in memory come from the shards.
    layers::Context context() noexcept { return {exec_, &source_, &experts_}; }
    /// Weights that are not in memory are probes.
    layers::Context probe() noexcept { return {exec_, &probe_, &experts_}; }

  private:
    model::StepBytes step_bytes() const { return forward_->step_bytes(options_.tokens, 1, options_.tokens); }
    static std::uint64_t padded(std::uint64_t bytes) { return (bytes + 63) / 64 * 64; }

    Options options_;
    model::ModelConfig config_;
    checkpoint::ShardIndex index_;
    model::BoundModel bound_;
    const ArchTable& table_;
    std::unique_ptr<engine::AnyForward> forward_;
    ShardSource source_;
    ProbeSource probe_;
    Experts experts_;
    core::Buffer local_, shared_, workspace_, weights_;
    core::Exec exec_{};
    model::DecoderLayer layer_{};
};

}  // namespace k3::conform
#endif
