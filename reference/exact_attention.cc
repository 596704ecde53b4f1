// Queries are taken in blocks, on a device so large that a tensor of scores stays under a bound, on
// the CPU so many as make a product of matrices of what else would read all keys for one query.
// Beside the output each query and head has the sums that its budget needs (sum p|v|, p|v - o|,
// squares of both, the largest score), and under contracts that round scores or weights what a
// rounding the other way may do: of each key a chance and an effect, summed up, since no single
// element has them.
#include "reference/exact_attention.h"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Reduction.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/cumsum.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/smooth_l1_loss.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>

#include "reference/attention_rounding.h"
#include "reference/bridge.h"
#include "reference/device_attention.h"
#include "reference/rounding.h"
#include "reference/spread.h"
#include "src/stats/roundoff.h"

namespace lockstep {
namespace {

// Elements of the largest tensor that is made for a block of queries on a device: 128 MiB.
constexpr int64_t kDeviceBlock = 1 << 24;
// Queries of a block at most on a device, where each is computed with all keys that the last one
// sees, and on the CPU.
constexpr int64_t kTogetherOnDevice = 128, kTogether = 16;

// One entry per query head: [queries, kv heads, group] and, but for score and overlap, [..,
// head_dim]. What the contract does not need is undefined.
struct Attended {
  at::Tensor out, magnitude, spread, spread_squares, weighted_squares, score, overlap, ties,
      tie_squares;

