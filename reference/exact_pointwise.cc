// Chains that round nowhere on the way are one kernel on a device; all else is an op of LibTorch a
// step, over all rows at once.
#include "reference/exact_pointwise.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/hypot.h>

#include <vector>

#include "reference/bridge.h"
#include "reference/own_stream.h"
#include "reference/pointwise_kernels.h"

namespace lockstep {
namespace {

// Tensors of that shape, in memory that is asked for once.
std::vector<at::Tensor> fresh(const at::Tensor& like, int64_t count) {
  std::vector<int64_t> sizes = {count};
  sizes.insert(sizes.end(), like.sizes().begin(), like.sizes().end());
  return at::empty(sizes, like.options()).unbind(0);
}

double* numbers_in(const at::Tensor& x) { return x.mutable_data_ptr<double>(); }
const double* numbers_of(const at::Tensor& x) { return x.const_data_ptr<double>(); }

bool by_kernel(const at::Tensor& x, RoundingContract contract) {
  return x.is_cuda() && contract == RoundingContract::fused && has_pointwise_kernels();
}

Exact rope_by_kernel(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin,
                     const at::Tensor& error) {
  const at::Tensor whole = x.contiguous();
  const std::vector<at::Tensor> tables = {cos.contiguous(), sin.contiguous(), error.contiguous()};
  const std::vector<at::Tensor> made = fresh(whole, 5);
  make_rope(queue_of_this_thread(x.device()), {.rows = x.size(0),
                                               .heads = x.size(1),
                                               .pairs = x.size(2) / 2,
                                               .x = numbers_of(whole),
                                               .cos = numbers_of(tables[0]),
                                               .sin = numbers_of(tables[1]),
                                               .error = numbers_of(tables[2]),
                                               .want = numbers_in(made[0]),
                                               .magnitude = numbers_in(made[1]),
                                               .angle = numbers_in(made[2]),
                                               .x1c_x2s = numbers_in(made[3]),
                                               .turned = numbers_in(made[4])});
  Exact result = exact_of(made[0], RoundingContract::fused);
  result.magnitude = held_numbers(made[1]);
  result.angle = held_numbers(made[2]);
  result.x1c_x2s = held_numbers(made[3]);
  result.turned = held_numbers(made[4]);
  return result;
}

Exact silu_mul_by_kernel(const at::Tensor& gate, const at::Tensor& up) {
  const at::Tensor gates = gate.contiguous(), ups = up.contiguous();
  const std::vector<at::Tensor> made = fresh(gates, 2);
  make_silu_mul(queue_of_this_thread(gate.device()), {.count = gate.numel(),
                                                      .gate = numbers_of(gates),
                                                      .up = numbers_of(ups),
                                                      .want = numbers_in(made[0]),
                                                      .magnitude = numbers_in(made[1])});
  Exact result = exact_of(made[0], RoundingContract::fused);
  result.factor = held_numbers(ups);
  result.magnitude = held_numbers(made[1]);
  return result;
}

Exact norm_by_kernel(const at::Tensor& x, const at::Tensor& mean_square, const at::Tensor& weight,
                     double eps, RoundingContract contract) {
  const at::Tensor whole = x.contiguous(), means = mean_square.contiguous();
  const at::Tensor gain = weight.contiguous(), want = at::empty_like(whole);
  make_norm(queue_of_this_thread(x.device()), {.rows = means.numel(),
                                               .width = weight.size(0),
                                               .eps = eps,
                                               .x = numbers_of(whole),
                                               .mean_square = numbers_of(means),
                                               .weight = numbers_of(gain),
                                               .want = numbers_in(want)});
  return exact_of(want, contract);
}

}  // namespace

Exact exact_of(const at::Tensor& want, RoundingContract contract) {
  return {.contract = contract, .shape = shape_of(want), .want = held_numbers(want)};
}

bool rounds_as_hf(RoundingContract contract) {
  return contract == RoundingContract::hf || contract == RoundingContract::hf_unrounded_sum;
}

Exact exact_rope(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin,
                 const at::Tensor& error, RoundingContract contract, const Grid& grid) {
  if (by_kernel(x, contract)) return rope_by_kernel(x, cos, sin, error);
  // Every element has its own x, the other of its pair with the sign that it has there, and the
  // tables of the pair.
  const auto halves = x.chunk(2, -1);
  const at::Tensor &x1 = x, x2 = at::cat({-halves[1], halves[0]}, -1);
  const auto of_pairs = [&](const at::Tensor& t) { return at::cat({t, t}, -1).unsqueeze(1); };
  const at::Tensor c = of_pairs(cos), s = of_pairs(sin);
  const auto whole = [&](const at::Tensor& t) { return held_numbers(t.expand_as(x)); };
  const bool as_hf = rounds_as_hf(contract);
  const bool tables_round = as_hf || contract == RoundingContract::tables_rounded;
  const auto table = [&](const at::Tensor& t) { return tables_round ? grid.rounded(t) : t; };
  const auto kept = [&](const at::Tensor& t) { return as_hf ? grid.rounded(t) : t; };
  Exact result = exact_of(kept(x1 * table(c)) + kept(x2 * table(s)), contract);
  result.magnitude = held_numbers(x1.abs() + x2.abs());
  result.angle = whole(of_pairs(error));
  result.x1c_x2s = held_numbers(at::hypot(x1 * c, x2 * s));
  result.turned = held_numbers((x2 * c - x1 * s).abs());
  if (tables_round)
    result.steps = {{whole(c), held_numbers(x1), whole(s.abs())},
                    {whole(s), held_numbers(x2), whole(c.abs())}};
  return result;
}

Exact exact_silu_mul(const at::Tensor& gate, const at::Tensor& up, RoundingContract contract,
                     const Grid& grid) {
  if (by_kernel(gate, contract)) return silu_mul_by_kernel(gate, up);
  const at::Tensor silu = gate / (1 + (-gate).exp());
  const at::Tensor inner = rounds_as_hf(contract) ? grid.rounded(silu) : silu;
  Exact result = exact_of(inner * up, contract);
  result.factor = held_numbers(up);
  result.magnitude = held_numbers((gate * up).abs());
  if (rounds_as_hf(contract))
    result.steps = {{held_numbers(silu), result.factor, held_numbers(gate.abs())}};
  return result;
}

Exact exact_norm(const at::Tensor& x, const at::Tensor& weight, double eps,
                 RoundingContract contract, const Grid& grid) {
  const bool as_hf = rounds_as_hf(contract);
  // By an op of LibTorch on a device too: a sum in another order has other last bits.
  const at::Tensor mean_square = x.square().mean(-1, /*keepdim=*/true);
  if (x.is_cuda() && !as_hf && has_pointwise_kernels())
    return norm_by_kernel(x, mean_square, weight, eps, contract);
  const at::Tensor normalised = x / (mean_square + eps).sqrt();
  // Hugging Face's RMSNorm casts to the model's dtype before it multiplies by the gain.
  const at::Tensor inner = as_hf ? grid.rounded(normalised) : normalised;
  Exact result = exact_of(inner * weight, contract);
  if (as_hf) result.steps = {{held_numbers(normalised), held_numbers(weight.expand_as(x)), {}}};
  return result;
}

}  // namespace lockstep
