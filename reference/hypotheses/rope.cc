// Ways in which rotary embedding goes wrong.
//
// They vary the pairs that are turned, or the frequencies (positions: rope_positions.cc). Angles
// are made anew in fp64 by the reference's own recipe with one number of it changed, so that a
// wrong base or scaling is found with its value.
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/outer.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <cmath>

#include "reference/hypotheses/rotary.h"

namespace lockstep {
namespace {

using at::Tensor;

// cos and sin of each row's pairs: [rows, pairs].
struct Tables {
  Tensor cos, sin;
};

int64_t pairs_of(const Asked& a) { return a.model().recipe.head_dim / 2; }

// Pair j of a head is turned by the angle p f_j, f_j = theta^(-2j / head_dim) where nothing is
// scaled; cos and sin carry the magnitude of the scaling (yarn, longrope).
Tables tables_of(const Asked& a, const std::vector<double>& positions,
                 const std::vector<double>& frequencies, double magnitude) {
  const Tensor angle = at::outer(a.tensor(positions), a.tensor(frequencies));
  return {angle.cos() * magnitude, angle.sin() * magnitude};
}
Tables by_recipe(const Asked& a, const RotaryRecipe& recipe, const std::vector<double>& positions) {
  const int64_t dim = a.model().recipe.head_dim;
  return tables_of(a, positions, recipe.frequencies(dim, RightRotation::length_of(a)),
                   recipe.magnitude());
}
// Those that the engine showed, if it did.
Tables right_tables(const Asked& a) {
  if (a.inputs() == 3) return {a.input(1), a.input(2)};
  return by_recipe(a, RightRotation::recipe_of(a), RightRotation::right_positions(a));
}
// Tables as the run holds them: some contracts round them to its dtype.
Tables table_in_contract(const Asked& a, const Tables& t) {
  const RoundingContract contract = a.op().call.contract;
  const bool rounds = contract == RoundingContract::hf ||
                      contract == RoundingContract::tables_rounded ||
                      contract == RoundingContract::hf_unrounded_sum;
  if (!rounds) return t;
  return {a.in_dtype(t.cos, a.model().run), a.in_dtype(t.sin, a.model().run)};
}

// The pairs (j, j + half) turned by tables of [rows, half]. Tables broadcast over the heads of a
// row.
Tensor turned(const Asked& a, const Tensor& x, const Tables& given) {
  const Tables t = table_in_contract(a, given);
  const auto halves = x.chunk(2, -1);
  const Tensor c = t.cos.unsqueeze(1), s = t.sin.unsqueeze(1);
  return at::cat({a.kept(halves[0] * c) - a.kept(halves[1] * s),
                  a.kept(halves[1] * c) + a.kept(halves[0] * s)},
                 -1);
}
Tensor turned(const Asked& a, const Tables& t) { return turned(a, a.input(0), t); }

// The pairs (2j, 2j + 1).
Tensor turned_in_pairs(const Asked& a, const Tensor& x, const Tables& given) {
  const Tables t = table_in_contract(a, given);
  const Tensor even = x.slice(-1, 0, x.size(-1), 2), odd = x.slice(-1, 1, x.size(-1), 2);
  const Tensor c = t.cos.unsqueeze(1), s = t.sin.unsqueeze(1);
  return at::stack({a.kept(even * c) - a.kept(odd * s), a.kept(odd * c) + a.kept(even * s)}, -1)
      .flatten(-2);
}

Tensor rope_left_out(const Asked& a, double) { return a.input(0); }
// The layout of GPT-J, where that of GPT-NeoX is right.
Tensor rope_interleaved(const Asked& a, double) {
  return turned_in_pairs(a, a.input(0), right_tables(a));
}
Tensor rope_negated(const Asked& a, double) {
  const Tables t = right_tables(a);
  return turned(a, {t.cos, -t.sin});
}
Tensor rope_exchanged(const Asked& a, double) {
  const Tables t = right_tables(a);
  return turned(a, {t.sin, t.cos});
}
Tensor twice(const Asked& a, double) {
  const Tables t = right_tables(a);
  return turned(a, turned(a, t), t);
}
// The right op is (x1 cos - x2 sin, x2 cos + x1 sin) over the halves x1, x2.
Tensor no_minus(const Asked& a, double) {
  const Tables t = right_tables(a);
  const auto halves = a.input(0).chunk(2, -1);
  const Tensor c = t.cos.unsqueeze(1), s = t.sin.unsqueeze(1);
  return at::cat({halves[0] * c + halves[1] * s, halves[1] * c + halves[0] * s}, -1);
}
// A rotation in place, whose second line reads what the first has written; `stored`: rounded to the
// run's dtype by then, or still in a register.
Tensor in_place(const Asked& a, bool second_first, bool stored) {
  const Tables t = right_tables(a);
  const auto halves = a.input(0).chunk(2, -1);
  const Tensor c = t.cos.unsqueeze(1), s = t.sin.unsqueeze(1);
  const auto written = [&](const Tensor& y) { return stored ? a.in_dtype(y, a.model().run) : y; };
  if (second_first) {
    const Tensor second = written(halves[1] * c + halves[0] * s);
    return at::cat({halves[0] * c - second * s, second}, -1);
  }
  const Tensor first = written(halves[0] * c - halves[1] * s);
  return at::cat({first, halves[1] * c + first * s}, -1);
}
Tensor in_place_stored(const Asked& a, double) { return in_place(a, false, true); }
Tensor in_place_held(const Asked& a, double) { return in_place(a, false, false); }
Tensor in_place_back_stored(const Asked& a, double) { return in_place(a, true, true); }
Tensor in_place_back_held(const Asked& a, double) { return in_place(a, true, false); }
// Pairs whose angles were taken at position 0, as those of an axis are that text does not have:
// the result tells which they are.
Tensor some_pairs_left(const Asked& a, double) {
  const Tables t = right_tables(a);
  const Tensor right = turned(a, t), x = a.input(0), got = a.got().view(x.sizes());
  const auto off = [&](const Tensor& y) {
    const auto parts = (got - y).square().sum(at::IntArrayRef{0, 1}).chunk(2, -1);
    return parts[0] + parts[1];
  };
  const Tensor left = (off(x) < off(right)).unsqueeze(0);
  const int64_t count = left.sum().item<int64_t>();
  if (count == 0 || count == pairs_of(a)) return {};
  return turned(a, {at::where(left, at::ones_like(t.cos), t.cos),
                    at::where(left, at::zeros_like(t.sin), t.sin)});
}
Tensor halves_exchanged(const Asked& a, double) {
  const auto halves = a.input(0).chunk(2, -1);
  return turned(a, at::cat({halves[1], halves[0]}, -1), right_tables(a));
}
// Tables made for pairs (2j, 2j + 1) in a rotation of halves.
Tensor tables_of_pairs(const Asked& a, double) {
  const Tables t = right_tables(a);
  const auto halves = a.input(0).chunk(2, -1);
  const Tensor other = at::cat({-halves[1], halves[0]}, -1);
  const auto each = [](const Tensor& x) { return x.repeat_interleave(2, -1).unsqueeze(1); };
  return a.input(0) * each(t.cos) + other * each(t.sin);
}

Tensor with_recipe(const Asked& a, const RotaryRecipe& recipe) {
  return turned(a, by_recipe(a, recipe, RightRotation::right_positions(a)));
}
// Values of theta that families have, but for the model's own.
std::vector<double> bases(const Asked& a) {
  const double own = RightRotation::recipe_of(a).theta, dim = as_fp64(a.model().recipe.head_dim);
  std::vector<double> all = {1e4,     1e5,     5e5,      1e6,      5e6, 1e7,
                             2 * own, own / 2, 10 * own, own / 10, 1e3, 1e8};
  // The base that grows with a longer context (NTK-aware scaling).
  for (const double factor : {2., 4., 8.}) all.push_back(own * std::pow(factor, dim / (dim - 2)));
  std::ranges::sort(all);
  all.erase(std::unique(all.begin(), all.end()), all.end());
  std::erase(all, own);
  return all;
}
Tensor other_base(const Asked& a, double base) {
  RotaryRecipe recipe = RightRotation::recipe_of(a);
  recipe.theta = base;
  return with_recipe(a, recipe);
}
bool is_scaled(const Asked& a) { return RightRotation::recipe_of(a).type != "default"; }
Tensor scaling_left_out(const Asked& a, double) {
  return is_scaled(a) ? with_recipe(a, {.theta = RightRotation::recipe_of(a).theta}) : Tensor();
}
// Frequencies by another scaling factor; cos and sin keep their magnitude or take that of the new
// factor.
Tensor with_factor(const Asked& a, double factor, bool own_magnitude) {
  if (!is_scaled(a) || RightRotation::recipe_of(a).factor == 1) return {};
  RotaryRecipe recipe = RightRotation::recipe_of(a);
  recipe.factor = factor;
  const std::vector<double> f =
      recipe.frequencies(a.model().recipe.head_dim, RightRotation::length_of(a));
  return turned(a, tables_of(a, RightRotation::right_positions(a), f,
                             (own_magnitude ? RightRotation::recipe_of(a) : recipe).magnitude()));
}
Tensor scaling_twice(const Asked& a, double) {
  return with_factor(a, RightRotation::recipe_of(a).factor * RightRotation::recipe_of(a).factor,
                     true);
}
Tensor scaling_inverted(const Asked& a, double) {
  return with_factor(a, 1 / RightRotation::recipe_of(a).factor, true);
}
Tensor linear_scaling(const Asked& a, double) {
  if (!is_scaled(a) || RightRotation::recipe_of(a).type == "linear") return {};
  return with_recipe(a, {.type = "linear",
                         .theta = RightRotation::recipe_of(a).theta,
                         .factor = RightRotation::recipe_of(a).factor});
}
Tensor magnitude_left_out(const Asked& a, double) {
  const double magnitude = RightRotation::recipe_of(a).magnitude();
  const Tables t = right_tables(a);
  return magnitude == 1 ? Tensor() : turned(a, {t.cos / magnitude, t.sin / magnitude});
}
Tensor magnitude_twice(const Asked& a, double) {
  const double magnitude = RightRotation::recipe_of(a).magnitude();
  const Tables t = right_tables(a);
  return magnitude == 1 ? Tensor() : turned(a, {t.cos * magnitude, t.sin * magnitude});
}
// Tables by changed frequencies, `change` by pair.
Tensor with_frequencies(const Asked& a, auto change) {
  std::vector<double> f = RightRotation::recipe_of(a).frequencies(a.model().recipe.head_dim,
                                                                  RightRotation::length_of(a));
  for (size_t j = 0; j < f.size(); ++j) f[j] = change(j, f[j]);
  return turned(a, tables_of(a, RightRotation::right_positions(a), f,
                             RightRotation::recipe_of(a).magnitude()));
}
Tensor frequencies_in(const Asked& a, DType dtype) {
  return with_frequencies(a, [dtype](size_t, double f) { return round_to(f, dtype); });
}
Tensor frequencies_in_bf16(const Asked& a, double) { return frequencies_in(a, DType::bf16); }
Tensor frequencies_in_fp16(const Asked& a, double) { return frequencies_in(a, DType::f16); }
// base^(-j / d) for base^(-2j / d), and the other way round.
Tensor exponent_halved(const Asked& a, double) {
  return with_frequencies(a, [](size_t, double f) { return std::sqrt(f); });
}
Tensor exponent_doubled(const Asked& a, double) {
  return with_frequencies(a, [](size_t, double f) { return f * f; });
}
std::vector<double> other_dims(const Asked& a) {
  const auto own = as_fp64(a.model().recipe.head_dim);
  std::vector<double> all = {32, 64, 80, 96, 128, 192, 256, as_fp64(a.model().config.hidden)};
  std::erase(all, own);
  return all;
}
Tensor exponent_of_dims(const Asked& a, double dims) {
  if (is_scaled(a)) return {};
  return with_frequencies(a, [&](size_t j, double) {
    return std::pow(RightRotation::recipe_of(a).theta, -2 * as_fp64(j) / dims);
  });
}
// p f_j in 16 bits: the angle, not its cosine.
Tensor angles_in(const Asked& a, DType dtype) {
  const double magnitude = RightRotation::recipe_of(a).magnitude();
  const Tensor angle =
      a.in_dtype(at::outer(a.tensor(RightRotation::right_positions(a)),
                           a.tensor(RightRotation::recipe_of(a).frequencies(
                               a.model().recipe.head_dim, RightRotation::length_of(a)))),
                 dtype);
  return turned(a, {angle.cos() * magnitude, angle.sin() * magnitude});
}
Tensor angles_in_bf16(const Asked& a, double) { return angles_in(a, DType::bf16); }
Tensor angles_in_fp16(const Asked& a, double) { return angles_in(a, DType::f16); }
Tensor frequencies_reversed(const Asked& a, double) {
  const std::vector<double> all = RightRotation::recipe_of(a).frequencies(
      a.model().recipe.head_dim, RightRotation::length_of(a));
  return with_frequencies(a, [&](size_t j, double) { return all[all.size() - 1 - j]; });
}
std::vector<double> frequency_shifts(const Asked&) { return {1, -1}; }
Tensor frequencies_shifted(const Asked& a, double by) {
  return with_frequencies(a, [&](size_t, double f) {
    return f * std::pow(RightRotation::recipe_of(a).theta, -by / as_fp64(pairs_of(a)));
  });
}
Tensor tables_in(const Asked& a, DType dtype) {
  const Tables t = right_tables(a);
  return turned(a, {a.in_dtype(t.cos, dtype), a.in_dtype(t.sin, dtype)});
}
Tensor tables_in_bf16(const Asked& a, double) { return tables_in(a, DType::bf16); }
Tensor tables_in_fp16(const Asked& a, double) { return tables_in(a, DType::f16); }

// Partial rotation: only so much of a head is turned in some families.
std::vector<double> fractions(const Asked&) { return {0.5, 0.25, 0.75}; }
Tensor first_pairs(const Asked& a, double share) {
  const Tables t = right_tables(a);
  const Tensor cos = t.cos.clone(), sin = t.sin.clone();
  const auto pairs = static_cast<int64_t>(share * as_fp64(pairs_of(a)));
  if (pairs < 1 || pairs >= pairs_of(a)) return {};
  cos.narrow(1, pairs, pairs_of(a) - pairs).fill_(1);
  sin.narrow(1, pairs, pairs_of(a) - pairs).fill_(0);
  return turned(a, {cos, sin});
}
// Partial rotary: the first dims are a head of their own. Frequencies fall over those dims alone,
// theta^(-2j / some), another spectrum than that of first_pairs().
Tensor first_dims(const Asked& a, double share) {
  const int64_t dim = a.model().recipe.head_dim;
  const int64_t some = static_cast<int64_t>(share * as_fp64(dim)) / 2 * 2;
  if (some < 2 || some >= dim) return {};
  const Tables t =
      tables_of(a, RightRotation::right_positions(a),
                RightRotation::recipe_of(a).frequencies(some, RightRotation::length_of(a)), 1);
  const Tensor x = a.input(0);
  return at::cat({turned(a, x.narrow(-1, 0, some), t), x.narrow(-1, some, dim - some)}, -1);
}
Tensor pair_tables_first_dims(const Asked& a, double) {
  const Tables t = right_tables(a);
  const Tensor x = a.input(0);
  const int64_t dim = x.size(-1), half = dim / 2, pairs = half / 2;
  if (half % 2 != 0) return {};
  const Tensor front =
      turned(a, x.narrow(-1, 0, half), {t.cos.narrow(1, 0, pairs), t.sin.narrow(1, 0, pairs)});
  return at::cat({front, x.narrow(-1, half, half)}, -1);
}
Tensor first_head_alone(const Asked& a, double) {
  const Tensor x = a.input(0), y = turned(a, right_tables(a));
  if (x.size(1) < 2) return {};
  return at::cat({y.narrow(1, 0, 1), x.narrow(1, 1, x.size(1) - 1)}, 1);
}
std::vector<double> some_heads(const Asked& a) {
  std::vector<double> all;
  for (int64_t n = 2; n < a.input(0).size(1); ++n) all.push_back(as_fp64(n));
  return all;
}
// Such as as many query heads as there are K/V heads.
Tensor first_heads_alone(const Asked& a, double count) {
  const Tensor x = a.input(0), y = turned(a, right_tables(a));
  const auto n = static_cast<int64_t>(count);
  return at::cat({y.narrow(1, 0, n), x.narrow(1, n, x.size(1) - n)}, 1);
}
Tensor last_pairs(const Asked& a, double share) {
  const Tables t = right_tables(a);
  const Tensor cos = t.cos.clone(), sin = t.sin.clone();
  const int64_t left = pairs_of(a) - static_cast<int64_t>(share * as_fp64(pairs_of(a)));
  if (left < 1 || left >= pairs_of(a)) return {};
  cos.narrow(1, 0, left).fill_(1);
  sin.narrow(1, 0, left).fill_(0);
  return turned(a, {cos, sin});
}
// Norm of q and k, and then RoPE, is the order of Qwen3. They do not commute: gains differ within a
// pair.
Tensor normed_after(const Asked& a, double) {
  if (!a.model().config.qk_norm) return {};
  const bool q = a.place().point->name == "attn.q_rope";
  const Tensor y = turned(a, right_tables(a));
  const Tensor root = (y.square().mean(-1, true) + a.model().recipe.norm_eps).sqrt();
  return y / root *
         a.model().weights.norm({find_point(q ? "attn.q_norm" : "attn.k_norm"), a.place().layer});
}
// RoPE and then the norm, of a normed input: a rotation leaves the mean square of a head as it is,
// so that nothing but the gain tells the two orders apart.
Tensor gain_after_turning(const Asked& a, double) {
  if (!a.model().config.qk_norm) return {};
  const bool q = a.place().point->name == "attn.q_rope";
  const Tensor gain =
      a.model().weights.norm({find_point(q ? "attn.q_norm" : "attn.k_norm"), a.place().layer});
  return turned(a, a.input(0) / gain, right_tables(a)) * gain;
}
// Each of the four products stored before two of them are added.
Tensor products_stored(const Asked& a, double) {
  const DType run = a.model().run;
  if (run == DType::f32) return {};
  const Tables t = right_tables(a);
  const Tensor c = t.cos.unsqueeze(1), s = t.sin.unsqueeze(1);
  const auto halves = a.input(0).chunk(2, -1);
  const auto stored = [&](const Tensor& x) { return a.in_dtype(x, run); };
  return at::cat({stored(halves[0] * c) - stored(halves[1] * s),
                  stored(halves[1] * c) + stored(halves[0] * s)},
                 -1);
}
// Kernels that fold the scale into q, before an attention that scales once more.
Tensor scaled_query(const Asked& a, double) {
  return turned(a, right_tables(a)) / std::sqrt(a.model().recipe.head_dim);
}

constexpr Hypothesis kRope[] = {
    {"no rotation at all: its input is handed on", rope_left_out},
    {"RoPE of interleaved pairs (2j, 2j + 1) instead of halves", rope_interleaved},
    {"RoPE by the base {:g}", other_base, bases},
    {"RoPE without its scaling", scaling_left_out},
    {"RoPE with its scaling factor twice", scaling_twice},
    {"RoPE with its scaling factor inverted", scaling_inverted},
    {"RoPE with linear scaling for its own", linear_scaling},
    {"RoPE without the factor of cos and sin", magnitude_left_out},
    {"RoPE with the factor of cos and sin twice", magnitude_twice},
    {"RoPE turned the other way (sin negated)", rope_negated},
    {"RoPE with cos and sin exchanged", rope_exchanged},
    {"RoPE applied twice", twice},
    {"RoPE without the minus of the first half", no_minus},
    {"RoPE with the halves of a head exchanged", halves_exchanged},
    {"RoPE of halves by the tables of interleaved pairs", tables_of_pairs},
    {"RoPE in place: the second half turned with the first one's result", in_place_stored},
    {"RoPE in place: the second half turned with the first one's result", in_place_held},
    {"RoPE in place: the first half turned with the second one's result", in_place_back_stored},
    {"RoPE in place: the first half turned with the second one's result", in_place_back_held},
    {"RoPE by tables rounded to bf16", tables_in_bf16},
    {"RoPE by tables rounded to fp16", tables_in_fp16},
    {"RoPE by frequencies rounded to bf16", frequencies_in_bf16},
    {"RoPE by frequencies rounded to fp16", frequencies_in_fp16},
    {"RoPE by frequencies base^(-j/d) for base^(-2j/d)", exponent_halved},
    {"RoPE by frequencies base^(-4j/d) for base^(-2j/d)", exponent_doubled},
    {"RoPE by angles rounded to bf16", angles_in_bf16},
    {"RoPE by angles rounded to fp16", angles_in_fp16},
    {"RoPE by frequencies of a head of {:g} dims", exponent_of_dims, other_dims},
    {"RoPE by frequencies in the opposite order", frequencies_reversed},
    {"RoPE by the frequency of the pair {:+g}", frequencies_shifted, frequency_shifts},
    {"RoPE over the first {:g} of the pairs", first_pairs, fractions},
    {"RoPE over the first {:g} of the dims, as a head of their own", first_dims, fractions},
    {"RoPE over the first half of the dims by its own frequencies", pair_tables_first_dims},
    {"RoPE over the last {:g} of the pairs", last_pairs, fractions},
    {"RoPE of head 0 alone", first_head_alone},
    {"RoPE of the first {:g} heads alone", first_heads_alone, some_heads},
    {"RoPE with some of its pairs not turned", some_pairs_left, nullptr, nullptr, Scope::told},
    {"RoPE whose products are rounded before they are added", products_stored},
    {"normed after RoPE", normed_after},
    {"RoPE before the norm, whose gain comes after it", gain_after_turning},
    {"RoPE and the softmax's scale on top", scaled_query},
};

}  // namespace

const RotaryRecipe& RightRotation::recipe_of(const Asked& a) { return a.model().recipe.rotary; }
int64_t RightRotation::length_of(const Asked& a) {
  return *std::ranges::max_element(a.op().call.lengths);
}
std::vector<double> RightRotation::right_positions(const Asked& a) {
  std::vector<double> positions;
  for (const int64_t p : a.positions()) positions.push_back(as_fp64(p));
  return positions;
}
at::Tensor RightRotation::at_positions(const Asked& a, const std::vector<double>& positions) {
  return of(a, a.input(0), positions);
}
at::Tensor RightRotation::of(const Asked& a, const at::Tensor& x,
                             const std::vector<double>& positions) {
  return turned(a, x, by_recipe(a, RightRotation::recipe_of(a), positions));
}

std::span<const Hypothesis> rope_hypotheses() { return kRope; }

}  // namespace lockstep
