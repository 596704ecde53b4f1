// Ways in which any op may go wrong, whatever it computes.
//
// Every kind of op is asked these after its own: results that were never written, of another row or
// head, handed on from an input, scaled, or rounded in another way. They need the op's exact result
// and nothing of how it is made.
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/trunc.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>

#include <cmath>

#include "reference/hypotheses/asked.h"
#include "reference/rounding.h"

namespace lockstep {
namespace {

using at::Tensor;

Tensor zeros(const Asked& a, double) { return at::zeros_like(a.right()); }

// Columns at the end of a row that hold nothing but zeros.
std::vector<double> tail_of_zeros(const Asked& a) {
  const Tensor got = a.got().flatten(1), right = a.right().flatten(1);
  const Tensor empty = (got == 0).all(0).logical_and((right != 0).any(0)).to(at::kCPU).contiguous();
  const bool* zero = empty.const_data_ptr<bool>();
  int64_t count = 0;
  while (count < empty.size(0) && zero[empty.size(0) - 1 - count]) ++count;
  if (count == 0 || count == empty.size(0)) return {};
  return {as_fp64(count)};
}
// Such a tail is a grid that was launched for one block too few.
Tensor tail_zero(const Asked& a, double count) {
  const Tensor y = a.right().clone().flatten(1);
  const auto some = static_cast<int64_t>(count);
  if (some >= y.size(1)) return {};
  y.narrow(1, y.size(1) - some, some).fill_(0);
  return y;
}

std::vector<double> neighbours(const Asked& a) { return Asked::neighbours_among(a.rows()); }
// Results that are right, in the wrong row: an index of rows that is off, or a batch whose order
// another kernel changed.
Tensor of_row(const Asked& a, double by) { return a.of_neighbours(a.right(), by); }
// The last row of each request of several.
// An index of the last token that is one too small.
Tensor last_of_row_before(const Asked& a, double) {
  const auto& rows = a.op().call.rows;
  const Tensor y = a.right().clone();
  bool any = false;
  for (size_t i = 1; i < rows.size(); ++i) {
    const bool last = i + 1 == rows.size() || rows[i + 1].request != rows[i].request;
    if (!last || rows[i - 1].request != rows[i].request) continue;
    y.select(0, static_cast<int64_t>(i)).copy_(a.right().select(0, static_cast<int64_t>(i) - 1));
    any = true;
  }
  return any ? y : Tensor();
}
Tensor of_row_zero(const Asked& a, double) {
  return a.rows() < 2 ? Tensor() : a.right().narrow(0, 0, 1).expand_as(a.right());
}
// A tile of rows whose inputs are not moved on for those that follow it.
std::vector<double> row_tiles(const Asked& a) {
  std::vector<double> all;
  for (const int64_t tile : {2, 4, 8, 16, 32, 64, 128, 256})
    if (tile < a.rows()) all.push_back(as_fp64(tile));
  return all;
}
Tensor of_first_tile(const Asked& a, double size) {
  const Tensor y = a.right().clone();
  const auto tile = static_cast<int64_t>(size);
  for (int64_t row = tile; row < a.rows(); ++row)
    y.select(0, row).copy_(a.right().select(0, row % tile));
  return y;
}
Tensor rows_past_zero(const Asked& a, double size) {
  const Tensor y = a.right().clone();
  const auto tile = static_cast<int64_t>(size);
  y.narrow(0, tile, a.rows() - tile).fill_(0);
  return y;
}
// Whether the axis behind the rows is that of heads; in shares it is that of these.
bool has_heads(const Asked& a) {
  return a.place().point->head_axis >= 0 && !a.place().point->is_of_shares();
}
// Heads of the result as [a, b] blocks, turned to [b, a].
Tensor heads_turned(const Asked& a, int64_t outer, int64_t inner) {
  const Tensor y = a.right();
  if (!has_heads(a) || y.dim() < 3 || outer < 2 || inner < 2 || y.size(1) != outer * inner)
    return {};
  return y.unflatten(1, {outer, inner}).transpose(1, 2).flatten(1, 2);
}
Tensor by_group(const Asked& a, double) {
  const Recipe& r = a.model().recipe;
  return heads_turned(a, r.kv_heads, r.heads / r.kv_heads);
}
Tensor by_kv(const Asked& a, double) {
  const Recipe& r = a.model().recipe;
  return heads_turned(a, r.heads / r.kv_heads, r.kv_heads);
}
// [dims, heads] stored where [heads, dims] is read, and the other way.
Tensor dims_before_heads(const Asked& a, double) {
  const Tensor y = a.right();
  if (!has_heads(a) || y.dim() < 3 || y.size(1) < 2) return {};
  return y.transpose(1, 2).reshape(y.sizes());
}
Tensor of_head(const Asked& a, double by) {
  if (!has_heads(a) || a.right().dim() < 3 || a.right().size(1) < 2) return {};
  if (by == 0 && a.right().size(1) != 2) return {};
  return a.right().roll(by == 0 ? 1 : -static_cast<int64_t>(by), 1);
}
std::vector<double> heads(const Asked& a) {
  const Tensor y = a.right();
  return y.dim() < 3 ? std::vector<double>{} : Asked::neighbours_among(y.size(1));
}
// Some ops say so in words of their own.
bool has_own_words(const Asked& a) {
  const OpKind op = a.place().point->op;
  return op == OpKind::norm || op == OpKind::rope || op == OpKind::add;
}
Tensor input_handed_on(const Asked& a, double) {
  if (has_own_words(a)) return {};
  return a.inputs() > 0 && a.input(0).numel() == a.got().numel() ? a.input(0) : Tensor();
}
Tensor second_handed_on(const Asked& a, double) {
  if (has_own_words(a)) return {};
  return a.inputs() > 1 && a.input(1).numel() == a.got().numel() ? a.input(1) : Tensor();
}
Tensor negated(const Asked& a, double) { return -a.right(); }

// The factor that the result itself tells.
// The least squares solution f = <right, got> / <right, right>, to three digits: a factor that
// somebody wrote into a kernel has no more. Within 0.1 % of 1 it says nothing.
std::vector<double> factors(const Asked& a) {
  const Tensor right = a.right(), got = a.got();
  const double factor = (right * got).sum().item<double>() / right.square().sum().item<double>();
  if (!std::isfinite(factor) || factor == 0) return {};
  const double unit = std::pow(10.0, std::floor(std::log10(std::fabs(factor))) - 2);
  const double rounded = std::round(factor / unit) * unit;
  return std::fabs(rounded - 1) < 1e-3 ? std::vector<double>{} : std::vector<double>{rounded};
}
Tensor times(const Asked& a, double factor) { return a.right() * factor; }

// Stores of the right result in another dtype than the run's. Rounding that the run does itself
// would fit everything.
Tensor through_bf16(const Asked& a, double) {
  return a.model().run == DType::bf16 ? Tensor() : a.in_dtype(a.right(), DType::bf16);
}
Tensor through_fp16(const Asked& a, double) {
  return a.model().run == DType::f16 ? Tensor() : a.in_dtype(a.right(), DType::f16);
}
Tensor clamped_to_fp16(const Asked& a, double) { return a.right().clamp(-65504, 65504); }
// The clamp above says it of fp16.
Tensor clamped_to_largest(const Asked& a, double) {
  const double largest = format_of(a.op().got.dtype).max;
  return a.op().got.dtype == DType::f16 ? Tensor() : a.right().clamp(-largest, largest);
}
// Rounding toward zero, as by a cast that drops the low half of an fp32: spacing() is that of the
// grid at each number.
Tensor truncated(const Asked& a, double) {
  const Tensor right = a.right(), step = Grid::of(a.op().got.dtype).spacing(right);
  return at::trunc(right / step) * step;
}
// The mode of a unit that flushes subnormals (-ftz), where a result lies below the least normal
// number.
Tensor flushed(const Asked& a, double) {
  const Tensor right = a.right();
  const double least = std::ldexp(1.0, Grid::of(a.op().got.dtype).least);
  return at::where(right.abs() < least, at::zeros_like(right), right);
}
// A kernel that hides what is not finite, where the right result is.
Tensor no_nan(const Asked& a, double) { return a.right().nan_to_num(0); }

constexpr Hypothesis kAny[] = {
    {"zeros: never computed, or stored where it made no number", zeros},
    {"its last {:g} columns never written: zeros", tail_zero, tail_of_zeros},
    {"the result of the row {:+g} in the pass", of_row, neighbours, nullptr, Scope::op,
     "the result of the other row in the pass"},
    {"the last row of each request made of the row before it", last_of_row_before, nullptr, nullptr,
     Scope::rows},
    {"the result of the pass's first row in every row", of_row_zero},
    {"the results of the first {:g} rows again in those that follow", of_first_tile, row_tiles,
     nullptr, Scope::rows},
    {"the rows past the first {:g} never computed: zeros", rows_past_zero, row_tiles, nullptr,
     Scope::rows},
    {"the result of the head {:+g}", of_head, heads, nullptr, Scope::op,
     "the result of the other head"},
    {"heads in another order: (head of group, group)", by_group},
    {"heads in another order: (group, head of group)", by_kv},
    {"its result stored as [dims, heads]", dims_before_heads},
    {"its input handed on", input_handed_on},
    {"its second input handed on", second_handed_on},
    {"the right result negated", negated},
    {"the right result times {:g}", times, factors},
    {"the right result rounded to bf16", through_bf16},
    {"the right result rounded to fp16", through_fp16},
    {"the right result clamped to what fp16 holds", clamped_to_fp16},
    {"the largest number of the dtype where the right result overflows to Inf", clamped_to_largest},
    {"the right result truncated instead of rounded", truncated},
    {"subnormal results flushed to zero", flushed},
    {"NaN replaced by 0", no_nan},
};

}  // namespace

std::span<const Hypothesis> any_hypotheses() { return kAny; }

}  // namespace lockstep
