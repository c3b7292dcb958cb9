#ifndef K3_TESTS_SUPPORT_NO_PREDICTIONS_HPP
#define K3_TESTS_SUPPORT_NO_PREDICTIONS_HPP
// An expert service that asks for no look-ahead: what most stand-ins of tests are.
#include "k3/layers/experts.hpp"

namespace k3::tests {

struct NoPredictions : layers::ExpertService {
    std::size_t wants_prediction(std::size_t) const noexcept override { return 0; }
    void predict(std::size_t, const std::int32_t*, std::size_t) noexcept override {}

  protected:
    ~NoPredictions() = default;
};

}  // namespace k3::tests
#endif
