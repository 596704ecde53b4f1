// A dot product of head_dim terms in fp32 is off by a random walk, usually walk_of(width) u, and
// kLambda sqrt(width) u at most but for a chance that the judge allows: which of two stored numbers
// a right kernel has is open where a score lies nearer than that to the border between them.
#include "reference/attention_rounding.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include <cmath>

#include "reference/rounding.h"
#include "src/stats/roundoff.h"

namespace lockstep {
namespace {

// Whether the query is scaled and stored before it is multiplied by the keys.
bool scales_query(RoundingContract contract) {
  return contract == RoundingContract::query_rounded ||
         contract == RoundingContract::eager_query_rounded;
}

// Whether the query is rounded to fp16, and whether K and V are.
bool rounds_query(RoundingContract contract) {
  return contract == RoundingContract::operands_fp16 || contract == RoundingContract::flash_fp16;
}
bool rounds_cache(RoundingContract contract) {
  return rounds_query(contract) || contract == RoundingContract::cache_fp16;
}

}  // namespace

bool stores_weights(RoundingContract contract) {
  return contract == RoundingContract::eager || contract == RoundingContract::eager_query_rounded;
}

bool rounds_scores(RoundingContract contract) {
  return stores_weights(contract) || contract == RoundingContract::scores_rounded;
}

bool has_ties(RoundingContract contract) {
  return rounds_scores(contract) || rounds_query(contract);
}

// 1 / sqrt(head_dim) is the only scale that these models have, or nothing where the query has been
// scaled before it was stored. It is not taken out of such a query again: the products of stored
// numbers are exact in fp64, so that a score that lies halfway between two numbers does so whatever
// the order of the sum.
double scale_of(int64_t head_dim, RoundingContract contract) {
  return scales_query(contract) ? 1 : 1 / std::sqrt(head_dim);
}

at::Tensor rounded_query(const at::Tensor& q, const AttentionCall& call) {
  if (scales_query(call.contract))
    return Grid::of(call.dtype).rounded(q * (1 / std::sqrt(q.size(-1))));
  return rounds_query(call.contract) ? Grid::of(DType::f16).rounded(q) : q;
}

at::Tensor rounded_cache(const at::Tensor& x, const AttentionCall& call) {
  return rounds_cache(call.contract) ? Grid::of(DType::f16).rounded(x) : x;
}

void round_scores(const at::Tensor& raw, const at::Tensor& sizes, int64_t head_dim,
                  const AttentionCall& call, at::Tensor& scores, at::Tensor& moved,
                  at::Tensor& chance) {
  constexpr double u = kAccumulatorRoundoff;
  const auto width = static_cast<double>(head_dim);
  const double scale = scale_of(head_dim, call.contract);
  const Grid grid = Grid::of(call.dtype);
  // A query that was scaled before leaves nothing to do after the product, and no rounding.
  const at::Tensor product = grid.rounded(raw), scaled = product * scale;
  scores = grid.rounded(scaled);
  if (!call.for_budget) return;
  at::Tensor of_product, of_scaled, product_chance, scaled_chance;
  near_ties(raw, sizes * (kLambda * std::sqrt(width) * u), sizes * (walk_of(width) * u), grid,
            of_product, product_chance);
  near_ties(scaled, scaled.abs() * (2 * u), scaled.abs() * u, grid, of_scaled, scaled_chance);
  // A product that is rounded the other way may round its scaled score the other way too.
  moved = of_product * scale + of_scaled;
  if (!scales_query(call.contract))
    moved = moved + at::where(of_product > 0, grid.spacing(scaled), at::zeros({}, raw.options()));
  chance = product_chance + scaled_chance;
}

}  // namespace lockstep
