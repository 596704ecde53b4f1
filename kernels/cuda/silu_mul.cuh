#pragma once

#include "kernels/cuda/device.cuh"

namespace lockstep {

// silu_mul's arithmetic on the device, which it shares with the op that contains it. Spelt out,
// because compilers may fuse a product otherwise in one kernel and not in another.
struct SiluMul {
  __device__ float operator()(float gate, float up) const {
    return __fmul_rn(__fdiv_rn(gate, __fadd_rn(1.0f, expf(-gate))), up);
  }
};

}  // namespace lockstep
