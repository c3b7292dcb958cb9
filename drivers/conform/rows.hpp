#ifndef K3_DRIVERS_CONFORM_ROWS_HPP
#define K3_DRIVERS_CONFORM_ROWS_HPP
// What the engine computes is float [tokens][columns]; what the reference computes is double, for two sequences at
// once: the T rows of the shared one (its inputs are the engine's own outputs of the stage before) and below them the T
// rows of the chained one (float64 from the embedding on). One decoding of a weight serves both.
#include <Eigen/Dense>
#include <cstddef>
#include <utility>
#include <vector>

#include "k3/core/view.hpp"

namespace k3::conform {

using Index = Eigen::Index;
using Mat = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using Vec = Eigen::VectorXd;

/// Engine values.
struct Rows {
    Rows() = default;
    Rows(std::size_t r, std::size_t c) : rows(r), cols(c), data(r * c) {}
    std::size_t rows = 0, cols = 0;
    std::vector<float> data{};
    core::MatView<float> view() noexcept { return {data.data(), rows, cols}; }
    core::MatView<const float> view() const noexcept { return {data.data(), rows, cols}; }
    core::MatView<const float> in() const noexcept { return view(); }
};

/// Reference values of both sequences, and how far a conforming engine may be from the shared one.
struct Value {
    Mat value;   ///< [2 T][columns]: shared rows, then chained rows
    Mat budget;  ///< [T][columns]
    Index tokens() const { return budget.rows(); }
    Index cols() const { return value.cols(); }
};

/// An input both sides have bit for bit.
inline Value exact(Mat both) {
    Mat none = Mat::Zero(both.rows() / 2, both.cols());
    return {std::move(both), std::move(none)};
}

inline Mat widened(const Rows& rows) {
    using Floats = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
    return Eigen::Map<const Floats>(rows.data.data(), static_cast<Index>(rows.rows), static_cast<Index>(rows.cols))
        .cast<double>();
}

/// The engine's rows over the chained rows of the reference: the input of the next stage.
inline Mat shared_over_chained(const Rows& engine, const Mat& both) {
    const Index tokens = both.rows() / 2;
    Mat next(both.rows(), both.cols());
    next.topRows(tokens) = widened(engine);
    next.bottomRows(tokens) = both.bottomRows(tokens);
    return next;
}

}  // namespace k3::conform
#endif
