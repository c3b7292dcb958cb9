// Every kernel on every arch within the float64 oracle's derived rounding budget. The oracle shares no code with k3/.
#include "oracle/kernels_f64.hpp"
#include "support/doctest.hpp"
#include "support/kernel_table.hpp"
#include "support/kernel_table_data.hpp"

using namespace k3;
using namespace k3::tests;
using oracle::Bounded;
using oracle::exact;
using oracle::Mat;
using oracle::Vec;
using oracle::worst_ratio;

namespace {

Mat mat(const float* p, std::size_t rows, std::size_t cols) {
    Mat m(static_cast<Eigen::Index>(rows), static_cast<Eigen::Index>(cols));
    for (std::size_t i = 0; i < rows * cols; ++i) m.data()[i] = static_cast<double>(p[i]);
    return m;
}
Vec vec(const Floats& x) {
    Vec v(static_cast<Eigen::Index>(x.size()));
    for (std::size_t i = 0; i < x.size(); ++i) v(static_cast<Eigen::Index>(i)) = static_cast<double>(x[i]);
    return v;
}
Eigen::Index index(std::size_t n) { return static_cast<Eigen::Index>(n); }
oracle::Weight weight(Format format, const Weights& w) {
    const Bytes b = w.bytes();
    std::vector<double> all(b.rows * b.cols);
    Mat m(index(b.rows), index(b.cols));
    for (std::size_t r = 0; r < b.rows; ++r) {
        if (format == kMxfp4) {
            const std::size_t stride = (b.cols + 1) / 2, groups = (b.cols + 31) / 32;
            oracle::mxfp4_row_to_f64(reinterpret_cast<const std::uint8_t*>(b.data) + r * stride,
                                     reinterpret_cast<const std::uint8_t*>(b.scales) + r * groups, index(b.cols),
                                     m.data() + r * b.cols);
        } else {
            for (std::size_t c = 0; c < b.cols; ++c) {
                std::uint16_t half;
                float full;
                std::memcpy(&half, b.data + 2 * (r * b.cols + c), 2);
                if (format == kF32) std::memcpy(&full, b.data + 4 * (r * b.cols + c), 4);
                m(index(r), index(c)) = format == kF32 ? static_cast<double>(full) : oracle::bf16_to_f64(half);
            }
        }
    }
    return oracle::Weight::dense(std::move(m));
}
/// The kinds whose products stay inside binary32.
constexpr Kind kSafe[] = {Kind::plain, Kind::subnormal, Kind::cancelling};

}  // namespace

TEST_CASE("kernels/matmul: within the oracle's budget, all formats, floats and sums") {
    for (const KernelTable* table : tables_of_this_cpu())
        for (std::size_t f = 0; f < kFormats; ++f)
            for (const Kind kind : kSafe)
                for (const std::size_t cols : {1U, 31U, 33U, 264U, 777U}) {
                    if (f == kMxfp4 && kind == Kind::cancelling) continue;  // any scale byte: overflows binary32
                    for (const std::size_t tokens : {1U, 2U, 7U}) {
                        const std::size_t rows = 9;
                        const Weights w(static_cast<Format>(f), rows, cols, kind, cols);
                        const Floats x(tokens * cols, kind, cols + 1);
                        Floats y(tokens * rows);
                        std::vector<double> sums(tokens * rows);
                        const Run run(2, table->matmul_scratch(cols));
                        table->matmul[f](run.exec, w.bytes(), In(x, tokens, cols), {y.data(), tokens, rows});
                        table->matmul_sums[f](run.exec, w.bytes(), In(x, tokens, cols), {sums.data(), tokens, rows});
                        const oracle::Weight weights = weight(static_cast<Format>(f), w);
                        const Bounded want = matmul(exact(mat(x, tokens, cols)), weights);
                        CAPTURE(std::string(table->name));
                        CAPTURE(std::string(kFormatNames[f]));
                        CHECK(worst_ratio(mat(y, tokens, rows), want) <= 1.0);
                        for (std::size_t t = 0; t < tokens; ++t)
                            for (std::size_t r = 0; r < rows; ++r) {
                                const Vec xs = mat(x, tokens, cols).row(index(t)).transpose(),
                                          ws = weights.row(index(r));
                                CHECK(std::fabs(sums[t * rows + r] - want.value(index(t), index(r))) <=
                                      oracle::dot64_budget(xs, ws));
                            }
                    }
                }
}

