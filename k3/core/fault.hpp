#ifndef K3_CORE_FAULT_HPP
#define K3_CORE_FAULT_HPP
// How kernels, layers and Forward report what went wrong: by value. The session turns a Fault into a k3::Error.
#include <cstdint>

#include "k3/core/check.hpp"

namespace k3::core {

enum class FaultCode : std::uint8_t {
    none,
    router_nan,         ///< a router score is NaN: no expert can be chosen
    argmax_nan,         ///< a logit is NaN: no token can be chosen
    expert_failed,      ///< the expert service could not deliver an expert
    weight_failed,      ///< the weight source could not deliver a panel
    interrupted,        ///< the caller's progress callback asked to stop
    bad_step,           ///< a segment wants more logits than it has tokens, or two segments share a state
    scratch_too_small,  ///< the caller's scratch is smaller than scratch_bytes() asked for
};

/// Which fault, and where. Fields that do not apply are -1.
struct Fault {
    FaultCode code = FaultCode::none;
    std::int32_t layer = -1;
    std::int32_t token = -1;  // row of the step
    std::int32_t expert = -1;

    K3_INLINE constexpr explicit operator bool() const noexcept { return code != FaultCode::none; }
};

}  // namespace k3::core
#endif
