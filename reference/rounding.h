// Roundings to the dtype of a run, of fp64 tensors: the steps of a chain (src/judge/contracts.h).
#pragma once

#include "kernels/base/dtype.h"

namespace at {
class Tensor;
}

namespace lockstep {

// Numbers of `precision` significant bits and exponents down to `least`.
struct Grid {
  int precision = 53;
  int least = -1022;
  double max = 0;  // the largest number; 0: there is none, as of tf32 next to fp64

  static Grid of(DType dtype);
  // x rounded to nearest even: fp64 in and out. Overflows to Inf.
  at::Tensor rounded(const at::Tensor& x) const;
  // The distance between the two numbers around each x.
  at::Tensor spacing(const at::Tensor& x) const;
  // The spacing around those x that lie halfway between two numbers, and 0 elsewhere.
  at::Tensor halves(const at::Tensor& x) const;
};
inline constexpr Grid kTf32 = {11, -126, 0};

// `step` and `chance` as in NearTie of src/stats/roundoff.h, of each z, which a kernel has to
// within `most`, and usually to within `usual`, before it rounds it.
void near_ties(const at::Tensor& z, const at::Tensor& most, const at::Tensor& usual,
               const Grid& grid, at::Tensor& step, at::Tensor& chance);

}  // namespace lockstep
