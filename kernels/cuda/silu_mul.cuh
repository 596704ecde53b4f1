#pragma once

#include "kernels/cuda/device.cuh"

namespace lockstep {

// The arithmetic of silu_mul on the device, which it shares with the op that contains it, in
// intrinsics, because a compiler may contract a product in one kernel and not in another.
struct SiluMul {
  __device__ float operator()(float gate, float up) const {
    return __fmul_rn(__fdiv_rn(gate, __fadd_rn(1.0f, expf(-gate))), up);
  }
};

}  // namespace lockstep
