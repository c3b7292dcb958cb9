#ifndef K3_DRIVERS_CONFORM_JUDGE_HPP
#define K3_DRIVERS_CONFORM_JUDGE_HPP
// Compares the engine with the reference, stage by stage, and keeps what was found.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <string>
#include <vector>

#include "drivers/conform/rows.hpp"

namespace k3::conform {

/// One stage of one layer; parts of a stage (experts, heads) are one entry with the worst of them.
struct Stage {
    std::string name;
    double worst = 0;       ///< largest |engine - reference| as a fraction of the budget; at most 1 passes
    std::string failure{};  ///< empty: passed. Where and by how much, of its first failing part.
    bool passed() const { return failure.empty(); }
};

struct LayerResult {
    std::string label, kind;  ///< "L07", "KDA"
    std::vector<Stage> stages{};
    double chained =
        std::numeric_limits<double>::quiet_NaN();  ///< max |engine - float64 chain| / max |chain|, reported
    std::size_t choices = 0, other_choices = 0;    ///< experts chosen; those the chain would have chosen otherwise
    double seconds = 0;

    bool passed() const {
        return std::all_of(stages.begin(), stages.end(), [](const Stage& s) { return s.passed(); });
    }
    /// The stage nearest to its budget, or farthest beyond it.
    const Stage& worst() const {
        return *std::max_element(stages.begin(), stages.end(), [](const Stage& a, const Stage& b) {
            return a.passed() != b.passed() ? a.passed() : a.worst < b.worst;
        });
    }
};

class Judge {
  public:
    explicit Judge(LayerResult& layer) : layer_(layer) {}

    /// Judges the engine's rows and returns the input of the next stage: those rows, and the chain's own below them.
    /// Anything that is not finite, on either side or in the budget, is a failure: it would compare as equal or excuse
    /// everything.
    Mat operator()(const char* name, const Rows& engine, const Value& want, const std::string& part = {}) {
        Stage& stage = this->stage(name);
        if (static_cast<Index>(engine.rows) != want.tokens() || static_cast<Index>(engine.cols) != want.cols()) {
            fail(stage, std::numeric_limits<double>::infinity(), part + "the engine's result has another shape");
            return want.value;
        }
        Index at = -1;
        double worst = -1;
        for (Index i = 0; i < want.budget.size(); ++i) {
            const double e = static_cast<double>(engine.data[static_cast<std::size_t>(i)]);
            const double v = want.value.data()[i], b = want.budget.data()[i], off = std::fabs(e - v);
            const bool sound = std::isfinite(e) && std::isfinite(v) && std::isfinite(b);
            const double ratio = !sound ? std::numeric_limits<double>::infinity() : off == 0 ? 0 : off / b;
            if (ratio > worst) {
                worst = ratio;
                at = i;
            }
        }
        stage.worst = std::max(stage.worst, worst);
        if (worst > 1) {
            char text[200];
            std::snprintf(text, sizeof text, "token %td, column %td: engine %.9g, reference %.17g, budget %.3g",
                          at / want.cols(), at % want.cols(),
                          static_cast<double>(engine.data[static_cast<std::size_t>(at)]), want.value.data()[at],
                          want.budget.data()[at]);
            std::string what = part + text;
            if (std::isinf(worst)) what += not_finite(engine, want, at);
            fail(stage, worst, what);
        }
        return shared_over_chained(engine, want.value);
    }

    /// A judgement that is not a comparison of numbers.
    void operator()(const char* name, double ratio, const std::string& what) {
        Stage& stage = this->stage(name);
        stage.worst = std::max(stage.worst, ratio);
        if (!(ratio <= 1)) fail(stage, ratio, what);
    }

    LayerResult& layer() { return layer_; }

  private:
    Stage& stage(const char* name) {
        for (Stage& s : layer_.stages)
            if (s.name == name) return s;
        layer_.stages.push_back({.name = name});
        return layer_.stages.back();
    }
    static void fail(Stage& stage, double ratio, const std::string& what) {
        stage.worst = std::max(stage.worst, ratio);
        if (stage.passed()) stage.failure = what;
    }
    static std::string not_finite(const Rows& engine, const Value& want, Index at) {
        const double e = static_cast<double>(engine.data[static_cast<std::size_t>(at)]), v = want.value.data()[at];
        if (std::isnan(e)) return " (NaN on the engine's side)";
        if (std::isnan(v)) return " (NaN on the reference's side)";
        return std::isinf(e)   ? " (infinity on the engine's side)"
               : std::isinf(v) ? " (infinity on the reference's side)"
                               : " (there is no finite budget)";
    }

    LayerResult& layer_;
};

}  // namespace k3::conform
#endif
