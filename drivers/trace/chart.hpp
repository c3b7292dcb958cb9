#ifndef K3_DRIVERS_TRACE_CHART_HPP
#define K3_DRIVERS_TRACE_CHART_HPP
// Hit rate against capacity as an SVG: a line for each policy and for Belady's bound, the compulsory bound dashed; one
// panel for each mode of the trace.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "drivers/sizes.hpp"
#include "drivers/svg.hpp"
#include "drivers/trace/report.hpp"
#include "drivers/trace/sweep.hpp"

namespace k3::trace {
namespace detail {

inline constexpr double kLeft = 70, kTop = 60, kWidth = 420, kHeight = 260, kGap = 120;

inline const char* colour_of(const std::string& policy) {
    if (policy == "lru") return "#e6820e";
    if (policy == "lfru") return "#1f6fb4";
    if (policy == "s3fifo") return "#2c8f3c";
    return "#555";
}

inline void draw_panel(drivers::Svg& svg, const std::vector<Row>& rows, stream::StepMode mode, const Scale& scale,
                       double left) {
    double first = 1e300, last = 0;
    for (const Row& row : rows) {
        if (row.policy == "compulsory") continue;
        first = std::min(first, static_cast<double>(row.slots));
        last = std::max(last, static_cast<double>(row.slots));
    }
    const auto at_x = [&](std::uint64_t slots) {
        return left +
               (last > first ? std::log2(static_cast<double>(slots) / first) / std::log2(last / first) : 0.5) * kWidth;
    };
    const auto at_y = [&](double rate) { return kTop + (1 - rate) * kHeight; };
    svg.text(left, kTop - 14, "start", std::string(name_of(mode)) + ": hit rate by slots");
    for (int percent = 0; percent <= 100; percent += 20) {
        const double y = at_y(percent / 100.0);
        svg.line(left, y, left + kWidth, y, "stroke=\"#ddd\"");
        svg.text(left - 6, y + 4, "end", std::to_string(percent) + " %", 11);
    }
    double label_end = -1e300, name_end = -1e300;
    std::vector<const Row*> ends;  // of the lines, for their names
    for (const Row& row : rows) {
        if (row.mode != mode) continue;
        const double y = at_y(row.hit_rate());
        if (row.policy == "compulsory") {
            svg.line(left, y, left + kWidth, y, "stroke=\"#b00\" stroke-dasharray=\"5 3\"");
            svg.text(left + 4, y - 4, "start", "compulsory", 11);
            continue;
        }
        const double x = at_x(row.slots);
        svg.dot(x, y, colour_of(row.policy));
        if (x > label_end + 46) {
            svg.text(x, kTop + kHeight + 16, "middle", std::to_string(row.slots), 11);
            if (scale.expert_bytes != 0)
                svg.text(x, kTop + kHeight + 30, "middle", drivers::show_bytes(row.slots * scale.expert_bytes), 10);
            label_end = x;
        }
        const Row* next = nullptr;
        for (const Row& other : rows)
            if (next == nullptr && other.policy == row.policy && other.mode == mode && other.slots > row.slots)
                next = &other;
        if (next == nullptr) {
            ends.push_back(&row);
            continue;
        }
        const std::string style = std::string("stroke-width=\"2\" stroke=\"") + colour_of(row.policy) + "\"";
        svg.line(x, y, at_x(next->slots), at_y(next->hit_rate()), style.c_str());
    }
    std::sort(ends.begin(), ends.end(), [](const Row* a, const Row* b) { return a->hit_rate() > b->hit_rate(); });
    for (const Row* row : ends) {  // one below the other where the lines meet
        const double y = std::max(at_y(row->hit_rate()) + 4, name_end + 13);
        svg.box(at_x(row->slots) + 10, y - 8, 8, 8, colour_of(row->policy));
        svg.text(at_x(row->slots) + 22, y, "start", row->policy, 12);
        name_end = y;
    }
}

}  // namespace detail

inline std::string chart_of(const stream::Trace& trace, const Facts& facts, const std::vector<Row>& rows,
                            const Scale& scale) {
    drivers::Svg svg;
    svg.text(16, 24, "start",
             "k3-trace: " + std::to_string(trace.requests.size()) + " requests, " + std::to_string(facts.layers) +
                 " layers of " + std::to_string(trace.shape.experts) + " experts, top " +
                 std::to_string(trace.shape.top_k),
             14);
    double left = detail::kLeft;
    for (const stream::StepMode mode : kModes) {
        if (!facts.has(mode)) continue;
        detail::draw_panel(svg, rows, mode, scale, left);
        left += detail::kWidth + detail::kGap + detail::kLeft;
    }
    return svg.finish(left - detail::kLeft + 10, detail::kTop + detail::kHeight + 50);
}

}  // namespace k3::trace
#endif
