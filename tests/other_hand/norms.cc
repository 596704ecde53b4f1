// Right norms: any order of the sum, any way to the root, and the gain before or after.
#include "tests/other_hand/norms.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "tests/other_hand/families.h"

namespace lockstep::other_hand {

double inverse_of_root(double squares, int64_t width, double eps) {
  const float mean = static_cast<float>(squares) / to_float(width);
  return 1 / std::sqrt(mean + static_cast<float>(eps));
}

double inverse_in_fp64(double squares, int64_t width, double eps) {
  return 1 / std::sqrt(squares / to_double(width) + eps);
}

void plain_gain(const NormRow& row) {
  const auto inverse = static_cast<float>(row.inverse);
  for (int64_t i = 0; i < row.width; ++i) row.out[i] = row.x[i] * inverse * row.weight[i];
}

void hf_gain(const NormRow& row) {
  const auto inverse = static_cast<float>(row.inverse);
  for (int64_t i = 0; i < row.width; ++i)
    row.out[i] = rounded(row.x[i] * inverse, row.kind) * row.weight[i];
}

namespace {

// Mean and squared distances in one pass; the mean of the squares is what both make together. It is
// how layer-norm kernels (apex, PyTorch) are reused for RMS.
double welford_squares(const float* x, const float*, int64_t n, Kind) {
  float mean = 0, distances = 0;
  for (int64_t i = 0; i < n; ++i) {
    const float delta = x[i] - mean;
    mean += delta / to_float(i + 1);
    distances += delta * (x[i] - mean);
  }
  return distances + to_float(n) * mean * mean;
}

// Scaled by the largest element first, so that no square overflows.
double scaled_squares(const float* x, const float*, int64_t n, Kind kind) {
  float largest = 0;
  for (int64_t i = 0; i < n; ++i) largest = std::max(largest, std::fabs(x[i]));
  if (largest == 0) return 0;
  std::vector<float> scaled(x, x + n);
  for (float& value : scaled) value /= largest;
  return static_cast<float>(dot_lanes8(scaled.data(), scaled.data(), n, kind)) * largest * largest;
}

// From the well-known guess by bits; four steps of Newton's leave nothing of it.
double inverse_by_newton(double squares, int64_t width, double eps) {
  const float mean = static_cast<float>(squares) / to_float(width) + static_cast<float>(eps);
  float y = std::bit_cast<float>(0x5f3759dfu - (std::bit_cast<uint32_t>(mean) >> 1));
  for (int step = 0; step < 4; ++step) y *= 1.5F - 0.5F * mean * y * y;
  return y;
}

void gain_first(const NormRow& row) {
  const auto inverse = static_cast<float>(row.inverse);
  for (int64_t i = 0; i < row.width; ++i) row.out[i] = row.x[i] * row.weight[i] * inverse;
}

void gain_with_inverse(const NormRow& row) {
  const auto inverse = static_cast<float>(row.inverse);
  for (int64_t i = row.width - 1; i >= 0; --i) row.out[i] = row.x[i] * (row.weight[i] * inverse);
}

void gain_by_division(const NormRow& row) {
  const auto root = static_cast<float>(1 / row.inverse);
  for (int64_t i = 0; i < row.width; ++i) row.out[i] = row.x[i] / root * row.weight[i];
}

void gain_in_fp64(const NormRow& row) {
  for (int64_t i = 0; i < row.width; ++i) row.out[i] = row.x[i] * row.inverse * row.weight[i];
}

}  // namespace

std::vector<OtherKernel> right_norms() {
  Family<decltype(lockstep_rms_norm)> list("lockstep_rms_norm", "attn.norm");
  list.right("norm-forward", rms_norm<dot_forward>, "fused", "squares summed first to last");
  list.right("norm-backward", rms_norm<dot_backward>, "fused", "squares summed last to first");
  list.right("norm-pairwise", rms_norm<dot_pairwise>, "fused", "squares summed by halves");
  list.right("norm-lanes-4", rms_norm<dot_lanes4>, "fused", "four partial sums, then a tree");
  list.right("norm-lanes-16", rms_norm<dot_lanes16, inverse_of_root, gain_first>, "fused",
             "sixteen partial sums; the weight before the scale");
  list.right("norm-warp", rms_norm<dot_warp, inverse_of_root, gain_with_inverse>, "fused",
             "a warp's butterfly; the scale times the weight first");
  list.right("norm-kahan", rms_norm<dot_kahan>, "fused", "a compensated sum");
  list.right("norm-fma", rms_norm<dot_fma, inverse_of_root, gain_by_division>, "fused",
             "fused multiply-adds, and a division by the root");
  list.right("norm-split-8", rms_norm<dot_split8>, "fused", "eight parts of a row, then their sum");
  list.right("norm-fp64", rms_norm<dot_fp64, inverse_in_fp64, gain_in_fp64>, "fused",
             "fp64 throughout, rounded once");
  list.right("norm-root-in-fp64", rms_norm<dot_blocks32, inverse_in_fp64>, "fused",
             "an fp32 sum by blocks, the root in fp64");
  list.right("norm-welford", rms_norm<welford_squares>, "fused",
             "mean and variance in one pass, put together again");
  list.right("norm-scaled", rms_norm<scaled_squares>, "fused",
             "the row scaled by its largest element first");
  list.right("norm-newton", rms_norm<dot_lanes8, inverse_by_newton>, "fused",
             "the inverse root by four steps of Newton's");
  list.right("norm-hf", rms_norm<dot_lanes8, inverse_of_root, hf_gain>, "hf",
             "the normalised value to the dtype, then the weight, as Qwen3RMSNorm");
  list.right("norm-hf-pairwise", rms_norm<dot_pairwise, inverse_in_fp64, hf_gain>, "hf",
             "the same with a sum by halves and the root in fp64");
  return list.rows();
}

}  // namespace lockstep::other_hand
