#ifndef K3_DRIVERS_BENCH_DIGEST_KERNELS_HPP
#define K3_DRIVERS_BENCH_DIGEST_KERNELS_HPP
// The digest cases of the kernels that are not matrix products, and the list of all cases.
#include <algorithm>
#include <utility>

#include "drivers/bench/digest_cases.hpp"

namespace k3::bench {
namespace detail {

/// A kernel of n elements. `fn` fills y from x, w and z.
template <class Fn>
void add_vector(std::vector<DigestCase>& all, const char* kernel, std::initializer_list<std::size_t> lengths, Fn fn) {
    for (const std::size_t n : lengths) {
        const auto run = [n, fn](const KernelTable& table, std::size_t) {
            const auto x = numbers(n, 41), w = numbers(n, 42, 0.25F);
            std::vector<float> y = numbers(n, 43);
            fn(table, x.data(), w.data(), n, y.data());
            return digest_of(y);
        };
        all.push_back({name_of(kernel, "f32", dim("n", n)), 1, run});
    }
}

inline void add_vectors(std::vector<DigestCase>& all) {
    using Unary = kernel_table::UnaryFn KernelTable::*;
    for (const auto& [name, fn] : {std::pair<const char*, Unary>{"exp", &KernelTable::exp},
                                   {"sigmoid", &KernelTable::sigmoid},
                                   {"tanh", &KernelTable::tanh},
                                   {"silu", &KernelTable::silu}}) {
        const auto run = [fn = fn](const KernelTable& table, std::size_t) {
            const auto x = wide_numbers(4099, 44);
            std::vector<float> y(x.size());
            (table.*fn)(x.data(), x.size(), y.data());
            return digest_of(y);
        };
        all.push_back({name_of(name, "f32", dim("n", 4099)), 1, run});
        const auto specials = [fn = fn](const KernelTable& table, std::size_t) {
            const auto x = special_tokens(321);
            std::vector<float> y(x.size());
            (table.*fn)(x.data(), x.size(), y.data());
            return digest_of(y);
        };
        all.push_back({name_of(name, "f32", "specials", dim("n", 5 * 321)), 1, specials});
    }
    using T = const KernelTable&;
    using N = std::size_t;
    using P = const float*;
    add_vector(all, "rmsnorm", {7, 7168}, [](T t, P x, P w, N n, float* y) { t.rmsnorm(x, w, n, 1e-5, y); });
    add_vector(all, "l2norm", {7, 128}, [](T t, P x, P, N n, float* y) { t.l2norm(x, n, y); });
    add_vector(all, "l2norm_scaled", {7, 128},
               [](T t, P x, P, N n, float* y) { t.l2norm_scaled(x, n, 0x1.6a09e6p-4F, y); });
    add_vector(all, "add", {7, 7168}, [](T t, P x, P w, N n, float* y) { t.add(x, w, n, y); });
    add_vector(all, "sigmoid_gate", {7, 12288}, [](T t, P x, P w, N n, float* y) { t.sigmoid_gate(x, w, n, y); });
    add_vector(all, "scaled_add", {7, 3584}, [](T t, P x, P, N n, float* y) { t.scaled_add(0x1.3p-3F, x, n, y); });
    add_vector(all, "situ_glu", {7, 3072}, [](T t, P x, P w, N n, float* y) { t.situ_glu(x, w, n, 4.0F, 25.0F, y); });
    add_vector(all, "decay", {7, 128}, [](T t, P x, P w, N n, float* y) { t.decay(x, w, n, 0x1.9p0F, -5.0F, y); });
}

inline void add_recurrences(std::vector<DigestCase>& all) {
    for (const auto& [keys, values] : {std::pair<std::size_t, std::size_t>{128, 128}, {13, 75}}) {
        const auto run = [keys = keys, values = values](const KernelTable& table, std::size_t) {
            std::vector<float> state = numbers(keys * values, 51), out(values);
            core::Digest d;
            for (std::uint64_t t = 0; t < 6; ++t) {
                const auto q = numbers(keys, 60 + t, 0x1p-5F), k = numbers(keys, 70 + t, 0x1p-5F);
                const auto v = numbers(values, 80 + t), alpha = decays(keys, 90 + t);
                table.delta_rule(state.data(), keys, values,
                                 {q.data(), k.data(), v.data(), alpha.data(), 0.125F * static_cast<float>(t + 1)},
                                 out.data());
                d.add(out.data(), values);
            }
            d.add(state.data(), state.size());
            return d.value();
        };
        all.push_back({name_of("delta_rule", "f32", dim("K", keys), dim("V", values)), 1, run});
    }
    for (const auto& [tokens, channels] : {std::pair<std::size_t, std::size_t>{1, 1536}, {9, 37}}) {
        const auto run = [tokens = tokens, channels = channels](const KernelTable& table, std::size_t) {
            constexpr std::size_t kTaps = 4;
            const auto u = numbers(tokens * channels, 101), w = numbers(kTaps * channels, 102);
            std::vector<float> history = numbers((kTaps - 1) * channels, 103), y(tokens * channels);
            const kernel_table::In in(u.data(), tokens, channels);
            table.short_conv(in, w.data(), kTaps, history.data(), 0, channels, {y.data(), tokens, channels});
            table.shift_history(in, tokens, kTaps, 0, channels, history.data());
            core::Digest d;
            d.add(y.data(), y.size());
            d.add(history.data(), history.size());
            return d.value();
        };
        all.push_back({name_of("short_conv", "f32", dim("T", tokens), dim("P", channels)), 1, run});
    }
}

inline void add_attention(std::vector<DigestCase>& all) {
    for (const auto& [count, n] : {std::pair<std::size_t, std::size_t>{1, 40}, {9, 7168}}) {
        const auto run = [count = count, n = n](const KernelTable& table, std::size_t) {
            const auto memory = numbers(count * n, 111), fold = numbers(n, 112, 0x1p-6F);
            std::vector<const float*> sources;
            for (std::size_t s = 0; s < count; ++s) sources.push_back(memory.data() + s * n);
            std::vector<float> out(n), scratch(count);
            table.attention_residual(sources.data(), count, fold.data(), n, 1e-5, out.data(), scratch.data());
            return digest_of(out);
        };
        all.push_back({name_of("attention_residual", "f32", dim("S", count), dim("n", n)), 1, run});
    }
    struct Shape {
        std::size_t positions, heads, latent, rope;
    };
    for (const Shape s : {Shape{1, 8, 512, 64}, Shape{150, 8, 512, 64}, Shape{67, 5, 20, 6}}) {
        const auto run = [s](const KernelTable& table, std::size_t) {
            constexpr std::size_t kPage = 64;
            const std::size_t width = (s.latent + 7) / 8 * 8 + (s.rope + 7) / 8 * 8;
            std::vector<float> memory((s.positions + kPage - 1) / kPage * kPage * width);
            for (std::size_t p = 0; p < s.positions; ++p)
                for (std::size_t i = 0; i < s.latent + s.rope; ++i)
                    memory[p * width + (i < s.latent ? i : (s.latent + 7) / 8 * 8 + i - s.latent)] =
                        number(121, p * 1000 + i) * 0x1p-3F;
            std::vector<float*> pages;
            for (std::size_t p = 0; p < s.positions; p += kPage) pages.push_back(memory.data() + p * width);
            const auto qa = numbers(s.heads * s.latent, 122, 0x1p-1F), qr = numbers(s.heads * s.rope, 123);
            std::vector<float> out(s.heads * s.latent);
            Workspace work(1, {table.latent_attention_scratch(s.positions, width), 0});
            table.latent_attention({pages.data(), kPage, s.latent, s.rope}, s.positions, s.heads, qa.data(), s.latent,
                                   qr.data(), s.rope, 0x1.279a74590331cp-4, out.data(), s.latent, work.arena());
            return digest_of(out);
        };
        all.push_back({name_of("latent_attention", "f32", dim("S", s.positions), dim("H", s.heads),
                               dim("latent", s.latent), dim("rope", s.rope)),
                       1, run});
    }
}

inline void add_choices(std::vector<DigestCase>& all) {
    for (const auto& [experts, top_k] : {std::pair<std::size_t, std::size_t>{896, 16}, {61, 1}}) {
        const auto run = [experts = experts, top_k = top_k](const KernelTable& table, std::size_t) {
            const auto logits = numbers(experts, 131), bias = numbers(experts, 132, 0x1p-5F);
            std::vector<float> weights(top_k), scratch(experts);
            std::vector<std::int32_t> ids(top_k);
            const bool ok = table.route(logits.data(), bias.data(), experts, {top_k, true, 2.5}, ids.data(),
                                        weights.data(), scratch.data());
            core::Digest d;
            d.add(ok ? 1.0F : 0.0F);
            for (const std::int32_t id : ids) d.add(static_cast<float>(id));
            d.add(weights.data(), weights.size());
            return d.value();
        };
        all.push_back({name_of("route", "f32", dim("E", experts), dim("k", top_k)), 1, run});
    }
    const auto run = [](const KernelTable& table, std::size_t) {
        const auto x = numbers(16384, 141);
        core::Digest d;
        d.add(static_cast<double>(table.argmax(x.data(), x.size())));
        return d.value();
    };
    all.push_back({name_of("argmax", "f32", dim("n", 16384)), 1, run});
}

}  // namespace detail

inline std::vector<DigestCase> digest_cases() {
    std::vector<DigestCase> all;
    detail::add_matmul(all);
    detail::add_matmul_edges(all);
    detail::add_sums(all);
    detail::add_vectors(all);
    detail::add_recurrences(all);
    detail::add_attention(all);
    detail::add_choices(all);
    return all;
}

}  // namespace k3::bench
#endif