  template <typename Visit>
  void visit(const Attended& other, Visit visit_both) {
    const auto both = [&](at::Tensor& a, const at::Tensor& b) {
      if (b.defined()) visit_both(a, b);
    };
    both(out, other.out), both(magnitude, other.magnitude), both(spread, other.spread);
    both(spread_squares, other.spread_squares), both(weighted_squares, other.weighted_squares);
    both(score, other.score), both(overlap, other.overlap);
    both(ties, other.ties), both(tie_squares, other.tie_squares);
  }
};

struct NearTies {
  at::Tensor step, chance;
};
NearTies near_ties(const at::Tensor& z, const at::Tensor& most, const at::Tensor& usual,
                   const Grid& grid) {
  NearTies ties;
  near_ties(z, most, usual, grid, ties.step, ties.chance);
  return ties;
}

// The result of `of` for each query: p [kv heads, group, queries, keys], v [kv heads, keys, dim], o
// [.., queries, dim]. It makes tensors of all keys by all dims: of all heads and queries at once
// where these are small, for the time then goes into launches, else of a head and some queries.
at::Tensor by_heads(const at::Tensor& p, const at::Tensor& v, const at::Tensor& o, auto of) {
  const int64_t elements = p.numel() * v.size(-1), heads = p.size(0), queries = p.size(2);
  if (elements <= kDeviceBlock || (heads == 1 && queries == 1)) return of(p, v, o);
  std::vector<at::Tensor> parts;
  if (heads > 1) {
    for (int64_t h = 0; h < heads; ++h) {
      const auto of_head = [h](const at::Tensor& x) { return x.narrow(0, h, 1); };
      parts.push_back(by_heads(of_head(p), of_head(v), of_head(o), of));
    }
    return at::cat(parts);
  }
  const int64_t some = std::max<int64_t>(1, kDeviceBlock / (elements / queries));
  for (int64_t first = 0; first < queries; first += some) {
    const int64_t count = std::min(some, queries - first);
    parts.push_back(of(p.narrow(2, first, count), v, o.narrow(2, first, count)));
  }
  return at::cat(parts, 2);
}

// sum p |v - o|, on a device. With a beta that is next to nothing this loss is |v - o|, in one pass
// over memory where a difference and its size are three.
at::Tensor spread_of(const at::Tensor& p, const at::Tensor& v, const at::Tensor& o) {
  const at::Tensor apart =
      at::smooth_l1_loss(v.unsqueeze(1).unsqueeze(1), o.unsqueeze(3), at::Reduction::None,
                         /*beta=*/std::numeric_limits<double>::min());
  return at::matmul(p.unsqueeze(3), apart).squeeze(3);
}

// Exact::overlap, of squares = sum p^2 v^2.
at::Tensor overlap_of(const at::Tensor& p, const at::Tensor& v, const at::Tensor& squares) {
  const at::Tensor roots = squares.sqrt().clamp_min(std::numeric_limits<double>::min());
  const at::Tensor a = p.unsqueeze(4) * v.unsqueeze(1).unsqueeze(1) / roots.unsqueeze(3);
  const int64_t keys = a.size(3), dim = a.size(4);
  const auto sum = [](const at::Tensor& x) { return x.sum({-2, -1}); };
  // Over all pairs of elements, from the lesser of the two matrices of products.
  const at::Tensor turned = a.transpose(3, 4), squared = a.square();
  const at::Tensor all = sum(at::matmul(keys < dim ? a : turned, keys < dim ? turned : a).square());
  const at::Tensor same = squared.sum(3).square().sum(3);  // an element with itself
  const at::Tensor one_key = squared.sum(4).square().sum(3) - sum(squared.square());
  return (all - same - 0.6 * one_key).clamp_min(0) / static_cast<double>(dim * (dim - 1));
}

// The weights of the keys, by the chain of a contract, and what a kernel that is right may have
// otherwise: where a score or a weight lies near the border of two numbers.
struct Weights {
  at::Tensor p;
  // Where scores are rounded, and undefined otherwise: p times how far a score may move, and of the
  // weights themselves; each with its chance.
  at::Tensor moved, moved_squares, step, step_squares;
};

// Rounds the weights, of scores that may be off by `most`, and usually are by `usual`, which change
// the sum that all weights are divided by too. A weight is exp(s - max) / sum, so -log p is the
// exponent's size, up to the logarithm of the sum: an exponential is off, relative, by its
// argument's rounding, |argument| u, beside some steps of u each.
void round_weights(Weights& w, const at::Tensor& most, const at::Tensor& usual, const Grid& grid) {
  constexpr double u = kAccumulatorRoundoff;
  const at::Tensor none = at::zeros({}, w.p.options());
  const at::Tensor below = at::where(w.p > 0, -w.p.log(), none);
  const auto with_sum = [&](const at::Tensor& off) {
    const at::Tensor of_keys = at::where(w.p > 0, off, none);
    return (w.p * of_keys).sum(-1, /*keepdim=*/true) + of_keys;
  };
  const NearTies of_p = near_ties(w.p, w.p * ((16 + 2 * below) * u + with_sum(most)),
                                  w.p * ((3 + 0.6 * below) * u + with_sum(usual)), grid);
  w.step = of_p.step;
  w.step_squares = of_p.chance * of_p.step.square();
  w.p = grid.rounded(w.p);
}

// raw: q k, before it is scaled; sizes: sum |q k|, for a budget alone; hidden: of masked keys, or
// undefined. All [.., keys].
Weights weights_of(const at::Tensor& raw, const at::Tensor& sizes, const at::Tensor& hidden,
                   int64_t head_dim, const AttentionCall& call) {
  const double scale = scale_of(head_dim, call.contract);
  const double never = -std::numeric_limits<double>::infinity();
  const auto softmax = [&](const at::Tensor& scores) {
    return at::softmax(hidden.defined() ? scores.masked_fill(hidden, never) : scores, -1);
  };
  // A dot product of head_dim terms in fp32 is off by a random walk, usually walk_of(width) u, and
  // kLambda sqrt(width) u at most but for a chance that the judge allows.
  constexpr double u = kAccumulatorRoundoff;
  const auto width = static_cast<double>(head_dim);
  if (call.contract == RoundingContract::operands_fp16) {
    Weights w{.p = softmax(raw * scale)};
    if (!call.for_budget) return {.p = Grid::of(DType::f16).rounded(w.p)};
    const at::Tensor size = sizes * scale;
    round_weights(w, size * (kLambda * std::sqrt(width) * u), size * (walk_of(width) * u),
                  Grid::of(DType::f16));
    return w;
  }
  if (!rounds_scores(call.contract)) return {.p = softmax(raw * scale)};

  const Grid grid = Grid::of(call.dtype);
  at::Tensor scores, moved, chance;
  round_scores(raw, sizes, head_dim, call, scores, moved, chance);
  Weights w{.p = softmax(scores)};
  if (!call.for_budget) return {.p = stores_weights(call.contract) ? grid.rounded(w.p) : w.p};
  w.moved = w.p * moved;
  w.moved_squares = chance * w.moved.square();
  if (!stores_weights(call.contract)) return w;
  round_weights(w, moved, moved / 3, grid);
  return w;
}

// The square of what rounding the sums over the keys so far to fp16 comes to: u^2 sum s_j^2, of
// keys that have a weight. A head at a time, for it has all keys by all dims.
at::Tensor rounded_sums(const at::Tensor& p, const at::Tensor& v) {
  const double u = unit_roundoff(DType::f16);
  std::vector<at::Tensor> heads;
  for (int64_t h = 0; h < p.size(0); ++h) {
    const at::Tensor of_keys = p[h].unsqueeze(-1);
    const at::Tensor sums = at::cumsum(of_keys * v[h], -2);
    // 2^-25: half the least number of fp16. A hidden key adds nothing, however many are beside it.
    heads.push_back(((u * sums).square().add(0x1p-50) * (of_keys > 0)).sum(-2));
  }
  return at::stack(heads);
}

// The weights that a rounding of fp16 is a share of u of: those under 2^-14, its least normal
// number, are rounded as that one is, but none by more than itself. Twice that, since weights of
// one or two of its least numbers are often alike, and then all off by half of one.
at::Tensor as_rounded(const at::Tensor& p) {
  return p.maximum((p / unit_roundoff(DType::f16)).clamp_max(0x1p-13));
}

// sum p^2 v^2 where roundings of weights are independent. Weights that are all nearly equal, from
// scores that scatter by less than 2^-6, are all rounded by the same share of themselves, up to u,
// and o is off by that share: as if these squares came to 4 o^2, of whose roundings 1/4 is the
// variance (src/judge/ops/attention.cc).
at::Tensor squares_of_alike(const at::Tensor& p, const at::Tensor& o, const at::Tensor& squares) {
  const auto sum = [](const at::Tensor& x) { return x.sum(-1, /*keepdim=*/true); };
  const at::Tensor keys = sum(p > 0), even = sum(p).square() / keys.clamp_min(1);
  const at::Tensor alike = (keys > 1) & (sum(p.square()) <= (1 + 0x1p-12) * even);
  return squares.maximum(4 * o.square() * alike);
}

// The part of Exact that follows from the weights: w and v broadcast like the arguments of matmul,
// [.., rows, keys] and [.., keys, dim].
Attended attend(const Weights& w, const at::Tensor& v, const at::Tensor& v_size,
                const at::Tensor& v_squared, const AttentionCall& call) {
  const RoundingContract contract = call.contract;
  Attended result;
  const at::Tensor p_squared = w.p.square();
  result.out = at::matmul(w.p, v);
  result.magnitude = at::matmul(w.p, v_size);
  result.weighted_squares = at::matmul(p_squared, v_squared);
  // sum p^2 (v - o)^2, with o as it is for each row.
  const at::Tensor &o = result.out, sum = p_squared.sum(-1, /*keepdim=*/true);
  // By its expansion, so that three products of matrices do: the difference may come out just below
  // zero where all v are equal.
  result.spread_squares =
      (result.weighted_squares - 2 * o * at::matmul(p_squared, v) + o.square() * sum).clamp_min(0);
  if (rounds_weights(contract) && call.dtype == DType::f16)
    result.weighted_squares = at::matmul(as_rounded(w.p).square(), v_squared);
  if (rounds_weights(contract))
    result.weighted_squares = squares_of_alike(w.p, o, result.weighted_squares);
  const auto add = [&](const at::Tensor& ties, const at::Tensor& squares) {
    result.ties = result.ties.defined() ? result.ties + ties : ties;
    result.tie_squares = result.tie_squares.defined() ? result.tie_squares + squares : squares;
  };
  // |v - o| <= |v| + |o|
  const auto total = [](const at::Tensor& x) { return x.sum(-1, /*keepdim=*/true); };
  if (w.moved.defined())
    // (a + b)^2 <= 2 a^2 + 2 b^2, for the part of v and that of o.
    add(at::matmul(w.moved, v_size) + o.abs() * total(w.moved),
        2 * (at::matmul(w.moved_squares, v_squared) + o.square() * total(w.moved_squares)));
  if (w.step.defined()) add(at::matmul(w.step, v_size), at::matmul(w.step_squares, v_squared));
  if (contract == RoundingContract::flash_fp16) {
    const at::Tensor squares = 2 * rounded_sums(w.p, v);
    add(0.6 * kLambda * squares.sqrt(), squares / 4);
  }
  return result;
}

// K and V and what their magnitudes are made of, once for all queries: [kv heads, keys, dim], each
// head's rows together.
struct KeysWithSizes {
  KeysWithSizes(const at::Tensor& k_, const at::Tensor& v_)
      : k(k_.contiguous()),
        v(v_.contiguous()),
        k_size(k.abs()),
        v_size(v.abs()),
        v_squared(v.square()) {}
  at::Tensor k, v, k_size, v_size, v_squared;

