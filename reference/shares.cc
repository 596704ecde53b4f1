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
#include <ATen/ops/softmax.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/base/check.h"
#include "reference/attention_rounding.h"
#include "reference/bridge.h"
#include "src/judge/contracts.h"
#include "src/stats/roundoff.h"

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

// The logarithms of the sums of some queries, and what their budget needs, [queries, kv heads,
// group] each: undefined where the contract does not need it.
struct Logarithms {
  at::Tensor lse, score;
  at::Tensor squares;            // sum p^2, of the weights p
  at::Tensor ties, tie_squares;  // what scores that are rounded the other way move lse by

  void visit(const Logarithms& other, auto both) {
    both(lse, other.lse), both(score, other.score), both(squares, other.squares);
    both(ties, other.ties), both(tie_squares, other.tie_squares);
  }
};

// q [queries, kv heads, group, head_dim], of which query i sees the keys seen[i]; both as the
// contract multiplies them. Weights that are stored do not show: they are divided before that.
Logarithms logarithms(const at::Tensor& q, const at::Tensor& k, std::span<const KeyRange> seen,
                      const AttentionCall& call) {
  const int64_t n = q.size(0), kv = q.size(1), group = q.size(2);
  const double scale = scale_of(q.size(3), call.contract);
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
  const auto by_query = [&](const at::Tensor& x) { return x.view({kv, group, n, -1}); };
  const auto of_queries = [](const at::Tensor& x) { return x.permute({2, 0, 1}); };
  const at::Tensor raw = by_query(at::bmm(queries, keys));
  const at::Tensor sizes = by_query(at::bmm(queries.abs(), keys.abs()));
  at::Tensor scores = raw * scale, moved, chance;
  if (rounds_scores(call.contract))
    round_scores(raw, sizes, q.size(3), call, scores, moved, chance);
  const at::Tensor seen_scores = scores.masked_fill(hidden, kNever);
  Logarithms of{.lse = of_queries(at::logsumexp(seen_scores, -1)),
                .score = of_queries((sizes * scale).masked_fill(hidden, 0).amax(-1))};
  if (!call.for_budget || (!moved.defined() && !rounds_weights(call.contract))) return of;
  const at::Tensor p = at::softmax(seen_scores, -1);
  if (rounds_weights(call.contract)) of.squares = of_queries(p.square().sum(-1));
  if (!moved.defined()) return of;
  const at::Tensor by_key = (p * moved.expm1()).masked_fill(hidden, 0);
  of.ties = of_queries(by_key.sum(-1));
  of.tie_squares = of_queries((chance.masked_fill(hidden, 0) * by_key.square()).sum(-1));
  return of;
}

// Puts rows of one share, of [queries, ...], into their places of [rows, shares, ...].
void put(const at::Tensor& all, int64_t share, const at::Tensor& rows, const at::Tensor& some) {
  all.select(1, share).index_copy_(0, rows, some);
}

Exact log_sum_exps(const at::Tensor& query, const at::Tensor& keys,
                   const std::vector<Share>& shares, const AttentionCall& call) {
  const at::Tensor q = rounded_query(query, call), k = rounded_cache(keys, call);
  const int64_t heads = q.size(1) * q.size(2), count = std::ssize(shares);
  Logarithms all{.lse = at::full({q.size(0), count, q.size(1), q.size(2)}, kNever, q.options())};
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
          logarithms(q.index_select(0, index), k, std::span(seen).subspan(first, n), call);
      all.visit(of, [&](at::Tensor& to, const at::Tensor& from) {
        if (!from.defined()) return;
        if (!to.defined()) to = at::zeros(all.lse.sizes(), q.options());
        put(to, s, index, from);
      });
    }
  }
  const auto numbers = [](const at::Tensor& x) {
    return x.defined() ? held_numbers(x.flatten(2)) : Numbers();
  };
  return {.contract = call.contract,
          .shape = {q.size(0), count, heads},
          .want = numbers(all.lse),
          .terms = q.size(3),
          .weighted_squares = numbers(all.squares),
          .score = numbers(all.score),
          .ties = numbers(all.ties),
          .tie_squares = numbers(all.tie_squares)};
}

