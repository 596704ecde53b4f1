// Ways in which projections go wrong, those to logits among them.
//
// A hypothesis that needs a whole weight in fp64, or products added one by one, is asked only of
// ops that are small enough (kMostWeights, kMostProducts); the others answer nothing. Biases and
// weights of other layers and other places come from the checkpoint, as a mistaken pointer would
// have them.
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/eye.h>
#include <ATen/ops/linalg_solve.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/tensor.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "reference/hypotheses/asked.h"
#include "reference/hypotheses/values.h"
#include "reference/rounding.h"

namespace lockstep {
namespace {

using at::Tensor;

// Weights that are held in fp64 for a hypothesis, and products that are added up one by one.
constexpr int64_t kMostWeights = 1 << 25;
constexpr double kMostProducts = 3e7;

Tensor x_of(const Asked& a) { return a.input(0).flatten(1); }
bool is_small(const Asked& a) {
  return a.got().flatten(1).size(1) * x_of(a).size(1) <= kMostWeights;
}
Tensor weight_of(const Asked& a) {
  return is_small(a) ? a.model().weights.weight(a.place()) : Tensor();
}
bool has_bias(const Asked& a) { return a.model().weights.has_bias(*a.place().point); }
Tensor bias_of(const Asked& a) { return a.model().weights.bias(a.place()); }
// A product as the bias is added to it: rounded first where the op's contract stores it.
Tensor before_bias(const Asked& a, const Tensor& y) {
  return a.op().call.contract == RoundingContract::bias_after_store ? a.in_dtype(y, a.model().run)
                                                                    : y;
}
Tensor with_bias(const Asked& a, const Tensor& y) {
  return has_bias(a) ? before_bias(a, y) + bias_of(a) : y;
}
// x W^T + b: products of another input, or with another weight, both in double.
Tensor by(const Asked& a, const Tensor& x, const Tensor& weight) {
  return weight.defined() ? with_bias(a, at::matmul(x, weight.t())) : Tensor();
}
Tensor by(const Asked& a, const Tensor& weight) { return by(a, x_of(a), weight); }
// Weights are widened block by block here, so that any size may be asked.
Tensor of(const Asked& a, const Tensor& x) {
  return x.defined() && x.flatten(1).sizes() == x_of(a).sizes()
             ? with_bias(a, a.model().weights.product(a.place(), x.flatten(1), nullptr, nullptr))
             : Tensor();
}
Tensor right_product(const Asked& a) {
  return a.model().weights.product(a.place(), x_of(a), nullptr, nullptr);
}

Tensor no_bias(const Asked& a, double) { return has_bias(a) ? right_product(a) : Tensor(); }
Tensor bias_twice(const Asked& a, double) {
  return has_bias(a) ? before_bias(a, right_product(a)) + 2 * bias_of(a) : Tensor();
}
Tensor bias_subtracted(const Asked& a, double) {
  return has_bias(a) ? before_bias(a, right_product(a)) - bias_of(a) : Tensor();
}
Tensor bias_alone(const Asked& a, double) {
  return has_bias(a) ? bias_of(a).expand({a.rows(), -1}) : Tensor();
}
// Every other layer: weights that were loaded into the wrong one.
std::vector<double> other_layers(const Asked& a) {
  std::vector<double> layers;
  for (int l = 0; l < a.model().config.layers && a.place().layer >= 0; ++l)
    if (l != a.place().layer) layers.push_back(l);
  return layers;
}
Tensor bias_of_layer(const Asked& a, double layer) {
  if (!has_bias(a)) return {};
  return before_bias(a, right_product(a)) +
         a.model().weights.bias({a.place().point, static_cast<int>(layer)});
}
Tensor weight_of_layer(const Asked& a, double layer) {
  return with_bias(a, a.model().weights.product({a.place().point, static_cast<int>(layer)}, x_of(a),
                                                nullptr, nullptr));
}
constexpr std::array<std::string_view, 7> kProjections = {"attn.q",   "attn.k", "attn.v",  "attn.o",
                                                          "mlp.gate", "mlp.up", "mlp.down"};
// The product with the weight of another projection of the layer, where both have one shape.
Tensor weight_of_other(const Asked& a, std::string_view name) {
  const Point& other = *find_point(name);
  if (other == *a.place().point || a.place().layer < 0) return {};
  const bool has_mlp = !a.model().config.experts.in(a.place().layer);
  const Tensor own = weight_of(a);
  if (!own.defined() || (name.starts_with("mlp.") && !has_mlp)) return {};
  const Tensor weight = a.model().weights.weight({&other, a.place().layer});
  return weight.sizes() == own.sizes() ? by(a, weight) : Tensor();
}
template <size_t I>
Tensor of_projection(const Asked& a, double) {
  return weight_of_other(a, kProjections[I]);
}

// The same numbers taken as [in, out]: what a loader makes that was told the other layout.
Tensor transposed(const Asked& a, double) {
  const Tensor w = weight_of(a);
  return w.defined() ? by(a, w.reshape({w.size(1), w.size(0)}).t()) : Tensor();
}
// Rows of the weight, one further on or back, as when a tensor is split at the wrong row.
std::vector<double> shifts(const Asked&) { return {1, -1}; }
Tensor rows_shifted(const Asked& a, double by_rows) {
  const Tensor w = weight_of(a);
  return w.defined() ? by(a, w.roll(-as_count(by_rows), 0)) : Tensor();
}

// The order of the outputs of q, k and v as [a, b] blocks of `size` rows, turned to [b, a].
Tensor reordered(const Asked& a, int64_t outer, int64_t inner) {
  const Tensor y = right_product(a);
  if (outer < 2 || inner < 2 || y.size(1) % (outer * inner) != 0) return {};
  return with_bias(a, y.view({y.size(0), outer, inner, -1}).transpose(1, 2).reshape(y.sizes()));
}
bool is_qkv(const Asked& a) { return a.place().point->head_axis >= 0; }
Tensor heads_by_group(const Asked& a, double) {
  const Recipe& r = a.model().recipe;
  return is_qkv(a) ? reordered(a, r.kv_heads, r.heads / r.kv_heads) : Tensor();
}
Tensor heads_by_kv(const Asked& a, double) {
  const Recipe& r = a.model().recipe;
  return is_qkv(a) ? reordered(a, r.heads / r.kv_heads, r.kv_heads) : Tensor();
}
Tensor heads_and_dims(const Asked& a, double) {
  return is_qkv(a) ? reordered(a, a.model().recipe.head_dim, a.got().size(1)) : Tensor();
}
// The dims of each head, (2, half) for (half, 2) or the other way.
Tensor dims_reordered(const Asked& a, int64_t outer, int64_t inner) {
  if (!is_qkv(a)) return {};
  const Tensor y = with_bias(a, right_product(a)).view(a.got().sizes());
  return y.unflatten(-1, {outer, inner}).transpose(-1, -2).flatten(-2);
}
// The weight alone is permuted: the bias stays in its order.
Tensor weight_interleaved(const Asked& a, int64_t outer, int64_t inner) {
  if (!is_qkv(a) || !has_bias(a)) return {};
  const Tensor y = right_product(a).view(a.got().sizes());
  return with_bias(a, y.unflatten(-1, {outer, inner}).transpose(-1, -2).flatten(-2).flatten(1));
}
Tensor weight_in_pairs(const Asked& a, double) {
  return weight_interleaved(a, 2, a.model().recipe.head_dim / 2);
}
Tensor weight_in_halves(const Asked& a, double) {
  return weight_interleaved(a, a.model().recipe.head_dim / 2, 2);
}
Tensor dims_interleaved(const Asked& a, double) {
  return dims_reordered(a, 2, a.model().recipe.head_dim / 2);
}
Tensor dims_taken_apart(const Asked& a, double) {
  return dims_reordered(a, a.model().recipe.head_dim / 2, 2);
}
// The inputs of o: heads in another order.
Tensor inputs_reordered(const Asked& a, int64_t outer, int64_t inner) {
  if (a.place().point->name != "attn.o" || outer < 2 || inner < 2) return {};
  const Tensor x = x_of(a);
  return of(a, x.view({x.size(0), outer, inner, -1}).transpose(1, 2).reshape(x.sizes()));
}
Tensor inputs_by_group(const Asked& a, double) {
  const Recipe& r = a.model().recipe;
  return inputs_reordered(a, r.kv_heads, r.heads / r.kv_heads);
}
Tensor inputs_by_kv(const Asked& a, double) {
  const Recipe& r = a.model().recipe;
  return inputs_reordered(a, r.heads / r.kv_heads, r.kv_heads);
}
Tensor dims_first(const Asked& a, double) {
  const Recipe& r = a.model().recipe;
  return inputs_reordered(a, r.heads, r.head_dim);
}

// Numbers of inputs that a kernel can lose: a tile, the rest of the width beyond whole tiles, all
// parts but the first of a split over 2, 4 or 8 blocks, and a half.
std::vector<double> tails(const Asked& a) {
  std::vector<double> counts;
  const int64_t width = x_of(a).size(1);
  for (const int tile : {1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048})
    if (tile < width) counts.push_back(tile);
  for (const int64_t tile : {32, 64, 128, 256, 512, 1024, 2048})
    if (tile < width && width % tile != 0) counts.push_back(as_fp64(width % tile));
  for (const int64_t parts : {2, 4, 8}) {
    const int64_t part = width / parts;
    if (width % parts == 0) counts.push_back(as_fp64(width - part));
  }
  counts.push_back(as_fp64(width) / 2);
  std::ranges::sort(counts);
  counts.erase(std::unique(counts.begin(), counts.end()), counts.end());
  return counts;
}
Tensor with_inputs_scaled(const Asked& a, int64_t first, int64_t count, double by_factor) {
  const Tensor x = x_of(a).clone();
  x.narrow(1, first, count).mul_(by_factor);
  return of(a, x);
}
Tensor tail_left_out(const Asked& a, double count) {
  const auto some = as_count(count);
  return with_inputs_scaled(a, x_of(a).size(1) - some, some, 0);
}
Tensor head_left_out(const Asked& a, double count) {
  return with_inputs_scaled(a, 0, as_count(count), 0);
}
Tensor tail_twice(const Asked& a, double count) {
  const auto some = as_count(count);
  return with_inputs_scaled(a, x_of(a).size(1) - some, some, 2);
}

Tensor x_in_bf16(const Asked& a, double) {
  return a.model().run == DType::bf16 ? Tensor() : of(a, a.in_dtype(x_of(a), DType::bf16));
}
Tensor x_in_fp16(const Asked& a, double) {
  return a.model().run == DType::f16 ? Tensor() : of(a, a.in_dtype(x_of(a), DType::f16));
}
// A run in fp32 whose products are of 16 bits: tensor cores take them without being asked, by a
// switch (TF32, "medium").
Tensor both_in(const Asked& a, DType dtype) {
  const Tensor w = weight_of(a);
  if (!w.defined() || a.model().run != DType::f32) return {};
  return by(a, a.in_dtype(x_of(a), dtype), a.in_dtype(w, dtype));
}
Tensor both_in_bf16(const Asked& a, double) { return both_in(a, DType::bf16); }
Tensor both_in_fp16(const Asked& a, double) { return both_in(a, DType::f16); }

// Sums that are rounded to `dtype` after every so many products, before the next are added.
// LibTorch adds the products between two roundings in fp64.
Tensor accumulated(const Asked& a, DType dtype, double every) {
  const Tensor x = x_of(a);
  const auto rows = x.size(0), inner = x.size(1), outer = a.got().flatten(1).size(1);
  const auto step = as_count(every);
  if (as_fp64(rows * outer) * as_fp64(inner) / every > kMostProducts || step > inner) return {};
  const Tensor w = weight_of(a);
  if (!w.defined()) return {};
  Tensor total;
  for (int64_t first = 0; first < inner; first += step) {
    const int64_t count = std::min(step, inner - first);
    const Tensor part = at::matmul(x.narrow(1, first, count), w.narrow(1, first, count).t());
    // The last part stays unrounded: the store to the output rounds it.
    total = total.defined() ? a.in_dtype(total, dtype) + part : part;
  }
  return with_bias(a, total);
}
// Powers of two up to half of the sum: numbers of products between two stores of an accumulator.
std::vector<double> steps(const Asked& a) {
  std::vector<double> all;
  for (int step = 1; step <= x_of(a).size(1) / 2; step *= 2) all.push_back(step);
  return all;
}
Tensor accumulated_in_bf16(const Asked& a, double every) {
  return accumulated(a, DType::bf16, every);
}
Tensor accumulated_in_fp16(const Asked& a, double every) {
  return accumulated(a, DType::f16, every);
}

std::vector<double> tiles(const Asked& a) {
  std::vector<double> all;
  for (const double tile : {8., 16., 32., 64., 128., 256.})
    if (2 * tile <= as_fp64(a.got().flatten(1).size(1))) all.push_back(tile);
  return all;
}
// A last tile that was moved back to fit, and forgot to move what it reads.
Tensor last_outputs_repeat(const Asked& a, double tile) {
  const auto count = as_count(tile);
  const Tensor y = a.right().flatten(1), all = y.clone();
  if (2 * count > y.size(1)) return {};
  all.narrow(1, y.size(1) - count, count).copy_(y.narrow(1, y.size(1) - 2 * count, count));
  return all;
}
// The product of the stream itself: a fused norm that a flag left out.
Tensor before_its_norm(const Asked& a, double) {
  const std::string_view name = a.place().point->name;
  if (is_qkv(a)) {
    const int layer = a.place().layer;
    return of(a, layer == 0 ? a.other("embed") : a.other({&point("mlp.residual"), layer - 1}));
  }
  if (name == "mlp.gate" || name == "mlp.up") return of(a, a.other("attn.residual"));
  return {};
}
// Gemma 2 caps its logits at 30 this way.
Tensor capped(const Asked& a, double cap) {
  return a.place().point->name == "logits" ? cap * at::tanh(a.right() / cap) : Tensor();
}
// The same of logits that were stored before.
Tensor capped_stored(const Asked& a, double cap) {
  return a.place().point->name == "logits"
             ? cap * at::tanh(a.in_dtype(a.right(), a.op().got.dtype) / cap)
             : Tensor();
}
std::vector<double> caps(const Asked&) { return {15, 30, 50}; }

// A bias that a split of the sum adds once for each part, and one that is scaled with it.
std::vector<double> bias_factors(const Asked& a) {
  if (!has_bias(a)) return {};
  const Tensor rest = a.got().flatten(1) - right_product(a), bias = bias_of(a);
  const double factor =
      (rest * bias).sum().item<double>() / (bias.square().sum().item<double>() * as_fp64(a.rows()));
  if (!std::isfinite(factor)) return {};
  const double rounded = std::round(factor * 8) / 8;
  if (rounded == 0 || rounded == 1 || rounded == 2 || rounded == -1) return {};
  return {rounded};
}
// Eighths: parts of a split are no other numbers.
Tensor bias_times(const Asked& a, double factor) {
  return before_bias(a, right_product(a)) + factor * bias_of(a);
}
std::vector<double> bias_shifts(const Asked& a) {
  if (!has_bias(a)) return {};
  const auto dim = as_fp64(a.model().recipe.head_dim);
  return {1, -1, dim, -dim, dim / 2};
}
// By a row, a head or half of one.
Tensor bias_shifted(const Asked& a, double by_rows) {
  return before_bias(a, right_product(a)) + bias_of(a).roll(-as_count(by_rows), 0);
}
// K's for V and the other way: they have one shape.
Tensor bias_of_other(const Asked& a, double) {
  const std::string_view name = a.place().point->name;
  if (!has_bias(a) || (name != "attn.k" && name != "attn.v")) return {};
  const Point& other = *find_point(name == "attn.k" ? "attn.v" : "attn.k");
  return before_bias(a, right_product(a)) + a.model().weights.bias({&other, a.place().layer});
}
// Parts of a sum that are each stored in 16 bits before they are added (split-K).
std::vector<double> part_counts(const Asked& a) {
  std::vector<double> all = {2, 3, 4, 6, 8};
  // Or a tile each.
  for (const int64_t tile : {16, 32, 64, 128}) {
    const int64_t width = x_of(a).size(1), parts = width / tile;
    if (width % tile == 0 && parts > 1 && std::ranges::count(all, as_fp64(parts)) == 0)
      all.push_back(as_fp64(parts));
  }
  return all;
}
Tensor parts_in(const Asked& a, DType dtype, double parts) {
  const Tensor x = x_of(a), w = weight_of(a);
  const auto count = as_count(parts), size = x.size(1) / count;
  if (!w.defined() || x.size(1) % count != 0) return {};
  Tensor total;
  for (int64_t i = 0; i < count; ++i) {
    const Tensor part =
        a.in_dtype(at::matmul(x.narrow(1, i * size, size), w.narrow(1, i * size, size).t()), dtype);
    total = total.defined() ? total + part : part;
  }
  return with_bias(a, total);
}
Tensor parts_in_bf16(const Asked& a, double parts) { return parts_in(a, DType::bf16, parts); }
Tensor parts_in_fp16(const Asked& a, double parts) { return parts_in(a, DType::f16, parts); }
// The mode of tensor cores that a switch of the library allows for fp32.
Tensor both_in_tf32(const Asked& a, double) {
  const Tensor w = weight_of(a);
  if (!w.defined() || a.model().run != DType::f32) return {};
  return by(a, kTf32.rounded(x_of(a)), kTf32.rounded(w));
}
// The product is stored and rounded, and the bias added to that.
Tensor bias_after_store(const Asked& a, double) {
  return has_bias(a) && a.model().run != DType::f32
             ? a.in_dtype(right_product(a), a.model().run) + bias_of(a)
             : Tensor();
}

// Inputs that do not count once: the factor f of each by least squares over all results,
// sum_k f_k x_tk w_ok = y_to. Their first and last one, where they stand together and have one
// factor, are in one number, as a guess has one.
constexpr double kPacked = 65536;
struct InputSpan {
  int64_t first, last;
  int64_t factor;
};
// The factor is held as 0 to 3, for -1 to 2.
InputSpan unpacked(double packed) {
  const auto code = as_count(packed), whole = as_count(kPacked);
  return {code / 4 / whole, code / 4 % whole, code % 4 - 1};
}
// Nothing where the results are too few to tell, or tell of several spans.
std::vector<double> told_inputs(const Asked& a) {
  constexpr int64_t kMostInputs = 1024;
  const Tensor x = x_of(a), w = weight_of(a);
  if (!w.defined() || x.size(1) > kMostInputs || x.size(0) * w.size(0) < 4 * x.size(1)) return {};
  Tensor y = a.got().flatten(1);
  if (has_bias(a)) y = y - bias_of(a);
  const Tensor gram = at::matmul(x.t(), x) * at::matmul(w.t(), w);
  const Tensor sides = (at::matmul(y.nan_to_num(0), w) * x).sum(0);
  const Tensor ridge = gram.diagonal().mean() * 1e-9;
  const Tensor factors =
      at::linalg_solve(gram + ridge * at::eye(x.size(1), x.options()), sides).cpu().contiguous();
  const auto* f = factors.const_data_ptr<double>();
  InputSpan span{-1, -1, 0};
  for (int64_t k = 0; k < factors.numel(); ++k) {
    if (std::fabs(f[k] - 1) < 0.5 || !std::isfinite(f[k])) continue;
    const int64_t factor = std::clamp<int64_t>(std::llround(f[k]), -1, 2);
    if (span.first < 0) span = {k, k, factor};
    if (span.factor != factor || k > span.last + 1) return {};
    span.last = k;
  }
  if (span.first < 0) return {};
  // A usual tail or front has words of its own.
  const int64_t count = span.last - span.first + 1;
  const bool at_end = span.last + 1 == x.size(1);
  if (std::ranges::count(tails(a), as_fp64(count)) > 0 &&
      ((span.factor == 0 && (at_end || span.first == 0)) || (span.factor == 2 && at_end)))
    return {};
  return {(as_fp64(span.first) * kPacked + as_fp64(span.last)) * 4 + as_fp64(span.factor + 1)};
}
Tensor with_told_inputs(const Asked& a, double packed) {
  const InputSpan span = unpacked(packed);
  return with_inputs_scaled(a, span.first, span.last - span.first + 1, as_fp64(span.factor));
}
std::string words_of_inputs(double packed) {
  const InputSpan span = unpacked(packed);
  constexpr std::array<const char*, 4> kHow = {"subtracted", "left out of the sum", "",
                                               "added twice"};
  return fmt::format("its inputs {} to {} {}", span.first, span.last,
                     kHow.at(static_cast<size_t>(span.factor + 1)));
}

constexpr Hypothesis kLinear[] = {
    {"its bias left out", no_bias},
    {"its bias added twice", bias_twice},
    {"its bias subtracted", bias_subtracted},
    {"its bias alone", bias_alone},
    {"the bias of layer {:g}", bias_of_layer, other_layers},
    {"its bias times {:g}", bias_times, bias_factors},
    {"its bias {:+g} rows further on", bias_shifted, bias_shifts},
    {"the bias of the other of K and V", bias_of_other},
    {"its bias added to the product in the run's dtype", bias_after_store},
    {"its weight read transposed", transposed},
    {"its weight {:+g} row further on", rows_shifted, shifts},
    {"the weight of layer {:g}", weight_of_layer, other_layers},
    {"the weight of attn.q", of_projection<0>},
    {"the weight of attn.k", of_projection<1>},
    {"the weight of attn.v", of_projection<2>},
    {"the weight of attn.o", of_projection<3>},
    {"the weight of mlp.gate", of_projection<4>},
    {"the weight of mlp.up", of_projection<5>},
    {"the weight of mlp.down", of_projection<6>},
    {"heads in another order: (head of group, group)", heads_by_group},
    {"heads in another order: (group, head of group)", heads_by_kv},
    {"heads and dims exchanged in its rows", heads_and_dims},
    {"dims of each head in another order: halves interleaved", dims_interleaved},
    {"dims of each head in another order: pairs taken apart", dims_taken_apart},
    {"rows of its weight in another order, its bias not: halves interleaved", weight_in_pairs},
    {"rows of its weight in another order, its bias not: pairs taken apart", weight_in_halves},
    {"its input's heads in another order: (head of group, group)", inputs_by_group},
    {"its input's heads in another order: (group, head of group)", inputs_by_kv},
    {"its input by dims instead of heads", dims_first},
    {"its last {:g} inputs left out of the sum", tail_left_out, tails},
    {"its first {:g} inputs left out of the sum", head_left_out, tails},
    {"its last {:g} inputs added twice", tail_twice, tails},
    {"", with_told_inputs, told_inputs, words_of_inputs},
    {"input and weight rounded to tf32", both_in_tf32},
    {"{:g} parts of its sum rounded to bf16 before they are added", parts_in_bf16, part_counts},
    {"{:g} parts of its sum rounded to fp16 before they are added", parts_in_fp16, part_counts},
    {"its input rounded to bf16", x_in_bf16},
    {"its input rounded to fp16", x_in_fp16},
    {"input and weight rounded to bf16", both_in_bf16},
    {"input and weight rounded to fp16", both_in_fp16},
    {"its sum rounded to bf16 after every {:g} products", accumulated_in_bf16, steps},
    {"its sum rounded to fp16 after every {:g} products", accumulated_in_fp16, steps},
    {"its last {:g} outputs made of the weights of those before them", last_outputs_repeat, tiles},
    {"the product of what its norm reads, without the norm", before_its_norm},
    {"its result capped at {:g} by tanh", capped, caps},
    {"its result capped at {:g} by tanh", capped_stored, caps},
};

}  // namespace

std::span<const Hypothesis> linear_hypotheses() { return kLinear; }

}  // namespace lockstep
