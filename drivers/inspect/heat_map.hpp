#ifndef K3_DRIVERS_INSPECT_HEAT_MAP_HPP
#define K3_DRIVERS_INSPECT_HEAT_MAP_HPP
// Layers by classes as an SVG: the darker, the more bytes, on a scale of logarithms, because a layer's experts are a
// thousand times its norms. What lies in no layer is listed below.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <string>

#include "drivers/inspect/census.hpp"
#include "drivers/sizes.hpp"
#include "drivers/svg.hpp"

namespace k3::inspect {
namespace detail {

/// White for nothing, then from pale to dark blue between the least and the most.
inline std::string heat_colour(std::uint64_t bytes, double least, double most) {
    if (bytes == 0) return "#f4f4f4";
    const double span = std::log(most / least);
    const double share = span > 0 ? std::log(static_cast<double>(bytes) / least) / span : 1;
    const auto mix = [share](double pale, double dark) { return static_cast<unsigned>(pale + (dark - pale) * share); };
    char text[8];
    std::snprintf(text, sizeof text, "#%02x%02x%02x", mix(222, 8), mix(235, 48), mix(247, 107));
    return text;
}

}  // namespace detail

inline std::string heat_map(const Census& census) {
    constexpr double kLeft = 110, kTop = 70, kRow = 26, kRight = 110;
    const double cell = census.layers.size() > 40 ? 9 : 22;
    double least = 1e300, most = 1;
    std::array<std::uint64_t, kClassNames.size()> sums{};
    for (const auto& [number, layer] : census.layers)
        for (std::size_t c = 0; c < layer.classes.size(); ++c) {
            sums[c] += layer.classes[c];
            if (layer.classes[c] == 0) continue;
            least = std::min(least, static_cast<double>(layer.classes[c]));
            most = std::max(most, static_cast<double>(layer.classes[c]));
        }
    drivers::Svg svg;
    svg.text(16, 24, "start",
             "k3-inspect: " + std::to_string(census.total.tensors) + " tensors, " +
                 drivers::show_bytes(census.total.bytes) + ", by layer and class",
             14);
    double y = kTop;
    const double right = kLeft + cell * static_cast<double>(census.layers.size());
    svg.text(right + 8, kTop - 8, "start", "all layers", 11);
    for (std::size_t c = 0; c < sums.size(); ++c) {
        if (sums[c] == 0) continue;
        svg.text(kLeft - 8, y + 17, "end", kClassNames[c], 12);
        double x = kLeft;
        for (const auto& [number, layer] : census.layers) {
            svg.box(x, y, cell - 1, kRow - 2, detail::heat_colour(layer.classes[c], least, most).c_str());
            x += cell;
        }
        svg.text(right + 8, y + 17, "start", drivers::show_bytes(sums[c]), 11);
        y += kRow;
    }
    const std::size_t step = census.layers.size() > 40 ? 10 : 1;
    std::size_t at = 0;
    for (const auto& [number, layer] : census.layers) {
        if (at % step == 0)
            svg.text(kLeft + cell * (static_cast<double>(at) + 0.5), kTop - 8, "middle", std::to_string(number), 10);
        ++at;
    }
    y += 24;
    if (most > 1 && least < 1e300) {
        for (int i = 0; i <= 20; ++i) {
            const auto bytes = static_cast<std::uint64_t>(least * std::pow(most / least, i / 20.0));
            svg.box(kLeft + i * 10, y - 10, 10, 12, detail::heat_colour(bytes, least, most).c_str());
        }
        svg.text(kLeft - 8, y, "end", drivers::show_bytes(static_cast<std::uint64_t>(least)), 11);
        svg.text(kLeft + 218, y, "start", drivers::show_bytes(static_cast<std::uint64_t>(most)), 11);
        y += 20;
    }
    for (std::size_t c = 0; c < sums.size(); ++c) {
        if (census.classes[c].bytes == sums[c]) continue;
        svg.text(
            kLeft, y, "start",
            std::string(kClassNames[c]) + ", in no layer: " + drivers::show_bytes(census.classes[c].bytes - sums[c]),
            11);
        y += 15;
    }
    return svg.finish(std::max(right + kRight, 460.0), y + 10);
}

}  // namespace k3::inspect
#endif
