#ifndef K3_DRIVERS_FORECAST_FORECAST_HPP
#define K3_DRIVERS_FORECAST_FORECAST_HPP
// Seconds a decoded token will take, from the plan of a run and the speeds of a machine. k3-doctor measures the speeds,
// k3-inspect is told the disk's.
//
//   seconds = max(T + E, C + max(E, X))
//     T = trunk that is streamed / disk in order      C = trunk / speed of its products
//     E = experts that are missed / disk at random    X = experts of a token / speed of theirs
//
// The first term is the disk: it reads one thing at a time. The second is the cores: the trunk is read ahead while they
// multiply, but which experts a layer needs is known only when its router has run, so the cores wait for those, and
// multiply each as it arrives. What the formula leaves out (state, attention over a short context, norms, waking
// threads) is some percent of a wide model and most of a tiny one.
#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace k3::forecast {

inline constexpr const char* kFormula = "seconds = max(T + E, C + max(E, X))";

/// What one decoded token asks for. Bytes; experts of all layers together.
struct Work {
    std::uint64_t trunk = 0;     // trunk matrices, lm_head included
    std::uint64_t streamed = 0;  // of those, what is read for each token
    std::uint64_t expert = 0;    // one expert
    std::uint64_t row = 0;       // one row of the embedding table
    std::size_t wanted = 0;      // experts a token uses
    std::size_t slots = 0, experts = 0;
};

/// Bytes a second. 0: not known.
struct Speeds {
    double in_order = 0, at_random = 0;  // the disk: large runs in the order of the file; experts anywhere
    double trunk = 0, experts = 0;       // the cores: products with weights that are in memory
};

struct Forecast {
    double missed = 0;                                                                // experts read for a token
    double bytes = 0;                                                                 // read for a token
    double trunk_read = 0, experts_read = 0, trunk_product = 0, experts_product = 0;  // T, E, C, X
    double seconds = 0;
};

/// Experts of a token that are not in their cache. Assumed: each layer chooses its experts evenly and independently,
/// and what the slots hold has nothing to do with what this token chooses, so that a share slots / experts is there.
/// Real routing is uneven, so that a cache does better than this; one that gives way strictly by age does worse where
/// it has fewer slots than a token uses, since other layers displace an expert before its layer comes again.
inline double missed_experts(const Work& work) {
    if (work.experts == 0) return 0;
    const double there = static_cast<double>(work.slots) / static_cast<double>(work.experts);
    return static_cast<double>(work.wanted) * (1 - std::min(1.0, there));
}

/// A speed that is needed and not known makes the seconds 0.
inline Forecast forecast(const Work& work, const Speeds& speeds) {
    bool known = true;
    const auto time = [&known](double bytes, double speed) {
        if (bytes > 0 && !(speed > 0)) known = false;
        return bytes > 0 && speed > 0 ? bytes / speed : 0.0;
    };
    Forecast f;
    f.missed = missed_experts(work);
    const auto streamed = static_cast<double>(work.streamed), expert = static_cast<double>(work.expert);
    f.bytes = streamed + f.missed * expert + static_cast<double>(work.row);
    f.trunk_read = time(streamed, speeds.in_order);
    f.experts_read = time(f.missed * expert, speeds.at_random);
    f.trunk_product = time(static_cast<double>(work.trunk), speeds.trunk);
    f.experts_product = time(static_cast<double>(work.wanted) * expert, speeds.experts);
    if (known)
        f.seconds =
            std::max(f.trunk_read + f.experts_read, f.trunk_product + std::max(f.experts_read, f.experts_product));
    return f;
}

}  // namespace k3::forecast
#endif
