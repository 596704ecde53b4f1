// Ways in which an attention in shares of the pages goes wrong: where its shares begin and end,
// what a partial result is divided by, and what the logarithm of its sum is of.
//
// Each share is asked through attend(), of which it sees the keys between two borders alone. Both
// points have one table: of each way the partial results and the logarithms are what it makes them,
// and a way of one of the two says nothing of the other.
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/log.h>
#include <ATen/ops/logaddexp.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numbers>

#include "reference/hypotheses/attend.h"
#include "reference/hypotheses/values.h"

namespace lockstep {
namespace {

using at::Tensor;
using Part = Attention::Part;

constexpr double kOfNothing = -std::numeric_limits<double>::infinity();
// Scores of all queries and keys of a pass, for each share: of more, nothing is asked.
constexpr int64_t kMostScores = int64_t{1} << 25;

bool is_lse(const Asked& a) { return a.place().point->op == OpKind::log_sum_exp; }
int64_t shares_of(const Asked& a) { return a.got().size(1); }

// The keys from `begin` on, up to `end`, of what a query sees: each a column or one number.
struct Borders {
  Tensor begin, end;
};
// A share of a request of that length; the right one is whole pages.
using Cut = std::function<Borders(const Part& part, int64_t share)>;

Borders numbers(const Part& part, double begin, double end) {
  const Tensor one = at::ones_like(part.positions().narrow(0, 0, 1));
  return {one * begin, one * end};
}
int64_t border(const Asked& a, int64_t length, int64_t share) {
  const int64_t size = a.op().page_size, pages = (length + size - 1) / size;
  return std::min(length, pages * share / shares_of(a) * size);
}
Cut whole_pages(const Asked& a) {
  return [&a](const Part& part, int64_t share) {
    return numbers(part, as_fp64(border(a, part.length, share)),
                   as_fp64(border(a, part.length, share + 1)));
  };
}

Tensor right_mask(const Part& part) { return (part.keys() <= part.positions()) & part.in_window(); }

// Each share by attend(), [rows, shares, heads, what mix gives].
Tensor in_shares(const Asked& a, const Attention& how, const Cut& cut) {
  int64_t longest = 0;
  for (const int64_t length : a.op().call.lengths) longest = std::max(longest, length);
  if (a.op().page_size <= 0 || a.got().dim() < 3 ||
      a.rows() * longest * a.model().recipe.heads * shares_of(a) > kMostScores)
    return {};
  std::vector<Tensor> all;
  for (int64_t share = 0; share < shares_of(a); ++share) {
    Attention of_share = how;
    of_share.mask = [&, share](const Part& part) {
      const Borders borders = cut(part, share);
      const Tensor seen = how.mask ? how.mask(part) : right_mask(part);
      return seen & (part.keys() >= borders.begin) & (part.keys() < borders.end);
    };
    all.push_back(attend(a, of_share));
  }
  return at::stack(all, 1);
}

// It is made of the scores of a share, [heads, queries, keys], by head and query. Masked ones are
// -Inf; a query that sees no key gets -Inf whatever it makes.
using OfScores = Tensor (*)(const Tensor& scores);
Tensor logarithm(const Tensor& scores) { return at::logsumexp(scores, -1, /*keepdim=*/true); }
Tensor most(const Tensor& scores) { return scores.amax(-1, /*keepdim=*/true); }

Tensor of_scores(const Asked& a, OfScores make, Attention how, const Cut& cut) {
  how.mix = [make](const Part&, const Tensor& scores, const Tensor&) {
    const Tensor made = make(scores);
    return at::cat({made, at::ones_like(made)}, -1);  // attend() leaves 0 where no key is seen
  };
  const Tensor both = in_shares(a, how, cut);
  if (!both.defined()) return {};
  const Tensor made = both.select(-1, 0), seen = both.select(-1, 1);
  return at::where(seen == 1, made, at::full_like(made, kOfNothing));
}

Tensor both_points(const Asked& a, const Attention& how, const Cut& cut) {
  return is_lse(a) ? of_scores(a, logarithm, how, cut) : in_shares(a, how, cut);
}
Tensor otherwise(const Asked& a, const Attention& how) {
  return both_points(a, how, whole_pages(a));
}
Tensor cut_otherwise(const Asked& a, const Cut& cut) { return both_points(a, {}, cut); }

// Borders between shares, moved: all of them, or the one before share `only`. The first and the
// last one stay.
Tensor moved(const Asked& a, int64_t keys, int64_t only = 0) {
  const auto at = [&a, keys, only](const Part& part, int64_t share) {
    const bool is_inner = share > 0 && share < shares_of(a) && (only == 0 || share == only);
    const int64_t right = border(a, part.length, share);
    return as_fp64(is_inner ? std::clamp<int64_t>(right + keys, 0, part.length) : right);
  };
  return cut_otherwise(a, [&](const Part& part, int64_t share) {
    return numbers(part, at(part, share), at(part, share + 1));
  });
}
std::vector<double> one_beside(const Asked& a) {
  return shares_of(a) < 2 ? std::vector<double>{} : std::vector<double>{1, -1};
}
Tensor moved_pages(const Asked& a, double pages) {
  return a.op().page_size < 2 ? Tensor() : moved(a, as_count(pages) * a.op().page_size);
}
// By the share behind it, below 0 where it moves back. Of two shares there is no other border.
std::vector<double> single_borders(const Asked& a) {
  std::vector<double> all;
  constexpr int64_t kMostShares = 9;
  for (int64_t share = 1; shares_of(a) > 2 && share < std::min(shares_of(a), kMostShares); ++share)
    all.insert(all.end(), {as_fp64(share), -as_fp64(share)});
  return all;
}
Tensor moved_alone(const Asked& a, double border) {
  const int64_t size = a.op().page_size;
  return moved(a, border > 0 ? size : -size, as_count(std::fabs(border)));
}
std::string moved_alone_words(double border) {
  return fmt::format("the border before share {:g} {:+d} page further on", std::fabs(border),
                     border > 0 ? 1 : -1);
}
Tensor moved_keys(const Asked& a, double keys) { return moved(a, as_count(keys)); }
Tensor by_keys(const Asked& a, double) {
  return cut_otherwise(a, [&a](const Part& part, int64_t share) {
    return numbers(part, as_fp64(part.length * share / shares_of(a)),
                   as_fp64(part.length * (share + 1) / shares_of(a)));
  });
}
Tensor rounded_up(const Asked& a, double) {
  const int64_t size = a.op().page_size, count = shares_of(a);
  return cut_otherwise(a, [=](const Part& part, int64_t share) {
    const int64_t each = ((part.length + size - 1) / size + count - 1) / count * size;
    return numbers(part, as_fp64(std::min(part.length, each * share)),
                   as_fp64(std::min(part.length, each * (share + 1))));
  });
}
// The pages up to each query's own position are shared, not those of its request.
Tensor by_query(const Asked& a, double) {
  return cut_otherwise(a, [&a](const Part& part, int64_t share) {
    const double size = as_fp64(a.op().page_size), count = as_fp64(shares_of(a));
    const Tensor pages = ((part.positions() + size) / size).floor();
    const auto at = [&](double of) { return (pages * of / count).floor() * size; };
    return Borders{at(as_fp64(share)), at(as_fp64(share + 1))};
  });
}
Tensor every_key(const Asked& a, double) {
  return cut_otherwise(
      a, [](const Part& part, int64_t) { return numbers(part, 0, as_fp64(part.length)); });
}
Tensor last_key_left_out(const Asked& a, double) {
  return cut_otherwise(a, [&a](const Part& part, int64_t share) {
    return numbers(part, as_fp64(border(a, part.length, share)),
                   as_fp64(border(a, part.length, share + 1) - 1));
  });
}
Tensor next_key_too(const Asked& a, double) {
  return cut_otherwise(a, [&a](const Part& part, int64_t share) {
    return numbers(part, as_fp64(border(a, part.length, share)),
                   as_fp64(border(a, part.length, share + 1) + 1));
  });
}
Tensor of_share(const Asked& a, double by) {
  if (by == 0 && shares_of(a) != 2) return {};
  return a.right().roll(by == 0 ? 1 : -as_count(by), 1);
}
std::vector<double> other_shares(const Asked& a) { return Asked::neighbours_among(shares_of(a)); }

Tensor scores_unscaled(const Asked& a, double) {
  Attention how;
  how.scale = 1;
  return otherwise(a, how);
}
Tensor scores_scaled_twice(const Asked& a, double) {
  Attention how;
  how.scale = 1 / as_fp64(a.model().recipe.head_dim);
  return otherwise(a, how);
}
Tensor masked_by(const Asked& a, Tensor (*mask)(const Part& part)) {
  Attention how;
  how.mask = mask;
  return otherwise(a, how);
}
Tensor sees_key_after(const Asked& a, double) {
  return masked_by(a, [](const Part& p) {
    return (p.keys() <= p.positions() + 1) & (p.keys() < p.length) & p.in_window();
  });
}
Tensor without_itself(const Asked& a, double) {
  return masked_by(a, [](const Part& p) { return (p.keys() < p.positions()) & p.in_window(); });
}
Tensor unmasked(const Asked& a, double) {
  return masked_by(a, [](const Part& p) { return (p.keys() < p.length) & p.in_window(); });
}
Tensor windowless(const Asked& a, double) {
  if (a.model().recipe.window.at(a.place().layer) == 0) return {};
  return masked_by(a, [](const Part& p) { return p.keys() <= p.positions(); });
}
std::vector<double> other_windows(const Asked& a) {
  const auto window = as_fp64(a.model().recipe.window.at(a.place().layer));
  return window < 2 ? std::vector<double>{} : std::vector<double>{window + 1, window - 1};
}
Tensor windowed_by(const Asked& a, double keys) {
  Attention how;
  how.mask = [keys](const Part& p) {
    return (p.keys() <= p.positions()) & (p.keys() > p.positions() - keys);
  };
  return otherwise(a, how);
}
Tensor by_kv_heads(const Asked& a, const std::function<int64_t(int64_t head)>& kv_head) {
  if (a.model().recipe.kv_heads < 2) return {};
  Attention how;
  for (int64_t h = 0; h < a.model().recipe.heads; ++h) how.kv_head.push_back(kv_head(h));
  return otherwise(a, how);
}
Tensor head_after(const Asked& a, double) {
  const Recipe& r = a.model().recipe;
  return by_kv_heads(a, [&](int64_t h) { return (h / (r.heads / r.kv_heads) + 1) % r.kv_heads; });
}
Tensor heads_modulo(const Asked& a, double) {
  return by_kv_heads(a, [&](int64_t h) { return h % a.model().recipe.kv_heads; });
}
// Shares are fp32 whatever the run's dtype is, which ways of any op do not round to.
Tensor rounded_through(const Asked& a, DType dtype) {
  return a.model().run == dtype ? a.in_dtype(a.right(), dtype) : Tensor();
}
Tensor in_bf16(const Asked& a, double) { return rounded_through(a, DType::bf16); }
Tensor in_fp16(const Asked& a, double) { return rounded_through(a, DType::f16); }

// Partial results alone.
Tensor undivided(const Asked& a, double) {
  if (is_lse(a)) return {};
  Attention how;
  how.mix = [](const Part&, const Tensor& scores, const Tensor& v) {
    const Tensor beside = most(scores).nan_to_num(0, 0, 0);
    return at::exp(scores - beside).matmul(v);
  };
  return in_shares(a, how, whole_pages(a));
}
Tensor divided_by_all(const Asked& a, double) {
  if (is_lse(a)) return {};
  const Tensor lse = of_scores(a, logarithm, {}, whole_pages(a));
  if (!lse.defined()) return {};
  return a.right() * at::exp(lse - at::logsumexp(lse, 1, /*keepdim=*/true)).unsqueeze(-1);
}

// Logarithms alone.
Tensor times_right(const Asked& a, double factor) {
  return is_lse(a) ? a.right() * factor : Tensor();
}
Tensor to_base_2(const Asked& a, double) { return times_right(a, std::numbers::log2e); }
Tensor to_base_10(const Asked& a, double) { return times_right(a, std::numbers::log10e); }
Tensor of_base_2(const Asked& a, double) { return times_right(a, std::numbers::ln2); }
Tensor without_most(const Asked& a, double) {
  return is_lse(a)
             ? of_scores(
                   a, [](const Tensor& s) { return logarithm(s) - most(s); }, {}, whole_pages(a))
             : Tensor();
}
Tensor most_twice(const Asked& a, double) {
  return is_lse(a)
             ? of_scores(
                   a, [](const Tensor& s) { return logarithm(s) + most(s); }, {}, whole_pages(a))
             : Tensor();
}
Tensor most_alone(const Asked& a, double) {
  return is_lse(a) ? of_scores(a, most, {}, whole_pages(a)) : Tensor();
}
// The largest score is added as it was before it was scaled.
Tensor most_unscaled(const Asked& a, double) {
  if (!is_lse(a)) return {};
  const Tensor largest = of_scores(a, most, {}, whole_pages(a));
  if (!largest.defined()) return {};
  const double more = std::sqrt(as_fp64(a.model().recipe.head_dim)) - 1;
  return at::where(largest == kOfNothing, largest, a.right() + largest * more);
}
Tensor sum_itself(const Asked& a, double) {
  return is_lse(a) ? of_scores(
                         a, [](const Tensor& s) { return at::exp(logarithm(s) - most(s)); }, {},
                         whole_pages(a))
                   : Tensor();
}
Tensor of_all_shares(const Asked& a, double) {
  return is_lse(a) ? at::logsumexp(a.right(), 1, /*keepdim=*/true).expand_as(a.right()) : Tensor();
}
Tensor with_sink(const Asked& a, double) {
  if (!is_lse(a)) return {};
  const Tensor right = a.right();
  return at::where(right == kOfNothing, right, at::logaddexp(right, at::zeros_like(right)));
}
// The number that stands where a share has no key that the query sees, as the first of them tells.
std::vector<double> of_nothing(const Asked& a) {
  if (!is_lse(a)) return {};
  const Tensor told = a.got().masked_select((a.right() == kOfNothing) & (a.got() != kOfNothing));
  if (told.numel() == 0) return {};
  const double first = told[0].item<double>();
  return std::isfinite(first) ? std::vector<double>{first} : std::vector<double>{};
}
Tensor nothing_is(const Asked& a, double number) {
  return is_lse(a) ? a.right().masked_fill(a.right() == kOfNothing, number) : Tensor();
}

constexpr Hypothesis kShares[] = {
    {"to the base 2", to_base_2},
    {"to the base 10", to_base_10},
    {"a logarithm to the base e, taken for one to the base 2 and turned again", of_base_2},
    {"the logarithm of its sum without the largest score, which its terms are beside",
     without_most},
    {"the largest score added twice to the logarithm of its sum", most_twice},
    {"the largest score alone, without the logarithm of its sum", most_alone},
    {"the largest score added before it is scaled", most_unscaled},
    {"its sum, without the logarithm", sum_itself},
    {"the logarithm of the sum over all shares", of_all_shares},
    {"one more key in each share, of score 0 (a sink)", with_sink},
    {"{:g} in the place of -Inf where a query sees no key of the share", nothing_is, of_nothing},
    {"not divided by the sum of its weights", undivided},
    {"divided by the sum over all shares, not by its own", divided_by_all},
    {"its scores not scaled", scores_unscaled},
    {"its scores scaled twice", scores_scaled_twice},
    {"its causal mask off by one: each query sees the key after its own", sees_key_after},
    {"its causal mask off by one: no query sees its own key", without_itself},
    {"no causal mask: every query sees all keys of the share", unmasked},
    {"without its sliding window", windowless},
    {"a sliding window of {:g} keys", windowed_by, other_windows},
    {"every query head reads the K/V head after its own", head_after},
    {"query head h reads K/V head h modulo their number", heads_modulo},
    {"the result of the share {:+g}", of_share, other_shares, nullptr, Scope::op,
     "the results of the two shares exchanged"},
    {"the borders between its shares {:+g} page further on", moved_pages, one_beside},
    {"the borders between its shares {:+g} key further on", moved_keys, one_beside},
    {"the border before share {:g} a page away", moved_alone, single_borders, moved_alone_words},
    {"shares of equal numbers of keys, not of whole pages", by_keys},
    {"shares of as many pages as their mean rounded up", rounded_up},
    {"shares of the pages up to each query's own position", by_query},
    {"all keys in each share", every_key},
    {"the last key of each share left out", last_key_left_out},
    {"the first key of the next share in each share too", next_key_too},
    {"the right result rounded to fp16", in_fp16},
    {"the right result rounded to bf16", in_bf16},
};

}  // namespace

std::span<const Hypothesis> share_hypotheses() { return kShares; }

}  // namespace lockstep