TEST_CASE("kernels/norm: within the oracle's budget") {
    for (const KernelTable* table : tables_of_this_cpu())
        for (const Kind kind : kSafe)
            for (const std::size_t n : {1U, 8U, 33U, 128U, 1000U}) {
                const Floats x(n, kind, n), w(n, Kind::plain, n + 1);
                Floats y(n);
                CAPTURE(std::string(table->name));
                table->rmsnorm(x, w, n, 1e-5, y);
                CHECK(worst_ratio(mat(y, 1, n), rmsnorm(exact(mat(x, 1, n)), vec(w), 1e-5)) <= 1.0);
                table->l2norm(x, n, y);
                CHECK(worst_ratio(mat(y, 1, n), l2norm(exact(mat(x, 1, n)))) <= 1.0);
                const double scale = 1 / std::sqrt(128.0);
                table->l2norm_scaled(x, n, static_cast<float>(scale), y);
                CHECK(worst_ratio(mat(y, 1, n), l2norm(exact(mat(x, 1, n)), scale)) <= 1.0);
            }
}

TEST_CASE("kernels/elementwise: within the oracle's budget") {
    for (const KernelTable* table : tables_of_this_cpu()) {
        const std::size_t n = 4001;
        Floats x(n), u(n), y(n);
        for (std::size_t i = 0; i < n; ++i) {
            x[i] = std::ldexp(uniform(1, i), static_cast<int>(hash(2, i) % 30) - 22);
            u[i] = std::ldexp(uniform(3, i), static_cast<int>(hash(4, i) % 30) - 20);
        }
        const Bounded in = exact(mat(x, 1, n)), up = exact(mat(u, 1, n));
        CAPTURE(std::string(table->name));
        table->sigmoid(x, n, y);
        CHECK(worst_ratio(mat(y, 1, n), sigmoid(in)) <= 1.0);
        table->tanh(x, n, y);
        CHECK(worst_ratio(mat(y, 1, n), tanh(in)) <= 1.0);
        table->silu(x, n, y);
        CHECK(worst_ratio(mat(y, 1, n), silu(in)) <= 1.0);
        table->situ_glu(x, u, n, 4.0F, 25.0F, y);
        CHECK(worst_ratio(mat(y, 1, n), situ_glu(in, up, {4, 25})) <= 1.0);
        const float lower_bound = -5.0F, a_log = 0.75F;
        float a;
        table->exp(&a_log, 1, &a);
        table->decay(x, u, n, a, lower_bound, y);
        CHECK(worst_ratio(mat(y, 1, n), decay(in, 0.75, vec(u), -5.0)) <= 1.0);
    }
}

TEST_CASE("kernels/short_conv: within the oracle's budget, with and without history") {
    for (const KernelTable* table : tables_of_this_cpu())
        for (const std::size_t taps : {1U, 2U, 4U})
            for (const Kind kind : kSafe) {
                const std::size_t tokens = 7, channels = 19;
                const Floats u(tokens * channels, kind, 1), w(taps * channels, Kind::plain, 2);
                const Floats history((taps - 1) * channels, kind, 3);
                Floats y(tokens * channels);
                table->short_conv(In(u, tokens, channels), w, taps, history, 0, channels, {y.data(), tokens, channels});
                const Mat by_channel = mat(w, taps, channels).transpose();
                const Bounded want =
                    short_conv(exact(mat(u, tokens, channels)), by_channel, exact(mat(history, taps - 1, channels)));
                CHECK(worst_ratio(mat(y, tokens, channels), want) <= 1.0);
            }
}

