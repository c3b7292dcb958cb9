#ifndef K3_DRIVERS_BENCH_CHART_HPP
#define K3_DRIVERS_BENCH_CHART_HPP
// One SVG of the matrix products, one thread. For each format: weights a second with one token, as bars beside what the
// read limit allows for that format (a peer reads f32, so its bytes would compare nothing), and operations by number of
// tokens, as lines beside the f64 peak of the widest arch. Colours stand for candidates in both.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <string>
#include <vector>

#include "drivers/bench/report.hpp"
#include "drivers/svg.hpp"

namespace k3::bench {
namespace detail {

using drivers::Svg;

inline const char* colour_of(const std::string& who) {
    static constexpr std::pair<const char*, const char*> kColours[] = {
        {"seed scalar", "#c9b8a0"}, {"seed avx2", "#a08560"}, {"eigen avx2", "#b5b5b5"}, {"eigen", "#8a8a8a"},
        {"openblas", "#4d4d4d"},    {"scalar", "#9ecae1"},    {"sse42", "#6baed6"},      {"avx2", "#3182bd"},
        {"avx512", "#08519c"},      {"neon", "#08519c"}};
    for (const auto& [name, colour] : kColours)
        if (who.rfind(name, 0) == 0) return colour;
    return "#000";
}

inline double limit_of(const Results& results, const std::string& name) {
    for (const auto& limit : results.limits)
        if (limit.name == name && limit.threads == 1) return limit.value;
    return 0;
}

inline constexpr double kLeft = 150, kPanel = 360, kGap = 110, kTop = 60;
inline constexpr const char* kLimitStyle = "stroke=\"#b00\" stroke-dasharray=\"5 3\"";

/// Bars of 10^9 weights a second with one token; returns the height used.
inline double draw_bars(Svg& svg, const Results& results, const std::vector<const Row*>& rows, double top) {
    if (rows.empty()) return 0;
    const auto rate_of = [](const Row* row) { return row->flops / 2 / row->seconds / 1e9; };
    const double bytes_per_weight = rows[0]->bytes / (rows[0]->flops / 2);  // k3's: packed
    const double limit = limit_of(results, "read") / bytes_per_weight / 1e9;
    double most = limit;
    for (const Row* row : rows) most = std::max(most, rate_of(row));
    double y = top;
    for (const Row* row : rows) {
        const double width = rate_of(row) / most * kPanel;
        svg.text(kLeft - 8, y + 13, "end", row->who);
        svg.box(kLeft, y, width, 16, colour_of(row->who));
        char label[32];
        std::snprintf(label, sizeof label, "%.2f", rate_of(row));
        svg.text(kLeft + width + 4, y + 13, "start", label, 11);
        y += 22;
    }
    if (limit > 0) {
        const double x = kLeft + limit / most * kPanel;
        svg.line(x, top - 6, x, y, kLimitStyle);
        svg.text(x, y + 12, "middle", "read limit", 11);
    }
    return y + 20 - top;
}

/// Lines of GFLOP/s by tokens, both axes logarithmic.
inline void draw_lines(Svg& svg, const std::vector<const Row*>& rows, double peak, double top, double height) {
    const double left = kLeft + kPanel + kGap;
    double low = 1e300, high = peak / 1e9, first = 1e300, last = 0;
    for (const Row* row : rows) {
        const double rate = row->flops / row->seconds / 1e9, tokens = static_cast<double>(row->tokens);
        low = std::min(low, rate);
        high = std::max(high, rate);
        first = std::min(first, tokens);
        last = std::max(last, tokens);
    }
    if (!(high > 0)) return;
    low = std::pow(10, std::floor(std::log10(low)));
    high = std::pow(10, std::ceil(std::log10(high) + 1e-9));
    const auto at_x = [&](double tokens) {
        return left + (last > first ? std::log2(tokens / first) / std::log2(last / first) : 0.5) * kPanel;
    };
    const auto at_y = [&](double rate) {
        return top + height - std::log10(rate / low) / std::log10(high / low) * height;
    };
    for (double rate = low; rate <= high * 1.001; rate *= 10) {
        svg.line(left, at_y(rate), left + kPanel, at_y(rate), "stroke=\"#ddd\"");
        char label[32];
        std::snprintf(label, sizeof label, "%g", rate);
        svg.text(left - 6, at_y(rate) + 4, "end", label, 11);
    }
    if (peak > 0) {
        svg.line(left, at_y(peak / 1e9), left + kPanel, at_y(peak / 1e9), kLimitStyle);
        svg.text(left + kPanel, at_y(peak / 1e9) - 4, "end", "f64 peak", 11);
    }
    for (std::size_t i = 0; i < rows.size(); ++i) {
        const double x = at_x(static_cast<double>(rows[i]->tokens)), y = at_y(rows[i]->flops / rows[i]->seconds / 1e9);
        svg.dot(x, y, colour_of(rows[i]->who));
        svg.text(x, top + height + 14, "middle", std::to_string(rows[i]->tokens), 11);
        for (std::size_t j = i + 1; j < rows.size(); ++j) {  // the next number of tokens of the same candidate
            if (rows[j]->who != rows[i]->who) continue;
            const std::string style = std::string("stroke-width=\"2\" stroke=\"") + colour_of(rows[i]->who) + "\"";
            svg.line(x, y, at_x(static_cast<double>(rows[j]->tokens)), at_y(rows[j]->flops / rows[j]->seconds / 1e9),
                     style.c_str());
            break;
        }
    }
    svg.text(left + kPanel / 2, top + height + 30, "middle", "tokens", 11);
}

}  // namespace detail

inline std::string chart_of(const Report& report) {
    detail::Svg svg;
    svg.text(16, 24, "start", "k3-bench: " + report.machine.cpu + ", one thread, medians", 14);
    double top = detail::kTop;
    for (const auto& [format, shape] :
         {std::pair<const char*, const char*>{"bf16", detail::kBigShape}, {"mxfp4", detail::kExpertShape}}) {
        std::vector<const Row*> bars, lines;
        for (const Row& row : report.results.rows) {
            if (row.kernel != "matmul" || row.format != format || row.shape != shape || row.threads != 1) continue;
            if (row.who.rfind("seed auto", 0) == 0) continue;  // one for each arch: too many bars and lines
            if (row.tokens == 1) bars.push_back(&row);
            lines.push_back(&row);
        }
        if (lines.empty()) continue;
        svg.text(detail::kLeft, top, "start", std::string(format) + " " + shape + ", one token: 10^9 weights a second");
        svg.text(detail::kLeft + detail::kPanel + detail::kGap, top, "start", "GFLOP/s by tokens");
        double peak = 0;
        for (const auto& limit : report.results.limits)
            if (limit.name.rfind("f64 ", 0) == 0 && limit.threads == 1) peak = std::max(peak, limit.value);
        const double height = std::max(detail::draw_bars(svg, report.results, bars, top + 16), 180.0);
        detail::draw_lines(svg, lines, peak, top + 16, height - 20);
        top += height + 60;
    }
    return svg.finish(detail::kLeft + 2 * detail::kPanel + detail::kGap + 60, top);
}

}  // namespace k3::bench
#endif
