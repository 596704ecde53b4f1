// Ways in which attention sees other keys than it should, or other heads and numbers of them, that
// are looked for in what was stored.
//
// Where the right weights of all keys are known, the result of any first or last part of the keys
// follows from sums along them: one pass tells which part is nearest to what a query got. The same
// holds of K/V heads, of which each query head may be given another.
//
// What was found of one query is then asked of all of them, so that a number that fits one by
// chance is ruled out by the others. Masks are those of attend(): a key that a query does not see
// has a score of -inf, and a query that sees none gives 0.
//
// The roundings at the end are those of runs in fp32 whose kernels were made for 16 bits, or of
// weights that are stored before they meet V.
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

#include "reference/hypotheses/attend.h"
#include "reference/hypotheses/rotary.h"
#include "reference/rounding.h"

namespace lockstep {
namespace {

using at::Tensor;
using Part = Attention::Part;

Tensor seen_by(const Asked& a, std::function<Tensor(const Part&)> mask) {
  Attention how;
  how.mask = std::move(mask);
  return attend(a, how);
}

// A query's result tells the number of keys, of the first or of the last that it may see, whose
// attention is nearest to it; and how many it may see. Of the last query of each request, the
// one with the most keys decides.
struct ToldKeys {
  int64_t count = 0, of = 0;
};
ToldKeys told_keys(const Asked& a, bool last) {
  ToldKeys told;
  size_t number = 0;
  std::vector<int64_t> last_row;
  for (int64_t i = 0; i < a.rows(); ++i) {
    const auto& rows = a.op().call.rows;
    if (i == 0 || rows[i].request != rows[i - 1].request) last_row.push_back(i);
    last_row.back() = i;
  }
  Attention how;
  how.other = [&](const Part& part) {
    number = part.number;
    return part;
  };
  how.mix = [&](const Part&, const Tensor& scores, const Tensor& v) {
    const Tensor score = scores.select(1, scores.size(1) - 1);
    const Tensor weight = (score - score.amax(-1, true)).exp().unsqueeze(-1);
    const auto turned = [&](const Tensor& x) { return last ? x.flip(1) : x; };
    const Tensor w = turned(weight), sums = turned(weight * v).cumsum(1) / w.cumsum(1);
    const Tensor got = a.got().select(0, last_row.at(number)).view({scores.size(0), 1, -1});
    const Tensor off = (sums - got).square().sum(at::IntArrayRef{0, 2});
    const int64_t best =
        off.nan_to_num(std::numeric_limits<double>::infinity()).argmin().item<int64_t>();
    const int64_t unseen = score.select(0, 0).isinf().sum().item<int64_t>();
    const int64_t seen = score.size(1) - unseen;
    // Masked keys come first or last, and add nothing.
    const int64_t count = last ? best + 1 - (score.size(1) - seen) : best + 1;
    if (seen > told.of) told = {std::clamp<int64_t>(count, 1, seen), seen};
    return at::bmm(at::softmax(scores, -1), v);
  };
  attend(a, how);
  return told;
}
// Each of the four cuts below has the one number of keys that the result tells.
std::vector<double> told_window(const Asked& a) {
  const ToldKeys told = told_keys(a, /*last=*/true);
  return told.count < told.of ? std::vector<double>{as_fp64(told.count)} : std::vector<double>{};
}
// A window, of a layer that has none or another.
Tensor last_keys(const Asked& a, double count) {
  return seen_by(a, [=](const Part& p) {
    return (p.keys() <= p.positions()) & (p.keys() > p.positions() - count) & p.in_window();
  });
}
std::vector<double> told_prefix(const Asked& a) {
  const ToldKeys told = told_keys(a, /*last=*/false);
  return told.count < told.of ? std::vector<double>{as_fp64(told.count)} : std::vector<double>{};
}
// The keys of a context that is taken to be shorter: a length that was not brought up to date.
Tensor first_keys(const Asked& a, double count) {
  return seen_by(a, [=](const Part& p) {
    return (p.keys() <= p.positions()) & (p.keys() < count) & p.in_window();
  });
}
std::vector<double> told_rest(const Asked& a) {
  const ToldKeys told = told_keys(a, /*last=*/false);
  return told.count < told.of ? std::vector<double>{as_fp64(told.of - told.count)}
                              : std::vector<double>{};
}
// At least one key stays.
Tensor without_last(const Asked& a, double count) {
  return seen_by(a, [=](const Part& p) {
    return (p.keys() <= p.positions()) & ((p.keys() <= p.positions() - count) | (p.keys() == 0)) &
           p.in_window();
  });
}
std::vector<double> told_first_left(const Asked& a) {
  const ToldKeys told = told_keys(a, /*last=*/true);
  // One alone has words of its own.
  return told.count + 1 < told.of ? std::vector<double>{as_fp64(told.of - told.count)}
                                  : std::vector<double>{};
}
// Keys that were evicted, or that a prefix should have brought.
Tensor without_first_keys(const Asked& a, double count) {
  return seen_by(a, [=](const Part& p) {
    return (p.keys() <= p.positions()) & ((p.keys() >= count) | (p.keys() == p.positions())) &
           p.in_window();
  });
}

std::vector<double> block_sizes(const Asked& a) {
  std::vector<double> all = {4, 8, 16, 32, 64, 128, 256};
  const auto page = as_fp64(a.op().page_size);
  if (page > 0 && std::ranges::count(all, page) == 0) all.push_back(page);
  return all;
}
// Attention within chunks, as of every other layer of some families.
Tensor own_block_alone(const Asked& a, double size) {
  return seen_by(a, [=](const Part& p) {
    return (p.keys() <= p.positions()) & (p.keys() >= (p.positions() / size).floor() * size) &
           p.in_window();
  });
}
// A causal mask that is decided a block at a time.
Tensor whole_own_block(const Asked& a, double size) {
  return seen_by(a, [=](const Part& p) {
    return (p.keys() < ((p.positions() / size).floor() + 1) * size) & (p.keys() < p.length) &
           p.in_window();
  });
}
std::vector<double> kept_windows(const Asked& a) {
  std::vector<double> all = {8, 16, 32, 64, 128, 256, 512, 1024};
  const auto longest = as_fp64(*std::ranges::max_element(a.op().call.lengths));
  std::erase_if(all, [=](double window) { return window + 4 >= longest; });
  return all;
}
// The first keys and a window of the last (StreamingLLM).
Tensor four_and_window(const Asked& a, double window) {
  return seen_by(a, [=](const Part& p) {
    return (p.keys() <= p.positions()) & ((p.keys() > p.positions() - window) | (p.keys() < 4));
  });
}
// Sequences of a pass laid behind each other without their borders: each query sees all of the
// requests before its own.
Tensor earlier_requests_seen(const Asked& a, double) {
  std::vector<int32_t> requests;
  for (const Row& row : a.op().call.rows)
    if (requests.empty() || requests.back() != row.request) requests.push_back(row.request);
  if (requests.size() < 2) return {};
  std::vector<int64_t> before(requests.size());
  Attention how;
  how.other = [&](const Part& part) {
    Part other = part;
    std::vector<Tensor> k, v;
    for (size_t r = 0; r < part.number; ++r) {
      const KeysValues& cache = a.op().caches.at(requests[r]);
      k.push_back(a.widened(cache.k).transpose(0, 1));
      v.push_back(a.widened(cache.v).transpose(0, 1));
      before[part.number] += k.back().size(1);
    }
    k.push_back(part.k()), v.push_back(part.v());
    other.set_cache(at::cat(k, 1), at::cat(v, 1));
    other.set_first_key(-before[part.number]);
    return other;
  };
  how.mask = [&](const Part& p) { return p.keys() <= p.positions(); };
  return attend(a, how);
}

// The K/V head that each query head seems to have read; undefined where its own explains it as
// well. Which of K and V is from another head: both, K or V.
enum class Mapped : uint8_t { both, keys, values };
Tensor mapped_as_told(const Asked& a, Mapped which) {
  const Recipe& r = a.model().recipe;
  if (r.kv_heads < 2 || r.kv_heads > 16) return {};
  std::vector<Tensor> results, offs;
  const Tensor got = a.got().view({a.rows(), r.heads, -1});
  for (int64_t head = 0; head < r.kv_heads; ++head) {
    Attention how;
    how.other = [&](const Part& part) {
      Part other = part;
      const Tensor k = part.k().narrow(0, head, 1).expand_as(part.k());
      const Tensor v = part.v().narrow(0, head, 1).expand_as(part.v());
      other.set_cache(which == Mapped::values ? part.k() : k, which == Mapped::keys ? part.v() : v);
      return other;
    };
    results.push_back(attend(a, how));
    offs.push_back((results.back() - got).square().nansum(at::IntArrayRef{0, 2}));
  }
  const Tensor best = at::stack(offs).argmin(0);
  Tensor y = a.right().view(got.sizes()).clone();
  bool any = false;
  for (int64_t h = 0; h < r.heads; ++h) {
    const auto head = best[h].item<int64_t>();
    any = any || head != h / (r.heads / r.kv_heads);
    y.select(1, h).copy_(results[static_cast<size_t>(head)].select(1, h));
  }
  return any ? y : Tensor();
}
// Some map that none of the usual ones is, such as of a kernel for other numbers of heads.
Tensor other_kv_heads(const Asked& a, double) { return mapped_as_told(a, Mapped::both); }
Tensor other_k_heads(const Asked& a, double) { return mapped_as_told(a, Mapped::keys); }
Tensor other_v_heads(const Asked& a, double) { return mapped_as_told(a, Mapped::values); }

// A query against keys of other positions, K and V alike: slots that are off by some.
std::vector<double> slots_beside(const Asked&) { return {1, -1}; }
// A write and a read that do not count from the same slot.
Tensor slots_shifted(const Asked& a, double by) {
  Attention how;
  how.other = [by](const Part& p) {
    Part other = p;
    const auto shift = static_cast<int64_t>(-by);
    other.set_cache(p.k().roll(shift, 1), p.v().roll(shift, 1));
    return other;
  };
  return attend(a, how);
}

// A page that is skipped, of contexts that reach beyond it.
std::vector<double> pages_within(const Asked& a) {
  std::vector<double> all;
  const int64_t size = a.op().page_size;
  const int64_t longest = *std::ranges::max_element(a.op().call.lengths);
  for (int64_t page = 1; size > 0 && (page + 1) * size < longest && page <= 16; ++page)
    all.push_back(as_fp64(page));
  return all;
}
Tensor without_page(const Asked& a, double page) {
  const auto size = as_fp64(a.op().page_size);
  return seen_by(a, [=](const Part& p) {
    return (p.keys() <= p.positions()) &
           ((p.keys() < page * size) | (p.keys() >= (page + 1) * size)) & p.in_window();
  });
}
// V alone is read where the pointer stood before it was moved on to the next page.
Tensor v_of_first_page(const Asked& a, double) {
  const int64_t size = a.op().page_size;
  if (size <= 0) return {};
  Attention how;
  how.other = [=](const Part& p) {
    const int64_t keys = p.v().size(1), times = (keys + size - 1) / size;
    if (keys < size) return p;
    Part other = p;
    other.set_cache(p.k(), p.v().narrow(1, 0, size).repeat({1, times, 1}).narrow(1, 0, keys));
    return other;
  };
  return attend(a, how);
}
Tensor v_shifted(const Asked& a, double by) {
  Attention how;
  how.other = [by](const Part& p) {
    Part other = p;
    other.set_cache(p.k(), p.v().roll(static_cast<int64_t>(-by), 1));
    return other;
  };
  return attend(a, how);
}
// The right K/V head for the scores, and another one for V.
Tensor v_of_head(const Asked& a, double by) {
  Attention how;
  how.other = [by](const Part& p) {
    Part other = p;
    other.set_cache(p.k(), p.v().roll(by == 0 ? 1 : static_cast<int64_t>(-by), 0));
    return other;
  };
  return attend(a, how);
}
std::vector<double> kv_heads_beside(const Asked& a) {
  return Asked::neighbours_among(a.model().recipe.kv_heads);
}
// A rotation of all that the cache holds: V is to be left as it is.
Tensor v_turned(const Asked& a, double) {
  Attention how;
  how.other = [&a](const Part& p) {
    std::vector<double> positions;
    for (int64_t key = 0; key < p.v().size(1); ++key) positions.push_back(as_fp64(key));
    Part other = p;
    const Tensor turned = RightRotation::of(a, p.v().transpose(0, 1), positions);
    other.set_cache(p.k(), turned.transpose(0, 1));
    return other;
  };
  return attend(a, how);
}
// Pages that were written as [positions, heads, dim], read as [heads, positions, dim]: HND for NHD.
Tensor heads_before_positions(const Asked& a, double) {
  const int64_t size = a.op().page_size;
  if (size < 2 || a.model().recipe.kv_heads < 2) return {};
  Attention how;
  how.extra = [size](const Part& p) { return (size - p.length % size) % size; };
  how.other = [size](const Part& p) {
    const auto read = [size](const Tensor& x) {
      return x.transpose(0, 1)
          .reshape({x.size(1) / size, x.size(0), size, x.size(2)})
          .transpose(0, 1)
          .flatten(1, 2);
    };
    Part other = p;
    other.set_cache(read(p.k()), read(p.v()));
    return other;
  };
  return attend(a, how);
}
// A query's own key, in the tile of the diagonal and in that of the cache.
Tensor own_key_twice(const Asked& a, double) {
  Attention how;
  how.bias = [](const Part& p) {
    return (p.keys() == p.positions()).to(at::kDouble) * std::numbers::ln2;
  };
  return attend(a, how);
}
// Queries that are scaled and stored before they meet K, by kernels that exponentiate to the base 2
// with log2(e) in the scale.
Tensor query_scaled_in(const Asked& a, double factor) {
  const DType run = a.model().run;
  if (run == DType::f32) return {};
  Attention how;
  how.query = [&, factor](const Tensor& q) {
    const double scale = factor / std::sqrt(a.model().recipe.head_dim);
    return a.in_dtype(q * scale, run) / scale;
  };
  return attend(a, how);
}
Tensor query_scaled_stored(const Asked& a, double) { return query_scaled_in(a, 1); }
Tensor query_scaled_log2e_stored(const Asked& a, double) {
  return query_scaled_in(a, std::numbers::log2e);
}

// Queries, keys and values through fewer bits, in a run that has more.
Tensor all_in(const Asked& a, const Grid& grid) {
  if (a.model().run != DType::f32) return {};
  Attention how;
  how.query = [grid](const Tensor& q) { return grid.rounded(q); };
  how.other = [grid](const Part& p) {
    Part other = p;
    other.set_cache(grid.rounded(p.k()), grid.rounded(p.v()));
    return other;
  };
  return attend(a, how);
}
Tensor all_in_bf16(const Asked& a, double) { return all_in(a, Grid::of(DType::bf16)); }
Tensor all_in_fp16(const Asked& a, double) { return all_in(a, Grid::of(DType::f16)); }
Tensor all_in_tf32(const Asked& a, double) { return all_in(a, kTf32); }

// Exponentials in 16 bits, before they are divided by their sum.
Tensor exponentials_in(const Asked& a, DType dtype) {
  Attention how;
  how.softmax = [&](const Tensor& s) {
    const Tensor e = (s - s.amax(-1, true)).exp();
    return a.in_dtype(e, dtype) / e.sum(-1, true);
  };
  return attend(a, how);
}
Tensor exponentials_in_bf16(const Asked& a, double) { return exponentials_in(a, DType::bf16); }
Tensor exponentials_in_fp16(const Asked& a, double) { return exponentials_in(a, DType::f16); }
// A sum that begins at 1, where the largest weight counts 1.
Tensor sum_from_one(const Asked& a, double) {
  Attention how;
  how.softmax = [](const Tensor& s) {
    const Tensor e = (s - s.amax(-1, true)).exp();
    return e / (1 + e.sum(-1, true));
  };
  return attend(a, how);
}
// The largest score of the first block for all: what overflows then is kept.
Tensor value_of_largest(const Asked& a, double) {
  Attention how;
  how.softmax = [](const Tensor& s) { return (s == s.amax(-1, true)).to(at::kDouble); };
  return attend(a, how);
}

constexpr Hypothesis kKeys[] = {
    {"a sliding window of {:g} keys", last_keys, told_window},
    {"the first {:g} keys alone", first_keys, told_prefix},
    {"the last {:g} keys not seen", without_last, told_rest},
    {"the first {:g} keys not seen", without_first_keys, told_first_left},
    {"the keys before the query's own block of {:g} not seen", own_block_alone, block_sizes},
    {"its causal mask by blocks: each query sees all of its own block of {:g}", whole_own_block,
     block_sizes},
    {"the first 4 keys and a window of {:g}", four_and_window, kept_windows},
    {"the keys of the requests before it in the pass seen too", earlier_requests_seen},
    {"the slots {:+g} read for each key", slots_shifted, slots_beside},
    {"the keys of page {:g} not seen", without_page, pages_within},
    {"the V of the first page read for every other one", v_of_first_page},
    {"the V of the key {:+g} read for each", v_shifted, slots_beside},
    {"the V of the K/V head {:+g} read for each", v_of_head, kv_heads_beside, nullptr, Scope::op,
     "the V of the other K/V head read for each"},
    {"V turned by RoPE, as K is", v_turned},
    {"pages of [positions, heads] read as [heads, positions] (HND for NHD)",
     heads_before_positions},
    {"each query's own key counted twice", own_key_twice},
    {"its queries times the scale rounded before they meet K", query_scaled_stored},
    {"its queries times the scale and log2(e) rounded before they meet K",
     query_scaled_log2e_stored},
    {"a sum of weights that begins at 1, where the largest counts 1", sum_from_one},
    {"the value of the largest score alone", value_of_largest},
    {"its exponentials rounded to bf16", exponentials_in_bf16},
    {"its exponentials rounded to fp16", exponentials_in_fp16},
    {"queries, keys and values rounded to tf32", all_in_tf32},
    {"queries, keys and values rounded to bf16", all_in_bf16},
    {"queries, keys and values rounded to fp16", all_in_fp16},
    {"query heads that read other K/V heads than their own", other_kv_heads, nullptr, nullptr,
     Scope::told},
    {"query heads that read the K of other K/V heads", other_k_heads, nullptr, nullptr,
     Scope::told},
    {"query heads that read the V of other K/V heads", other_v_heads, nullptr, nullptr,
     Scope::told},
};

}  // namespace

std::span<const Hypothesis> key_hypotheses() { return kKeys; }

}  // namespace lockstep
