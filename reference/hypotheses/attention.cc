// Ways in which attention goes wrong: scores, masks, heads, and what of the cache is read.
//
// They are asked through attend(): a mask, a scale, a map of heads, a context length or another
// part of the cache in the place of the right one. The cache is that which was recorded for the
// request, and those of the other requests of the pass.
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <numbers>

#include "reference/hypotheses/attend.h"
#include "reference/hypotheses/values.h"

namespace lockstep {
namespace {

using at::Tensor;
using Part = Attention::Part;

// The scores' factor: head_dim^-0.5 is right.
double right_scale(const Asked& a) { return 1 / std::sqrt(a.model().recipe.head_dim); }
Tensor with_scale(const Asked& a, double scale) {
  Attention how;
  how.scale = scale;
  return attend(a, how);
}
Tensor unscaled(const Asked& a, double) { return with_scale(a, 1); }
Tensor scaled_twice(const Asked& a, double) {
  return with_scale(a, right_scale(a) * right_scale(a));
}
Tensor uniform(const Asked& a, double) { return with_scale(a, 0); }
Tensor by_hidden(const Asked& a, double) {
  return with_scale(a, 1 / std::sqrt(a.model().config.hidden));
}
Tensor by_kv_heads(const Asked& a, double) {
  return with_scale(a, right_scale(a) / as_fp64(a.model().recipe.kv_heads));
}
// The factor of each head that fits best, to a hundredth: that of the middle one, and the one that
// lies furthest from 1, as a bug may be in one head alone. A golden-section search over the
// logarithm of the factor: 14 steps leave 0.1 % of the range.
std::vector<double> told_scales(const Asked& a) {
  const Tensor got = a.got().flatten(1).view({a.rows(), a.model().recipe.heads, -1});
  const auto off = [&](const Tensor& log) {
    Attention how;
    how.scores = [&](const Tensor& s) { return s * log.exp().view({-1, 1, 1}); };
    return (attend(a, how).view(got.sizes()) - got).square().nansum(at::IntArrayRef{0, 2});
  };
  Tensor low = a.tensor(std::vector<double>(a.model().recipe.heads, std::log(0.25))), high = -low;
  constexpr double kInner = 0.381966011250105;  // each inner point is one of the next step's too
  Tensor left = low + (high - low) * kInner, right = low + high - left;
  Tensor off_left = off(left), off_right = off(right);
  for (int step = 0; step < 14; ++step) {
    const Tensor is_left = off_left < off_right;
    high = at::where(is_left, right, high);
    low = at::where(is_left, low, left);
    const Tensor known = at::where(is_left, left, right), next = low + high - known;
    const Tensor off_known = at::where(is_left, off_left, off_right), off_next = off(next);
    left = at::where(is_left, next, known), right = at::where(is_left, known, next);
    off_left = at::where(is_left, off_next, off_known);
    off_right = at::where(is_left, off_known, off_next);
  }
  const Tensor log = (low + high) / 2;
  const auto rounded = [](const Tensor& one) {
    return std::round(std::exp(one.item<double>()) * 100) / 100;
  };
  return {rounded(log.median()), rounded(log[log.abs().argmax().item<int64_t>()])};
}
// The usual factors, and those that fit best.
std::vector<double> scales(const Asked& a) {
  std::vector<double> all = {0.5, 2, std::numbers::sqrt2, 1 / std::numbers::sqrt2, 0.25, 4};
  // Those of other numbers of dims, such as of what a row has for each head.
  const auto dim = as_fp64(a.model().recipe.head_dim), hidden = as_fp64(a.model().config.hidden);
  for (const double dims :
       {32., 64., 80., 96., 128., 192., 256., hidden / as_fp64(a.model().recipe.kv_heads),
        hidden / as_fp64(a.model().recipe.heads)})
    if (dims != dim) all.push_back(std::sqrt(dim / dims));
  // Each step of the search computes the attention anew, which is too much for long prompts.
  if (a.got().numel() > (1 << 18)) return all;
  for (const double found : told_scales(a))
    if (std::fabs(found - 1) > 0.005 && std::ranges::count(all, found) == 0) all.push_back(found);
  return all;
}
Tensor scaled_by(const Asked& a, double factor) { return with_scale(a, factor * right_scale(a)); }

// Which keys a query sees, as a table of [queries, keys].
Tensor with_mask(const Asked& a, Tensor (*mask)(const Part& part)) {
  Attention how;
  how.mask = [mask](const Part& part) { return mask(part); };
  return attend(a, how);
}
// The causal mask sees keys 0..p of the query at position p. Each of these masks differs from it in
// one comparison: <= for <, a position counted from elsewhere, a part of the keys left out.
Tensor key_after(const Asked& a, double) {
  return with_mask(a, [](const Part& p) {
    return (p.keys() <= p.positions() + 1) & (p.keys() < p.length) & p.in_window();
  });
}
Tensor not_itself(const Asked& a, double) {
  return with_mask(a, [](const Part& p) {
    return ((p.keys() < p.positions()) | (p.positions() == 0)) & (p.keys() <= p.positions()) &
           p.in_window();
  });
}
// The mask of a square that is laid over the first keys instead of the last ones: queries of a
// later pass are taken for those of the first.
Tensor top_left(const Asked& a, double) {
  Attention how;
  how.mask = [](const Part& p) { return (p.keys() <= p.positions() - p.first) & p.in_window(); };
  how.unseen_may_be_nan = true;  // past a window that is all behind such a mask
  return attend(a, how);
}
Tensor no_mask(const Asked& a, double) {
  return with_mask(a, [](const Part& p) { return (p.keys() < p.length) & p.in_window(); });
}
// A request's first pass has no earlier keys: there the first key stays.
Tensor cached_alone(const Asked& a, double) {
  return with_mask(a, [](const Part& p) {
    return (p.keys() < std::max<int64_t>(p.first, 1)) & (p.keys() <= p.positions());
  });
}
Tensor this_pass_alone(const Asked& a, double) {
  return with_mask(
      a, [](const Part& p) { return (p.keys() <= p.positions()) & (p.keys() >= p.first); });
}
Tensor without_first(const Asked& a, double) {
  return with_mask(a, [](const Part& p) {
    return (p.keys() <= p.positions()) & ((p.keys() > 0) | (p.positions() == 0)) & p.in_window();
  });
}
Tensor itself_alone(const Asked& a, double) {
  return with_mask(a, [](const Part& p) { return p.keys() == p.positions(); });
}
// Slots behind the last token in its page, which nobody wrote: a kernel that reads whole pages and
// does not mask sees them.
Tensor past_context(const Asked& a, double) {
  if (a.op().page_size <= 0) return {};
  Attention how;
  how.extra = [&a](const Part& p) {
    return (a.op().page_size - p.length % a.op().page_size) % a.op().page_size;
  };
  how.mask = [](const Part& p) {
    return ((p.keys() <= p.positions()) | (p.keys() >= p.length)) & p.in_window();
  };
  return attend(a, how);
}

int64_t window_of(const Asked& a) { return a.model().recipe.window.at(a.place().layer); }
// A window of w keys sees p - w < key <= p. Tried are neighbours of the layer's own (an off by
// one), those of other layers (a layer with the wrong kind) and powers of two.
std::vector<double> windows(const Asked& a) {
  const double own = as_fp64(window_of(a));
  std::vector<double> all;
  if (own > 0) all = {own + 1, own - 1, own + 2, 2 * own, own / 2};
  for (const double w : {4., 8., 16., 32., 64., 128., 256., 512., 1024., 2048., 4096.})
    all.push_back(w);
  for (const int64_t w : a.model().recipe.window)
    if (w > 0) all.push_back(as_fp64(w));
  // One that no context fills is none.
  const auto longest = as_fp64(*std::ranges::max_element(a.op().call.lengths));
  std::erase_if(all, [=](double w) { return w == own || w < 1 || w >= longest; });
  std::ranges::sort(all);
  all.erase(std::unique(all.begin(), all.end()), all.end());
  return all;
}
Tensor with_window(const Asked& a, double window) {
  Attention how;
  how.mask = [window](const Part& p) {
    return (p.keys() <= p.positions()) & (p.keys() > p.positions() - window);
  };
  return attend(a, how);
}
Tensor without_window(const Asked& a, double) {
  if (window_of(a) == 0) return {};
  return with_mask(a, [](const Part& p) { return p.keys() <= p.positions(); });
}
// Kernels that divide keys among blocks (split-K, flash-decoding) lose the last part when its
// number is rounded down, and all but the first when nobody merges them.
Tensor last_split_left_out(const Asked& a, double size) {
  Attention how;
  how.mask = [size](const Part& p) {
    const Tensor full = (p.positions() / size).floor() * size;
    return (p.keys() <= p.positions()) & ((p.keys() < full) | (full == 0)) & p.in_window();
  };
  return attend(a, how);
}
Tensor first_split_alone(const Asked& a, double size) {
  Attention how;
  how.mask = [size](const Part& p) {
    return (p.keys() <= p.positions()) & (p.keys() < size) & p.in_window();
  };
  return attend(a, how);
}

// The same where whole parts are counted off the context, whatever the query.
Tensor part_page_left_out(const Asked& a, double size) {
  Attention how;
  how.mask = [size](const Part& p) {
    const double full = std::floor(as_fp64(p.length) / size) * size;
    return (p.keys() <= p.positions()) &
           ((p.keys() < full) | (full == 0 ? p.keys() >= 0 : p.keys() < 0)) & p.in_window();
  };
  return attend(a, how);
}
std::vector<double> splits_and_page(const Asked& a) {
  std::vector<double> all = key_splits(a);
  const auto page = as_fp64(a.op().page_size);
  if (page > 0 && std::ranges::count(all, page) == 0) all.push_back(page);
  return all;
}
// Keys that are in two splits: their weights are added twice.
Tensor counted_twice(const Asked& a, Tensor (*twice)(const Part& part, double size), double size) {
  Attention how;
  bool any = false;
  how.bias = [&](const Part& p) {
    any = any || as_fp64(p.length) > size;
    return twice(p, size).to(at::kDouble) * std::numbers::ln2;
  };
  const Tensor out = attend(a, how);
  return any ? out : Tensor();
}
// A shared prefix that is merged with an attention which has seen it.
Tensor prefix_twice(const Asked& a, double size) {
  return counted_twice(
      a, [](const Part& p, double n) { return p.keys() < n; }, size);
}
// Ends of splits that are counted in.
Tensor borders_twice(const Asked& a, double size) {
  return counted_twice(
      a,
      [](const Part& p, double n) {
        return (p.keys().remainder(n) == 0).logical_and(p.keys() > 0);
      },
      size);
}
// A bias by distance, of models without RoPE (ALiBi): -slope (position - key). The slopes of 2^n
// heads are 2^(-8 h / 2^n); for other numbers of heads those between are taken from twice as many.
Tensor with_slopes(const Asked& a, const std::vector<double>& slopes) {
  Attention how;
  const Tensor slope = a.tensor(slopes).view({-1, 1, 1});
  how.bias = [&](const Part& p) { return -slope * (p.positions() - p.keys()).unsqueeze(0); };
  return attend(a, how);
}
Tensor biased_by_distance(const Asked& a, double) {
  const int64_t heads = a.model().recipe.heads;
  const auto whole = static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(heads)));
  std::vector<double> slopes;
  for (int64_t h = 0; h < heads; ++h) {
    const double of = as_fp64(h < whole ? 2 * (h + 1) : 2 * (h - whole) + 1);
    slopes.push_back(std::exp2(-8 * of / as_fp64(2 * whole)));
  }
  return with_slopes(a, slopes);
}
Tensor biased_evenly(const Asked& a, double) {
  const int64_t heads = a.model().recipe.heads;
  std::vector<double> slopes;
  for (int64_t h = 0; h < heads; ++h)
    slopes.push_back(std::exp2(-8 * as_fp64(h + 1) / as_fp64(heads)));
  return with_slopes(a, slopes);
}
// Parts of a score that are never added up: of a warp that has so many dims.
std::vector<double> dims_alone(const Asked& a) {
  std::vector<double> all;
  const int64_t dim = a.model().recipe.head_dim;
  for (const int64_t some : {8, 16, 32, 64, 128})
    if (some < dim) all.push_back(as_fp64(some));
  for (const int64_t tail : {1, 2, 4, 8, 16})
    if (2 * tail < dim && std::ranges::count(all, as_fp64(dim - tail)) == 0)
      all.push_back(as_fp64(dim - tail));
  if (dim % 2 == 0 && std::ranges::count(all, as_fp64(dim) / 2) == 0)
    all.push_back(as_fp64(dim) / 2);
  return all;
}
Tensor scored_over(const Asked& a, int64_t first, int64_t count) {
  Attention how;
  how.other = [=](const Part& p) {
    Part other = p;
    const Tensor k = at::zeros_like(p.k());
    k.narrow(-1, first, count).copy_(p.k().narrow(-1, first, count));
    other.set_cache(k, p.v());
    return other;
  };
  return attend(a, how);
}
Tensor scored_over_first(const Asked& a, double count) {
  return scored_over(a, 0, as_count(count));
}
Tensor scored_over_last(const Asked& a, double count) {
  const auto some = as_count(count);
  return scored_over(a, a.model().recipe.head_dim - some, some);
}

