// Ways in which right numbers land in wrong places, or are changed on their way out, whatever the
// op computes: what was stored tells where each came from.
//
// A column that agrees with another one's right results in several rows did not do so by chance; so
// fewer rows than that are not asked.
//
// These come last of all: a way that is known by its own name says more, and of two that fit
// equally well the earlier one is said first. They are asked anew of every pass, since what is
// moved where may differ from one to the next; what they have in common is that each number is a
// right one.
//
// The rest are changes that any op's result may take on its way out: an epilogue of another op, a
// buffer that was not empty, a format of fewer bits.
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/erf.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/where.h>

#include <cmath>
#include <numbers>

#include "reference/hypotheses/asked.h"
#include "reference/rounding.h"

namespace lockstep {
namespace {

using at::Tensor;

constexpr int64_t kLeastAlike = 6, kMostAlike = 64, kMostPlaces = 4096;

// For each row of `got` the row of `right` that is nearest to it; its own, if that is as near.
Tensor nearest(const Tensor& got, const Tensor& right) {
  const Tensor off = got.square().sum(1, true) + right.square().sum(1).unsqueeze(0) -
                     2 * at::matmul(got, right.t());
  const Tensor best = std::get<0>(off.min(1, true));
  const Tensor own = off.diagonal().unsqueeze(1);
  const Tensor near = own <= 1.01 * best + 1e-9 * right.square().sum(1, true);
  Tensor from = off.argmin(1);
  const Tensor number = (at::ones_like(from).cumsum(0) - 1);
  return at::where(near.squeeze(1), number, from);
}
// Whether any place has what is another one's.
bool is_moved(const Tensor& from) {
  const Tensor number = at::ones_like(from).cumsum(0) - 1;
  return (from != number).any().item<bool>();
}
// Tiles that were written twice, heads in another order, a column that was computed for another.
Tensor columns_as_told(const Asked& a, double) {
  const Tensor got = a.got().flatten(1), right = a.right().flatten(1);
  if (a.rows() < kLeastAlike || got.size(1) > kMostPlaces) return {};
  const int64_t some = std::min(a.rows(), kMostAlike);
  const Tensor from =
      nearest(got.narrow(0, 0, some).nan_to_num().t(), right.narrow(0, 0, some).t());
  return is_moved(from) ? right.index_select(1, from) : Tensor();
}
// Rows of a batch that changed places, or that a tile was not moved on for.
Tensor rows_as_told(const Asked& a, double) {
  const Tensor got = a.got().flatten(1), right = a.right().flatten(1);
  if (a.rows() < 2 || a.rows() > kMostPlaces || got.size(1) < kLeastAlike) return {};
  const Tensor from = nearest(got.nan_to_num(), right);
  return is_moved(from) ? right.index_select(0, from) : Tensor();
}

// Dims at the end of every head that hold nothing.
std::vector<double> empty_dims(const Asked& a) {
  if (a.place().point->head_axis < 0 || a.got().dim() < 3) return {};
  const Tensor used = (a.got() != 0).flatten(0, 1).any(0).to(at::kCPU).contiguous();
  const bool* is_used = used.const_data_ptr<bool>();
  int64_t count = 0;
  while (count < used.size(0) && !is_used[used.size(0) - 1 - count]) ++count;
  if (count == 0 || count == used.size(0)) return {};
  return {as_fp64(count)};
}
Tensor last_dims_zero(const Asked& a, double count) {
  const Tensor y = a.right().clone();
  const auto some = static_cast<int64_t>(count);
  if (y.dim() < 3 || some >= y.size(-1)) return {};
  y.narrow(-1, y.size(-1) - some, some).fill_(0);
  return y;
}
// Dims in the middle of a head, or of a row, that are those of a neighbouring block.
std::vector<double> spans(const Asked& a) {
  std::vector<double> all;
  const int64_t width = a.got().size(-1);
  for (int64_t span = 1; 2 * span <= width; span *= 2) all.push_back(as_fp64(span));
  if (width % 2 == 0 && (width & (width - 1)) != 0) all.push_back(as_fp64(width) / 2);
  return all;
}
// Two blocks that were stored the other way round: (b, a) for (a, b).
Tensor spans_exchanged(const Asked& a, double span) {
  const Tensor y = a.right();
  const auto size = static_cast<int64_t>(span);
  if (y.size(-1) % (2 * size) != 0) return {};
  return y.unflatten(-1, {-1, 2, size}).flip(-2).flatten(-3);
}
Tensor reversed_columns(const Asked& a, double) { return a.right().flip(-1); }

// Buffers that hold what was there before: results of the layer before, alone or with the right
// ones added on (a beta of 1 where 0 was meant).
Tensor of_layer_before(const Asked& a) {
  if (a.place().layer < 1) return {};
  const Tensor y = a.other({a.place().point, a.place().layer - 1});
  return y.defined() && y.numel() == a.got().numel() ? y.view(a.got().sizes()) : Tensor();
}
Tensor stale(const Asked& a, double) { return of_layer_before(a); }
Tensor stale_added(const Asked& a, double) {
  const Tensor before = of_layer_before(a);
  return before.defined() ? a.right() + before : Tensor();
}
// A residual that a fused kernel adds, and its caller once more.
Tensor input_added_on(const Asked& a, double) {
  const OpKind op = a.place().point->op;
  if (op == OpKind::norm || op == OpKind::add || a.inputs() == 0) return {};
  return a.input(0).numel() == a.got().numel() ? a.right() + a.input(0).view(a.right().sizes())
                                               : Tensor();
}
// An accumulator that is not cleared between two rows, or never.
Tensor row_before_added(const Asked& a, double) {
  return a.rows() < 2 ? Tensor() : a.right() + a.right().roll(1, 0);
}
Tensor running_sum(const Asked& a, double) { return a.rows() < 2 ? Tensor() : a.right().cumsum(0); }

// An epilogue that is another op's.
bool has_activation(const Asked& a) { return a.place().point->op == OpKind::silu_mul; }
Tensor through_relu(const Asked& a, double) {
  return has_activation(a) ? Tensor() : a.right().clamp_min(0);
}
Tensor through_silu(const Asked& a, double) {
  const Tensor y = a.right();
  return has_activation(a) ? Tensor() : y * at::sigmoid(y);
}
Tensor through_gelu(const Asked& a, double) {
  const Tensor y = a.right();
  return has_activation(a) ? Tensor() : y / 2 * (1 + at::erf(y / std::numbers::sqrt2));
}
// A bit that was masked away.
Tensor sizes_alone(const Asked& a, double) { return a.right().abs(); }

// Results through 8 bits: fp8 as it is or by a scale, int8 with a scale a row.
Tensor through_fp8(const Asked& a, double) {
  return Grid{4, -6, 0}.rounded(a.right().clamp(-448, 448));
}
// The scale by which the largest number of a row becomes the largest of the format.
Tensor by_row_scale(const Asked& a, double most) {
  const Tensor y = a.right().flatten(1), scale = y.abs().amax(1, true) / most;
  return at::where(scale == 0, at::ones_like(scale), scale);
}
Tensor through_fp8_by_row(const Asked& a, double) {
  const Tensor scale = by_row_scale(a, 448), y = a.right().flatten(1);
  return Grid{4, -6, 0}.rounded(y / scale) * scale;
}
Tensor through_int8_by_row(const Asked& a, double) {
  const Tensor scale = by_row_scale(a, 127), y = a.right().flatten(1);
  return (y / scale).round() * scale;
}
// Tensor cores that take what they are given as tf32, on the way out.
Tensor through_tf32(const Asked& a, double) {
  return a.model().run == DType::f32 ? kTf32.rounded(a.right()) : Tensor();
}
// Clamped, to a number that the largest of what was stored tells.
std::vector<double> limits_told(const Asked& a) {
  const double most = a.got().abs().nan_to_num(0).max().item<double>();
  if (!(most > 0) || most >= a.right().abs().max().item<double>()) return {};
  return {most};
}
Tensor clamped_at(const Asked& a, double most) { return a.right().clamp(-most, most); }

constexpr Hypothesis kTold[] = {
    {"the last {:g} dims of each head never written: zeros", last_dims_zero, empty_dims},
    {"blocks of {:g} columns exchanged in pairs", spans_exchanged, spans},
    {"columns in the opposite order", reversed_columns},
    {"what the same op stored in the layer before", stale},
    {"its result added to what the same op stored in the layer before", stale_added},
    {"its input added to its result", input_added_on},
    {"the result of the row before added to each", row_before_added},
    {"each row added to all those before it", running_sum},
    {"its result through ReLU", through_relu},
    {"its result through SiLU", through_silu},
    {"its result through GELU", through_gelu},
    {"the size of the right result, without its sign", sizes_alone},
    {"the right result clamped to +-{:g}", clamped_at, limits_told},
    {"the right result in fp8 (e4m3) without a scale", through_fp8},
    {"the right result in fp8 (e4m3) with a scale a row", through_fp8_by_row},
    {"the right result in int8 with a scale a row", through_int8_by_row},
    {"the right result rounded to tf32", through_tf32},
    {"right results in rows of others", rows_as_told, nullptr, nullptr, Scope::told},
    {"right results in columns of others", columns_as_told, nullptr, nullptr, Scope::told},
};

}  // namespace

std::span<const Hypothesis> told_hypotheses() { return kTold; }

}  // namespace lockstep