TEST_CASE("kernels/delta_rule: 40 tokens within the oracle's budget, outputs and state; the chunked form agrees") {
    for (const KernelTable* table : tables_of_this_cpu())
        for (const std::size_t dv : {5U, 24U, 67U}) {
            const std::size_t dk = 16, tokens = 40;
            Floats q(tokens * dk), k(tokens * dk), v(tokens * dv, Kind::plain, 3), alpha(tokens * dk), beta(tokens);
            for (std::size_t t = 0; t < tokens; ++t) {
                const Floats a(dk, Kind::plain, 2 * t), b(dk, Kind::plain, 2 * t + 1);
                table->l2norm_scaled(a, dk, 0.25F, q + t * dk);
                table->l2norm(b, dk, k + t * dk);
                beta[t] = std::fabs(uniform(7, t));
                for (std::size_t i = 0; i < dk; ++i)
                    alpha[t * dk + i] = 0.02F + 0.98F * std::fabs(uniform(8, t * dk + i));
            }
            const Floats start(dk * dv, Kind::plain, 5);
            Floats state = start, out(tokens * dv);
            for (std::size_t t = 0; t < tokens; ++t)
                table->delta_rule(state, dk, dv, {q + t * dk, k + t * dk, v + t * dv, alpha + t * dk, beta[t]},
                                  out + t * dv);
            const Mat mq = mat(q, tokens, dk), mk = mat(k, tokens, dk), mv = mat(v, tokens, dv),
                      ma = mat(alpha, tokens, dk), mb = mat(beta, tokens, 1), ms = mat(start, dk, dv);
            const auto want = oracle::delta_rule(exact(mq), exact(mk), exact(mv), exact(ma), exact(mb), exact(ms));
            CAPTURE(std::string(table->name));
            CHECK(worst_ratio(mat(out, tokens, dv), want.out) <= 1.0);
            CHECK(worst_ratio(mat(state, dk, dv), want.state) <= 1.0);
            const auto chunked = oracle::delta_rule_chunked(mq, mk, mv, ma, mb, ms, 16);
            CHECK(worst_ratio(mat(out, tokens, dv), Bounded{chunked.out, want.out.budget}) <= 1.0);
            CHECK(worst_ratio(mat(state, dk, dv), Bounded{chunked.state, want.state.budget}) <= 1.0);
        }
}

TEST_CASE("kernels/attention_residual: within the oracle's budget, 1 to 9 sources") {
    for (const KernelTable* table : tables_of_this_cpu())
        for (const std::size_t count : {1U, 2U, 9U}) {
            const std::size_t n = 200;
            const Floats norm(n, Kind::plain, 1), proj(n, Kind::plain, 2);
            Floats fold(n), out(n), scratch(count);
            for (std::size_t i = 0; i < n; ++i) fold[i] = norm[i] * (proj[i] * 0.125F);
            std::vector<Floats> sources;
            std::vector<const float*> views;
            std::vector<Bounded> bounded;
            for (std::size_t s = 0; s < count; ++s) sources.emplace_back(n, Kind::plain, 10 + s);
            for (const Floats& s : sources) {
                views.push_back(s);
                bounded.push_back(exact(mat(s, 1, n)));
            }
            table->attention_residual(views.data(), count, fold, n, 1e-5, out, scratch);
            const Vec small = vec(proj) * 0.125;
            CAPTURE(std::string(table->name));
            CHECK(worst_ratio(mat(out, 1, n), attention_residual(bounded, vec(norm), small, 1e-5)) <= 1.0);
        }
}