// The K/V head of each query head.
Tensor with_heads(const Asked& a, int64_t (*map)(int64_t h, int64_t heads, int64_t kv)) {
  const Recipe& r = a.model().recipe;
  Attention how;
  for (int64_t h = 0; h < r.heads; ++h) how.kv_head.push_back(map(h, r.heads, r.kv_heads));
  return attend(a, how);
}
// Query heads of one K/V head stand together, h / (heads / kv heads); these are the other ways to
// map them.
Tensor modulo(const Asked& a, double) {
  return with_heads(a, [](int64_t h, int64_t, int64_t kv) { return h % kv; });
}
Tensor reversed(const Asked& a, double) {
  return with_heads(a, [](int64_t h, int64_t n, int64_t kv) { return kv - 1 - h / (n / kv); });
}
Tensor head_zero(const Asked& a, double) {
  return with_heads(a, [](int64_t, int64_t, int64_t) { return int64_t{0}; });
}
Tensor next_head(const Asked& a, double) {
  return with_heads(a, [](int64_t h, int64_t n, int64_t kv) { return (h / (n / kv) + 1) % kv; });
}
Tensor clamped_head(const Asked& a, double) {
  return with_heads(a, [](int64_t h, int64_t, int64_t kv) { return std::min(h, kv - 1); });
}
Tensor by_count(const Asked& a, double) {
  return with_heads(a, [](int64_t h, int64_t, int64_t kv) { return h / kv % kv; });
}