  KeysWithSizes of(KeyRange range) const {
    KeysWithSizes some = *this;
    for (at::Tensor* x : {&some.k, &some.v, &some.k_size, &some.v_size, &some.v_squared})
      *x = x->narrow(1, range.begin, range.end - range.begin);
    return some;
  }
};

// One query over just the keys that it sees: no mask. [kv heads, group, ...] throughout.
Attended attend_one(const at::Tensor& q, const KeysWithSizes& seen, const AttentionCall& call) {
  const at::Tensor raw = at::bmm(q, seen.k.transpose(1, 2));
  if (!call.for_budget)
    return {.out = at::matmul(weights_of(raw, {}, {}, q.size(-1), call).p, seen.v)};
  const at::Tensor sizes = at::bmm(q.abs(), seen.k_size.transpose(1, 2));
  const Weights w = weights_of(raw, sizes, {}, q.size(-1), call);
  Attended result = attend(w, seen.v, seen.v_size, seen.v_squared, call);
  result.score = sizes.amax(-1) * scale_of(q.size(-1), call.contract);
  result.spread = at::empty_like(result.out);
  if (q.is_cpu())
    sum_spread(w.p, seen.v, result.out, result.spread);
  else
    result.spread =
        by_heads(w.p.unsqueeze(2), seen.v, result.out.unsqueeze(2), spread_of).squeeze(2);
  if (rounds_weights(call.contract))
    result.overlap =
        by_heads(w.p.unsqueeze(2), seen.v, result.weighted_squares.unsqueeze(2), overlap_of)
            .squeeze(2);
  return result;
}

// Many queries at once, hidden keys masked: q [queries, ...], hidden [queries, keys]. For K and V
// that are all finite: a weight of 0 does not hide a NaN. Not so in attend_one, which reads no
// hidden key.
Attended attend_masked(const at::Tensor& q, const KeysWithSizes& part, const at::Tensor& hidden,
                       const AttentionCall& call) {
  const int64_t n = q.size(0), kv = q.size(1), group = q.size(2);
  const at::Tensor queries = q.permute({1, 2, 0, 3}).flatten(1, 2), keys = part.k.transpose(1, 2);
  const auto by_query = [&](const at::Tensor& x) { return x.view({kv, group, n, -1}); };
  const at::Tensor raw = by_query(at::bmm(queries, keys));
  if (!call.for_budget) {
    const at::Tensor p = weights_of(raw, {}, hidden, q.size(-1), call).p.flatten(1, 2);
    return {.out = by_query(at::matmul(p, part.v)).permute({2, 0, 1, 3})};
  }
  const at::Tensor sizes = by_query(at::bmm(queries.abs(), part.k_size.transpose(1, 2)));
  Weights w = weights_of(raw, sizes, hidden, q.size(-1), call);
  const at::Tensor by_head = w.p;
  for (at::Tensor* x : {&w.p, &w.moved, &w.moved_squares, &w.step, &w.step_squares})
    if (x->defined()) *x = x->flatten(1, 2);
  Attended result = attend(w, part.v, part.v_size, part.v_squared, call);
  if (q.is_cpu()) {
    result.spread = at::empty_like(result.out);
    sum_spread(w.p, part.v, result.out, result.spread);
  }
  Attended shaped;
  shaped.visit(result, [&](at::Tensor& to, const at::Tensor& from) { to = by_query(from); });
  shaped.score = sizes.masked_fill(hidden, 0).amax(-1) * scale_of(q.size(-1), call.contract);
  if (!q.is_cpu()) shaped.spread = by_heads(by_head, part.v, shaped.out, spread_of);
  if (rounds_weights(call.contract))
    shaped.overlap = by_heads(by_head, part.v, shaped.weighted_squares, overlap_of);
  result = {};
  result.visit(shaped, [&](at::Tensor& to, const at::Tensor& from) {
    to = from.dim() == 4 ? from.permute({2, 0, 1, 3}) : from.permute({2, 0, 1});
  });
  return result;
}

// The keys that any of some queries sees, and which of them each does not.
struct SeenKeys {
  KeyRange range;
  at::Tensor hidden;  // [queries, keys]
};
SeenKeys seen_by(std::span<const KeyRange> queries, const at::Device& device) {
  KeyRange range = queries.front();
  std::vector<int64_t> begins, ends;
  for (const KeyRange& of : queries) {
    range = {std::min(range.begin, of.begin), std::max(range.end, of.end)};
    begins.push_back(of.begin), ends.push_back(of.end);
  }
  const auto column = [&](const std::vector<int64_t>& x) {
    return at::tensor(x).unsqueeze(1).to(device);
  };
  const at::Tensor last = column(ends);
  const at::Tensor key = at::arange(range.begin, range.end, last.options());
  return {range, (key < column(begins)) | (key >= last)};
}

// Puts what some queries came to where it belongs: the first of them is query `first`.
void put_some(const Attended& some, int64_t first, int64_t count, Attended& all) {
  all.visit(some, [&](at::Tensor& to, const at::Tensor& from) {
    to.narrow(0, first, count).copy_(from);
  });
}

// Contracts under which a block would hold all keys by all dims.
bool holds_keys_by_dims(const AttentionCall& call) {
  return call.for_budget &&
         (rounds_weights(call.contract) || call.contract == RoundingContract::flash_fp16);
}

// Takes as many queries at once as a tensor of their scores has room for, or of all keys by all
// dims where the contract needs that, and hides the keys that one of them does not see behind a
// mask. For a device, where launches cost more than arithmetic.
void attend_on_device(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                      std::span<const KeyRange> seen, const AttentionCall& call, Attended& all) {
  const int64_t queries = q.size(0), group = q.size(2), heads = q.size(1) * group;
  // There are some eight tensors of scores at once.
  const int64_t widest = holds_keys_by_dims(call) ? std::max(heads, group * q.size(3)) : 4 * heads;
  for (int64_t first = 0, count = 0; first < queries; first += count) {
    const std::span from = seen.subspan(first);
    // Keys grow along a prompt: those of the last query that may join bound the block's size.
    const int64_t most = std::min(queries - first, kTogetherOnDevice);
    const KeyRange widest_range = seen_by(from.first(most), q.device()).range;
    count = std::clamp<int64_t>(kDeviceBlock / ((widest_range.end - widest_range.begin) * widest),
                                1, most);
    const SeenKeys keys = seen_by(from.first(count), q.device());
    const auto part = [&](const at::Tensor& x) {
      return x.narrow(1, keys.range.begin, keys.range.end - keys.range.begin);
    };
    put_some(attend_masked(q.narrow(0, first, count), {part(k), part(v)}, keys.hidden, call), first,
             count, all);
  }
}

// On the CPU some queries at once, or one where a hidden key may hold what is no number.
void attend_in_threads(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                       std::span<const KeyRange> seen, int64_t together, const AttentionCall& call,
                       Attended& all) {
  const double work = 4.0 * static_cast<double>(q.numel()) * static_cast<double>(k.size(1));
  const Threads threads(q.is_cpu() ? work : 0, call.threads);
  const KeysWithSizes keys(k, v);
  const int64_t queries = q.size(0);
  // Each block fills its own rows of the result, in whatever order.
  at::parallel_for(0, (queries + together - 1) / together, 1, [&](int64_t begin, int64_t end) {
    // MKL, which works alone in here, orders its sums by how many threads it might have.
    at::set_num_threads(1);
    for (int64_t first = begin * together; first < std::min(end * together, queries);
         first += together) {
      const int64_t count = std::min(together, queries - first);
      if (count == 1) {
        all.visit(attend_one(q[first], keys.of(seen[first]), call),
                  [first](at::Tensor& to, const at::Tensor& from) { to[first].copy_(from); });
        continue;
      }
      const SeenKeys some = seen_by(seen.subspan(first, count), q.device());
      put_some(attend_masked(q.narrow(0, first, count), keys.of(some.range), some.hidden, call),
               first, count, all);
    }
  });
}

}  // namespace

Exact exact_attention(const at::Tensor& query, const at::Tensor& keys, const at::Tensor& values,
                      const std::vector<KeyRange>& seen, const AttentionCall& call) {
  const at::Tensor q = rounded_query(query, call);
  const at::Tensor k = rounded_cache(keys, call), v = rounded_cache(values, call);
  const auto like_q = [&] { return at::empty_like(q, at::MemoryFormat::Contiguous); };
  const auto one_a_head = [&] { return at::empty({q.size(0), q.size(1), q.size(2)}, q.options()); };
  Attended all{.out = like_q()};
  if (call.for_budget) {
    for (at::Tensor* x : {&all.magnitude, &all.spread, &all.spread_squares, &all.weighted_squares})
      *x = like_q();
    all.score = one_a_head();
    if (rounds_weights(call.contract)) all.overlap = one_a_head();
    if (has_ties(call.contract)) all.ties = like_q(), all.tie_squares = like_q();
  }
  // The one that hides keys behind a mask would let NaN and Inf through: 0 * Inf is NaN.
  const bool finite = (k.isfinite().all() & v.isfinite().all()).item<bool>();
  if (finite && has_kernels_for(q, call))
    attend_in_kernels(
        q, k, v, seen, scale_of(q.size(-1), call.contract),
        {all.out, all.magnitude, all.spread, all.spread_squares, all.weighted_squares, all.score});
  else if (!q.is_cpu() && finite)
    attend_on_device(q, k, v, seen, call, all);
  else
    attend_in_threads(q, k, v, seen, finite && !holds_keys_by_dims(call) ? kTogether : 1, call,
                      all);
  Exact result{.contract = call.contract, .want = held_numbers(all.out)};
  if (!call.for_budget) return result;
  std::vector<double> terms;
  for (const KeyRange& range : seen) terms.push_back(static_cast<double>(range.end - range.begin));
  result.row_terms = std::move(terms);
  result.magnitude = held_numbers(all.magnitude);
  result.spread = held_numbers(all.spread);
  result.spread_squares = held_numbers(all.spread_squares);
  result.score = held_numbers(all.score);
  result.weighted_squares = held_numbers(all.weighted_squares);
  if (all.overlap.defined()) result.overlap = held_numbers(all.overlap);
  if (!all.ties.defined()) return result;
  result.ties = held_numbers(all.ties);
  result.tie_squares = held_numbers(all.tie_squares);
  return result;
}

}  // namespace lockstep
