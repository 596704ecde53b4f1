// What right and wrong norms share: the rows of a call, and the steps of a norm as kernels take
// them.
#pragma once

#include <vector>

#include "tests/other_hand/numbers.h"
#include "tests/other_hand/sums.h"

namespace lockstep::other_hand {

// One row and what becomes of it; results are put to the nearest at the end.
struct NormRow {
  const float* x;
  const float* weight;
  int64_t width;
  Kind kind;
  double inverse;  // 1 / root of the mean square
  double* out;
};

using Inverse = double(double squares, int64_t width, double eps);
using Gain = void(const NormRow& row);

Inverse inverse_of_root;  // in fp32, by a division
Inverse inverse_in_fp64;
Gain plain_gain;  // (x inverse) weight, in fp32
Gain hf_gain;     // the normalised value to the dtype, then the weight

// Calls `make(row)` for every row of x, first to last; `row.inverse` is left to it.
template <typename Make>
void each_norm_row(const DLTensor* out, const DLTensor* x, const DLTensor* weight, Make make) {
  const Tensor to(out), from(x);
  const std::vector<float> gains = Tensor(weight).all();
  const auto width = static_cast<int64_t>(gains.size());
  std::vector<float> values(gains.size());
  std::vector<double> results(gains.size());
  for (int64_t row = 0; row < from.rows(); ++row) {
    from.load(row * width, width, values.data());
    make(NormRow{values.data(), gains.data(), width, to.kind(), 0, results.data()});
    for (int64_t i = 0; i < width; ++i) to.put(row * width + i, results[static_cast<size_t>(i)]);
  }
}

// A norm whose rows have nothing to do with each other.
template <Dot* dot, Inverse* inverse = inverse_of_root, Gain* gain = plain_gain>
const char* rms_norm(const LockstepCall*, const DLTensor* out, const DLTensor* x,
                     const DLTensor* weight, float eps) {
  if (const char* why = refused({out, x, weight})) return why;
  each_norm_row(out, x, weight, [eps](NormRow row) {
    row.inverse = inverse(dot(row.x, row.x, row.width, row.kind), row.width, eps);
    gain(row);
  });
  return nullptr;
}

}  // namespace lockstep::other_hand
