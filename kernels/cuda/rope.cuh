// The arithmetic of rope on the device, which it shares with the ops that contain it.
#pragma once

#include "kernels/base/tensor.h"
#include "kernels/cuda/device.cuh"

namespace lockstep {

struct RopeTables {
  const float* cos;
  const float* sin;
  const int32_t* positions;
  int64_t entries, half;
  BadIndex* bad;
};

inline RopeTables rope_tables(const TensorView& cos, const TensorView& sin,
                              const TensorView& positions) {
  return {cos.as<const float>(), sin.as<const float>(), positions.as<const int32_t>(), cos.rows(),
          cos.shape[1],          bad_index_report()};
}

// The rotation of pair j of a token; NaN, and a report, where the position is outside the tables.
struct Rotation {
  float cos = NAN, sin = NAN;
  Rotation() = default;
  __device__ Rotation(const RopeTables& tables, int64_t token, int64_t j) {
    const int64_t position = tables.positions[token];
    if (position >= 0 && position < tables.entries) {
      cos = tables.cos[position * tables.half + j];
      sin = tables.sin[position * tables.half + j];
    } else {
      report(tables.bad, BadIndex::Of::position, tables.entries, position, token);
    }
  }
  // Intrinsics, because a compiler may contract a product in one kernel and not in another.
  __device__ float low(float low, float high) const {
    return __fmaf_rn(low, cos, -__fmul_rn(high, sin));
  }
  __device__ float high(float low, float high) const {
    return __fmaf_rn(high, cos, __fmul_rn(low, sin));
  }
};

}  // namespace lockstep
