#include "kernels/cuda_ops.h"
#include "kernels/elementwise.cuh"
#include "kernels/silu_mul.h"

namespace lockstep {
namespace {

struct SiluMul {
  __device__ float operator()(float gate, float up) const {
    return gate / (1.0f + expf(-gate)) * up;
  }
};

}  // namespace

void silu_mul_cuda(const OpContext& context, TensorView out, TensorView gate, TensorView up) {
  check_silu_mul(out, gate, up, Device::cuda);
  launch_combine<SiluMul>(context, out, gate, up, "silu_mul");
}

}  // namespace lockstep
