// An attention that can be got wrong at every step, in fp64 by LibTorch. Its steps are those of the
// oracle's, with a hook at each of them (struct Attention): what is read of the cache, which keys a
// query sees, the scores, the softmax, the mixing of V.
//
// Requests are taken one by one, as rows of one request share a cache and a mask:
//
//   q [heads, queries, dim]   k, v [kv heads, keys, dim] by the request's cache
//     -> scores q k^T, scaled, rounded where the contract rounds
//     -> mask (-inf), softmax over the keys
//     -> weights v -> [queries, heads, dim]
//
// What no hook touches of a request is computed once for all hypotheses about the op (Asked::once):
// most change what comes after the scores.
//
// A key that no row wrote is NaN. Such keys are computed as 0 and the queries that see one are made
// NaN as a whole afterwards, since NaN times a weight of 0 would spoil queries that do not see it.
#include "reference/hypotheses/attend.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace lockstep {

constexpr double kNever = -std::numeric_limits<double>::infinity();

struct Attention::Part::Tensors {
  at::Tensor q, k, v, positions, keys;  // q [heads, queries, dim]
};

const at::Tensor& Attention::Part::k() const { return tensors_->k; }
const at::Tensor& Attention::Part::v() const { return tensors_->v; }
const at::Tensor& Attention::Part::positions() const { return tensors_->positions; }
const at::Tensor& Attention::Part::keys() const { return tensors_->keys; }

void Attention::Part::set_cache(const at::Tensor& k, const at::Tensor& v) {
  tensors_ = std::make_shared<Tensors>(*tensors_);
  tensors_->k = k;
  tensors_->v = v;
}

void Attention::Part::set_first_key(int64_t position) {
  tensors_ = std::make_shared<Tensors>(*tensors_);
  tensors_->keys = at::arange(tensors_->k.size(1), tensors_->q.options()).unsqueeze(0) + position;
}

at::Tensor Attention::Part::in_window() const {
  return window == 0 ? keys() >= 0 : keys() > positions() - window;
}

// One hypothesis about one op in one pass: splits the rows by request and joins the results.
// Borrows both for as long as it lives. Rows of one request stand together in a pass.
class Attending {
 public:
  Attending(const Asked& asked, const Attention& how) : a_(asked), how_(how) {
    for (size_t i = 0; i < asked.op().call.rows.size(); ++i) {
      const int32_t request = asked.op().call.rows[i].request;
      if (requests_.empty() || requests_.back() != request) {
        requests_.push_back(request);
        rows_.emplace_back();
      }
      rows_.back().push_back(static_cast<int64_t>(i));
    }
  }

  at::Tensor run() {
    if ((how_.cache_of != 0 || how_.length_of != 0) && requests_.size() < 2) return {};
    std::vector<at::Tensor> parts;
    for (size_t r = 0; r < requests_.size(); ++r) parts.push_back(one(part_of(r)));
    return at::cat(parts);
  }

 private:
  // The request that stands `by` after this one in the pass, around the end.
  size_t neighbour(size_t r, int by) const {
    const auto n = static_cast<int64_t>(requests_.size());
    return static_cast<size_t>((static_cast<int64_t>(r) + by + n) % n);
  }
  // Tokens that the request has after the pass.
  int64_t length_of(size_t r) const { return a_.op().call.lengths[rows_[r].front()]; }

  Attention::Part part_of(size_t r) const {
    Attention::Part part;
    part.tensors_ = std::make_shared<Attention::Part::Tensors>();
    const auto first = rows_[r].front(), count = std::ssize(rows_[r]);
    // With another's length, positions move along: a kernel counts the queries from the end of the
    // context.
    const int64_t moved =
        how_.length_of == 0 ? 0 : length_of(neighbour(r, how_.length_of)) - length_of(r);
    part.number = r;
    part.length = length_of(r) + moved;
    const size_t from = how_.cache_of_first ? 0 : neighbour(r, how_.cache_of);
    const KeysValues& cache = a_.op().caches.at(requests_[from]);
    auto& t = *part.tensors_;
    t.q = a_.input(0).narrow(0, first, count).transpose(0, 1);
    t.k = a_.once("K", from, [&] { return a_.widened(cache.k).transpose(0, 1).contiguous(); });
    t.v = a_.once("V", from, [&] { return a_.widened(cache.v).transpose(0, 1).contiguous(); });
    std::vector<double> positions;
    for (const int64_t row : rows_[r])
      positions.push_back(as_fp64(a_.op().call.rows[row].position + moved));
    part.first = static_cast<int64_t>(positions.front());
    t.positions = a_.tensor(positions).unsqueeze(1);
    part.window = a_.model().recipe.window.at(a_.place().layer);
    return part;
  }

  // Keys that nobody wrote hold NaN.
  at::Tensor padded(const at::Tensor& x, int64_t keys) const {
    if (x.size(1) >= keys) return x.narrow(1, 0, keys);
    const at::Tensor rest = at::full({x.size(0), keys - x.size(1), x.size(2)},
                                     std::numeric_limits<double>::quiet_NaN(), x.options());
    return at::cat({x, rest}, 1);
  }

  // K or V with one head for each query head, by the usual groups where `how` has no map.
  at::Tensor by_head(const at::Tensor& x) const {
    std::vector<int64_t> map = how_.kv_head;
    const Recipe& recipe = a_.model().recipe;
    for (int64_t h = std::ssize(map); h < recipe.heads; ++h)
      map.push_back(h / (recipe.heads / recipe.kv_heads));
    return x.index_select(0, at::tensor(map).to(x.device()));
  }

