#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/elementwise.cuh"
#include "kernels/cuda/silu_mul.cuh"
#include "kernels/silu_mul.h"

namespace lockstep {

void silu_mul_cuda(const OpContext& context, TensorView out, TensorView gate, TensorView up) {
  check_silu_mul(out, gate, up, DeviceKind::cuda);
  launch_combine<SiluMul>(context, out, gate, up, "silu_mul");
}

}  // namespace lockstep
