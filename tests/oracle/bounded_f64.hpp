#ifndef K3_TESTS_ORACLE_BOUNDED_F64_HPP
#define K3_TESTS_ORACLE_BOUNDED_F64_HPP
// Rounding budgets: exact values with a bound of what a conforming engine may differ from them.
//
// Every kernel of the oracle exists twice under one name: on `Mat` it is the formula in float64, on `Bounded` it is the
// same value plus a budget b with  |engine - exact| <= b,  derived from the engine's contract (docs/NUMERICS.md):
// The arithmetic of budgets is drivers/conform/rounding.hpp, which k3-conform uses too. A good engine shows 0.01 to 0.5
// of its budget; a wrong formula shows thousands.
//
// A budget on the inputs (engine inputs that are themselves inexact) is carried to the outputs. With engine inputs that
// the oracle got bit for bit, use exact(x): the input budget is zero.
#include <cmath>
#include <limits>

#include "drivers/conform/rounding.hpp"
#include "oracle/weights_f64.hpp"

namespace k3::oracle {

using rounding::exp_error, rounding::gamma32, rounding::inverse_norm_error, rounding::kTiny, rounding::kU32;
using rounding::kU64, rounding::kUfn, rounding::product_error, rounding::rounded;
using rounding::sigmoid_error, rounding::silu_error, rounding::tanh_error;

/// An exact value and the distance the engine may keep from it, entry by entry.
struct Bounded {
    Mat value;
    Mat budget;
    Index rows() const { return value.rows(); }
    Index cols() const { return value.cols(); }
};

/// Inputs that engine and oracle share bit for bit.
inline Bounded exact(Mat value) {
    Mat zero = Mat::Zero(value.rows(), value.cols());
    return {std::move(value), std::move(zero)};
}

/// max |engine - exact| / budget. Infinity if a shape differs, a budget is not finite (it would excuse anything) or a
/// NaN turns up.
inline double worst_ratio(const Mat& engine, const Bounded& want) {
    const double infinity = std::numeric_limits<double>::infinity();
    if (engine.rows() != want.rows() || engine.cols() != want.cols()) return infinity;
    double worst = 0;
    for (Index i = 0; i < engine.size(); ++i) {
        const double d = std::fabs(engine.data()[i] - want.value.data()[i]), budget = want.budget.data()[i];
        if (!std::isfinite(d) || !std::isfinite(budget)) return infinity;
        if (d > 0) worst = std::max(worst, d / budget);
    }
    return worst;
}

/// The measure of the golden cases: max |d| / max |reference|.
inline double relative_max(const Mat& got, const Mat& want) {
    return (got - want).cwiseAbs().maxCoeff() / std::max(want.cwiseAbs().maxCoeff(), 1e-300);
}

namespace detail {
/// Applies fn(value) and err(value, input error) entry by entry.
template <class Fn, class Err>
Bounded map(const Bounded& x, Fn fn, Err err) {
    Bounded y{Mat(x.rows(), x.cols()), Mat(x.rows(), x.cols())};
    for (Index i = 0; i < x.value.size(); ++i) {
        const double v = x.value.data()[i], e = x.budget.data()[i];
        y.value.data()[i] = fn(v);
        y.budget.data()[i] = err(v, e);
    }
    return y;
}
}  // namespace detail

inline double sigmoid(double v) { return 1 / (1 + std::exp(-v)); }  // far below 0, exp overflows and 0 is right
inline double silu(double v) { return v / (1 + std::exp(-v)); }

inline Mat exp(const Mat& x) { return x.array().exp().matrix(); }
inline Mat tanh(const Mat& x) {
    return x.unaryExpr([](double v) { return std::tanh(v); });
}
inline Mat sigmoid(const Mat& x) {
    return x.unaryExpr([](double v) { return sigmoid(v); });
}
inline Mat silu(const Mat& x) {
    return x.unaryExpr([](double v) { return silu(v); });
}
inline Bounded exp(const Bounded& x) {
    return detail::map(
        x, [](double v) { return std::exp(v); }, exp_error);
}
inline Bounded tanh(const Bounded& x) {
    return detail::map(
        x, [](double v) { return std::tanh(v); }, tanh_error);
}
inline Bounded sigmoid(const Bounded& x) {
    return detail::map(
        x, [](double v) { return sigmoid(v); }, sigmoid_error);
}
inline Bounded silu(const Bounded& x) {
    return detail::map(
        x, [](double v) { return silu(v); }, silu_error);
}

// ---- shapes and plain arithmetic on both kinds
// ----------------------------------------------------------------------------

inline Mat columns(const Mat& x, Index first, Index count) { return x.middleCols(first, count); }
inline Bounded columns(const Bounded& x, Index first, Index count) {
    return {x.value.middleCols(first, count), x.budget.middleCols(first, count)};
}
inline Mat take_rows(const Mat& x, const std::vector<Index>& rows) {
    Mat y(static_cast<Index>(rows.size()), x.cols());
    for (Index i = 0; i < y.rows(); ++i) y.row(i) = x.row(rows[static_cast<std::size_t>(i)]);
    return y;
}
inline Bounded take_rows(const Bounded& x, const std::vector<Index>& rows) {
    return {take_rows(x.value, rows), take_rows(x.budget, rows)};
}
inline void set_columns(Mat& into, Index first, const Mat& x) { into.middleCols(first, x.cols()) = x; }
inline void set_columns(Bounded& into, Index first, const Bounded& x) {
    set_columns(into.value, first, x.value);
    set_columns(into.budget, first, x.budget);
}
inline void set_row(Mat& into, Index row, const Mat& from, Index from_row) { into.row(row) = from.row(from_row); }
inline void set_row(Bounded& into, Index row, const Bounded& from, Index from_row) {
    set_row(into.value, row, from.value, from_row);
    set_row(into.budget, row, from.budget, from_row);
}
template <class V>
V zeros(Index rows, Index cols);
template <>
inline Mat zeros<Mat>(Index rows, Index cols) {
    return Mat::Zero(rows, cols);
}
template <>
inline Bounded zeros<Bounded>(Index rows, Index cols) {
    return exact(Mat::Zero(rows, cols));
}
inline const Mat& value_of(const Mat& x) { return x; }
inline const Mat& value_of(const Bounded& x) { return x.value; }

/// a + b in binary32.
inline Mat add(const Mat& a, const Mat& b) { return a + b; }
inline Bounded add(const Bounded& a, const Bounded& b) {
    Bounded y{a.value + b.value, a.budget + b.budget};
    for (Index i = 0; i < y.value.size(); ++i) y.budget.data()[i] = rounded(y.value.data()[i], y.budget.data()[i]);
    return y;
}
/// a * b entry by entry in binary32.
inline Mat hadamard(const Mat& a, const Mat& b) { return a.cwiseProduct(b); }
inline Bounded hadamard(const Bounded& a, const Bounded& b) {
    Bounded y{a.value.cwiseProduct(b.value), Mat(a.rows(), a.cols())};
    for (Index i = 0; i < y.value.size(); ++i)
        y.budget.data()[i] = rounded(y.value.data()[i], product_error(a.value.data()[i], a.budget.data()[i],
                                                                      b.value.data()[i], b.budget.data()[i]));
    return y;
}

}  // namespace k3::oracle
#endif