TEST_CASE("kernels/top_k: ids allowed by the oracle's budgets, weights within them") {
    for (const KernelTable* table : tables_of_this_cpu())
        for (const std::size_t k : {1U, 4U, 16U}) {
            const std::size_t hidden = 40, experts = 61;
            const Floats x(hidden, Kind::plain, 1), bias(experts, Kind::plain, 3);
            const Weights gate(kF32, experts, hidden, Kind::plain, 2);
            Floats logits(experts), weights(k), scratch(experts);
            std::vector<std::int32_t> ids(k);
            const Run run(1, table->matmul_scratch(hidden));
            table->matmul[kF32](run.exec, gate.bytes(), In(x, 1, hidden), {logits.data(), 1, experts});
            REQUIRE(table->route(logits, bias, experts, {k, true, 2.5}, ids.data(), weights, scratch));
            oracle::Picks picks{{}};
            for (const std::int32_t id : ids) picks[0].push_back(id);
            const auto want =
                router(exact(mat(x, 1, hidden)), weight(kF32, gate), vec(bias), {index(k), true, 2.5}, &picks);
            CHECK(choice_allowed(want, 0, picks[0]));
            CHECK(worst_ratio(mat(weights, 1, k), want.weights) <= 1.0);
        }
}

TEST_CASE(
    "kernels/latent_attention: column_dot, attention and value product within the budget of the expanded oracle") {
    for (const KernelTable* table : tables_of_this_cpu()) {
        // traps 17, 18, 20: nope != v_dim, heads share one key, causal over the last T of S positions
        const oracle::AttentionShape shape{3, 10, 6, 7, 20};
        const std::size_t heads = 3, nope = 10, rope = 6, v_dim = 7, rank = 20, width = 16, positions = 21, tokens = 4;
        const std::size_t row = 24 + 8;
        const Weights kv_b(kBf16, heads * (nope + v_dim), rank, Kind::plain, 1, 0);
        const Floats q(tokens * heads * width, Kind::plain, 2), latent(positions * rank, Kind::plain, 3);
        const Floats key(positions * rope, Kind::plain, 4);
        Floats page(positions * row), out(tokens * heads * v_dim);
        page.fill(0.0F);
        for (std::size_t s = 0; s < positions; ++s) {
            std::copy_n(latent + s * rank, rank, page + s * row);
            std::copy_n(key + s * rope, rope, page + s * row + 24);
        }
        float* const pages[1] = {page.data()};
        for (std::size_t t = 0; t < tokens; ++t) {
            const std::size_t seen = positions - tokens + t + 1;
            Floats qa(heads * rank), qr(heads * rope), mixed(heads * rank);
            for (std::size_t h = 0; h < heads; ++h) {
                const float* const own = q + (t * heads + h) * width;
                const Bytes keys{kv_b.bytes().data + 2 * h * (nope + v_dim) * rank, nullptr, nope, rank};
                table->column_dot[kBf16](keys, In(own, 1, nope), {qa + h * rank, 1, rank});
                std::copy_n(own + nope, rope, qr + h * rope);
            }
            const Run run(1, table->latent_attention_scratch(seen, row), 0);
            table->latent_attention({pages, positions, rank, rope}, seen, heads, qa, rank, qr, rope,
                                    table->inverse_sqrt(16.0), mixed, rank,
                                    core::Arena(run.exec.local, run.exec.local_bytes));
            for (std::size_t h = 0; h < heads; ++h) {
                const Bytes values{kv_b.bytes().data + 2 * (h * (nope + v_dim) + nope) * rank, nullptr, v_dim, rank};
                const Run one(1, table->matmul_scratch(rank));
                table->matmul_on_thread[kBf16](one.arena(), values, In(mixed + h * rank, 1, rank),
                                               {out + (t * heads + h) * v_dim, 1, v_dim});
            }
        }
        const Bounded want = latent_attention(exact(mat(q, tokens, heads * width)), exact(mat(latent, positions, rank)),
                                              exact(mat(key, positions, rope)), weight(kBf16, kv_b), shape);
        CAPTURE(std::string(table->name));
        CHECK(worst_ratio(mat(out, tokens, heads * v_dim), want) <= 1.0);
    }
}
