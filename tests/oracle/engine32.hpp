#ifndef K3_TESTS_ORACLE_ENGINE32_HPP
#define K3_TESTS_ORACLE_ENGINE32_HPP
// A plain stand-in for the engine: binary32 arithmetic written from docs/NUMERICS.md, order by order, with std::
// functions rounded once. It exists to test the oracle's budgets without including anything of k3/. Matrices hold
// binary32 values as double. SiTU with 4 and 25. Compile with -ffp-contract=off (or for a target without fused
// multiply-add).
#include <algorithm>

#include "oracle/layers_f64.hpp"

namespace k3::oracle::engine32 {

using Row = std::vector<float>;

inline float rn(double v) { return static_cast<float>(v); }
inline double f64(float v) { return static_cast<double>(v); }
inline float sigmoid32(float v) { return rn(sigmoid(f64(v))); }
inline float exp32(float v) { return rn(std::exp(f64(v))); }
inline float tanh32(float v) { return rn(std::tanh(f64(v))); }

inline Row row(const Mat& m, Index r) {
    Row v(static_cast<std::size_t>(m.cols()));
    for (Index i = 0; i < m.cols(); ++i) v[static_cast<std::size_t>(i)] = rn(m(r, i));
    return v;
}
inline void put(Mat& m, Index r, const Row& v) {
    for (Index i = 0; i < m.cols(); ++i) m(r, i) = f64(v[static_cast<std::size_t>(i)]);
}

inline double dot64(const Row& x, const Row& w) {
    double lane[8] = {};
    for (std::size_t i = 0; i < x.size(); ++i) lane[i % 8] += f64(x[i]) * f64(w[i]);
    for (std::size_t j = 0; j < 4; ++j) lane[j] += lane[j + 4];
    for (std::size_t j = 0; j < 2; ++j) lane[j] += lane[j + 2];
    return lane[0] + lane[1];
}
inline Mat matmul32(const Mat& x, const Mat& w) {
    Mat y(x.rows(), w.rows());
    for (Index t = 0; t < x.rows(); ++t)
        for (Index r = 0; r < w.rows(); ++r) y(t, r) = f64(rn(dot64(row(x, t), row(w, r))));
    return y;
}
inline float inverse32(const Row& x, double n, double eps) { return rn(1 / std::sqrt(dot64(x, x) / n + eps)); }
inline Mat rmsnorm32(const Mat& x, const Vec& w, double eps) {
    Mat y(x.rows(), x.cols());
    for (Index t = 0; t < x.rows(); ++t) {
        Row v = row(x, t);
        const float inv = inverse32(v, static_cast<double>(v.size()), eps);
        for (std::size_t i = 0; i < v.size(); ++i) v[i] = v[i] * inv * rn(w(static_cast<Index>(i)));
        put(y, t, v);
    }
    return y;
}
inline Mat l2norm32(const Mat& x, double scale) {
    Mat y(x.rows(), x.cols());
    for (Index t = 0; t < x.rows(); ++t) {
        Row v = row(x, t);
        const float inv = inverse32(v, 1, 1e-6);
        for (float& f : v) f = f * inv * rn(scale);
        put(y, t, v);
    }
    return y;
}
inline Mat each32(const Mat& a, const Mat& b, float (*fn)(float, float)) {
    Mat y(a.rows(), a.cols());
    for (Index i = 0; i < a.size(); ++i) y.data()[i] = f64(fn(rn(a.data()[i]), rn(b.data()[i])));
    return y;
}
inline float situ32(float g, float u) { return 4.0f * tanh32(g / 4.0f) * sigmoid32(g) * (25.0f * tanh32(u / 25.0f)); }

inline Mat multiply32(const Mat& a, const Mat& b) {
    return each32(a, b, [](float x, float y) { return x * y; });
}
inline Mat sigmoid32(const Mat& x) {
    return x.unaryExpr([](double v) { return f64(sigmoid32(rn(v))); });
}

inline Mat conv32(const Mat& u, const Mat& w) {
    const Index taps = w.cols();
    Mat y(u.rows(), u.cols());
    for (Index t = 0; t < u.rows(); ++t)
        for (Index c = 0; c < u.cols(); ++c) {
            float acc = rn(w(c, taps - 1)) * rn(u(t, c));
            for (Index j = 0; j + 1 < taps; ++j) {
                const Index s = t - (taps - 1) + j;
                acc = acc + rn(w(c, j)) * (s >= 0 ? rn(u(s, c)) : 0.0f);
            }
            y(t, c) = f64(acc * sigmoid32(acc));
        }
    return y;
}
inline Mat decay32(const Mat& z, float a_log, const Vec& dt, float bound) {
    Mat y(z.rows(), z.cols());
    for (Index t = 0; t < z.rows(); ++t)
        for (Index i = 0; i < z.cols(); ++i)
            y(t, i) = f64(exp32(bound * sigmoid32(exp32(a_log) * (rn(z(t, i)) + rn(dt(i))))));
    return y;
}
/// alpha, beta and the rest as binary32; returns out, leaves the state in s.
inline Mat delta32(const Mat& q, const Mat& k, const Mat& v, const Mat& alpha, const Mat& beta, Mat& state) {
    Mat out(q.rows(), v.cols());
    for (Index t = 0; t < q.rows(); ++t)
        for (Index j = 0; j < v.cols(); ++j) {
            float u = 0, o = 0;
            for (Index i = 0; i < k.cols(); ++i) u = u + rn(k(t, i)) * (rn(state(i, j)) * rn(alpha(t, i)));
            for (Index i = 0; i < k.cols(); ++i) {
                const float kb = rn(k(t, i)) * rn(beta(t, 0));
                const float next = rn(state(i, j)) * rn(alpha(t, i)) + kb * (rn(v(t, j)) - u);
                state(i, j) = f64(next);
                o = o + rn(q(t, i)) * next;
            }
            out(t, j) = f64(o);
        }
    return out;
}
inline Mat attention32(const Mat& q, const Mat& latent, const Mat& key, const Mat& kv_b, AttentionShape a) {
    Mat out(q.rows(), a.heads * a.v_dim);
    const Index past = latent.rows() - q.rows(), width = a.nope + a.rope;
    const double scale = 1 / std::sqrt(static_cast<double>(width));
    for (Index t = 0; t < q.rows(); ++t)
        for (Index h = 0; h < a.heads; ++h) {
            const Index at = h * (a.nope + a.v_dim), seen = past + t + 1;
            Mat qa(1, a.rank), mixed(1, a.rank);
            for (Index c = 0; c < a.rank; ++c) {
                double acc = 0;
                for (Index d = 0; d < a.nope; ++d) acc += kv_b(at + d, c) * q(t, h * width + d);
                qa(0, c) = f64(rn(acc));
            }
            Row score;
            for (Index s = 0; s < seen; ++s)
                score.push_back(rn((dot64(row(qa, 0), row(latent, s)) +
                                    dot64(row(q.middleCols(h * width + a.nope, a.rope), t), row(key, s))) *
                                   scale));
            const float m = *std::max_element(score.begin(), score.end());
            double z = 0;
            for (float& s : score) z += f64(s = exp32(s - m));
            for (Index c = 0; c < a.rank; ++c) {
                double acc = 0;
                for (Index s = 0; s < seen; ++s) acc += latent(s, c) * f64(score[static_cast<std::size_t>(s)]);
                mixed(0, c) = f64(rn(acc / z));
            }
            out.row(t).segment(h * a.v_dim, a.v_dim) = matmul32(mixed, kv_b.middleRows(at + a.nope, a.v_dim));
        }
    return out;
}
inline Mat residual32(const std::vector<Mat>& sources, const Vec& norm, const Vec& proj, double eps) {
    Mat out(sources[0].rows(), sources[0].cols());
    for (Index t = 0; t < out.rows(); ++t) {
        Row score, fold(static_cast<std::size_t>(out.cols())), acc(fold.size(), 0.0f);
        for (std::size_t i = 0; i < fold.size(); ++i)
            fold[i] = rn(norm(static_cast<Index>(i))) * rn(proj(static_cast<Index>(i)));
        for (const Mat& s : sources) {
            Row v = row(s, t);
            const float inv = inverse32(v, static_cast<double>(v.size()), eps);
            for (float& f : v) f = f * inv;
            score.push_back(rn(dot64(v, fold)));
        }
        const float m = *std::max_element(score.begin(), score.end());
        double z = 0;
        for (float& s : score) z += f64(s = exp32(s - m));
        for (std::size_t j = 0; j < sources.size(); ++j)
            for (std::size_t i = 0; i < acc.size(); ++i)
                acc[i] = acc[i] + rn(f64(score[j]) / z) * rn(sources[j](t, static_cast<Index>(i)));
        put(out, t, acc);
    }
    return out;
}

/// 3.4 in binary32, from an empty state; weights from the oracle's reader (they are exact in binary32).
inline KdaStages<Mat> kda32(const Mat& x, const KdaWeights& w) {
    const auto project = [&](const Weight& m) { return matmul32(x, m.all()); };
    KdaStages<Mat> r;
    r.q = conv32(project(w.q), w.q_conv);
    r.k = conv32(project(w.k), w.k_conv);
    r.v = conv32(project(w.v), w.v_conv);
    r.beta = sigmoid32(project(w.b));
    r.alpha = matmul32(project(w.f_a), w.f_b.all());
    r.mixed = r.gated = Mat(x.rows(), r.q.cols());
    for (Index h = 0; h < w.heads; ++h) {
        const Index at = h * w.dim;
        const auto head = [&](Mat& m) { return m.middleCols(at, w.dim); };
        head(r.q) = l2norm32(head(r.q), 1 / std::sqrt(static_cast<double>(w.dim)));
        head(r.k) = l2norm32(head(r.k), 1);
        head(r.alpha) = decay32(head(r.alpha), rn(w.a_log(h)), w.dt_bias.segment(at, w.dim), rn(w.lower_bound));
        Mat state = Mat::Zero(w.dim, w.dim);
        head(r.mixed) = delta32(head(r.q), head(r.k), head(r.v), head(r.alpha), r.beta.col(h), state);
        head(r.gated) = rmsnorm32(head(r.mixed), w.o_norm, w.eps);
    }
    r.gated = multiply32(r.gated, sigmoid32(project(w.gate)));
    r.out = matmul32(r.gated, w.out.all());
    return r;
}
/// 3.5 in binary32, absorbed.
inline MlaStages<Mat> mla32(const Mat& x, const MlaWeights& w) {
    MlaStages<Mat> r;
    r.q = matmul32(rmsnorm32(matmul32(x, w.q_a.all()), w.q_norm, w.eps), w.q_b.all());
    const Mat c = matmul32(x, w.kv_a.all());
    r.latent = rmsnorm32(c.leftCols(w.shape.rank), w.kv_norm, w.eps);
    r.key = c.rightCols(w.shape.rope);
    r.mixed = attention32(r.q, r.latent, r.key, w.kv_b.all(), w.shape);
    r.gated = multiply32(r.mixed, sigmoid32(matmul32(x, w.gate.all())));
    r.out = matmul32(r.gated, w.out.all());
    return r;
}
inline Mat mlp32(const Mat& x, const Mlp& m) {
    return matmul32(each32(matmul32(x, m.gate.all()), matmul32(x, m.up.all()), situ32), m.down.all());
}
/// 3.7 in binary32 with given picks.
inline Mat moe32(const Mat& x, const Moe& m, double eps, const Picks& picks) {
    const Mat s = sigmoid32(matmul32(x, m.gate.all())), z = matmul32(x, m.down.all());
    Mat sum(x.rows(), z.cols());
    for (Index t = 0; t < x.rows(); ++t) {
        double total = 0;
        for (const Index e : picks[static_cast<std::size_t>(t)]) total += s(t, e);
        Row acc(static_cast<std::size_t>(z.cols()), 0.0f);
        for (const Index e : picks[static_cast<std::size_t>(t)]) {
            const Row out = row(mlp32(z.row(t), m.expert(e)), 0);
            for (std::size_t i = 0; i < acc.size(); ++i) acc[i] = acc[i] + rn(s(t, e) / (total + 1e-20)) * out[i];
        }
        put(sum, t, acc);
    }
    const Mat up = matmul32(rmsnorm32(sum, m.norm, eps), m.up.all());
    return each32(up, mlp32(x, m.shared), [](float a, float b) { return a + b; });
}

}  // namespace k3::oracle::engine32
#endif
