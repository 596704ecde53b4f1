// Ways in which the gated activation, the residual addition and the embedding go wrong.
//
// They compute from the recorded gate and up, stream and branch, or token ids; activations are the
// usual ones that are mistaken for SiLU (GELU, its approximations, ReLU, sigmoid), and places where
// a 16-bit dtype comes in between.
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/erf.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "reference/hypotheses/asked.h"
#include "reference/hypotheses/values.h"

namespace lockstep {
namespace {

using at::Tensor;

Tensor gate(const Asked& a) { return a.input(0); }
Tensor up(const Asked& a) { return a.input(1); }
// In fp64, where e^-x overflows to Inf below x = -709: the quotient is then -0, and the right one
// is below what any dtype of a run holds.
Tensor silu(const Tensor& x) { return x / (1 + (-x).exp()); }
// The activation of a gate, times up.
Tensor gated(const Asked& a, const Tensor& activated) { return a.kept(activated) * up(a); }

// The right op is silu(g) u, with silu(x) = x / (1 + e^-x). Two halves of one tensor are exchanged
// when the weights of gate and up were stacked the other way; activations are those of other
// families, by the names that their configurations have.
Tensor exchanged(const Asked& a, double) { return a.kept(silu(up(a))) * gate(a); }
Tensor gelu(const Asked& a, double) {
  return gated(a, gate(a) / 2 * (1 + at::erf(gate(a) / std::numbers::sqrt2)));
}
Tensor gelu_tanh(const Asked& a, double) {
  const Tensor g = gate(a);
  const double c = std::sqrt(2 / std::numbers::pi);
  return gated(a, g / 2 * (1 + at::tanh(c * (g + 0.044715 * g * g * g))));
}
Tensor quick_gelu(const Asked& a, double) {
  return gated(a, gate(a) * at::sigmoid(1.702 * gate(a)));
}
Tensor relu(const Asked& a, double) { return gated(a, gate(a).clamp_min(0)); }
Tensor relu_squared(const Asked& a, double) { return gated(a, gate(a).clamp_min(0).square()); }
Tensor sigmoid(const Asked& a, double) { return gated(a, at::sigmoid(gate(a))); }
Tensor tanh_of(const Asked& a, double) { return gated(a, at::tanh(gate(a))); }
Tensor no_activation(const Asked& a, double) { return gate(a) * up(a); }
Tensor without_up(const Asked& a, double) { return silu(gate(a)); }
Tensor silu_twice(const Asked& a, double) { return gated(a, silu(silu(gate(a)))); }
Tensor both_silu(const Asked& a, double) { return silu(gate(a)) * silu(up(a)); }
Tensor of_product(const Asked& a, double) { return silu(gate(a) * up(a)); }
Tensor up_plus_one(const Asked& a, double) { return silu(gate(a)) * (up(a) + 1); }
Tensor added(const Asked& a, double) { return silu(gate(a)) + up(a); }
Tensor gate_times_gate(const Asked& a, double) { return silu(gate(a)) * gate(a); }
Tensor up_times_up(const Asked& a, double) { return silu(up(a)) * up(a); }
// Gate and up in one tensor, taken as pairs where they are halves.
Tensor interleaved(const Asked& a, double) {
  const Tensor both = at::cat({gate(a), up(a)}, -1);
  return silu(both.slice(-1, 0, both.size(-1), 2)) * both.slice(-1, 1, both.size(-1), 2);
}
std::vector<double> clamps(const Asked&) { return {1, 2, 5, 6, 7, 10, 20}; }
// Some families clamp before the product: both sides here, the gate above alone in the next.
Tensor clamped(const Asked& a, double at) {
  return silu(gate(a).clamp(-at, at)) * up(a).clamp(-at, at);
}
Tensor clamped_above(const Asked& a, double at) {
  return silu(gate(a).clamp_max(at)) * up(a).clamp(-at, at);
}
// Factors by which a kernel may hold its numbers while they are in fp16: what overflows there tells
// which it was.
std::vector<double> sizes(const Asked&) {
  std::vector<double> all;
  for (int e = 0; e <= 20; ++e) all.push_back(std::ldexp(1, e));
  for (const double size : {10., 100., 1e3, 1e4, 1e5, 1e6}) all.push_back(size);
  return all;
}
Tensor silu_through_fp16(const Asked& a, double size) {
  return a.in_dtype(a.right() * size, DType::f16) / size;
}
// x sigmoid(b x): b = ln 2 is 2^-x for e^-x, b = log2(e) that factor once too often.
std::vector<double> steepness(const Asked&) {
  return {std::numbers::ln2, std::numbers::log2e, 0.5, 2, 1.5, 1.6, 1.7, -1};
}
Tensor steeper(const Asked& a, double b) { return gated(a, gate(a) * at::sigmoid(b * gate(a))); }
// Activations that mobile and older models have, under names that are alike.
Tensor hard_swish(const Asked& a, double) {
  return gated(a, gate(a) * (gate(a) + 3).clamp(0, 6) / 6);
}
Tensor mish(const Asked& a, double) {
  return gated(a, gate(a) * at::tanh((1 + gate(a).exp()).log()));
}
Tensor softplus(const Asked& a, double) { return gated(a, (1 + gate(a).exp()).log()); }
Tensor elu(const Asked& a, double) {
  const Tensor g = gate(a);
  return gated(a, g.clamp_min(0) + g.clamp_max(0).exp() - 1);
}
// One tensor for both, its first half the gate: gate alone is read, as if it were both.
Tensor halves_of_gate(const Asked& a, double) {
  const auto halves = gate(a).chunk(2, -1);
  if (gate(a).size(-1) % 2 != 0) return {};
  const Tensor y = silu(halves[0]) * halves[1];
  return at::cat({y, y}, -1);
}
// A shortcut for gates whose SiLU is small.
std::vector<double> gate_ends(const Asked&) { return {-1, -2, -3, -4, -6, -8, -10}; }
Tensor zero_below(const Asked& a, double end) {
  return gated(a, at::where(gate(a) < end, at::zeros_like(gate(a)), silu(gate(a))));
}
std::vector<double> neighbours_of_rows(const Asked& a) { return Asked::neighbours_among(a.rows()); }
// A row pointer of up that was not moved on with that of gate.
Tensor up_of_row(const Asked& a, double by) {
  const Tensor other = a.of_neighbours(up(a), by);
  return other.defined() ? a.kept(silu(gate(a))) * other : other;
}
std::vector<double> columns_beside(const Asked&) { return {1, -1, 2, -2, 4, -4, 8, -8}; }
// Vectors of up that are loaded beside their place.
Tensor up_of_column(const Asked& a, double by) {
  return a.kept(silu(gate(a))) * up(a).roll(-as_count(by), -1);
}
// A run in fp32 whose kernel was made for 16 bits.
Tensor inputs_in(const Asked& a, DType dtype) {
  if (a.model().run != DType::f32) return {};
  return silu(a.in_dtype(gate(a), dtype)) * a.in_dtype(up(a), dtype);
}
Tensor inputs_in_bf16(const Asked& a, double) { return inputs_in(a, DType::bf16); }
Tensor inputs_in_fp16(const Asked& a, double) { return inputs_in(a, DType::f16); }
Tensor silu_in_bf16(const Asked& a, double) {
  return a.in_dtype(silu(gate(a)), DType::bf16) * up(a);
}
Tensor silu_in_fp16(const Asked& a, double) {
  return a.in_dtype(silu(gate(a)), DType::f16) * up(a);
}

constexpr Hypothesis kSilu[] = {
    {"gate and up exchanged: silu(up) * gate", exchanged},
    {"GELU for SiLU", gelu},
    {"GELU by tanh for SiLU", gelu_tanh},
    {"x sigmoid(1.702 x) (quick GELU) for SiLU", quick_gelu},
    {"ReLU for SiLU", relu},
    {"0 for the SiLU of gates under {:g}", zero_below, gate_ends},
    {"hard swish for SiLU", hard_swish},
    {"ReLU squared for SiLU", relu_squared},
    {"x sigmoid({:.4g} x) for SiLU", steeper, steepness},
    {"Mish for SiLU", mish},
    {"softplus for SiLU", softplus},
    {"ELU for SiLU", elu},
    {"sigmoid for SiLU", sigmoid},
    {"tanh for SiLU", tanh_of},
    {"no activation: gate * up", no_activation},
    {"silu(gate) alone, not times up", without_up},
    {"SiLU applied twice", silu_twice},
    {"SiLU of both halves", both_silu},
    {"SiLU of gate * up", of_product},
    {"silu(gate) * (up + 1)", up_plus_one},
    {"silu(gate) + up", added},
    {"silu(gate) * gate: up never read", gate_times_gate},
    {"silu(up) * up: gate never read", up_times_up},
    {"gate and up taken as interleaved pairs of one tensor", interleaved},
    {"the halves of gate taken for gate and up", halves_of_gate},
    {"up of the row {:+g} in the pass", up_of_row, neighbours_of_rows, nullptr, Scope::op,
     "up of the other row in the pass"},
    {"up of the column {:+g}", up_of_column, columns_beside},
    {"gate and up rounded to bf16", inputs_in_bf16},
    {"gate and up rounded to fp16", inputs_in_fp16},
    {"gate and up clamped to +-{:g}", clamped, clamps},
    {"gate clamped above and up both ways at {:g}", clamped_above, clamps},
    {"silu(gate) rounded to bf16 before up", silu_in_bf16},
    {"silu(gate) rounded to fp16 before up", silu_in_fp16},
    {"its result through fp16 at {:g} times its size, where it overflows", silu_through_fp16,
     sizes},
};

Tensor stream(const Asked& a) { return a.input(0); }
Tensor branch(const Asked& a) { return a.input(1); }
// The right op is stream + branch: one left out, added twice, or another tensor of the layer in its
// place.
Tensor branch_alone(const Asked& a, double) { return branch(a); }
Tensor stream_alone(const Asked& a, double) { return stream(a); }
Tensor stream_twice(const Asked& a, double) { return 2 * stream(a) + branch(a); }
Tensor branch_twice(const Asked& a, double) { return stream(a) + 2 * branch(a); }
Tensor subtracted(const Asked& a, double) { return stream(a) - branch(a); }
Tensor multiplied(const Asked& a, double) { return stream(a) * branch(a); }
Tensor mean(const Asked& a, double) { return (stream(a) + branch(a)) / 2; }
// Nothing where the other tensor was not recorded or has another shape.
Tensor plus(const Asked& a, const Tensor& other) {
  return other.defined() && other.sizes() == branch(a).sizes() ? other + branch(a) : Tensor();
}
Tensor normed_stream(const Asked& a, double) {
  const bool of_attention = a.place().point->name == "attn.residual";
  return plus(a, a.other(of_attention ? "attn.norm" : "mlp.norm"));
}
// The second addition of a layer that reads the stream as it was before the first one.
Tensor earlier_stream(const Asked& a, double) {
  if (a.place().point->name != "mlp.residual") return {};
  const int layer = a.place().layer;
  return plus(a, layer == 0 ? a.other("embed") : a.other({&point("mlp.residual"), layer - 1}));
}
// Both branches of a layer have one shape, [rows, hidden].
Tensor other_branch(const Asked& a, double) {
  if (a.place().point->name != "mlp.residual") return {};
  const Tensor other = a.other("attn.o");
  return other.defined() ? stream(a) + other : Tensor();
}
// got - stream = f branch by least squares: the residual scale of families that have one.
std::vector<double> addend_factors(const Asked& a) {
  const Tensor rest = a.got() - stream(a);
  const double factor =
      (rest * branch(a)).sum().item<double>() / branch(a).square().sum().item<double>();
  const double rounded = std::round(factor * 100) / 100;
  // Left out, once, twice and subtracted have words of their own.
  const bool is_whole = rounded == -1 || rounded == 0 || rounded == 1 || rounded == 2;
  return std::isfinite(factor) && !is_whole ? std::vector<double>{rounded} : std::vector<double>{};
}
Tensor branch_times(const Asked& a, double factor) { return stream(a) + factor * branch(a); }
// got - branch = f stream: models that scale their residuals, or a stream that is added again.
std::vector<double> stream_factors(const Asked& a) {
  const Tensor rest = a.got() - branch(a);
  const double factor =
      (rest * stream(a)).sum().item<double>() / stream(a).square().sum().item<double>();
  const double rounded = std::round(factor * 100) / 100;
  const bool is_whole = rounded == 0 || rounded == 1 || rounded == 2;
  return std::isfinite(factor) && !is_whole ? std::vector<double>{rounded} : std::vector<double>{};
}
Tensor stream_times(const Asked& a, double factor) { return factor * stream(a) + branch(a); }
// Sums of what belongs to different tokens.
Tensor branch_of_row(const Asked& a, double by) {
  return stream(a) + branch(a).roll(-as_count(by), 0);
}
Tensor stream_of_row(const Asked& a, double by) {
  return stream(a).roll(-as_count(by), 0) + branch(a);
}
// The first addition of a layer that reads what the first one of the layer before stored.
Tensor stream_of_layer_before(const Asked& a, double) {
  if (a.place().point->name != "attn.residual" || a.place().layer == 0) return {};
  return plus(a, a.other({a.place().point, a.place().layer - 1}));
}
// Families that norm what a layer adds, with no gain here.
Tensor normed_branch(const Asked& a, double) {
  const Tensor b = branch(a);
  return stream(a) + b / (b.square().mean(-1, true) + a.model().recipe.norm_eps).sqrt();
}
// An fp32 run that keeps its residual in 16 bits.
Tensor terms_in(const Asked& a, DType dtype) {
  if (a.model().run != DType::f32) return {};
  return a.in_dtype(stream(a), dtype) + a.in_dtype(branch(a), dtype);
}
Tensor both_terms_in_bf16(const Asked& a, double) { return terms_in(a, DType::bf16); }
Tensor both_terms_in_fp16(const Asked& a, double) { return terms_in(a, DType::f16); }

constexpr Hypothesis kAdd[] = {
    {"the stream dropped: its branch alone", branch_alone},
    {"the branch dropped: its stream alone", stream_alone},
    {"the stream added twice", stream_twice},
    {"the branch added twice", branch_twice},
    {"the branch subtracted", subtracted},
    {"the two multiplied", multiplied},
    {"the mean of the two", mean},
    {"the normed stream for the stream", normed_stream},
    {"the stream of before attention for the stream", earlier_stream},
    {"attention's branch for its own", other_branch},
    {"the branch times {:g}", branch_times, addend_factors},
    {"the stream times {:g}", stream_times, stream_factors},
    {"the branch of the row {:+g} in the pass", branch_of_row, neighbours_of_rows, nullptr,
     Scope::op, "the branch of the other row in the pass"},
    {"the stream of the row {:+g} in the pass", stream_of_row, neighbours_of_rows, nullptr,
     Scope::op, "the stream of the other row in the pass"},
    {"the stream of the layer before for the stream", stream_of_layer_before},
    {"the branch normed before it is added", normed_branch},
    {"stream and branch rounded to bf16", both_terms_in_bf16},
    {"stream and branch rounded to fp16", both_terms_in_fp16},
};

// Rows of the embedding by other ids, kept within the vocabulary.
Tensor of_ids(const Asked& a, auto change) {
  std::vector<int32_t> ids;
  const int64_t vocab = a.model().config.vocab;
  for (size_t i = 0; i < a.op().call.tokens.size(); ++i) {
    const int64_t id = change(i, int64_t{a.op().call.tokens[i]});
    ids.push_back(static_cast<int32_t>((id % vocab + vocab) % vocab));
  }
  return a.model().weights.embedding(ids);
}
std::vector<double> id_offsets(const Asked&) { return {1, -1, 2, -2}; }
Tensor other_id(const Asked& a, double by) {
  return of_ids(a, [by](size_t, int64_t id) { return id + as_count(by); });
}
// Ids cut to 8, 15 or 16 bits: a vocabulary outgrew the type that somebody chose for it.
std::vector<double> id_bits(const Asked&) { return {8, 15, 16}; }
Tensor id_of_bits(const Asked& a, double bits) {
  const double ids = std::exp2(bits);
  return of_ids(a, [=](size_t, int64_t id) { return as_count(std::fmod(as_fp64(id), ids)); });
}
// A border that a table of fewer rows sets: ids past it read its last row.
std::vector<double> id_ends(const Asked& a) {
  std::vector<double> all;
  for (int64_t power = 256; power < a.model().config.vocab; power *= 2)
    all.push_back(as_fp64(power));
  return all;
}
Tensor ids_clamped(const Asked& a, double end) {
  return of_ids(a, [=](size_t, int64_t id) { return std::min(id, as_count(end) - 1); });
}
// An index that is not moved on from token to token.
Tensor of_first_token(const Asked& a, double) {
  const auto& tokens = a.op().call.tokens;
  return of_ids(a, [&](size_t, int64_t) { return int64_t{tokens.front()}; });
}
// Models that norm what they look up.
Tensor unit_length(const Asked& a, double) {
  const Tensor y = a.right();
  return y / (y.square().mean(-1, true) + a.model().recipe.norm_eps).sqrt();
}
Tensor by_position(const Asked& a, double) {
  return of_ids(a, [&](size_t i, int64_t) { return int64_t{a.op().call.rows[i].position}; });
}
Tensor padding_id(const Asked& a, double) {
  return of_ids(a, [](size_t, int64_t) { return int64_t{0}; });
}
// A vocabulary in parts, of which one alone was looked up: zeros for the ids of the others.
std::vector<double> id_borders(const Asked& a) {
  std::vector<double> all;
  const int64_t vocab = a.model().config.vocab;
  for (const int64_t parts : {2, 4, 8})
    for (int64_t part = 1; part < parts; ++part)
      all.push_back(as_fp64((vocab + parts - 1) / parts * part));
  for (int64_t power = 256; power < vocab; power *= 2) all.push_back(as_fp64(power));
  std::ranges::sort(all);
  all.erase(std::unique(all.begin(), all.end()), all.end());
  return all;
}
Tensor zeros_where(const Asked& a, auto is_zero) {
  const Tensor y = a.right().clone();
  for (size_t i = 0; i < a.op().call.tokens.size(); ++i)
    if (is_zero(int64_t{a.op().call.tokens[i]})) y.select(0, static_cast<int64_t>(i)).fill_(0);
  return y;
}
Tensor ids_from_zero(const Asked& a, double border) {
  return zeros_where(a, [=](int64_t id) { return as_fp64(id) >= border; });
}
Tensor ids_below_zero(const Asked& a, double border) {
  return zeros_where(a, [=](int64_t id) { return as_fp64(id) < border; });
}
Tensor normalised(const Asked& a, double) { return a.right() * std::sqrt(a.model().config.hidden); }
Tensor with_position(const Asked& a, double) {
  const Tensor position = by_position(a, 0);
  return a.right() + position;
}

constexpr Hypothesis kGather[] = {
    {"the embedding of the id {:+g}", other_id, id_offsets},
    {"the embedding of the id's low {:g} bits", id_of_bits, id_bits},
    {"the embedding of the position for that of the id", by_position},
    {"the embedding of the id 0 for every token", padding_id},
    {"the embedding times sqrt(hidden), as Gemma's", normalised},
    {"an embedding of the position added", with_position},
    {"the embedding of the id {:g} - 1 for all past it", ids_clamped, id_ends, nullptr,
     Scope::rows},
    {"the embedding of the pass's first token for every one", of_first_token},
    {"the embedding normed", unit_length},
    {"zeros for ids from {:g} on", ids_from_zero, id_borders, nullptr, Scope::rows},
    {"zeros for ids below {:g}", ids_below_zero, id_borders, nullptr, Scope::rows},
};

}  // namespace

std::span<const Hypothesis> silu_mul_hypotheses() { return kSilu; }
std::span<const Hypothesis> add_hypotheses() { return kAdd; }
std::span<const Hypothesis> gather_hypotheses() { return kGather; }

}  // namespace lockstep
