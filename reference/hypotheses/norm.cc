// Ways in which RMSNorm goes wrong.
//
// They vary one thing of y = x / sqrt(mean(x^2) + eps) w at a time: what is averaged (blocks, all
// heads, all rows), by what it is divided, where eps stands, which gain, and which parts are
// rounded to 16 bits on the way.
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <bit>
#include <cmath>

#include "kernels/base/dtype.h"
#include "reference/hypotheses/rotary.h"
#include "reference/hypotheses/values.h"
#include "reference/rounding.h"

namespace lockstep {
namespace {

using at::Tensor;

// Its input, of the sum before it is rounded where the contract says so.
Tensor norm_x(const Asked& a) { return a.inputs() == 2 ? a.input(0) + a.input(1) : a.input(0); }
Tensor gain_of(const Asked& a) { return a.model().weights.norm(a.place()); }
double eps_of(const Asked& a) { return a.model().recipe.norm_eps; }
int64_t width_of(const Asked& a) { return a.input(0).size(-1); }
Tensor mean_square(const Tensor& x) { return x.square().mean(-1, /*keepdim=*/true); }

Tensor normed(const Tensor& x, double eps) { return x / (mean_square(x) + eps).sqrt(); }
Tensor scaled(const Asked& a, const Tensor& inner, const Tensor& gain) {
  return a.kept(inner) * gain;
}
Tensor with_gain(const Asked& a, const Tensor& gain) {
  return scaled(a, normed(norm_x(a), eps_of(a)), gain);
}
// The right op over other input: x / sqrt(mean(x^2) + eps) * gain.
Tensor of_input(const Asked& a, const Tensor& x) {
  return x.defined() && x.sizes() == a.input(0).sizes()
             ? scaled(a, normed(x, eps_of(a)), gain_of(a))
             : Tensor();
}
Tensor with_mean_square(const Asked& a, const Tensor& mean) {
  return scaled(a, norm_x(a) / (mean + eps_of(a)).sqrt(), gain_of(a));
}

Tensor left_out(const Asked& a, double) { return norm_x(a); }
Tensor gain_alone(const Asked& a, double) { return norm_x(a) * gain_of(a); }
Tensor without_gain(const Asked& a, double) { return normed(norm_x(a), eps_of(a)); }
Tensor gain_plus_one(const Asked& a, double) { return with_gain(a, gain_of(a) + 1); }
// The same of a gain that was added up in the run's dtype.
Tensor gain_plus_one_stored(const Asked& a, double) {
  return with_gain(a, a.in_dtype(gain_of(a) + 1, a.model().run));
}
Tensor gain_minus_one(const Asked& a, double) { return with_gain(a, gain_of(a) - 1); }
Tensor gain_twice(const Asked& a, double) { return with_gain(a, gain_of(a).square()); }
Tensor divided_by_gain(const Asked& a, double) { return with_gain(a, gain_of(a).reciprocal()); }

// Widths that a row can be cut into evenly: powers of two, a third, a half. A reduction within a
// warp or a block that nobody adds up is a norm over such parts.
std::vector<double> parts_of(int64_t width) {
  std::vector<double> parts;
  for (int part = 4; part < width; ++part)
    if (width % part == 0 && (part & (part - 1)) == 0) parts.push_back(part);
  if (width % 3 == 0) parts.push_back(as_fp64(width) / 3);
  if (width % 2 == 0 && (width & (width - 1)) != 0) parts.push_back(as_fp64(width) / 2);
  return parts;
}
std::vector<double> block_widths(const Asked& a) { return parts_of(width_of(a)); }
Tensor over_blocks(const Asked& a, double width) {
  const Tensor x = norm_x(a);
  const Tensor blocks = x.unflatten(-1, {-1, as_count(width)});
  return scaled(a, normed(blocks, eps_of(a)).view(x.sizes()), gain_of(a));
}
Tensor over_all_heads(const Asked& a, double) {
  const Tensor x = norm_x(a);
  return x.dim() < 3 ? Tensor() : with_mean_square(a, x.square().mean({-2, -1}, true));
}
Tensor over_all_rows(const Asked& a, double) {
  const Tensor x = norm_x(a);
  return a.rows() < 2 ? Tensor() : with_mean_square(a, x.square().mean());
}
Tensor of_first_head(const Asked& a, double) {
  const Tensor x = norm_x(a);
  return x.dim() < 3 ? Tensor() : with_mean_square(a, mean_square(x).narrow(-2, 0, 1));
}
Tensor mean_subtracted(const Asked& a, double) {
  const Tensor x = norm_x(a);
  // The gain stays, and LayerNorm's bias is not there to add.
  return of_input(a, x - x.mean(-1, true));
}
Tensor variance_for_mean_square(const Asked& a, double) {
  const Tensor x = norm_x(a);
  return with_mean_square(a, (x - x.mean(-1, true)).square().mean(-1, true));
}

// The usual ones, and the one that the result itself tells.
std::vector<double> eps_values(const Asked& a) {
  std::vector<double> values = {0, 1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1};
  // With y = x w / sqrt(m + eps), sum (x w)^2 / sum y^2 = m + eps for each row; the median over
  // rows does without those where m is large and eps drowns.
  const Tensor wanted = norm_x(a) * gain_of(a),
               ratio = wanted.square().sum(-1, true) / a.got().square().sum(-1, true);
  const double eps = (ratio - mean_square(norm_x(a))).median().item<double>();
  if (std::isfinite(eps) && eps > 0) {
    // To two digits: an eps that somebody wrote has no more.
    const double unit = std::pow(10.0, std::floor(std::log10(eps)) - 1);
    values.push_back(std::round(eps / unit) * unit);
  }
  const double own = eps_of(a);
  values.push_back(2 * own);
  std::erase_if(values, [own](double v) { return std::fabs(v - own) < own / 100; });
  return values;
}
Tensor other_eps(const Asked& a, double eps) {
  return scaled(a, normed(norm_x(a), eps), gain_of(a));
}
Tensor eps_outside(const Asked& a, double) {
  const Tensor x = norm_x(a);
  return scaled(a, x / (mean_square(x).sqrt() + eps_of(a)), gain_of(a));
}
Tensor no_root(const Asked& a, double) {
  const Tensor x = norm_x(a);
  return scaled(a, x / (mean_square(x) + eps_of(a)), gain_of(a));
}
Tensor sum_for_mean(const Asked& a, double) {
  return with_mean_square(a, norm_x(a).square().sum(-1, true));
}
// The number that the sum of squares seems to be divided by.
std::vector<double> divisors(const Asked& a) {
  // Solved like eps: sum x^2 / divisor = sum (x w)^2 / sum y^2 - eps.
  const Tensor wanted = norm_x(a) * gain_of(a);
  const Tensor mean = wanted.square().sum(-1, true) / a.got().square().sum(-1, true) - eps_of(a);
  const double divisor = (norm_x(a).square().sum(-1, true) / mean).median().item<double>();
  const double width = as_fp64(width_of(a));
  if (!std::isfinite(divisor) || divisor < 1.5 || std::fabs(divisor - width) < 0.5) return {};
  return {std::round(divisor)};
}
Tensor divided_by(const Asked& a, double divisor) {
  return with_mean_square(a, norm_x(a).square().sum(-1, true) / divisor);
}
// The divisor of another row, head or element: an index that is off, or a scratch value that a
// later thread overwrites.
std::vector<double> norm_rows_beside(const Asked& a) { return Asked::neighbours_among(a.rows()); }
Tensor divisor_of_row(const Asked& a, double by) {
  const Tensor squares = a.of_neighbours(mean_square(norm_x(a)), by);
  return squares.defined() ? with_mean_square(a, squares) : Tensor();
}
// A kernel of several rows a block, whose threads all take what the first row left.
Tensor divisor_of_first_row(const Asked& a, double) {
  return a.rows() < 2 ? Tensor() : with_mean_square(a, mean_square(norm_x(a)).narrow(0, 0, 1));
}
std::vector<double> heads_beside(const Asked& a) {
  const Tensor& x = norm_x(a);
  return x.dim() < 3 ? std::vector<double>{} : Asked::neighbours_among(x.size(-2));
}
Tensor divisor_of_head(const Asked& a, double by) {
  const Tensor x = norm_x(a);
  if (x.dim() < 3 || (by == 0 && x.size(-2) != 2)) return {};
  return with_mean_square(a, mean_square(x).roll(by == 0 ? 1 : -as_count(by), -2));
}
// The maximum norm in the place of the mean.
Tensor by_largest(const Asked& a, double) {
  return with_mean_square(a, norm_x(a).abs().amax(-1, true).square());
}
Tensor mean_of_size(const Asked& a, double) {
  return with_mean_square(a, norm_x(a).abs().mean(-1, true).square());
}

// Every other layer: gains that were loaded into the wrong one.
std::vector<double> gains_of_layers(const Asked& a) {
  std::vector<double> layers;
  for (int l = 0; l < a.model().config.layers && a.place().layer >= 0; ++l)
    if (l != a.place().layer) layers.push_back(l);
  return layers;
}
Tensor gain_of_layer(const Asked& a, double layer) {
  return with_gain(a, a.model().weights.norm({a.place().point, static_cast<int>(layer)}));
}
// Two norms of one layer have gains of one shape, so that an exchange is noticed by nothing but the
// numbers.
Tensor gain_of_other_norm(const Asked& a, double) {
  const std::pair<std::string_view, std::string_view> kPairs[] = {{"attn.norm", "mlp.norm"},
                                                                  {"attn.q_norm", "attn.k_norm"}};
  for (const auto& [one, two] : kPairs)
    for (const auto& [own, other] : {std::pair(one, two), std::pair(two, one)})
      if (a.place().point->name == own)
        return with_gain(a, a.model().weights.norm({find_point(other), a.place().layer}));
  return {};
}
// A half, quarters, and one element either way, around the end.
std::vector<double> gain_shifts(const Asked& a) {
  const double width = as_fp64(width_of(a));
  return {width / 2, width / 4, 3 * width / 4, 1, width - 1};
}
Tensor gain_shifted(const Asked& a, double by) {
  return with_gain(a, gain_of(a).roll(-as_count(by)));
}
Tensor gain_reversed(const Asked& a, double) { return with_gain(a, gain_of(a).flip(0)); }
// Gains as [a, b], turned to [b, a]; a width that has no halves has no such order.
Tensor gain_turned(const Asked& a, at::IntArrayRef shape) {
  const Tensor gain = gain_of(a);
  return gain.numel() % 2 == 0 ? with_gain(a, gain.view(shape).t().flatten()) : Tensor();
}
Tensor gain_interleaved(const Asked& a, double) { return gain_turned(a, {2, -1}); }
Tensor gain_deinterleaved(const Asked& a, double) { return gain_turned(a, {-1, 2}); }
// An index of gains by the head instead of by the dim.
Tensor gain_of_head(const Asked& a, double) {
  const Tensor x = norm_x(a), gain = gain_of(a);
  if (x.dim() < 3 || x.size(-2) < 2 || x.size(-2) > gain.numel()) return {};
  return with_gain(a, gain.narrow(0, 0, x.size(-2)).unsqueeze(-1));
}
// The mean square is that of other numbers then.
Tensor gain_before(const Asked& a, double) { return normed(norm_x(a) * gain_of(a), eps_of(a)); }
Tensor first_gain(const Asked& a, double) { return with_gain(a, gain_of(a).narrow(0, 0, 1)); }
// An index of gains by the thread's number within its part, instead of by the element's.
std::vector<double> lanes(const Asked& a) {
  std::vector<double> all = parts_of(width_of(a));
  for (const int64_t block : {32, 64, 128, 256, 512, 1024})
    if (block < width_of(a) && width_of(a) % block != 0) all.push_back(as_fp64(block));
  return all;
}
Tensor gain_of_lane(const Asked& a, double lanes) {
  const auto count = as_count(lanes), width = width_of(a);
  const int64_t times = (width + count - 1) / count;
  return with_gain(a, gain_of(a).narrow(0, 0, count).repeat({times}).narrow(0, 0, width));
}

Tensor through(const Asked& a, DType dtype) {
  return a.in_dtype(normed(norm_x(a), eps_of(a)), dtype) * gain_of(a);
}
Tensor norm_through_bf16(const Asked& a, double) { return through(a, DType::bf16); }
Tensor norm_through_fp16(const Asked& a, double) { return through(a, DType::f16); }

// The sum of squares, one after the other, each step rounded. On the CPU, element by element: no
// tensor operation rounds after each step.
Tensor summed_in(const Asked& a, DType dtype, bool of_rounded) {
  const Tensor x = norm_x(a).cpu().contiguous(), sums = at::empty_like(mean_square(x));
  const auto width = x.size(-1);
  const auto* values = x.const_data_ptr<double>();
  for (int64_t r = 0; r < sums.numel(); ++r) {
    double sum = 0;
    for (int64_t i = r * width; i < (r + 1) * width; ++i)
      sum = round_to(
          sum + (of_rounded ? round_to(values[i] * values[i], dtype) : values[i] * values[i]),
          dtype);
    sums.mutable_data_ptr<double>()[r] = sum / as_fp64(width);
  }
  return with_mean_square(a, sums.to(norm_x(a).device()));
}
Tensor summed_in_bf16(const Asked& a, double) { return summed_in(a, DType::bf16, true); }
// Squares in fp32, the sum alone in 16 bits.
Tensor summed_in_bf16_exact_squares(const Asked& a, double) {
  return summed_in(a, DType::bf16, false);
}
Tensor summed_in_fp16(const Asked& a, double) { return summed_in(a, DType::f16, true); }
// Squares beyond 65504 are infinite in fp16: from |x| = 256 on.
Tensor square_in_fp16(const Asked& a, double) {
  return with_mean_square(a, a.in_dtype(norm_x(a).square(), DType::f16).mean(-1, true));
}
Tensor mean_in(const Asked& a, DType dtype) {
  return with_mean_square(a, a.in_dtype(mean_square(norm_x(a)), dtype));
}
Tensor mean_in_bf16(const Asked& a, double) { return mean_in(a, DType::bf16); }
Tensor mean_in_fp16(const Asked& a, double) { return mean_in(a, DType::f16); }
// Gains as a format of fewer bits has them.
std::vector<double> gain_bits(const Asked&) { return {2, 3, 4, 5, 6}; }
Tensor gain_of_bits(const Asked& a, double bits) {
  return with_gain(a, Grid{static_cast<int>(bits) + 1, -1000, 0}.rounded(gain_of(a)));
}
// A guard of models that overflow fp16, on another model.
std::vector<double> limits(const Asked&) { return {1, 2, 4, 8, 10, 16, 20, 32, 64, 100, 256}; }
Tensor input_clamped(const Asked& a, double limit) {
  return of_input(a, norm_x(a).clamp(-limit, limit));
}
Tensor root_in_bf16(const Asked& a, double) {
  const Tensor x = norm_x(a);
  const Tensor root = (mean_square(x) + eps_of(a)).rsqrt();
  return scaled(a, x * a.in_dtype(root, DType::bf16), gain_of(a));
}

// Numbers of elements that a reduction can lose: vectors of a load, the rest beyond whole blocks, a
// half, one.
std::vector<double> norm_tails(const Asked& a) {
  std::vector<double> counts;
  const int64_t width = width_of(a);
  for (const int tile : {4, 8, 16, 32, 64, 128, 256, 512, 1024})
    if (tile < width) counts.push_back(tile);
  for (const int64_t tile : {32, 64, 128, 256, 512, 1024})
    if (tile < width && width % tile != 0) counts.push_back(as_fp64(width % tile));
  counts.push_back(as_fp64(width) / 2);
  counts.push_back(1);
  std::ranges::sort(counts);
  counts.erase(std::unique(counts.begin(), counts.end()), counts.end());
  return counts;
}
// Divided by the whole width; mean_of_first() divides by what was added.
Tensor norm_without_tail(const Asked& a, double count) {
  const int64_t width = width_of(a), some = width - as_count(count);
  const Tensor sum = norm_x(a).narrow(-1, 0, some).square().sum(-1, true);
  return with_mean_square(a, sum / as_fp64(width));
}
Tensor mean_of_first(const Asked& a, double count) {
  const int64_t some = width_of(a) - as_count(count);
  return with_mean_square(a, mean_square(norm_x(a).narrow(-1, 0, some)));
}

// The front of a row that no vector load covers, where a pointer is not aligned: what is added up
// is divided by the whole width here, and by what was added in the next.
Tensor front_left_out(const Asked& a, double count) {
  const int64_t width = width_of(a), first = as_count(count);
  const Tensor sum = norm_x(a).narrow(-1, first, width - first).square().sum(-1, true);
  return with_mean_square(a, sum / as_fp64(width));
}
Tensor mean_of_last(const Asked& a, double count) {
  const int64_t first = as_count(count);
  return with_mean_square(a, mean_square(norm_x(a).narrow(-1, first, width_of(a) - first)));
}
// Elements that one lane of so many adds up, which nobody adds to those of the others.
std::vector<double> strides(const Asked&) { return {2, 4, 8, 16, 32}; }
Tensor mean_of_each(const Asked& a, double stride) {
  const auto step = as_count(stride);
  if (step >= width_of(a)) return {};
  return with_mean_square(a, mean_square(norm_x(a).slice(-1, 0, width_of(a), step)));
}
Tensor sum_of_each(const Asked& a, double stride) {
  const auto step = as_count(stride);
  if (step >= width_of(a)) return {};
  const Tensor some = norm_x(a).slice(-1, 0, width_of(a), step);
  return with_mean_square(a, some.square().sum(-1, true) / as_fp64(width_of(a)));
}
// A run in fp32 whose norm takes 16 bits, as under autocast.
Tensor input_in(const Asked& a, DType dtype) {
  return a.model().run == DType::f32 ? of_input(a, a.in_dtype(norm_x(a), dtype)) : Tensor();
}
Tensor input_in_bf16(const Asked& a, double) { return input_in(a, DType::bf16); }
Tensor input_in_fp16(const Asked& a, double) { return input_in(a, DType::f16); }
// A fused norm that hands on the stream with its result.
Tensor input_added(const Asked& a, double) { return a.right() + norm_x(a); }

Tensor normed_twice(const Asked& a, double) { return of_input(a, with_gain(a, gain_of(a))); }
// A fused addition that norms one of its terms.
std::string_view stream_of(const Asked& a) {
  return a.place().point->name == "mlp.norm" ? "attn.o" : "mlp.down";
}
// The place whose result was added last to the stream that this norm reads.
Place branch_of(const Asked& a) {
  const bool inner = a.place().point->name == "mlp.norm";
  const int layer = a.place().layer < 0 ? static_cast<int>(a.model().config.layers) - 1
                                        : a.place().layer - (inner ? 0 : 1);
  return {find_point(stream_of(a)), layer};
}
bool norms_stream(const Asked& a) {
  return a.place().point->head_axis < 0 && branch_of(a).layer >= 0;
}
Tensor of_branch(const Asked& a, double) {
  return norms_stream(a) ? of_input(a, a.other(branch_of(a))) : Tensor();
}
Tensor before_addition(const Asked& a, double) {
  if (!norms_stream(a)) return {};
  const Tensor branch = a.other(branch_of(a));
  return branch.defined() ? of_input(a, norm_x(a) - branch) : Tensor();
}

// A fused addition and norm that adds up the squares of what it loaded, not of what it stores.
Tensor by_stream_before_addition(const Asked& a, double) {
  if (!norms_stream(a)) return {};
  const Tensor branch = a.other(branch_of(a));
  return branch.defined() && branch.sizes() == norm_x(a).sizes()
             ? with_mean_square(a, mean_square(norm_x(a) - branch))
             : Tensor();
}
// 1 / sqrt(m) as games had it: half of the bits of m taken off a constant, then y (1.5 - m y^2 / 2)
// a number of times.
std::vector<double> newton_steps(const Asked&) { return {0, 1, 2}; }
Tensor by_bit_trick(const Asked& a, double steps) {
  const Tensor means = (mean_square(norm_x(a)) + eps_of(a)).cpu().contiguous();
  const Tensor roots = at::empty_like(means);
  for (int64_t i = 0; i < means.numel(); ++i) {
    const auto mean = static_cast<float>(means.const_data_ptr<double>()[i]);
    auto y = std::bit_cast<float>(0x5f3759df - (std::bit_cast<int32_t>(mean) >> 1));
    for (int step = 0; step < steps; ++step) y *= 1.5f - 0.5f * mean * y * y;
    roots.mutable_data_ptr<double>()[i] = y;
  }
  return scaled(a, norm_x(a) * roots.to(norm_x(a).device()), gain_of(a));
}

// Q or K that RoPE has turned before it is normed.
Tensor of_turned_input(const Asked& a, double) {
  if (a.place().point->head_axis < 0 || norm_x(a).dim() != 3) return {};
  return of_input(a, RightRotation::at_positions(a, RightRotation::right_positions(a)));
}

constexpr Hypothesis kNorm[] = {
    {"no norm at all: its input is handed on", left_out},
    {"the gain alone, without RMSNorm", gain_alone},
    {"RMSNorm without its gain", without_gain},
    {"RMSNorm with the gain 1 + w", gain_plus_one},
    {"RMSNorm with the gain 1 + w", gain_plus_one_stored},
    {"RMSNorm with the gain w - 1", gain_minus_one},
    {"RMSNorm over blocks of {:g}", over_blocks, block_widths},
    {"RMSNorm over all heads together", over_all_heads},
    {"RMSNorm with the mean square of head 0 for every head", of_first_head},
    {"RMSNorm over all rows of the pass together", over_all_rows},
    {"LayerNorm: the mean is subtracted", mean_subtracted},
    {"RMSNorm by the variance instead of the mean square", variance_for_mean_square},
    {"RMSNorm with eps {:g}", other_eps, eps_values},
    {"RMSNorm with eps added outside the root", eps_outside},
    {"RMSNorm without the square root", no_root},
    {"RMSNorm by the sum of squares instead of their mean", sum_for_mean},
    {"RMSNorm by the sum of squares divided by {:g} instead of its width", divided_by, divisors},
    {"RMSNorm by the mean size instead of the root of the mean square", mean_of_size},
    {"RMSNorm by the largest size instead of the root of the mean square", by_largest},
    {"RMSNorm with the mean square of the row {:+g} in the pass", divisor_of_row, norm_rows_beside,
     nullptr, Scope::op, "RMSNorm with the mean square of the other row in the pass"},
    {"RMSNorm with the mean square of the pass's first row", divisor_of_first_row},
    {"RMSNorm with the mean square of the head {:+g}", divisor_of_head, heads_beside, nullptr,
     Scope::op, "RMSNorm with the mean square of the other head"},
    {"RMSNorm of x times the gain, instead of times the gain afterwards", gain_before},
    {"RMSNorm with the gain of the head's number for all of its dims", gain_of_head},
    {"RMSNorm with the gain twice", gain_twice},
    {"RMSNorm divided by its gain", divided_by_gain},
    {"RMSNorm with the gain of layer {:g}", gain_of_layer, gains_of_layers},
    {"RMSNorm with the gain of the other norm of its layer", gain_of_other_norm},
    {"RMSNorm with its gain {:g} elements further on", gain_shifted, gain_shifts},
    {"RMSNorm with gains in another order: reversed", gain_reversed},
    {"RMSNorm with gains in another order (interleaved): halves laid beside each other",
     gain_interleaved},
    {"RMSNorm with gains in another order (interleaved): pairs taken apart", gain_deinterleaved},
    {"RMSNorm with the first gain for all elements", first_gain},
    {"RMSNorm with the first {:g} gains again and again", gain_of_lane, lanes},
    {"RMSNorm rounded to bf16 before the gain", norm_through_bf16},
    {"RMSNorm rounded to fp16 before the gain", norm_through_fp16},
    {"RMSNorm with its squares added up in bf16", summed_in_bf16},
    {"RMSNorm with its squares added up in bf16", summed_in_bf16_exact_squares},
    {"RMSNorm with its squares added up in fp16", summed_in_fp16},
    {"RMSNorm by the bit trick for 1 / root and {:g} steps of Newton's", by_bit_trick,
     newton_steps},
    {"RMSNorm with the mean square of the stream before the branch is added",
     by_stream_before_addition},
    {"RMSNorm with each square rounded to fp16", square_in_fp16},
    {"RMSNorm with 1 / root rounded to bf16", root_in_bf16},
    {"RMSNorm with its mean square rounded to bf16", mean_in_bf16},
    {"RMSNorm with its mean square rounded to fp16", mean_in_fp16},
    {"RMSNorm with its gain rounded to {:g} bits of mantissa", gain_of_bits, gain_bits},
    {"RMSNorm of its input clamped to +-{:g}", input_clamped, limits},
    {"RMSNorm with the last {:g} elements left out of the sum", norm_without_tail, norm_tails},
    {"RMSNorm by the mean square of all but the last {:g} elements", mean_of_first, norm_tails},
    {"RMSNorm with the first {:g} elements left out of the sum", front_left_out, norm_tails},
    {"RMSNorm by the mean square of all but the first {:g} elements", mean_of_last, norm_tails},
    {"RMSNorm by the mean square of each {:g}th element", mean_of_each, strides},
    {"RMSNorm by the sum over each {:g}th element alone", sum_of_each, strides},
    {"RMSNorm of its input rounded to bf16", input_in_bf16},
    {"RMSNorm of its input rounded to fp16", input_in_fp16},
    {"RMSNorm and its input added to the result", input_added},
    {"RMSNorm applied twice", normed_twice},
    {"RoPE before the norm: RMSNorm of what it has turned", of_turned_input},
    {"RMSNorm of the branch alone, before it is added to the stream", of_branch},
    {"RMSNorm of the stream before the branch is added", before_addition},
};

}  // namespace

std::span<const Hypothesis> norm_hypotheses() { return kNorm; }

}  // namespace lockstep
