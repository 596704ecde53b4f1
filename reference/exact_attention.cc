#include "reference/exact_attention.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "reference/bridge.h"

namespace lockstep {
namespace {

// Elements of the largest tensor that is made for a block of queries on a device: 128 MiB.
constexpr int64_t kDeviceBlock = 1 << 24;

// One entry per query head: [queries, kv heads, group] and, but for score and overlap, [..,
// head_dim]. overlap: undefined where it was not asked for.
struct Attended {
  at::Tensor out, magnitude, spread, score, weighted_squares, overlap;
};

double scale_of(const at::Tensor& q) { return 1 / std::sqrt(static_cast<double>(q.size(-1))); }

// What `of` makes of each query: p [kv heads, group, queries, keys], v [kv heads, keys, dim], o
// [.., queries, dim]. All heads at once where that is little, for the time then goes into launches.
at::Tensor by_heads(const at::Tensor& p, const at::Tensor& v, const at::Tensor& o, auto of) {
  if (p.size(0) == 1 || p.numel() * v.size(-1) <= kDeviceBlock) return of(p, v, o);
  std::vector<at::Tensor> heads;
  for (int64_t h = 0; h < p.size(0); ++h) {
    const auto of_head = [h](const at::Tensor& x) { return x.narrow(0, h, 1); };
    heads.push_back(of(of_head(p), of_head(v), of_head(o)));
  }
  return at::cat(heads);
}

// sum p |v - o|
at::Tensor spread_of(const at::Tensor& p, const at::Tensor& v, const at::Tensor& o) {
  const at::Tensor apart = (v.unsqueeze(1).unsqueeze(1) - o.unsqueeze(3)).abs_();
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
};

// One query over just the keys that it sees: no mask. [kv heads, group, ...] throughout.
Attended attend_one(const at::Tensor& q, const KeysWithSizes& all, KeyRange range, bool overlap) {
  const auto seen = [&](const at::Tensor& x) {
    return x.narrow(1, range.begin, range.end - range.begin);
  };
  const at::Tensor v = seen(all.v);
  const at::Tensor p = at::softmax(at::bmm(q, seen(all.k).transpose(1, 2)) * scale_of(q), -1);
  Attended result;
  result.out = at::bmm(p, v);
  result.magnitude = at::bmm(p, seen(all.v_size));
  result.weighted_squares = at::bmm(p.square(), seen(all.v_squared));
  result.score = at::bmm(q.abs(), seen(all.k_size).transpose(1, 2)).amax(-1) * scale_of(q);
  result.spread = at::empty_like(result.out);
  for (int64_t g = 0; g < q.size(1); ++g) {
    const auto of_head = [g](const at::Tensor& t) { return t.narrow(1, g, 1); };
    of_head(result.spread).copy_(at::bmm(of_head(p), (v - of_head(result.out)).abs_()));
  }
  if (overlap)
    result.overlap =
        by_heads(p.unsqueeze(2), v, result.weighted_squares.unsqueeze(2), overlap_of).squeeze(2);
  return result;
}

// Many queries at once, hidden keys masked: q [queries, ...], hidden [queries, keys]. For K and V
// that are all finite: a weight of 0 does not hide a NaN.
Attended attend_masked(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                       const at::Tensor& hidden, bool overlap) {
  const int64_t n = q.size(0), kv = q.size(1), group = q.size(2);
  const at::Tensor queries = q.permute({1, 2, 0, 3}).flatten(1, 2), keys = k.transpose(1, 2);
  const auto by_query = [&](const at::Tensor& x) { return x.view({kv, group, n, -1}); };
  const at::Tensor scores = by_query(at::bmm(queries, keys).mul_(scale_of(q)));
  const double never = -std::numeric_limits<double>::infinity();
  const at::Tensor p = at::softmax(scores.masked_fill_(hidden, never), -1).flatten(1, 2);
  const at::Tensor sizes = by_query(at::bmm(queries.abs(), keys.abs()));
  Attended result;
  result.score = sizes.masked_fill_(hidden, 0).amax(-1) * scale_of(q);
  result.out = by_query(at::bmm(p, v));
  result.magnitude = by_query(at::bmm(p, v.abs()));
  result.weighted_squares = by_query(at::bmm(p.square(), v.square()));
  result.spread = by_heads(by_query(p), v, result.out, spread_of);
  if (overlap)
    result.overlap =
        by_heads(by_query(p), v, result.weighted_squares, overlap_of).permute({2, 0, 1});
  for (at::Tensor* x : {&result.out, &result.magnitude, &result.spread, &result.weighted_squares})
    *x = x->permute({2, 0, 1, 3});
  result.score = result.score.permute({2, 0, 1});
  return result;
}

void put(const Attended& all, int64_t first, int64_t count, const Attended& part) {
  const auto into = [&](const at::Tensor& to, const at::Tensor& from) {
    to.narrow(0, first, count).copy_(from);
  };
  into(all.out, part.out);
  into(all.magnitude, part.magnitude);
  into(all.spread, part.spread);
  into(all.score, part.score);
  into(all.weighted_squares, part.weighted_squares);
  if (all.overlap.defined()) into(all.overlap, part.overlap);
}

void attend_in_blocks(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                      const std::vector<KeyRange>& seen, const Attended& all) {
  const int64_t queries = q.size(0);
  const int64_t group = q.size(2), widest = std::max(q.size(1) * group, group * q.size(3));
  for (int64_t first = 0, count = 0; first < queries; first += count) {
    const auto from = seen.begin() + first;
    // Keys grow along a prompt: those of the last query that may join bound the block's size.
    const int64_t most = std::min<int64_t>(queries - first, 512);
    int64_t begin = from->begin, end = 0;
    for (auto range = from; range != from + most; ++range) {
      begin = std::min(begin, range->begin);
      end = std::max(end, range->end);
    }
    count = std::clamp<int64_t>(kDeviceBlock / ((end - begin) * widest), 1, most);
    std::vector<int64_t> begins, ends;
    for (auto range = from; range != from + count; ++range) {
      begins.push_back(range->begin);
      ends.push_back(range->end);
    }
    const auto column = [&](const std::vector<int64_t>& x) {
      return at::tensor(x).unsqueeze(1).to(q.device());
    };
    const at::Tensor key = at::arange(begin, end, column(ends).options());
    const auto part = [&](const at::Tensor& x) { return x.narrow(1, begin, end - begin); };
    put(all, first, count,
        attend_masked(q.narrow(0, first, count), part(k), part(v),
                      (key < column(begins)) | (key >= column(ends)), all.overlap.defined()));
  }
}

void attend_one_by_one(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                       const std::vector<KeyRange>& seen, int most_threads, const Attended& all) {
  const double work = 4.0 * static_cast<double>(q.numel()) * static_cast<double>(k.size(1));
  const Threads threads(q.is_cpu() ? work : 0, most_threads);
  const KeysWithSizes keys(k, v);
  at::parallel_for(0, q.size(0), 1, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      const Attended one =
          attend_one(q[t], keys, seen[static_cast<size_t>(t)], all.overlap.defined());
      all.out[t].copy_(one.out);
      all.magnitude[t].copy_(one.magnitude);
      all.spread[t].copy_(one.spread);
      all.score[t].copy_(one.score);
      all.weighted_squares[t].copy_(one.weighted_squares);
      if (all.overlap.defined()) all.overlap[t].copy_(one.overlap);
    }
  });
}

}  // namespace

Exact exact_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                      const std::vector<KeyRange>& seen, bool overlap, int threads) {
  const auto like_q = [&] { return at::empty_like(q, at::MemoryFormat::Contiguous); };
  const auto one_a_head = [&] { return at::empty({q.size(0), q.size(1), q.size(2)}, q.options()); };
  const Attended all{like_q(),     like_q(), like_q(),
                     one_a_head(), like_q(), overlap ? one_a_head() : at::Tensor()};
  if (!q.is_cpu() && (k.isfinite().all() & v.isfinite().all()).item<bool>())
    attend_in_blocks(q, k, v, seen, all);
  else
    attend_one_by_one(q, k, v, seen, threads, all);
  Exact result{.want = to_numbers(all.out)};
  std::vector<double> keys;
  for (const KeyRange& range : seen) keys.push_back(static_cast<double>(range.end - range.begin));
  result.row_terms = std::move(keys);
  result.magnitude = to_numbers(all.magnitude);
  result.spread = to_numbers(all.spread);
  result.score = to_numbers(all.score);
  result.weighted_squares = to_numbers(all.weighted_squares);
  if (overlap) result.overlap = to_numbers(all.overlap);
  return result;
}

}  // namespace lockstep
