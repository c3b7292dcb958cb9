#ifndef K3_DRIVERS_CONFORM_LOGITS_HPP
#define K3_DRIVERS_CONFORM_LOGITS_HPP
// Two dumps of one row of logits against each other: `k3 --dump-logits` writes raw float32; other engines' tools write
// JSON (an array of numbers, or an object that has one under "logits"). Without the model no budget can be derived for
// a whole pass; the one taken is what docs/NUMERICS.md allows whole checkpoints: 1e-4 of the largest logit of A.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <numeric>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "drivers/conform/report.hpp"
#include "k3/io/file.hpp"

namespace k3::conform {

inline constexpr double kLogitBudget = 1e-4;

inline std::vector<double> read_logits(const std::string& path) {
    std::string text;
    try {
        text = io::File::read_text(path, std::uint64_t{1} << 30);
    } catch (const Error& error) {  // an argument that cannot be read; 1 is left to dumps that differ
        throw Error(Code::usage, error.message(), error.next(), error.where());
    }
    std::vector<double> values;
    const auto refuse = [&](const std::string& what) {
        throw Error(Code::usage, what, "give raw float32 (k3 --dump-logits) or a JSON array of numbers",
                    {.path = path});
    };
    const std::size_t start = text.find_first_not_of(" \t\r\n");
    const bool json = path.ends_with(".json");
    if (json) {
        const auto root = nlohmann::json::parse(text, nullptr, false);
        if (root.is_discarded() || start == std::string::npos) refuse("is not JSON");
        const nlohmann::json* row = root.is_object() && root.contains("logits") ? &root["logits"] : &root;
        if (row->is_array() && row->size() == 1 && row->front().is_array()) row = &row->front();
        if (!row->is_array()) refuse("holds no array of logits");
        for (const auto& v : *row) {
            if (!v.is_number() && !v.is_null()) refuse("holds something that is not a number");
            values.push_back(v.is_null() ? std::nan("") : v.get<double>());  // JSON writers print NaN as null
        }
    } else {
        if (text.size() % sizeof(float) != 0)
            refuse("has " + std::to_string(text.size()) + " bytes, not whole float32");
        values.resize(text.size() / sizeof(float));
        for (std::size_t i = 0; i < values.size(); ++i) {
            float v;
            std::memcpy(&v, text.data() + i * sizeof v, sizeof v);
            values[i] = static_cast<double>(v);
        }
    }
    if (values.empty()) refuse("holds no logits");
    return values;
}

struct LogitComparison {
    std::size_t count = 0, argmax[2] = {}, overlap = 0, top = 0, not_finite[2] = {};
    double largest = 0, most = 0, mean = 0, budget = 0, correlation = 0, margin = 0;
    std::string failure{};
};

inline LogitComparison compare_logits(const std::vector<double>& a, const std::vector<double>& b) {
    LogitComparison r;
    r.count = a.size();
    if (a.size() != b.size()) {
        r.failure = std::to_string(a.size()) + " logits against " + std::to_string(b.size());
        return r;
    }
    const auto n = static_cast<double>(a.size());
    double sum_a = 0, sum_b = 0;
    for (std::size_t i = 0; i < a.size(); ++i) {
        r.not_finite[0] += !std::isfinite(a[i]);
        r.not_finite[1] += !std::isfinite(b[i]);
        r.largest = std::max(r.largest, std::fabs(a[i]));
        r.most = std::max(r.most, std::fabs(a[i] - b[i]));
        r.mean += std::fabs(a[i] - b[i]) / n;
        sum_a += a[i] / n;
        sum_b += b[i] / n;
    }
    for (int side = 0; side < 2 && r.failure.empty(); ++side)
        if (r.not_finite[side] != 0)
            r.failure =
                std::to_string(r.not_finite[side]) + " values of " + (side == 0 ? "A" : "B") + " are NaN or infinite";
    if (!r.failure.empty()) return r;
    double aa = 0, bb = 0, ab = 0;
    for (std::size_t i = 0; i < a.size(); ++i) {
        aa += (a[i] - sum_a) * (a[i] - sum_a);
        bb += (b[i] - sum_b) * (b[i] - sum_b);
        ab += (a[i] - sum_a) * (b[i] - sum_b);
    }
    r.correlation = aa > 0 && bb > 0 ? ab / std::sqrt(aa * bb) : a == b ? 1 : 0;
    r.budget = kLogitBudget * r.largest;
    const auto best = [&](const std::vector<double>& v) {
        std::vector<std::size_t> order(v.size());
        std::iota(order.begin(), order.end(), std::size_t{0});
        r.top = std::min<std::size_t>(10, v.size());
        std::partial_sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(r.top), order.end(),
                          [&](std::size_t x, std::size_t y) { return v[x] != v[y] ? v[x] > v[y] : x < y; });
        order.resize(r.top);
        return order;
    };
    const auto top_a = best(a), top_b = best(b);
    r.argmax[0] = top_a[0];
    r.argmax[1] = top_b[0];
    for (const std::size_t id : top_a) r.overlap += std::find(top_b.begin(), top_b.end(), id) != top_b.end();
    r.margin = r.top > 1 ? a[top_a[0]] - a[top_a[1]] : std::fabs(a[0]);
    // Within the budget two ids change places only where A's own logits of them are no more than twice it apart, so
    // that another argmax needs no judgement of its own.
    if (r.most > r.budget) r.failure = "the largest difference is beyond the budget";
    return r;
}

