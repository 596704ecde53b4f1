// Wrong norms.
#include <algorithm>
#include <bit>
#include <cmath>

#include "tests/other_hand/families.h"
#include "tests/other_hand/norms.h"

namespace lockstep::other_hand {
namespace {

double nearest_bf16(double x) { return nearest(x, Kind::bf16); }

// --- The root -----------------------------------------------------------------------------------

// CUTLASS's RMSNorm had one eps for all models (NVIDIA/cutlass#1112, apache/tvm#15856). Where the
// model's own is 1e-5 it is the other one.
double inverse_with_other_eps(double squares, int64_t width, double eps) {
  return inverse_in_fp64(squares, width, eps > 5e-6 ? 1e-6 : 1e-5);
}

// An eps that survives as fp16: nntrainer#4318 had this floor.
double inverse_with_floored_eps(double squares, int64_t width, double eps) {
  return inverse_in_fp64(squares, width, std::max(eps, 1e-4));
}

double inverse_with_eps_outside(double squares, int64_t width, double eps) {
  return 1 / (std::sqrt(squares / to_double(width)) + eps);  // tilelang#1243
}

// An l2norm's eps, which is added to the sum: ml-explore/mlx-lm#1624 is the reverse.
double inverse_with_eps_in_sum(double squares, int64_t width, double eps) {
  return inverse_in_fp64(squares + eps, width, 1e-30);
}

// The unbiased variance of a layer norm divides by n - 1.
double inverse_unbiased(double squares, int64_t width, double eps) {
  return inverse_in_fp64(squares, std::max<int64_t>(width - 1, 1), eps);
}

template <int steps>
double inverse_guessed(double squares, int64_t width, double eps) {
  const float mean = static_cast<float>(squares) / to_float(width) + static_cast<float>(eps);
  float y = std::bit_cast<float>(0x5f3759dfu - (std::bit_cast<uint32_t>(mean) >> 1));
  for (int step = 0; step < steps; ++step) y *= 1.5F - 0.5F * mean * y * y;
  return y;
}

// rsqrtps and its like without the step that is to follow them.
double inverse_of_12_bits(double squares, int64_t width, double eps) {
  return cut_to_bits(inverse_in_fp64(squares, width, eps), 12);
}

// --- The gain -----------------------------------------------------------------------------------

// amd/IRON#139: one imprecise number for the whole row, so that all errors point one way.
void gain_with_narrow_inverse(const NormRow& row) {
  const double inverse = nearest_bf16(row.inverse);
  for (int64_t i = 0; i < row.width; ++i) row.out[i] = row.x[i] * inverse * row.weight[i];
}

void gain_plus_one(const NormRow& row) {  // Gemma's weights are kept less one
  for (int64_t i = 0; i < row.width; ++i) row.out[i] = row.x[i] * row.inverse * (row.weight[i] + 1);
}

void gain_of_neighbour(const NormRow& row) {
  for (int64_t i = 0; i < row.width; ++i)
    row.out[i] = row.x[i] * row.inverse * row.weight[(i + 1) % row.width];
}

void gain_of_pair(const NormRow& row) {  // the halves of a half2 the wrong way round
  for (int64_t i = 0; i < row.width; ++i)
    row.out[i] = row.x[i] * row.inverse * row.weight[std::min(i ^ 1, row.width - 1)];
}

void gain_off_at_one_channel(const NormRow& row) {  // the first of a second shard
  plain_gain(row);
  const int64_t i = row.width / 2;
  row.out[i] = row.x[i] * row.inverse * row.weight[i - 1];
}

void gain_off_by_0_3_percent(const NormRow& row) {
  for (int64_t i = 0; i < row.width; ++i)
    row.out[i] = row.x[i] * row.inverse * row.weight[i] * 1.003;
}

void gain_missing_at_the_end(const NormRow& row) {
  plain_gain(row);
  row.out[row.width - 1] = row.x[row.width - 1] * row.inverse;
}

// The cast before the weight is Hugging Face's, but it cuts off.
void gain_after_truncation(const NormRow& row) {
  for (int64_t i = 0; i < row.width; ++i)
    row.out[i] = truncated(row.x[i] * row.inverse, row.kind) * row.weight[i];
}

// A model loaded in bf16 whose norms were left there while all else became wider.
void gain_after_bf16(const NormRow& row) {
  for (int64_t i = 0; i < row.width; ++i)
    row.out[i] = nearest_bf16(row.x[i] * row.inverse) * row.weight[i];
}

void gain_through_fp8(const NormRow& row) {  // fused with the quantisation of the next product
  double largest = 0;
  for (int64_t i = 0; i < row.width; ++i) {
    row.out[i] = row.x[i] * row.inverse * row.weight[i];
    largest = std::max(largest, std::fabs(row.out[i]));
  }
  for (int64_t i = 0; i < row.width; ++i) row.out[i] = e4m3(row.out[i], largest);
}

// ROCm/aiter#5151: the store drops the low bits, so that every output is a little too small.
void gain_then_truncation(const NormRow& row) {
  for (int64_t i = 0; i < row.width; ++i)
    row.out[i] = truncated(row.x[i] * row.inverse * row.weight[i], row.kind);
}

// --- Rows ---------------------------------------------------------------------------------------

// One block's scale in shared memory, which the next row's threads read before it is made anew.
const char* norm_with_scale_of_row_before(const LockstepCall*, const DLTensor* out,
                                          const DLTensor* x, const DLTensor* weight, float eps) {
  if (const char* why = refused({out, x, weight})) return why;
  double before = 0;
  each_norm_row(out, x, weight, [&](NormRow row) {
    const double own = inverse_of_root(dot_warp(row.x, row.x, row.width, row.kind), row.width, eps);
    row.inverse = before == 0 ? own : before;
    before = own;
    plain_gain(row);
  });
  return nullptr;
}

// A warp takes two rows and broadcasts one scale.
const char* norm_with_scale_of_pair(const LockstepCall*, const DLTensor* out, const DLTensor* x,
                                    const DLTensor* weight, float eps) {
  if (const char* why = refused({out, x, weight})) return why;
  int64_t count = 0;
  double shared = 0;
  each_norm_row(out, x, weight, [&](NormRow row) {
    if (count++ % 2 == 0)
      shared = inverse_of_root(dot_warp(row.x, row.x, row.width, row.kind), row.width, eps);
    row.inverse = shared;
    plain_gain(row);
  });
  return nullptr;
}

// Each block of a row is scaled by itself: a row that is sharded over devices, and a reduction that
// stays on each.
const char* norm_by_halves(const LockstepCall*, const DLTensor* out, const DLTensor* x,
                           const DLTensor* weight, float eps) {
  if (const char* why = refused({out, x, weight})) return why;
  each_norm_row(out, x, weight, [&](const NormRow& row) {
    const int64_t half = row.width / 2;
    for (const int64_t from : {int64_t{0}, half}) {
      NormRow part = row;
      part.x += from, part.weight += from, part.out += from;
      part.width = from == 0 ? half : row.width - half;
      part.inverse =
          inverse_of_root(dot_warp(part.x, part.x, part.width, row.kind), part.width, eps);
      plain_gain(part);
    }
  });
  return nullptr;
}

// Over all heads of a token at once, as OLMo2 has it; Qwen3 norms each head by itself.
const char* norm_of_all_heads(const LockstepCall*, const DLTensor* out, const DLTensor* x,
                              const DLTensor* weight, float eps) {
  if (const char* why = refused({out, x, weight})) return why;
  const int64_t heads = x->ndim == 3 ? x->shape[1] : 1, width = weight->shape[0];
  const std::vector<float> all = Tensor(x).all();
  int64_t count = 0;
  each_norm_row(out, x, weight, [&](NormRow row) {
    const float* token = all.data() + count++ / heads * heads * width;
    row.inverse =
        inverse_of_root(dot_warp(token, token, heads * width, row.kind), heads * width, eps);
    plain_gain(row);
  });
  return nullptr;
}

const char* layer_norm(const LockstepCall*, const DLTensor* out, const DLTensor* x,
                       const DLTensor* weight, float eps) {
  if (const char* why = refused({out, x, weight})) return why;
  std::vector<float> centred;
  each_norm_row(out, x, weight, [&](NormRow row) {
    double mean = 0;
    for (int64_t i = 0; i < row.width; ++i) mean += row.x[i] / to_double(row.width);
    centred.assign(row.x, row.x + row.width);
    for (float& value : centred) value -= static_cast<float>(mean);
    row.x = centred.data();
    row.inverse = inverse_of_root(dot_warp(row.x, row.x, row.width, row.kind), row.width, eps);
    plain_gain(row);
  });
  return nullptr;
}

// Scaled by the largest element, but eps is not: apple/coremltools#2821.
const char* norm_with_inflated_eps(const LockstepCall*, const DLTensor* out, const DLTensor* x,
                                   const DLTensor* weight, float eps) {
  if (const char* why = refused({out, x, weight})) return why;
  each_norm_row(out, x, weight, [&](NormRow row) {
    double largest = 1e-30;
    for (int64_t i = 0; i < row.width; ++i)
      largest = std::max(largest, static_cast<double>(std::fabs(row.x[i])));
    row.inverse = inverse_in_fp64(dot_fp64(row.x, row.x, row.width, row.kind), row.width,
                                  eps * largest * largest);
    plain_gain(row);
  });
  return nullptr;
}

using Norms = Family<decltype(lockstep_rms_norm)>;

const Shows kHeads = {.points = "attn.q_norm,attn.k_norm", .first_point = "attn.q_norm"};

void add_roots(Norms& list) {
  const Shows small_rows = {.needs = "rows whose mean square is below 0.01, as the first layer's"};
  list.wrong("norm-sum-in-bf16", rms_norm<dot_in_bf16>, 120, "squares and their sum in bf16");
  list.wrong("norm-sum-in-fp16", rms_norm<dot_in_fp16>, 16,
             "squares and their sum in fp16, which overflow (nntrainer#3935)");
  list.wrong("norm-lanes-in-16-bits", rms_norm<dot_lanes_in_dtype>, 3.9,
             "32 partial sums of squares, each in 16 bits");
  list.wrong("norm-lane-lost", rms_norm<dot_one_lane_lost>, 14, "one of 32 lanes is not added");
  list.wrong("norm-tiles-of-128", rms_norm<dot_tiles_of_128>, 64,
             "squares beyond the last whole tile of 128 are not summed",
             {.needs = "a width over 128 that is no multiple of it"});
  list.wrong("norm-tiles-of-32", rms_norm<dot_tiles_of_32>, 1.5,
             "squares beyond the last whole 32 are not summed",
             {.needs = "held to fused; a width that is no multiple of 32"});
  list.wrong("norm-other-eps", rms_norm<dot_warp, inverse_with_other_eps>, 84,
             "eps is 1e-5 where the model has 1e-6, and the other way round", small_rows);
  list.wrong("norm-eps-floored", rms_norm<dot_warp, inverse_with_floored_eps>, 190,
             "eps is at least 1e-4, so that fp16 can hold it", small_rows);
  list.wrong("norm-eps-outside-root", rms_norm<dot_warp, inverse_with_eps_outside>, 20,
             "eps added to the root", small_rows);
  list.wrong("norm-eps-in-sum", rms_norm<dot_warp, inverse_with_eps_in_sum>, 20,
             "eps added to the sum of squares instead of to their mean", small_rows);
  list.wrong(
      "norm-eps-inflated", norm_with_inflated_eps, 20,
      "the row is scaled by its largest element, eps is not",
      {.needs = "rows whose mean square is below 0.01, or whose largest element is over 100 times "
                "the root of it"});
  list.wrong("norm-unbiased", rms_norm<dot_warp, inverse_unbiased>, 8,
             "the mean over n - 1 elements", kHeads);
  list.wrong("norm-one-newton-step", rms_norm<dot_warp, inverse_guessed<1>>, 0.42,
             "the inverse root by one step of Newton's from the guess by bits: 0.17 % low",
             {.needs = "held to fused"});
  list.wrong("norm-no-newton-step", rms_norm<dot_warp, inverse_guessed<0>>, 8.5,
             "the inverse root is the guess by bits: up to 3.4 % off");
  list.wrong("norm-12-bit-root", rms_norm<dot_warp, inverse_of_12_bits>, 0.75,
             "an inverse root of 12 bits", {.dtypes = "fp16,fp32"});
}

void add_gains(Norms& list) {
  list.wrong("norm-inverse-in-bf16", rms_norm<dot_warp, inverse_of_root, gain_with_narrow_inverse>,
             0.85, "the inverse root rounded to bf16 before it scales the row",
             {.needs = "held to fused"});
  list.wrong("norm-weight-plus-one", rms_norm<dot_warp, inverse_of_root, gain_plus_one>, 1.6e5,
             "the weight of a Gemma, one more than the checkpoint's");
  list.wrong("norm-weight-shifted", rms_norm<dot_warp, inverse_of_root, gain_of_neighbour>, 67000,
             "each channel has the next one's weight");
  list.wrong("norm-weight-pairs-swapped", rms_norm<dot_warp, inverse_of_root, gain_of_pair>, 1.2e5,
             "the weights of even and odd channels are swapped");
  list.wrong("norm-one-channel", rms_norm<dot_warp, inverse_of_root, gain_off_at_one_channel>, 130,
             "one channel has its neighbour's weight");
  list.wrong("norm-gain-off-by-0.3-percent",
             rms_norm<dot_warp, inverse_of_root, gain_off_by_0_3_percent>, 0.75,
             "everything 0.3 % too large", {.needs = "held to fused"});
  list.wrong("norm-last-channel-unweighted",
             rms_norm<dot_warp, inverse_of_root, gain_missing_at_the_end>, 48,
             "the last channel is not multiplied by its weight");
  list.wrong("norm-cast-truncates", rms_norm<dot_warp, inverse_of_root, gain_after_truncation>,
             0.78, "the cast before the weight cuts off instead of rounding",
             {.dtypes = "bf16,fp16", .rounding = "hf"});
  list.wrong("norm-in-bf16", rms_norm<dot_warp, inverse_of_root, gain_after_bf16>, 6.4,
             "the normalised value rounded to bf16 in a run of another dtype",
             {.dtypes = "fp16,fp32", .rounding = "hf"});
  list.wrong("norm-through-fp8", rms_norm<dot_warp, inverse_of_root, gain_through_fp8>, 220,
             "the output rounded to e4m3 with a scale for each row");
  list.wrong("norm-truncated-store", rms_norm<dot_warp, inverse_of_root, gain_then_truncation>, 0.5,
             "the store cuts off instead of rounding",
             {.dtypes = "bf16,fp16", .needs = "held to fused"});
}

void add_rows(Norms& list) {
  list.wrong("norm-scale-of-row-before", norm_with_scale_of_row_before, 1.3e6,
             "each row but the first is scaled by the one before",
             {.needs = "a pass with several rows"});
  list.wrong("norm-scale-of-pair", norm_with_scale_of_pair, 580,
             "odd rows are scaled by the row before", {.needs = "a pass with several rows"});
  list.wrong("norm-by-halves", norm_by_halves, 980, "each half of a row is scaled by itself");
  list.wrong("norm-of-all-heads", norm_of_all_heads, 260,
             "the heads of a token are normed together", kHeads);
  list.wrong("norm-mean-subtracted", layer_norm, 3.7e5, "a layer norm");
}

}  // namespace

std::vector<OtherKernel> wrong_norms() {
  Norms list("lockstep_rms_norm", "attn.norm");
  add_roots(list);
  add_gains(list);
  add_rows(list);
  return list.rows();
}

}  // namespace lockstep::other_hand
