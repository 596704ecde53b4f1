// Ways in which the softmax of an attention, and the merging of its splits, go wrong.
//
// They change the function between scores and weights, or cut the keys in splits of a size that is
// tried and merge the partial results wrongly, as kernels do that share long contexts among blocks.
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>
#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <numbers>

#include "reference/hypotheses/attend.h"
#include "reference/hypotheses/values.h"

namespace lockstep {
namespace {

using at::Tensor;
using Part = Attention::Part;

// Attention that differs between its scores and its weights alone: w = softmax(scale q K^T).
Tensor with_scores(const Asked& a, std::function<Tensor(const Tensor&)> change) {
  Attention how;
  how.scores = std::move(change);
  return attend(a, how);
}
Tensor with_softmax(const Asked& a, std::function<Tensor(const Tensor&)> softmax) {
  Attention how;
  how.softmax = std::move(softmax);
  return attend(a, how);
}
Tensor weights(const Tensor& scores) { return at::softmax(scores, -1); }

Tensor scores_in_bf16(const Asked& a, double) {
  return with_scores(a, [&](const Tensor& s) { return a.in_dtype(s, DType::bf16); });
}
Tensor scores_in_fp16(const Asked& a, double) {
  return with_scores(a, [&](const Tensor& s) { return a.in_dtype(s, DType::f16); });
}
std::vector<double> score_caps(const Asked&) { return {5, 10, 20, 30, 50}; }
Tensor scores_capped(const Asked& a, double cap) {
  return with_scores(a, [cap](const Tensor& s) { return cap * at::tanh(s / cap); });
}
// 2^x for e^x: kernels exponentiate by powers of two after the scores were multiplied by log2(e),
// and this is without that; the next has it twice.
Tensor base_two(const Asked& a, double) {
  return with_scores(a, [](const Tensor& s) { return s * std::numbers::ln2; });
}
Tensor log2e_twice(const Asked& a, double) {
  return with_scores(a, [](const Tensor& s) { return s * std::numbers::log2e; });
}
// A key of score 0 and value 0: the sum has exp(0) more, weights add up to less than 1.
Tensor sink(const Asked& a, double) {
  return with_softmax(a, [](const Tensor& s) {
    const Tensor all = at::cat({s, at::zeros_like(s.narrow(-1, 0, 1))}, -1);
    return weights(all).narrow(-1, 0, s.size(-1));
  });
}
// A kernel that keeps the sum of the exponentials for its last step, and never takes it.
Tensor not_divided(const Asked& a, double) {
  return with_softmax(a, [](const Tensor& s) { return (s - s.amax(-1, true)).exp(); });
}
Tensor not_divided_nor_shifted(const Asked& a, double) {
  return with_softmax(a, [](const Tensor& s) { return s.exp(); });
}
// A key that no query sees has no softmax over queries: its weights are 0.
Tensor over_queries(const Asked& a, double) {
  return with_softmax(a, [](const Tensor& s) { return at::softmax(s, -2).nan_to_num(); });
}
Tensor no_softmax(const Asked& a, double) {
  return with_softmax(a,
                      [](const Tensor& s) { return at::where(s.isinf(), at::zeros_like(s), s); });
}
Tensor divided_by_keys(const Asked& a, double) {
  return with_softmax(
      a, [](const Tensor& s) { return weights(s) / s.isinf().logical_not().sum(-1, true); });
}
Tensor weights_in_bf16(const Asked& a, double) {
  return with_softmax(a, [&](const Tensor& s) { return a.in_dtype(weights(s), DType::bf16); });
}
Tensor weights_in_fp16(const Asked& a, double) {
  return with_softmax(a, [&](const Tensor& s) { return a.in_dtype(weights(s), DType::f16); });
}

// The results of `of` for each split of the keys, [splits, ...]. Kept for all ways to merge splits
// of a size, whose scores are the right ones.
Tensor of_splits(const Asked& a, const std::string& name, int64_t size, const Part& part,
                 int64_t keys, const std::function<Tensor(int64_t first, int64_t count)>& of) {
  return a.once(fmt::format("{} of splits of {}", name, size), part.number, [&] {
    std::vector<Tensor> all;
    for (int64_t first = 0; first < keys; first += size)
      all.push_back(of(first, std::min(size, keys - first)));
    return at::stack(all);
  });
}

// Splits of the keys, each with its mean of V and the log of its sum, and with the weight that
// `weigh` gives it: [splits, heads, queries] of the logs and of the largest scores there.
Tensor merged(const Asked& a, double size,
              const std::function<Tensor(const Tensor& log_sum, const Tensor& top)>& weigh,
              const std::function<Tensor(const Tensor& mean)>& stored) {
  bool several = false;
  Attention how;
  how.mix = [&](const Part& p, const Tensor& scores, const Tensor& v) {
    const int64_t step = as_count(size), keys = scores.size(-1);
    several = several || keys > step;
    const auto part = [&](int64_t first, int64_t count) { return scores.narrow(-1, first, count); };
    const Tensor mean = of_splits(a, "mean", step, p, keys, [&](int64_t first, int64_t count) {
      return at::bmm(weights(part(first, count)).nan_to_num(), v.narrow(1, first, count));
    });
    const Tensor log = of_splits(a, "log", step, p, keys, [&](int64_t first, int64_t count) {
      return at::logsumexp(part(first, count), -1);
    });
    const Tensor top = of_splits(a, "top", step, p, keys, [&](int64_t first, int64_t count) {
      return part(first, count).amax(-1);
    });
    // A split in which a query sees no key has a top of -inf and no weight.
    const Tensor w = at::where(top.isinf(), at::zeros_like(top), weigh(log, top));
    const Tensor share = (w / w.sum(0, true)).unsqueeze(-1);
    return (share * stored(mean)).sum(0);
  };
  const Tensor out = attend(a, how);
  return several ? out : Tensor();
}
Tensor as_is(const Tensor& x) { return x; }
// The right merge: out = sum_s e^(L_s) out_s / sum_s e^(L_s), L_s the log of the sum of
// exponentials in split s (flash-decoding). What goes wrong in practice is the base of L, which
// kernels hold in powers of 2.
Tensor right_weight(const Tensor& log, const Tensor&) { return (log - log.amax(0, true)).exp(); }

Tensor merged_in_other_base(const Asked& a, double size) {
  return merged(
      a, size,
      [](const Tensor& log, const Tensor& top) {
        return ((log - top.amax(0, true)) * std::numbers::log2e).exp();
      },
      as_is);
}
Tensor merged_in_base_two(const Asked& a, double size) {
  return merged(
      a, size,
      [](const Tensor& log, const Tensor& top) {
        return ((log - top.amax(0, true)) * std::numbers::ln2).exp();
      },
      as_is);
}
Tensor merged_without_top(const Asked& a, double size) {
  return merged(
      a, size, [](const Tensor& log, const Tensor& top) { return (log - top).exp(); }, as_is);
}
Tensor merged_by_top(const Asked& a, double size) {
  return merged(
      a, size, [](const Tensor&, const Tensor& top) { return (top - top.amax(0, true)).exp(); },
      as_is);
}
Tensor merged_as_mean(const Asked& a, double size) {
  return merged(
      a, size, [](const Tensor& log, const Tensor&) { return (log * 0).nan_to_num() + 1; }, as_is);
}
Tensor partials_in_bf16(const Asked& a, double size) {
  return merged(a, size, right_weight,
                [&](const Tensor& mean) { return a.in_dtype(mean, DType::bf16); });
}
Tensor partials_in_fp16(const Asked& a, double size) {
  return merged(a, size, right_weight,
                [&](const Tensor& mean) { return a.in_dtype(mean, DType::f16); });
}
// An online softmax goes over blocks of keys with the largest score so far, m, the sum l of
// e^(s - m), and y, the same of V: at each new m both are scaled by e^(m before - m). These forget
// to scale both, y or l, or divide by l after each block where it is due once, at the end; or they
// store y, l or the e^(s - m) that meet V in 16 bits.
enum class Forgotten : uint8_t { both, values, sum, division, nothing };
struct Stored {
  bool values = false, sum = false, exponentials = false;
  DType dtype = DType::bf16;
};
Tensor online(const Asked& a, double size, Forgotten what, Stored stored = {}) {
  const auto in = [&](bool is_stored, const Tensor& x) {
    return is_stored ? a.in_dtype(x, stored.dtype) : x;
  };
  const auto step = static_cast<int64_t>(size);
  bool several = false;
  Attention how;
  how.mix = [&](const Part&, const Tensor& scores, const Tensor& v) {
    Tensor m, l, y;
    several = several || scores.size(-1) > step;
    for (int64_t first = 0; first < scores.size(-1); first += step) {
      const int64_t count = std::min(step, scores.size(-1) - first);
      const Tensor part = scores.narrow(-1, first, count);
      const Tensor top = part.amax(-1, true), now = m.defined() ? at::maximum(m, top) : top;
      const Tensor shown = at::where(now.isinf(), at::zeros_like(now), now);
      const Tensor p = (part - shown).exp();
      const Tensor of_p = p.sum(-1, true);
      const Tensor of_v = at::bmm(in(stored.exponentials, p), v.narrow(1, first, count));
      const Tensor scale = m.defined() ? (m - shown).exp() : Tensor();
      const bool scales_sum = what != Forgotten::both && what != Forgotten::sum;
      const bool scales_values = what != Forgotten::both && what != Forgotten::values;
      l = in(stored.sum, l.defined() ? (scales_sum ? l * scale : l) + of_p : of_p);
      y = in(stored.values, y.defined() ? (scales_values ? y * scale : y) + of_v : of_v);
      if (what == Forgotten::division) y = (y / l).nan_to_num(0);
      m = now;
    }
    return what == Forgotten::division ? y : y / l;
  };
  const Tensor out = attend(a, how);
  return several ? out : Tensor();
}
// Blocks from one key to a tile; more than these would take long, of a long context.
std::vector<double> blocks(const Asked& a) {
  const int64_t length = *std::ranges::max_element(a.op().call.lengths);
  std::vector<double> all;
  for (const int64_t size : {1, 8, 16, 32, 64, 128, 256})
    if (size < length && length / size <= 256) all.push_back(as_fp64(size));
  return all;
}
Tensor never_rescaled(const Asked& a, double size) { return online(a, size, Forgotten::both); }
Tensor values_never_rescaled(const Asked& a, double size) {
  return online(a, size, Forgotten::values);
}
Tensor sum_never_rescaled(const Asked& a, double size) { return online(a, size, Forgotten::sum); }
Tensor divided_each_time(const Asked& a, double size) {
  return online(a, size, Forgotten::division);
}

std::vector<double> blocks_and_page(const Asked& a) {
  std::vector<double> all = blocks(a);
  const auto page = as_fp64(a.op().page_size);
  if (page > 0 && std::ranges::count(all, page) == 0) all.push_back(page);
  return all;
}
// Tiles of units that take 16 bits have more than one key.
std::vector<double> tiles_and_page(const Asked& a) {
  std::vector<double> all = blocks_and_page(a);
  std::erase(all, 1.0);
  return all;
}
Tensor exponentials_bf16(const Asked& a, double size) {
  return online(a, size, Forgotten::nothing, {.exponentials = true});
}
Tensor exponentials_fp16(const Asked& a, double size) {
  return online(a, size, Forgotten::nothing, {.exponentials = true, .dtype = DType::f16});
}
Tensor values_bf16(const Asked& a, double size) {
  return online(a, size, Forgotten::nothing, {.values = true});
}
Tensor sum_bf16(const Asked& a, double size) {
  return online(a, size, Forgotten::nothing, {.sum = true});
}
// Exponentials of the scores as they are, which 16 bits do not always hold.
Tensor unshifted_in(const Asked& a, DType dtype) {
  return with_softmax(a, [&](const Tensor& s) {
    const Tensor e = a.in_dtype(s.exp(), dtype);
    return e / e.sum(-1, true);
  });
}
Tensor unshifted_fp16(const Asked& a, double) { return unshifted_in(a, DType::f16); }
Tensor unshifted_bf16(const Asked& a, double) { return unshifted_in(a, DType::bf16); }
// e^x by (1 + x / n)^n, as of units without an exponential.
std::vector<double> powers(const Asked&) { return {16, 64, 256, 1024}; }
Tensor exp_by_power(const Asked& a, double n) {
  return with_softmax(a, [n](const Tensor& s) {
    const Tensor e = (1 + (s - s.amax(-1, true)) / n).clamp_min(0).pow(n);
    return e / e.sum(-1, true);
  });
}
// Masks that multiply by 0 where -inf should be added, so that a key that a query does not see
// keeps its place in the sum. `keys`: those that a kernel goes over.
enum class Masked : uint8_t { scores, weights };
Tensor masked_by_zero(const Asked& a, Masked what, std::function<Tensor(const Part&)> keys) {
  Tensor seen;
  Attention how;
  how.other = [&](const Part& p) {
    seen = (p.keys() <= p.positions()) & p.in_window();
    return p;
  };
  how.mask = std::move(keys);
  if (what == Masked::weights)
    how.softmax = [&](const Tensor& s) { return weights(s) * seen; };
  else
    how.scores = [&](const Tensor& s) { return at::where(seen, s, at::zeros_like(s)); };
  return attend(a, how);
}
Tensor all_keys(const Part& p) { return p.keys() < p.length; }
Tensor masked_scores_zero(const Asked& a, double) {
  return masked_by_zero(a, Masked::scores, all_keys);
}
Tensor masked_weights_zero(const Asked& a, double) {
  return masked_by_zero(a, Masked::weights, all_keys);
}
// Blocks that lie wholly behind the query are skipped. Few sizes are usual, and each is an
// attention.
std::vector<double> tile_sizes(const Asked& a) {
  const int64_t length = *std::ranges::max_element(a.op().call.lengths);
  std::vector<double> all = {16, 64, 128};
  std::erase_if(all, [=](double size) { return size >= as_fp64(length); });
  return all;
}
std::function<Tensor(const Part&)> up_to_block(double size) {
  return [size](const Part& p) {
    return all_keys(p) & (p.keys() < ((p.positions() / size).floor() + 1) * size);
  };
}
Tensor masked_scores_of_block_zero(const Asked& a, double size) {
  return masked_by_zero(a, Masked::scores, up_to_block(size));
}
// Keys that count little are skipped, as if they counted nothing.
std::vector<double> shares(const Asked&) { return {8, 16, 32, 64, 128, 256, 1024}; }
Tensor small_left_out(const Asked& a, double share) {
  return with_softmax(a, [share](const Tensor& s) {
    const Tensor e = (s - s.amax(-1, true)).exp();
    const Tensor kept = at::where(e * share < 1, at::zeros_like(e), e);
    return kept / kept.sum(-1, true);
  });
}

// -inf minus -inf in a split of which a query sees no key, though another of its pass does.
Tensor split_without_keys(const Asked& a, double size) {
  const auto step = static_cast<int64_t>(size);
  const Tensor y = a.right().clone();
  bool any = false;
  for (int64_t i = 0; i < a.rows(); ++i) {
    const Row& row = a.op().call.rows[i];
    const int64_t last = (a.op().call.lengths[i] - 1) / step;
    if (row.position >= last * step) continue;
    y.select(0, i).fill_(std::numeric_limits<double>::quiet_NaN());
    any = true;
  }
  return any ? y : Tensor();
}

constexpr Hypothesis kSoftmax[] = {
    {"its scores capped at {:g} by tanh", scores_capped, score_caps},
    {"a sink in its softmax: exp(0) more in the sum", sink},
    {"its weights not divided by their sum", not_divided},
    {"its weights neither shifted nor divided by their sum", not_divided_nor_shifted},
    {"its weights divided by their sum and by the number of keys", divided_by_keys},
    {"its softmax over the queries", over_queries, nullptr, nullptr, Scope::pass},
    {"its scores for weights, without a softmax", no_softmax},
    {"masked keys with a score of 0 for -inf", masked_scores_zero},
    {"masked keys left out after the softmax, their weights still in its sum", masked_weights_zero},
    {"masked keys of the query's own block of {:g} with a score of 0 for -inf",
     masked_scores_of_block_zero, tile_sizes},
    {"its softmax by powers of 2 instead of e", base_two},
    {"its softmax with log2(e) twice", log2e_twice},
    {"splits of {:g} keys merged by e^x of logs to the base 2", merged_in_other_base, key_splits},
    {"splits of {:g} keys merged by 2^x of natural logs", merged_in_base_two, key_splits},
    {"splits of {:g} keys merged without their largest scores", merged_without_top, key_splits},
    {"splits of {:g} keys merged by their largest scores alone", merged_by_top, key_splits},
    {"splits of {:g} keys merged with one weight for all", merged_as_mean, key_splits},
    {"splits of {:g} keys rounded to bf16 before they are merged", partials_in_bf16, key_splits},
    {"splits of {:g} keys rounded to fp16 before they are merged", partials_in_fp16, key_splits},
    {"NaN of a split of {:g} keys of which the query sees none", split_without_keys, key_splits},
    {"an online softmax over blocks of {:g} keys that is never rescaled to a new maximum",
     never_rescaled, blocks},
    {"an online softmax over blocks of {:g} keys whose values are never rescaled",
     values_never_rescaled, blocks},
    {"an online softmax over blocks of {:g} keys whose sum is never rescaled", sum_never_rescaled,
     blocks},
    {"an online softmax that divides after each block of {:g} keys", divided_each_time, blocks},
    {"an online softmax over blocks of {:g} keys, its exponentials rounded to bf16 for V",
     exponentials_bf16, blocks_and_page},
    {"an online softmax over blocks of {:g} keys, its exponentials rounded to fp16 for V",
     exponentials_fp16, tiles_and_page},
    {"an online softmax over blocks of {:g} keys, its values rounded to bf16 after each",
     values_bf16, tiles_and_page},
    {"an online softmax over blocks of {:g} keys, its sum rounded to bf16 after each", sum_bf16,
     blocks_and_page},
    {"its exponentials without the maximum rounded to fp16", unshifted_fp16},
    {"its exponentials without the maximum rounded to bf16", unshifted_bf16},
    {"its exponentials by (1 + x / n)^n, n = {:g}", exp_by_power, powers},
    {"keys whose weight is under 1/{:g} of the largest left out", small_left_out, shares},
    {"its scores rounded to bf16", scores_in_bf16},
    {"its scores rounded to fp16", scores_in_fp16},
    {"its weights rounded to bf16", weights_in_bf16},
    {"its weights rounded to fp16", weights_in_fp16},
};

}  // namespace

std::span<const Hypothesis> softmax_hypotheses() { return kSoftmax; }

}  // namespace lockstep
