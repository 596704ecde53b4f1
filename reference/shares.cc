// A share is computed for the queries that see a key of it; what the others have of it is put in
// beforehand.
#include "reference/shares.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/base/check.h"
#include "reference/bridge.h"
#include "src/judge/contracts.h"

namespace lockstep {
namespace {

constexpr double kNever = -std::numeric_limits<double>::infinity();
// Scores that are held at once.
constexpr int64_t kMostScores = 1 << 22;

// The queries that see keys of one share, and which keys.
struct Share {
  std::vector<int64_t> rows;
  std::vector<KeyRange> seen;
};

Share share_of(const std::vector<KeyRange>& seen, int64_t begin, int64_t end) {
  Share share;
  for (size_t row = 0; row < seen.size(); ++row) {
    const KeyRange keys = {std::max(begin, seen[row].begin), std::min(end, seen[row].end)};
    if (keys.begin >= keys.end) continue;
    share.rows.push_back(static_cast<int64_t>(row));
    share.seen.push_back(keys);
  }
  return share;
}

// The logarithms and the largest scores of some queries, [queries, kv heads, group] each.
struct Logarithms {
  at::Tensor lse, score;
};

// q [queries, kv heads, group, head_dim], of which query i sees the keys seen[i].
Logarithms logarithms(const at::Tensor& q, const at::Tensor& k, std::span<const KeyRange> seen) {
  const int64_t n = q.size(0), kv = q.size(1), group = q.size(2);
  const double scale = 1 / std::sqrt(static_cast<double>(q.size(3)));
  int64_t first = seen[0].begin, last = seen[0].end;
  std::vector<int64_t> begins, ends;
  for (const KeyRange& keys : seen) {
    first = std::min(first, keys.begin), last = std::max(last, keys.end);
    begins.push_back(keys.begin), ends.push_back(keys.end);
  }
  const auto column = [&](const std::vector<int64_t>& x) {
    return at::tensor(x).unsqueeze(1).to(q.device());
  };
  const at::Tensor begin = column(begins), key = at::arange(first, last, begin.options());
  const at::Tensor hidden = (key < begin) | (key >= column(ends));
  const at::Tensor queries = q.permute({1, 2, 0, 3}).flatten(1, 2);
  const at::Tensor keys = k.narrow(1, first, last - first).transpose(1, 2);
  const auto by_query = [&](const at::Tensor& x) { return x.view({kv, group, n, -1}) * scale; };
  const at::Tensor scores = by_query(at::bmm(queries, keys)).masked_fill(hidden, kNever);
  const at::Tensor sizes = by_query(at::bmm(queries.abs(), keys.abs())).masked_fill(hidden, 0);
  return {at::logsumexp(scores, -1).permute({2, 0, 1}), sizes.amax(-1).permute({2, 0, 1})};
}

// Puts rows of one share, of [queries, ...], into their places of [rows, shares, ...].
void put(const at::Tensor& all, int64_t share, const at::Tensor& rows, const at::Tensor& some) {
  all.select(1, share).index_copy_(0, rows, some);
}

Exact log_sum_exps(const at::Tensor& q, const at::Tensor& k, const std::vector<Share>& shares) {
  const int64_t heads = q.size(1) * q.size(2), count = std::ssize(shares);
  const at::Tensor lse = at::full({q.size(0), count, q.size(1), q.size(2)}, kNever, q.options());
  const at::Tensor score = at::zeros(lse.sizes(), q.options());
  for (int64_t s = 0; s < count; ++s) {
    const auto& [rows, seen] = shares[s];
    int64_t most = 1;
    for (const KeyRange& keys : seen) most = std::max(most, keys.end - keys.begin);
    const int64_t some = std::max<int64_t>(1, kMostScores / (heads * most));
    for (int64_t first = 0; first < std::ssize(rows); first += some) {
      const auto n = std::min(some, std::ssize(rows) - first);
      const at::Tensor index =
          at::tensor(std::vector(rows.begin() + first, rows.begin() + first + n)).to(q.device());
      const Logarithms of =
          logarithms(q.index_select(0, index), k, std::span(seen).subspan(first, n));
      put(lse, s, index, of.lse);
      put(score, s, index, of.score);
    }
  }
  Exact exact{
      .shape = {q.size(0), count, heads}, .want = held_numbers(lse.flatten(2)), .terms = q.size(3)};
  exact.score = held_numbers(score.flatten(2));
  return exact;
}

Exact partials(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
               const std::vector<Share>& shares, const AttentionCall& call) {
  const int64_t count = std::ssize(shares), heads = q.size(1) * q.size(2);
  constexpr Numbers Exact::*kFields[] = {
      &Exact::want,           &Exact::magnitude,        &Exact::spread,
      &Exact::spread_squares, &Exact::weighted_squares, &Exact::score};
  std::vector<at::Tensor> all;
  for (const auto field : kFields) {
    std::vector<int64_t> sizes = {q.size(0), count, q.size(1), q.size(2)};
    if (field != &Exact::score) sizes.push_back(q.size(3));
    all.push_back(at::zeros(sizes, q.options()));
  }
  for (int64_t s = 0; s < count; ++s) {
    if (shares[s].rows.empty()) continue;
    const at::Tensor index = at::tensor(shares[s].rows).to(q.device());
    const Exact some = exact_attention(q.index_select(0, index), k, v, shares[s].seen, call);
    for (size_t f = 0; f < all.size(); ++f)
      if (!(some.*kFields[f]).empty()) put(all[f], s, index, tensor_of(some.*kFields[f]));
  }
  Exact exact{.contract = call.contract, .shape = {q.size(0), count, heads, q.size(3)}};
  for (size_t f = 0; f < all.size(); ++f)
    if (f == 0 || call.for_budget) exact.*kFields[f] = held_numbers(all[f].contiguous());
  return exact;
}

}  // namespace

Exact exact_shares(bool is_partial, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                   const std::vector<KeyRange>& seen, std::span<const int64_t> begins,
                   const AttentionCall& call) {
  check(begins.size() > 1, "attention in shares reads where each of them begins, found {} of them",
        begins.size());
  std::vector<Share> shares;
  for (size_t s = 0; s + 1 < begins.size(); ++s)
    shares.push_back(share_of(seen, begins[s], begins[s + 1]));
  Exact exact = is_partial ? partials(q, k, v, shares, call) : log_sum_exps(q, k, shares);
  if (!call.for_budget) return exact;
  std::vector<double> terms(seen.size() * shares.size());
  for (size_t s = 0; s < shares.size(); ++s)
    for (size_t i = 0; i < shares[s].rows.size(); ++i)
      terms[static_cast<size_t>(shares[s].rows[i]) * shares.size() + s] =
          static_cast<double>(shares[s].seen[i].end - shares[s].seen[i].begin);
  exact.row_terms = std::move(terms);
  return exact;
}

Exact exact_merge(const at::Tensor& partial, const at::Tensor& lse, RoundingContract contract) {
  check(partial.dim() == 4 && lse.sizes() == partial.sizes().slice(0, 3),
        "attention is merged of attn.partial, [token, share, head, dim], and attn.lse, [token, "
        "share, head], found {} and {}",
        shape_of(partial).text(), shape_of(lse).text());
  const at::Tensor none = at::zeros({}, lse.options());
  const at::Tensor empty = lse == kNever;
  // An empty share weighs nothing, whatever its partial result holds.
  const at::Tensor values = at::where(empty.unsqueeze(-1), none, partial);
  const at::Tensor most = lse.amax(1, /*keepdim=*/true);
  const at::Tensor weights = at::where(empty, none, (lse - most).exp());
  const at::Tensor sum = weights.sum(1, /*keepdim=*/true);
  const at::Tensor p = at::where(sum == 0, none, weights / sum).unsqueeze(-1);
  const at::Tensor out = (p * values).sum(1), apart = values - out.unsqueeze(1);
  Exact exact{.contract = contract, .shape = shape_of(out), .want = held_numbers(out)};
  exact.magnitude = held_numbers((p * values.abs()).sum(1));
  exact.spread = held_numbers((p * apart.abs()).sum(1));
  exact.spread_squares = held_numbers((p * apart).square().sum(1));
  exact.weighted_squares = held_numbers((p * values).square().sum(1));
  const at::Tensor score =
      at::where(empty, none, lse.abs()).amax(1) / std::sqrt(static_cast<double>(partial.size(3)));
  exact.score = held_numbers(score);
  if (rounds_weights(contract))
    exact.overlap = held_numbers(at::zeros(score.sizes(), score.options()));
  exact.row_terms = std::vector<double>(static_cast<size_t>(partial.size(0)),
                                        static_cast<double>(partial.size(1)));
  return exact;
}

}  // namespace lockstep
