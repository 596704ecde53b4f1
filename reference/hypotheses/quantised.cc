// Ways in which weights, inputs and caches are of fewer bits than a model has them in.
//
// Formats are those of engines that quantise: fp8 (e4m3, e5m2) and int8 and int4 with a scale for
// the whole tensor, a row of it, or a group of neighbours in a row. A model that is given in 16
// bits is to be computed in 16 bits, so that each of these is an error, whose size tells nothing
// of it.
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/where.h>

#include <algorithm>

#include "reference/hypotheses/attend.h"
#include "reference/hypotheses/values.h"
#include "reference/rounding.h"

namespace lockstep {
namespace {

using at::Tensor;

// A weight in fp64, at most.
constexpr int64_t kMostCodes = 1 << 25;
constexpr double kLargestE4m3 = 448, kLargestE5m2 = 57344;

Tensor as_e4m3(const Tensor& x) {
  return Grid{4, -6, 0}.rounded(x.clamp(-kLargestE4m3, kLargestE4m3));
}
Tensor as_e5m2(const Tensor& x) {
  return Grid{3, -14, 0}.rounded(x.clamp(-kLargestE5m2, kLargestE5m2));
}

// The scales by which the largest number of each part becomes `most`; a part of zeros has 1.
Tensor scales(const Tensor& largest, double most) {
  return at::where(largest == 0, at::ones_like(largest), largest / most);
}
Tensor in_e4m3(const Tensor& x, const Tensor& largest) {
  const Tensor scale = scales(largest, kLargestE4m3);
  return as_e4m3(x / scale) * scale;
}
Tensor in_integers(const Tensor& x, const Tensor& largest, double most) {
  const Tensor scale = scales(largest, most);
  return (x / scale).round().clamp(-most - 1, most) * scale;
}
Tensor of_all(const Tensor& x) { return x.abs().amax(); }
Tensor of_rows(const Tensor& x) { return x.abs().amax(-1, /*keepdim=*/true); }
// Groups of neighbours along the last axis; undefined where it has no whole number of them.
Tensor in_groups(const Tensor& x, double size, Tensor (*quantised)(const Tensor& group)) {
  const auto count = as_count(size);
  if (x.size(-1) % count != 0) return {};
  return quantised(x.unflatten(-1, {-1, count})).flatten(-2);
}
// Square blocks of a matrix that have a scale each.
Tensor in_blocks(const Tensor& w, int64_t size) {
  if (w.size(0) % size != 0 || w.size(1) % size != 0) return {};
  const Tensor blocks = w.view({w.size(0) / size, size, w.size(1) / size, size});
  return in_e4m3(blocks, blocks.abs().amax({1, 3}, true)).reshape(w.sizes());
}

Tensor product_input(const Asked& a) { return a.input(0).flatten(1); }
Tensor weight_codes(const Asked& a) {
  const int64_t count = a.got().flatten(1).size(1) * product_input(a).size(1);
  return count <= kMostCodes ? a.model().weights.weight(a.place()) : Tensor();
}
Tensor product(const Asked& a, const Tensor& x, const Tensor& weight) {
  if (!weight.defined()) return {};
  const Tensor y = at::matmul(x, weight.t());
  return a.model().weights.has_bias(*a.place().point) ? y + a.model().weights.bias(a.place()) : y;
}
Tensor with_weight(const Asked& a, Tensor (*quantised)(const Tensor& weight)) {
  const Tensor w = weight_codes(a);
  return w.defined() ? product(a, product_input(a), quantised(w)) : Tensor();
}

Tensor weight_e4m3(const Asked& a, double) { return with_weight(a, as_e4m3); }
// With the mantissa of fp8 and the exponent of a larger format.
Tensor weight_of_mantissa(const Asked& a, double bits) {
  const Tensor w = weight_codes(a);
  const Grid grid{static_cast<int>(bits) + 1, -1000, 0};
  return w.defined() ? product(a, product_input(a), grid.rounded(w)) : Tensor();
}
std::vector<double> mantissas(const Asked&) { return {1, 2, 3, 4, 5, 6}; }
Tensor weight_e4m3_scaled(const Asked& a, double) {
  return with_weight(a, [](const Tensor& w) { return in_e4m3(w, of_all(w)); });
}
Tensor weight_e4m3_by_row(const Asked& a, double) {
  return with_weight(a, [](const Tensor& w) { return in_e4m3(w, of_rows(w)); });
}
Tensor weight_e4m3_in_blocks(const Asked& a, double) {
  return with_weight(a, [](const Tensor& w) { return in_blocks(w, 128); });
}
Tensor weight_int8(const Asked& a, double) {
  return with_weight(a, [](const Tensor& w) { return in_integers(w, of_all(w), 127); });
}
Tensor weight_int8_by_row(const Asked& a, double) {
  return with_weight(a, [](const Tensor& w) { return in_integers(w, of_rows(w), 127); });
}
std::vector<double> groups(const Asked&) { return {32, 64, 128}; }
Tensor group_int8(const Tensor& x) { return in_integers(x, of_rows(x), 127); }
Tensor group_int4(const Tensor& x) { return in_integers(x, of_rows(x), 7); }
Tensor weight_int8_in_groups(const Asked& a, double size) {
  const Tensor w = weight_codes(a);
  return w.defined() ? product(a, product_input(a), in_groups(w, size, group_int8)) : Tensor();
}
Tensor weight_int4_in_groups(const Asked& a, double size) {
  const Tensor w = weight_codes(a);
  return w.defined() ? product(a, product_input(a), in_groups(w, size, group_int4)) : Tensor();
}
// An input that is quantised as it comes, with a scale a row.
Tensor input_e4m3(const Asked& a, double) {
  const Tensor x = product_input(a);
  return product(a, in_e4m3(x, of_rows(x)), weight_codes(a));
}
Tensor input_int8(const Asked& a, double) {
  const Tensor x = product_input(a);
  return product(a, in_integers(x, of_rows(x), 127), weight_codes(a));
}
Tensor both_e4m3(const Asked& a, double) {
  const Tensor x = product_input(a), w = weight_codes(a);
  return w.defined() ? product(a, in_e4m3(x, of_rows(x)), in_e4m3(w, of_rows(w))) : Tensor();
}
Tensor both_int8(const Asked& a, double) {
  const Tensor x = product_input(a), w = weight_codes(a);
  if (!w.defined()) return {};
  return product(a, in_integers(x, of_rows(x), 127), in_integers(w, of_rows(w), 127));
}

// With the mantissa of fp8, as of weight_of_mantissa(): an input.
Tensor input_of_mantissa(const Asked& a, double bits) {
  return product(a, Grid{static_cast<int>(bits) + 1, -1000, 0}.rounded(product_input(a)),
                 weight_codes(a));
}
Tensor input_e4m3_unscaled(const Asked& a, double) {
  return product(a, as_e4m3(product_input(a)), weight_codes(a));
}
// Engines hold such scales in fp16.
Tensor group_int8_fp16(const Tensor& x) {
  const Tensor scale = scales(of_rows(x), 127);
  return (x / scale).round() * Grid::of(DType::f16).rounded(scale);
}
Tensor weight_q8(const Asked& a, double size) {
  const Tensor w = weight_codes(a);
  return w.defined() ? product(a, product_input(a), in_groups(w, size, group_int8_fp16)) : Tensor();
}

constexpr Hypothesis kQuantisedLinear[] = {
    {"its weight in fp8 (e4m3) without a scale", weight_e4m3},
    {"its weight rounded to {:g} bits of mantissa", weight_of_mantissa, mantissas},
    {"its weight in fp8 (e4m3) with one scale", weight_e4m3_scaled},
    {"its weight in fp8 (e4m3) with a scale a row", weight_e4m3_by_row},
    {"its weight in fp8 (e4m3) with a scale for each 128 x 128", weight_e4m3_in_blocks},
    {"its weight in int8 with one scale", weight_int8},
    {"its weight in int8 with a scale a row", weight_int8_by_row},
    {"its weight in int8 with a scale for each {:g} of a row", weight_int8_in_groups, groups},
    {"its weight in int8 with a scale in fp16 for each {:g} of a row", weight_q8, groups},
    {"its weight in int4 with a scale for each {:g} of a row", weight_int4_in_groups, groups},
    {"its input in fp8 (e4m3) with a scale a row", input_e4m3},
    {"its input in fp8 (e4m3) without a scale", input_e4m3_unscaled},
    {"its input rounded to {:g} bits of mantissa", input_of_mantissa, mantissas},
    {"its input in int8 with a scale a row", input_int8},
    {"input and weight in fp8 (e4m3) with a scale a row", both_e4m3},
    {"input and weight in int8 with a scale a row", both_int8},
};

// K and V as `change` leaves them, [kv heads, keys, dim].
Tensor with_cache(const Asked& a, Tensor (*of_k)(const Tensor&), Tensor (*of_v)(const Tensor&)) {
  Attention how;
  how.other = [=](const Attention::Part& p) {
    Attention::Part other = p;
    other.set_cache(of_k(p.k()), of_v(p.v()));
    return other;
  };
  return attend(a, how);
}
Tensor unchanged(const Tensor& x) { return x; }
Tensor head_int8(const Tensor& x) { return in_integers(x, of_rows(x), 127); }
Tensor blocks_int8(const Tensor& x) {
  const Tensor y = in_groups(x, 32, group_int8_fp16);
  return y.defined() ? y : x;
}
Tensor cache_e4m3(const Asked& a, double) { return with_cache(a, as_e4m3, as_e4m3); }
Tensor cache_e5m2(const Asked& a, double) { return with_cache(a, as_e5m2, as_e5m2); }
Tensor k_e4m3(const Asked& a, double) { return with_cache(a, as_e4m3, unchanged); }
Tensor v_e4m3(const Asked& a, double) { return with_cache(a, unchanged, as_e4m3); }
Tensor cache_int8(const Asked& a, double) { return with_cache(a, head_int8, head_int8); }
Tensor cache_int8_in_blocks(const Asked& a, double) {
  return with_cache(a, blocks_int8, blocks_int8);
}

constexpr Hypothesis kQuantisedAttention[] = {
    {"K and V in fp8 (e4m3) without a scale", cache_e4m3},
    {"K and V in fp8 (e5m2) without a scale", cache_e5m2},
    {"K in fp8 (e4m3) without a scale", k_e4m3},
    {"V in fp8 (e4m3) without a scale", v_e4m3},
    {"K and V in int8 with a scale for each token and head", cache_int8},
    {"K and V in int8 with a scale for each 32 of a head", cache_int8_in_blocks},
};

}  // namespace

std::span<const Hypothesis> quantised_linear_hypotheses() { return kQuantisedLinear; }
std::span<const Hypothesis> quantised_attention_hypotheses() { return kQuantisedAttention; }

}  // namespace lockstep