Exact partials(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
               const std::vector<Share>& shares, const AttentionCall& call) {
  const int64_t count = std::ssize(shares), heads = q.size(1) * q.size(2);
  // Some contracts have no use for the last ones, and then no share has them.
  constexpr Numbers Exact::*kFields[] = {&Exact::want,
                                         &Exact::magnitude,
                                         &Exact::spread,
                                         &Exact::spread_squares,
                                         &Exact::weighted_squares,
                                         &Exact::score,
                                         &Exact::overlap,
                                         &Exact::ties,
                                         &Exact::tie_squares};
  std::vector<at::Tensor> all(std::size(kFields));
  all[0] = at::zeros({q.size(0), count, q.size(1), q.size(2), q.size(3)}, q.options());
  for (int64_t s = 0; s < count; ++s) {
    if (shares[s].rows.empty()) continue;
    const at::Tensor index = at::tensor(shares[s].rows).to(q.device());
    const Exact some = exact_attention(q.index_select(0, index), k, v, shares[s].seen, call);
    for (size_t f = 0; f < all.size(); ++f) {
      if ((some.*kFields[f]).empty()) continue;
      const at::Tensor& of_share = tensor_of(some.*kFields[f]);
      if (!all[f].defined()) {
        std::vector<int64_t> sizes = of_share.sizes().vec();
        sizes[0] = q.size(0);
        sizes.insert(sizes.begin() + 1, count);
        all[f] = at::zeros(sizes, q.options());
      }
      put(all[f], s, index, of_share);
    }
  }
  Exact exact{.contract = call.contract, .shape = {q.size(0), count, heads, q.size(3)}};
  for (size_t f = 0; f < all.size(); ++f)
    if (all[f].defined()) exact.*kFields[f] = held_numbers(all[f].contiguous());
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
  Exact exact = is_partial ? partials(q, k, v, shares, call) : log_sum_exps(q, k, shares, call);
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
  exact.weighted_squares = held_numbers((p * values).square().sum(1));
  const auto width = static_cast<double>(partial.size(3));
  const at::Tensor score = at::where(empty, none, lse.abs()).amax(1) / std::sqrt(width);
  exact.score = held_numbers(score);
  // A mean lies among what it is of, whatever its weights: ds and es of src/judge/ops/attention.cc,
  // by which the spreads are multiplied, bring it no further than the furthest share.
  constexpr double u = kAccumulatorRoundoff;
  const at::Tensor sizes = apart.abs().masked_fill(empty.unsqueeze(-1), 0),
                   furthest = sizes.amax(1);
  const at::Tensor ds = (std::sqrt(width) * u * score + 4 * u).unsqueeze(-1);
  const at::Tensor es = ((walk_of(width) + 1) * u * score + 4 * u).unsqueeze(-1);
  // Kernels that do not divide by the sum of the weights, but take its logarithm from each, round
  // that: the whole mean is off as a share is, by up to 2^-12, of a logarithm of 4096.
  constexpr double kMostInCommon = 0x1p-12;
  const at::Tensor size = out.abs(), most_in_common = kMostInCommon * size;
  exact.spread = held_numbers((p * sizes).sum(1).minimum(furthest / (2 * kLambda * ds)) +
                              size.minimum(most_in_common / (2 * kLambda * ds)));
  exact.spread_squares =
      held_numbers((p * sizes).square().sum(1).minimum((furthest / es).square()) +
                   size.minimum(most_in_common / es).square());
  if (rounds_weights(contract))
    exact.overlap = held_numbers(at::zeros(score.sizes(), score.options()));
  exact.row_terms = std::vector<double>(static_cast<size_t>(partial.size(0)),
                                        static_cast<double>(partial.size(1)));
  return exact;
}

}  // namespace lockstep