// Keys and values from elsewhere.
Tensor with_keys(const Asked& a, std::function<Part(const Part&)> other) {
  Attention how;
  how.other = std::move(other);
  return attend(a, how);
}
// One cache read for the other: both have the same shape, so that nothing else notices.
Tensor k_for_v(const Asked& a, double) {
  return with_keys(a, [](const Part& p) {
    Part other = p;
    other.set_cache(p.k(), p.k());
    return other;
  });
}
Tensor v_for_k(const Asked& a, double) {
  return with_keys(a, [](const Part& p) {
    Part other = p;
    other.set_cache(p.v(), p.v());
    return other;
  });
}
Tensor k_and_v_exchanged(const Asked& a, double) {
  return with_keys(a, [](const Part& p) {
    Part other = p;
    other.set_cache(p.v(), p.k());
    return other;
  });
}
std::vector<double> one_row_beside(const Asked&) { return {-1, 1}; }
// A page table whose rows were not permuted with the batch.
std::vector<double> caches_beside(const Asked& a) { return Asked::neighbours_among(a.requests()); }
Tensor cache_of_request(const Asked& a, double by) {
  if (by == 0 && a.requests() != 2) return {};
  Attention how;
  how.cache_of = by == 0 ? 1 : static_cast<int>(by);
  return attend(a, how);
}
// A page table of which the first row is read for all.
Tensor cache_of_first(const Asked& a, double) {
  if (a.requests() < 2) return {};
  Attention how;
  how.cache_of_first = true;
  return attend(a, how);
}
Tensor length_of_request(const Asked& a, double by) {
  if (by == 0 && a.requests() != 2) return {};
  Attention how;
  how.length_of = by == 0 ? 1 : static_cast<int>(by);
  return attend(a, how);
}
// Slots in pages: the key that is read for key i.
Tensor with_slots(const Asked& a, std::function<int64_t(int64_t key, int64_t length)> from) {
  if (a.op().page_size <= 0) return {};
  return with_keys(a, [&](const Part& p) {
    std::vector<int64_t> index;
    for (int64_t key = 0; key < p.length; ++key)
      index.push_back(std::clamp<int64_t>(from(key, p.length), 0, p.length - 1));
    const Tensor at = at::tensor(index).to(p.k().device());
    Part other = p;
    other.set_cache(p.k().index_select(1, at), p.v().index_select(1, at));
    return other;
  });
}
// A page table of which the first entry is read for all.
Tensor first_page_again(const Asked& a, double) {
  return with_slots(a, [&](int64_t key, int64_t) { return key % a.op().page_size; });
}
// The page table read at another place: slots of whole pages are exchanged, as a table that is off
// by one or not brought up to date makes it.
Tensor page_before(const Asked& a, double by) {
  return with_slots(a, [&](int64_t key, int64_t) {
    const int64_t other = key + as_count(by) * a.op().page_size;
    return other < 0 ? key : other;
  });
}
Tensor first_pages_swapped(const Asked& a, double) {
  return with_slots(a, [&](int64_t key, int64_t) {
    const int64_t size = a.op().page_size;
    return key < size ? key + size : key < 2 * size ? key - size : key;
  });
}
// K alone moves, so that each weight falls to the value of another token.
Tensor key_shifted(const Asked& a, double by) {
  return with_keys(a, [by](const Part& p) {
    Part other = p;
    other.set_cache(p.k().roll(static_cast<int64_t>(-by), 1), p.v());
    return other;
  });
}
// The factor by least squares over the query heads that read the last K/V head.
std::vector<double> v_factors(const Asked& a) {
  const Recipe& r = a.model().recipe;
  const int64_t group = r.heads / r.kv_heads;
  const auto last = [&](const Tensor& x) { return x.narrow(1, r.heads - group, group); };
  const Tensor right = last(a.right()), got = last(a.got());
  const double factor = (right * got).sum().item<double>() / right.square().sum().item<double>();
  if (!std::isfinite(factor) || std::fabs(factor - 1) < 0.005) return {};
  return {std::round(factor * 100) / 100};
}
Tensor last_v_scaled(const Asked& a, double factor) {
  const Recipe& r = a.model().recipe;
  const int64_t group = r.heads / r.kv_heads;
  const Tensor y = a.right().clone();
  if (r.kv_heads < 2) return {};
  y.narrow(1, r.heads - group, group).mul_(factor);
  return y;
}