  // Whether the op's contract stores the weights of the keys, as Hugging Face's eager code does.
  bool stores_weights() const {
    const RoundingContract contract = a_.op().call.contract;
    return contract == RoundingContract::eager || contract == RoundingContract::eager_query_rounded;
  }

  // Scores as the op's contract stores them: rounded before and after the scale, with the query
  // rounded once it is scaled, or not at all.
  at::Tensor scores_of(const at::Tensor& q, const at::Tensor& k) const {
    const RoundingContract contract = a_.op().call.contract;
    const double scale = how_.scale >= 0 ? how_.scale : 1 / std::sqrt(a_.model().recipe.head_dim);
    const DType run = a_.model().run;
    const bool rounds =
        contract == RoundingContract::eager || contract == RoundingContract::scores_rounded;
    if (contract == RoundingContract::query_rounded ||
        contract == RoundingContract::eager_query_rounded) {
      const at::Tensor scores = at::bmm(a_.in_dtype(q * scale, run), k.transpose(1, 2));
      return stores_weights() ? a_.in_dtype(scores, run) : scores;
    }
    const at::Tensor raw = at::bmm(q, k.transpose(1, 2));
    return rounds ? a_.in_dtype(a_.in_dtype(raw, run) * scale, run) : raw * scale;
  }

  // The attention of one request's rows: [queries, heads, dim].
  at::Tensor one(Attention::Part part) const {
    const int64_t extra = how_.extra ? how_.extra(part) : 0, all = part.length + extra;
    auto& t = *part.tensors_;
    t.k = padded(t.k, all);
    t.v = padded(t.v, all);
    t.keys = at::arange(all, t.q.options()).unsqueeze(0);
    if (how_.other) part = how_.other(part);
    const bool usual_cache = !how_.other && !how_.extra && how_.kv_head.empty() &&
                             how_.cache_of == 0 && how_.length_of == 0 && !how_.cache_of_first;
    const auto made = [&](bool usual, const char* name, const std::function<at::Tensor()>& make) {
      return usual ? a_.once(name, part.number, make) : make();
    };
    // By default causal, within the layer's window. The masks broadcast to [queries, keys].
    const at::Tensor seen =
        how_.mask ? how_.mask(part) : (part.keys() <= part.positions()) & part.in_window();
    const at::Tensor unread = made(usual_cache, "unread", [&] {
      return part.k().isnan().any(-1).logical_or(part.v().isnan().any(-1));
    });
    const auto finite = [this](const at::Tensor& x) { return by_head(x.nan_to_num()); };
    const at::Tensor v = made(usual_cache, "finite V", [&] { return finite(part.v()); });
    const at::Tensor& q = part.tensors_->q;
    const bool usual_scores = usual_cache && !how_.query && how_.scale < 0;
    at::Tensor scores = made(usual_scores, "scores", [&] {
      const at::Tensor k = made(usual_cache, "finite K", [&] { return finite(part.k()); });
      return scores_of(how_.query ? how_.query(q) : q, k);
    });
    if (how_.scores) scores = how_.scores(scores);
    if (how_.bias) scores = scores + how_.bias(part);
    scores = scores.masked_fill(seen.logical_not().unsqueeze(0), kNever);
    at::Tensor out;
    if (how_.mix) {
      out = how_.mix(part, scores, v);
    } else {
      const at::Tensor p = how_.softmax ? how_.softmax(scores) : at::softmax(scores, -1);
      // The eager chain stores the weights in the run's dtype; no other contract that is computed
      // here does.
      out = at::bmm(stores_weights() ? a_.in_dtype(p, a_.model().run) : p, v);
    }
    // A query that sees no key is left at 0.
    const at::Tensor none = seen.any(1).logical_not().view({1, -1, 1});
    out = at::where(none, how_.unseen_may_be_nan ? zero_or_nan(part) : at::zeros_like(out), out);
    if (unread.any().item<bool>()) {
      const at::Tensor spoilt = seen.unsqueeze(0).logical_and(by_head(unread).unsqueeze(1)).any(2);
      out = out.masked_fill(spoilt.unsqueeze(-1), std::numeric_limits<double>::quiet_NaN());
    }
    return out.transpose(0, 1);
  }

  // NaN where that was stored for the queries, else 0: [heads, queries, dim].
  at::Tensor zero_or_nan(const Attention::Part& part) const {
    const auto& rows = rows_[part.number];
    const at::Tensor got = a_.got()
                               .narrow(0, rows.front(), std::ssize(rows))
                               .reshape({std::ssize(rows), -1, a_.model().recipe.head_dim});
    const double nan = std::numeric_limits<double>::quiet_NaN();
    return at::zeros_like(got).masked_fill(got.isnan(), nan).transpose(0, 1);
  }

  const Asked& a_;
  const Attention& how_;
  std::vector<int32_t> requests_;
  std::vector<std::vector<int64_t>> rows_;
};

at::Tensor attend(const Asked& asked, const Attention& how) { return Attending(asked, how).run(); }

std::vector<double> key_splits(const Asked& asked) {
  const auto longest = as_fp64(*std::ranges::max_element(asked.op().call.lengths));
  std::vector<double> all = {4, 8, 16, 32, 64, 128, 256, 512};
  std::erase_if(all, [=](double size) { return size >= longest; });
  return all;
}

}  // namespace lockstep