/// Returns whether they agree.
inline bool report_logits(const Options& o) {
    const std::vector<double> a = read_logits(o.logits[0]), b = read_logits(o.logits[1]);
    const LogitComparison r = compare_logits(a, b);
    const bool pass = r.failure.empty();
    const double unit = r.budget > 0 ? r.budget : 1;
    if (o.json) {
        const nlohmann::ordered_json root = {{"a", o.logits[0]},
                                             {"b", o.logits[1]},
                                             {"count", r.count},
                                             {"argmax_a", r.argmax[0]},
                                             {"argmax_b", r.argmax[1]},
                                             {"margin_a", r.margin},
                                             {"top", r.top},
                                             {"top_overlap", r.overlap},
                                             {"max_difference", r.most},
                                             {"mean_difference", r.mean},
                                             {"budget", r.budget},
                                             {"max_of_budget", r.most / unit},
                                             {"mean_of_budget", r.mean / unit},
                                             {"correlation", r.correlation},
                                             {"verdict", pass ? "PASS" : "FAIL"},
                                             {"failure", r.failure}};
        std::printf("%s\n", root.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace).c_str());
        return pass;
    }
    if (r.budget > 0) {
        std::printf("argmax       A %zu, B %zu%s (A's margin %.6g)\n", r.argmax[0], r.argmax[1],
                    r.argmax[0] == r.argmax[1] ? "" : ", not the same", r.margin);
        std::printf("top %-2zu       %zu in both\n", r.top, r.overlap);
        std::printf("difference   max %.3g, %s budget; mean %.3g, %s budget\n", r.most,
                    show_ratio(r.most / unit).c_str(), r.mean, show_ratio(r.mean / unit).c_str());
        std::printf("budget       %.3g: %g of the largest logit of A, %.6g\n", r.budget, kLogitBudget, r.largest);
        std::printf("correlation  %.12f\n", r.correlation);
    }
    std::printf("%s: %zu logits%s%s\n", pass ? "PASS" : "FAIL", r.count, pass ? "" : ", ", r.failure.c_str());
    std::printf(pass ? "next: k3-conform MODEL_DIR checks the layers behind them\n"
                     : "next: k3-conform MODEL_DIR shows which layer and stage they part at\n");
    return pass;
}

}  // namespace k3::conform
#endif
