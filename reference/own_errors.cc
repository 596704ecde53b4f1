// The formulas of the files in src/judge/ops that are named as the op, with the reasons for them,
// are these, an op of LibTorch a step over all rows at once, or on a device a kernel for all of an
// op; a test holds the two together, element by element. What is one number a row is made on the
// host, so that it is the same number.
#include "reference/own_errors.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/minimum.h>

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
at::Tensor column_of(const std::vector<double>& values, const at::Tensor& like) {
  return at::from_blob(const_cast<double*>(values.data()), {std::ssize(values), 1}, at::kDouble)
      .to(like.device(), /*non_blocking=*/false, /*copy=*/true);
}

OwnErrors errors_of_sum(const Exact& e) {
  const auto n = static_cast<double>(e.terms);
  const at::Tensor size = kUnit * tensor_of(e.magnitude);
  return {kLambda * std::sqrt(n) * size, (walk_of(n) * size).square(), {}, common_part(n)};
}

// Rows of one scale: a head's, of the norms of queries and keys.
OwnErrors errors_of_norm(const Exact& e) {
  const at::Tensor size = kUnit * tensor_of(e.want).abs();
  const auto n = static_cast<double>(e.terms);
  const double walk = walk_of(n) / 2 + 3;
  at::Tensor of_rows = walk * size;
  if (!e.serial_error.empty()) {
    std::vector<double> deviations;
    for (const double error : e.serial_error) deviations.push_back(std::hypot(walk, error / 2));
    of_rows = column_of(deviations, size) * size.reshape({std::ssize(deviations), -1});
  }
  const at::Tensor shared = of_rows.square();
  return {(kLambda * std::sqrt(n) / 2 + 8) * size, shared, shared};
}

bool by_pointwise_kernel(const Exact& e) {
  return tensor_of(e.want).is_cuda() && has_pointwise_kernels();
}

// Those that a kernel reads, which live until all is queued.
class Read {
 public:
  const double* operator()(const Numbers& numbers) {
    all_.push_back(tensor_of(numbers).contiguous());
    return all_.back().const_data_ptr<double>();
  }

 private:
  std::vector<at::Tensor> all_;
};

OwnErrors rope_errors_by_kernel(const Exact& e) {
  const at::Tensor& want = tensor_of(e.want);
  const at::Tensor both = want.new_empty({2, want.numel()});
  OwnErrors errors{both[0].view(want.sizes()), both[1].view(want.sizes()), {}};
  Read read;
  make_errors(queue_of_this_thread(want.device()),
              RopeErrors{.count = want.numel(),
                         .want = read(e.want),
                         .magnitude = read(e.magnitude),
                         .angle = read(e.angle),
                         .x1c_x2s = read(e.x1c_x2s),
                         .turned = read(e.turned),
                         .limit = errors.limit.mutable_data_ptr<double>(),
                         .variance = errors.variance.mutable_data_ptr<double>()});
  return errors;
}

OwnErrors silu_mul_errors_by_kernel(const Exact& e) {
  const at::Tensor& want = tensor_of(e.want);
  const at::Tensor both = want.new_empty({2, want.numel()});
  OwnErrors errors{both[0].view(want.sizes()), both[1].view(want.sizes()), {}};
  errors.products = want.new_empty(want.sizes(), at::kBool);
  Read read;
  make_errors(queue_of_this_thread(want.device()),
              SiluMulErrors{.count = want.numel(),
                            .want = read(e.want),
                            .magnitude = read(e.magnitude),
                            .factor = read(e.factor),
                            .limit = errors.limit.mutable_data_ptr<double>(),
                            .variance = errors.variance.mutable_data_ptr<double>(),
                            .products = errors.products.mutable_data_ptr<bool>()});
  return errors;
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

// Each head has a score and each row a number of keys; all else is an element's.
OwnErrors errors_of_attention(const Exact& e) {
  const int64_t dim = e.shape.last(), heads = e.shape[1];
  const auto width = static_cast<double>(dim);
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
