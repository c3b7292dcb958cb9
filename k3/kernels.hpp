#ifndef K3_KERNELS_HPP
#define K3_KERNELS_HPP
// Ranks 0 to 4 for a host project: views, lanes, weight formats, kernels and layers. Needs xsimd and nothing else;
// compiles without exceptions; keeps its bits under the host's flags. Kernels that take an Exec set the floating-point
// environment they need; the others run in the caller's: where a host changes the rounding mode or flushes subnormals,
// call them from the body of core::parallel. Everything is in k3/k3.hpp.
#include "k3/core/check.hpp"
#include "k3/core/digest.hpp"
#include "k3/core/exec.hpp"
#include "k3/core/fault.hpp"
#include "k3/core/fp_env.hpp"
#include "k3/core/parallel.hpp"
#include "k3/core/view.hpp"

#include "k3/simd/arch.hpp"
#include "k3/simd/canary.hpp"
#include "k3/simd/fence.hpp"
#include "k3/simd/lanes.hpp"
#include "k3/simd/math.hpp"
#include "k3/simd/regs.hpp"

#include "k3/formats/bf16.hpp"
#include "k3/formats/f32.hpp"
#include "k3/formats/mxfp4.hpp"
#include "k3/formats/weight_format.hpp"

#include "k3/kernels/attention_residual.hpp"
#include "k3/kernels/column_dot.hpp"
#include "k3/kernels/delta_rule.hpp"
#include "k3/kernels/dot.hpp"
#include "k3/kernels/elementwise.hpp"
#include "k3/kernels/latent_attention.hpp"
#include "k3/kernels/matmul.hpp"
#include "k3/kernels/norm.hpp"
#include "k3/kernels/short_conv.hpp"
#include "k3/kernels/softmax.hpp"
#include "k3/kernels/top_k.hpp"

#include "k3/layers/context.hpp"
#include "k3/layers/experts.hpp"
#include "k3/layers/kda.hpp"
#include "k3/layers/linear.hpp"
#include "k3/layers/mla.hpp"
#include "k3/layers/mlp.hpp"
#include "k3/layers/moe.hpp"
#include "k3/layers/weight.hpp"
#endif
