// The formulas of the files in src/judge/ops that are named as the op, with the reasons for them,
// are these, an op of LibTorch a step over all rows at once, or on a device a kernel for all of an
// op; a test holds the two together, element by element. What is one number a row is made on the
// host, so that it is the same number.
#include "reference/own_errors.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/minimum.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <vector>

#include "reference/bridge.h"
#include "reference/own_stream.h"
#include "reference/pointwise_kernels.h"
#include "src/judge/contracts.h"
#include "src/stats/roundoff.h"

namespace lockstep {
namespace {

constexpr double kUnit = kAccumulatorRoundoff;

struct OwnErrors {
  at::Tensor limit, variance, shared;  // undefined: none
  double common = 0;
  at::Tensor products = {};
};

// Numbers that the host has, one a row, beside a tensor that is elsewhere: [rows, 1].
// From pinned memory nobody waits for what is queued there.
at::Tensor column_of(const std::vector<double>& values, const at::Tensor& like) {
  const auto of_host = at::TensorOptions(at::kDouble).pinned_memory(like.is_cuda());
  const at::Tensor here = at::empty({std::ssize(values), 1}, of_host);
  std::ranges::copy(values, here.mutable_data_ptr<double>());
  return here.to(like.device(), /*non_blocking=*/true);
}

bool by_pointwise_kernel(const Exact& e) {
  return tensor_of(e.want).is_cuda() && has_pointwise_kernels();
}

// The errors that a kernel makes, and what it reads, which lives until all is queued.
class KernelErrors {
 public:
  explicit KernelErrors(const Exact& e) : want_(tensor_of(e.want)) {
    const at::Tensor both = fresh({2, want_.numel()});
    errors_.limit = both[0].view(want_.sizes());
    errors_.variance = both[1].view(want_.sizes());
  }
  const double* read(const at::Tensor& x) {
    read_.push_back(x.contiguous());
    return read_.back().const_data_ptr<double>();
  }
  const double* read(const Numbers& numbers) { return read(tensor_of(numbers)); }
  double* limit() const { return errors_.limit.mutable_data_ptr<double>(); }
  double* variance() const { return errors_.variance.mutable_data_ptr<double>(); }
  double* shared() {
    errors_.shared = fresh(want_.sizes());
    return errors_.shared.mutable_data_ptr<double>();
  }
  bool* products() {
    errors_.products = want_.new_empty(want_.sizes(), at::kBool);
    return errors_.products.mutable_data_ptr<bool>();
  }
  OwnErrors made_by(const auto& kernel) {
    make_errors(queue_of_this_thread(want_.device()), kernel);
    return errors_;
  }

 private:
  at::Tensor fresh(at::IntArrayRef sizes) const { return want_.new_empty(sizes); }