constexpr Hypothesis kAttention[] = {
    {"attention with its scores not scaled", unscaled},
    {"attention with its scores scaled twice", scaled_twice},
    {"attention with its scores scaled by {:g} times head_dim^-0.5", scaled_by, scales},
    {"attention with its scores scaled by hidden^-0.5", by_hidden},
    {"attention with its scores scaled by head_dim^-0.5 / kv heads", by_kv_heads},
    {"attention with one weight for all keys", uniform},
    {"its causal mask off by one: each query sees the key after its own", key_after},
    {"its causal mask off by one: no query sees its own key", not_itself},
    {"its causal mask aligned top-left: queries counted from 0 in each pass", top_left},
    {"no causal mask: every query sees all keys of its request", no_mask},
    {"the keys of this pass not seen", cached_alone},
    {"the keys of earlier passes not seen", this_pass_alone},
    {"the first key not seen", without_first},
    {"each query sees its own key alone", itself_alone},
    {"unused slots at the end of the last page attended", past_context},
    {"a sliding window of {:g} keys", with_window, windows},
    {"attention without its sliding window", without_window},
    {"query head h reads K/V head h modulo their number", modulo},
    {"K/V heads in the opposite order", reversed},
    {"every query head reads K/V head 0", head_zero},
    {"every query head reads the K/V head after its own", next_head},
    {"query head h reads K/V head h, and the last one past their number", clamped_head},
    {"query head h reads K/V head h / kv heads", by_count},
    {"K read for V", k_for_v},
    {"V read for K", v_for_k},
    {"K and V exchanged", k_and_v_exchanged},
    {"the context length of the request {:+g} in the pass", length_of_request, caches_beside,
     nullptr, Scope::op, "the context length of the other request in the pass"},
    {"the keys and values of the pass's first request for all", cache_of_first},
    {"the keys and values of the request {:+g} in the pass", cache_of_request, caches_beside,
     nullptr, Scope::op, "the keys and values of the other request in the pass"},
    {"the first page read for every other one", first_page_again},
    {"the page {:+g} read for each", page_before, one_row_beside},
    {"the first two pages exchanged", first_pages_swapped},
    {"the K of the key {:+g} read for each", key_shifted, one_row_beside},
    {"the last split of {:g} keys left out", last_split_left_out, key_splits},
    {"the first split of {:g} keys alone", first_split_alone, key_splits},
    {"the keys of a last page of {:g} that is not full left out", part_page_left_out,
     splits_and_page},
    {"the first {:g} keys counted twice", prefix_twice, splits_and_page},
    {"the first key of each split of {:g} counted twice", borders_twice, key_splits},
    {"a bias by distance added (ALiBi)", biased_by_distance},
    {"a bias by distance added, of slopes 2^(-8 h / heads)", biased_evenly},
    {"its scores over the first {:g} dims alone", scored_over_first, dims_alone},
    {"its scores over the last {:g} dims alone", scored_over_last, dims_alone},
    {"V of the last K/V head times {:g}", last_v_scaled, v_factors},
};

}  // namespace

std::span<const Hypothesis> attention_hypotheses() { return kAttention; }

}  // namespace lockstep
