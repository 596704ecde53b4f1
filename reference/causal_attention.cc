// LibTorch's formula in single ops passes some nine times over all scores, which is what takes the
// time, and copies K and V for every query head: it adds a mask of all keys, and looks for rows
// that are all hidden. Here a score is written by the product, read and written by a softmax in
// place, and read by the second product; keys are hidden where a block of queries meets the
// diagonal.
#include "reference/causal_attention.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/_softmax.h>
#include <ATen/ops/baddbmm.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace lockstep {
namespace {

// scores [.., queries, keys], of which the last query sees the last key: two triangles are hidden,
// of keys that come after a query and of those that its window has left behind.
void hide_unseen(const at::Tensor& scores, int64_t window) {
  const int64_t queries = scores.size(-2), keys = scores.size(-1);
  const auto hide = [&](int64_t first, const at::Tensor& hidden) {
    scores.narrow(-1, first, hidden.size(1))
        .masked_fill_(hidden, -std::numeric_limits<double>::infinity());
  };
  const auto all = [&](int64_t count) {
    return at::ones({queries, count}, scores.options().dtype(at::kBool));
  };
  if (queries > 1) hide(keys - queries, all(queries).triu(1));
  // The last query does not see that many keys any more.
  const int64_t behind = window == 0 ? 0 : keys - window;
  if (behind > 0) hide(0, all(behind).tril(behind - queries));
}

// Each query sees a key, its own, so that no row of scores is all hidden.
void softmax_in_place(at::Tensor& scores) {
  at::_softmax_out(scores, scores, /*dim=*/-1, /*half_to_float=*/false);
}

// Query heads of one K/V head are rows of one product, so that K and V are read where they lie.
at::Tensor attend_by_groups(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                            int64_t window) {
  const int64_t queries = q.size(0), dim = q.size(2), kv = k.size(1), group = q.size(1) / kv;
  // Keys that no window of these queries reaches are not computed.
  const int64_t first = window == 0 ? 0 : std::max<int64_t>(0, k.size(0) - queries - window + 1);
  const int64_t keys = k.size(0) - first;
  const auto by_head = [&](const at::Tensor& x) {
    return x.narrow(0, first, keys).transpose(0, 1);
  };
  const at::Tensor grouped =
      q.view({queries, kv, group, dim}).permute({1, 2, 0, 3}).reshape({kv, -1, dim});
  at::Tensor scores = at::empty({kv, group * queries, keys}, q.options());
  at::baddbmm_out(scores, scores, grouped, by_head(k).transpose(1, 2), /*beta=*/0,
                  /*alpha=*/1 / std::sqrt(dim));
  hide_unseen(scores.view({kv, group, queries, keys}), window);
  softmax_in_place(scores);
  const at::Tensor y = at::bmm(scores, by_head(v));
  return y.view({kv, group, queries, dim}).permute({2, 0, 1, 3}).reshape_as(q);
}

// LibTorch's own formula, bit by bit: q and k each scaled by the root of the scale, a product a
// query head over all keys. What it does beside that changes no bit where no row is all hidden.
at::Tensor attend_by_heads(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                           int64_t window) {
  const int64_t group = q.size(1) / k.size(1);
  const double root = std::sqrt(1 / std::sqrt(q.size(2)));
  const auto by_head = [&](const at::Tensor& x) {
    const at::Tensor heads = x.transpose(0, 1);
    return group == 1 ? heads : heads.repeat_interleave(group, 0);
  };
  at::Tensor scores = at::bmm(q.transpose(0, 1) * root, by_head(k).transpose(1, 2) * root);
  hide_unseen(scores, window);
  softmax_in_place(scores);
  return at::bmm(scores, by_head(v)).transpose(0, 1);
}

}  // namespace

// Another order of sums is nothing in fp64, while the model in fp32 rounds as LibTorch does.
at::Tensor causal_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                            int64_t window) {
  return q.scalar_type() == at::kDouble ? attend_by_groups(q, k, v, window)
                                        : attend_by_heads(q, k, v, window);
}

// A block's keys end where its queries do, so that whole blocks of 32 keep each row of scores at an
// aligned address: on a device attention takes a fifth less time. In fp32 another block would have
// other bits.
int64_t queries_at_once(const at::Tensor& q, int64_t room) {
  constexpr int64_t kAligned = 32;
  const bool free = q.scalar_type() == at::kDouble && room > kAligned;
  return free ? room - room % kAligned : room;
}

}  // namespace lockstep
