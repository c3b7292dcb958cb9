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

/// Beyond this part of a stage's largest value its budget says little. The demo model has 6e-8 to 8e-5.
inline constexpr double kWideBudget = 0.01;

/// One stage of one layer; parts of a stage (experts, heads) are one entry with the worst of them.
struct Stage {
    std::string name;
    double worst = 0;       ///< largest |engine - reference| as a fraction of the budget; at most 1 passes
    std::string failure{};  ///< empty: passed. Where and by how much, of the part that `worst` is of.
    /// Largest budget over largest value of the reference, of the part where that is most. `worst` is a fraction of the
    /// budget, so it cannot show that the budget excuses anything.
    double relative_budget = 0;
    bool passed() const { return failure.empty(); }
    bool wide() const { return !(relative_budget <= kWideBudget); }
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
        double worst = -1, largest = 0x1p-126, budget = 0;  // among subnormals a budget is wide by nature
        for (Index i = 0; i < want.budget.size(); ++i) {
            const double e = static_cast<double>(engine.data[static_cast<std::size_t>(i)]);
            const double v = want.value.data()[i], b = want.budget.data()[i], off = std::fabs(e - v);
            const bool sound = std::isfinite(e) && std::isfinite(v) && std::isfinite(b);
            largest = std::max(largest, std::fabs(v));
            budget = std::max(budget, b);
            const double ratio = !sound ? std::numeric_limits<double>::infinity() : off == 0 ? 0 : off / b;
            if (ratio > worst) {
                worst = ratio;
                at = i;
            }
        }
        stage.relative_budget = std::max(stage.relative_budget, budget / largest);
        if (worst > 1) {
            char text[200];
            std::snprintf(text, sizeof text, ": engine %.9g, reference %.17g, budget %.3g",
                          static_cast<double>(engine.data[static_cast<std::size_t>(at)]), want.value.data()[at],
                          want.budget.data()[at]);
            std::string what = part + place(engine, at) + text;
            if (std::isinf(worst)) what += not_finite(engine, want, at);
            fail(stage, worst, what);
        }
        stage.worst = std::max(stage.worst, worst);
        return shared_over_chained(engine, want.value);
    }

    /// A judgement that is not a comparison of numbers.
    void operator()(const char* name, double ratio, const std::string& what) {
        Stage& stage = this->stage(name);
        if (!(ratio <= 1)) fail(stage, ratio, what);
        stage.worst = std::max(stage.worst, ratio);
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
        if (stage.passed() || ratio > stage.worst) stage.failure = what;
        stage.worst = std::max(stage.worst, ratio);
    }
    /// A probe (services.hpp) multiplies what it does not show by 0, so one infinity makes the whole row NaN.
    static std::string place(const Rows& engine, Index at) {
        const auto cols = static_cast<Index>(engine.cols);
        const float* const row = engine.data.data() + at / cols * cols;
        const bool all = cols > 1 && std::all_of(row, row + cols, [](float v) { return std::isnan(v); });
        return "token " + std::to_string(at / cols) +
               (all ? ", column unknown (the whole row is NaN)" : ", column " + std::to_string(at % cols));
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