  const at::Tensor& want_;
  OwnErrors errors_;
  std::vector<at::Tensor> read_;
};

OwnErrors errors_of_sum(const Exact& e) {
  const auto n = static_cast<double>(e.terms);
  const double most = kLambda * std::sqrt(n), walk = walk_of(n);
  if (by_pointwise_kernel(e)) {
    KernelErrors made(e);
    OwnErrors errors = made.made_by(SumErrors{.count = tensor_of(e.want).numel(),
                                              .most = most,
                                              .walk = walk,
                                              .magnitude = made.read(e.magnitude),
                                              .limit = made.limit(),
                                              .variance = made.variance()});
    errors.common = common_part(n);
    return errors;
  }
  const at::Tensor size = kUnit * tensor_of(e.magnitude);
  return {most * size, (walk * size).square(), {}, common_part(n)};
}

// Rows of one scale: a head's, of the norms of queries and keys.
OwnErrors errors_of_norm(const Exact& e) {
  const auto n = static_cast<double>(e.terms);
  const double most = kLambda * std::sqrt(n) / 2 + 8, walk = walk_of(n) / 2 + 3;
  std::vector<double> deviations;
  if (!e.serial_error.empty())
    for (const double error : e.serial_error) deviations.push_back(std::hypot(walk, error / 2));
  const at::Tensor& want = tensor_of(e.want);
  at::Tensor column;
  if (!deviations.empty()) column = column_of(deviations, want);
  if (by_pointwise_kernel(e)) {
    const int64_t rows = column.defined() ? column.size(0) : 1;
    KernelErrors made(e);
    OwnErrors errors =
        made.made_by(NormErrors{.rows = rows,
                                .width = want.numel() / rows,
                                .most = most,
                                .walk = walk,
                                .want = made.read(e.want),
                                .of_rows = column.defined() ? made.read(column) : nullptr,
                                .limit = made.limit(),
                                .variance = made.variance()});
    errors.shared = errors.variance;
    return errors;
  }
  const at::Tensor size = kUnit * want.abs();
  const at::Tensor of_rows =
      column.defined() ? column * size.reshape({column.size(0), -1}) : walk * size;
  const at::Tensor shared = of_rows.square();
  return {most * size, shared, shared};
}

OwnErrors rope_errors_by_kernel(const Exact& e) {
  KernelErrors made(e);
  return made.made_by(RopeErrors{.count = tensor_of(e.want).numel(),
                                 .want = made.read(e.want),
                                 .magnitude = made.read(e.magnitude),
                                 .angle = made.read(e.angle),
                                 .x1c_x2s = made.read(e.x1c_x2s),
                                 .turned = made.read(e.turned),
                                 .limit = made.limit(),
                                 .variance = made.variance()});
}

OwnErrors silu_mul_errors_by_kernel(const Exact& e) {
  KernelErrors made(e);
  return made.made_by(SiluMulErrors{.count = tensor_of(e.want).numel(),
                                    .want = made.read(e.want),
                                    .magnitude = made.read(e.magnitude),
                                    .factor = made.read(e.factor),
                                    .limit = made.limit(),
                                    .variance = made.variance(),
                                    .products = made.products()});
}

OwnErrors errors_of_rope(const Exact& e) {
  if (by_pointwise_kernel(e)) return rope_errors_by_kernel(e);
  const at::Tensor size = tensor_of(e.want).abs(), turned = tensor_of(e.turned);
  const at::Tensor most = 4 * tensor_of(e.angle) * kUnit;
  const at::Tensor square = 3 * (tensor_of(e.angle) * kUnit).square();
  return {4 * kUnit * tensor_of(e.magnitude) + (most * turned + most.square() / 2 * size),
          (0.85 * kUnit * tensor_of(e.x1c_x2s)).square() +
              (square * turned.square() + 0.75 * (square * size).square()),
          {}};
}

OwnErrors errors_of_silu_mul(const Exact& e) {
  if (by_pointwise_kernel(e)) return silu_mul_errors_by_kernel(e);
  const at::Tensor size = kUnit * tensor_of(e.want).abs(), of_sigmoid = tensor_of(e.magnitude);
  const at::Tensor underflow = 88 * kLeastNormal * tensor_of(e.factor).abs();
  return {16 * size + kUnit * of_sigmoid + underflow,
          (3 * size).square() + (0.3 * kUnit * of_sigmoid).square() + underflow.square(),
          {},
          0,
          at::minimum((tensor_of(e.want).abs() - of_sigmoid / 2).abs(),
                      of_sigmoid - tensor_of(e.want).abs()) <= 9 * kUnit * of_sigmoid};
}

OwnErrors attention_errors_by_kernel(const Exact& e, int64_t heads, int64_t dim) {
  std::vector<double> of_rows(e.row_terms.begin(), e.row_terms.end());
  const auto rows = std::ssize(of_rows);
  for (int64_t i = 0; i < rows; ++i) of_rows.push_back(std::log(of_rows[i]));
  KernelErrors made(e);
  const double* const terms = made.read(column_of(of_rows, tensor_of(e.want)));
  return made.made_by(AttentionErrors{.rows = rows,
                                      .heads = heads,
                                      .dim = dim,
                                      .walk = walk_of(static_cast<double>(dim)),
                                      .terms = terms,
                                      .logarithms = terms + rows,
                                      .score = made.read(e.score),
                                      .want = made.read(e.want),
                                      .magnitude = made.read(e.magnitude),
                                      .spread = made.read(e.spread),
                                      .spread_squares = made.read(e.spread_squares),
                                      .weighted_squares = made.read(e.weighted_squares),
                                      .limit = made.limit(),
                                      .variance = made.variance(),
                                      .shared = made.shared()});
}

// Each head has a score and each row a number of keys; all else is an element's.
OwnErrors errors_of_attention(const Exact& e) {
  const int64_t dim = e.shape.last(), heads = e.shape[1];
  const auto width = static_cast<double>(dim);
  if (by_pointwise_kernel(e)) return attention_errors_by_kernel(e, heads, dim);
  const auto by_heads = [dim](const Numbers& x) { return tensor_of(x).reshape({-1, dim}); };
  const at::Tensor o = by_heads(e.want).abs(), score = tensor_of(e.score).reshape({-1, 1});
  std::vector<double> terms, logarithms;
  for (const double n : e.row_terms)
    for (int64_t head = 0; head < heads; ++head)
      terms.push_back(n), logarithms.push_back(std::log(n));
  const at::Tensor n = column_of(terms, o);
  const at::Tensor ds = std::sqrt(width) * kUnit * score + 4 * kUnit;
  const at::Tensor es = (walk_of(width) + 1) * kUnit * score + 4 * kUnit;
  const at::Tensor shared = es.square() * by_heads(e.spread_squares) +
                            ((2 + score + column_of(logarithms, o)) * kUnit * o).square();
  const at::Tensor sum = 2 * kUnit * kUnit * n * (o * o / 9 + by_heads(e.weighted_squares) / 6);
  return {
      2 * kLambda * ds * by_heads(e.spread) + kLambda * n.sqrt() * kUnit * by_heads(e.magnitude),
      shared + sum, shared};
}

std::optional<OwnErrors> errors_of(OpKind op, const Exact& e) {
  if (!e.steps.empty() || !e.ties.empty()) return std::nullopt;
  switch (op) {
    case OpKind::gather:
    case OpKind::add:
      return OwnErrors{};
    case OpKind::linear:
      return errors_of_sum(e);
    case OpKind::norm:
      return errors_of_norm(e);
    case OpKind::rope:
      return errors_of_rope(e);
    case OpKind::silu_mul:
      return errors_of_silu_mul(e);
    case OpKind::attention:
      if (rounds_weights(e.contract)) return std::nullopt;
      return errors_of_attention(e);
    default:
      return std::nullopt;
  }
}

}  // namespace

bool own_errors(OpKind op, const Exact& e, at::Tensor& limit, at::Tensor& variance,
                at::Tensor& shared, at::Tensor& products, double& common) {
  const std::optional<OwnErrors> errors = errors_of(op, e);
  if (!errors) return false;
  limit = errors->limit, variance = errors->variance, shared = errors->shared;
  products = errors->products, common = errors->common;
  return true;
}

}  // namespace lockstep
