// The budget of a sum of N partial sums in a dtype d: the last rounding, half a spacing of d, and
// N - 2 before it, each of a sum of at most S = sum |p|: half a spacing of d at S. The first
// addition of two is the last one.
#include "src/ranks/judge/rank_oracle.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "src/weights/qwen_graph.h"

namespace lockstep {
namespace {

// The point whose sum over the ranks the partial point is of.
const Point& sum_of_partial(const Point& partial) {
  std::string_view name = partial.name;
  name.remove_suffix(std::string_view("_partial").size());  // or ".partial"
  return *find_point(name);
}

// A copy whose last axis is zero outside of a part of `count` elements of each of its rows.
Tensor masked(const TensorView& x, int64_t row, int64_t first, int64_t count) {
  Tensor copy(x.shape, x.dtype);
  const int64_t size = size_of(x.dtype);
  std::memset(copy.as<char>(), 0, copy.view().bytes());
  for (int64_t at = 0; at < x.count(); at += row)
    std::memcpy(copy.as<char>() + (at + first) * size, x.as<const char>() + (at + first) * size,
                count * size);
  return copy;
}

// Interleaves the results of the ranks: [rows, ...] of each to [rows, ranks, ...].
Numbers stacked(const std::vector<Exact>& of_ranks, Numbers Exact::*values, int64_t rows) {
  std::vector<double> all;
  for (const Exact& exact : of_ranks)
    if ((exact.*values).size() != of_ranks[0].want.size()) return {};
  const int64_t size = rows == 0 ? 0 : static_cast<int64_t>(of_ranks[0].want.size()) / rows;
  for (int64_t row = 0; row < rows; ++row)
    for (const Exact& exact : of_ranks) {
      const double* first = (exact.*values).begin() + row * size;
      all.insert(all.end(), first, first + size);
    }
  return all;
}

// K and V with the heads that a rank holds as its own cache, [length, k|v, heads, dim], has them.
KeysValues own_heads(const KeysValues& whole, const RankTensor& part, std::vector<Tensor>& kept) {
  const TensorView& cache = part.data;
  const int64_t dim = cache.shape[3] * size_of(cache.dtype), heads = cache.shape[2];
  const auto side = [&](const TensorView& of, int64_t which) -> TensorView {
    const Tensor& own = kept.emplace_back(copy_on(Device::cpu, of));
    for (int64_t row = 0; row < of.rows(); ++row)
      std::memcpy(own.as<char>() + (row * of.shape[1] + part.shard->offset) * dim,
                  cache.as<char>() + (2 * row + which) * heads * dim, heads * dim);
    return own;
  };
  const TensorView k = side(whole.k, 0), v = side(whole.v, 1);
  return {k, v};
}

// The first rank whose part of the tensor has that index along its axis; a join takes it from
// there.
size_t first_with(const std::vector<RankPlan>& plans, const Point& point, int64_t index) {
  for (size_t rank = 0; rank < plans.size(); ++rank) {
    const Shard shard = *plans[rank].shard_of(point);
    const bool of_kv = point.name.starts_with("attn.k") || point == lockstep::point("attn.v");
    const int64_t count = of_kv ? plans[rank].kv_heads.count : shard.extent / std::ssize(plans);
    if (index >= shard.offset && index < shard.offset + count) return rank;
  }
  return 0;
}

}  // namespace

RankOracle::RankOracle(std::unique_ptr<Oracle> whole, const ModelConfig& config, int ranks)
    : whole_(std::move(whole)), graph_(qwen_graph_of(config, /*over_ranks=*/true)) {
  for (int rank = 0; rank < ranks; ++rank) plans_.push_back(plan_of(config, rank, ranks));
}

// The bias of o is added by rank 0 to what it adds.
bool RankOracle::has_bias(const Place& place) const {
  if (is_partial(*place.point))
    return whole_->has_bias({&sum_of_partial(*place.point), place.layer});
  const std::vector<Place> inputs = graph_.inputs_of(place);
  return (inputs.empty() || !is_partial(*inputs[0].point)) && whole_->has_bias(place);
}

Exact RankOracle::evaluate(const OracleCall& call) {
  if (is_partial(*call.place.point)) return partials_of(call);
  const std::vector<Place> inputs = graph_.inputs_of(call.place);
  if (!inputs.empty() && is_partial(*inputs[0].point) && !call.inputs.empty() &&
      call.inputs[0].shape.rank() >= 3 && call.inputs[0].shape[1] == std::ssize(plans_))
    return sum_of(call);
  const bool apart = pass_ && std::ranges::any_of(inputs, [&](const Place& input) {
                       return pass_->versions.contains({input.point->order(), input.layer});
                     });
  if (caches_of(call)) return by_rank(call);
  const bool in_parts = plans_[0].shard_of(*call.place.point).has_value();
  return apart && in_parts ? by_rank(call) : whole_->evaluate(call);
}

Exact RankOracle::sum_of(const OracleCall& call) const {
  const TensorView& partial = call.inputs[0];
  const int64_t rows = partial.rows(), ranks = partial.shape[1];
  const int64_t size = partial.row_size() / ranks;
  std::vector<double> want(rows * size), ties(rows * size), squares(rows * size), row(size * ranks);
  for (int64_t r = 0; r < rows; ++r) {
    widen(partial, r * size * ranks, row);
    for (int64_t i = 0; i < size; ++i) {
      double sum = 0, all = 0;
      for (int64_t rank = 0; rank < ranks; ++rank) {
        sum += row[rank * size + i];
        all += std::fabs(row[rank * size + i]);
      }
      const double spacing = ulp(all, partial.dtype);
      want[r * size + i] = sum;
      ties[r * size + i] = static_cast<double>(ranks - 2) * spacing / 2;
      squares[r * size + i] = static_cast<double>(ranks - 2) * spacing * spacing / 12;
    }
  }
  Exact exact{.contract = call.contract, .want = std::move(want), .terms = 1};
  const Shape& s = partial.shape;
  exact.shape = s.rank() == 3 ? Shape{s[0], s[2]} : Shape{s[0], s[2], s[3]};
  exact.magnitude = std::vector<double>(rows * size);  // nothing is multiplied
  if (ranks > 2) exact.ties = std::move(ties), exact.tie_squares = std::move(squares);
  return exact;
}

Exact RankOracle::partials_of(const OracleCall& call) {
  const Place of{&sum_of_partial(*call.place.point), call.place.layer};
  std::vector<Exact> of_ranks;
  for (int rank = 0; rank < std::ssize(plans_); ++rank)
    of_ranks.push_back(partial_of(call, of, rank));
  const int64_t rows = std::ssize(call.rows), ranks = std::ssize(plans_);
  Exact all{.contract = call.contract, .terms = of_ranks[0].terms};
  const Shape& s = of_ranks[0].shape;
  all.shape = s.rank() == 2 ? Shape{rows, ranks, s[1]} : Shape{rows, ranks, s[1], s[2]};
  for (Numbers Exact::*values :
       {&Exact::want, &Exact::magnitude, &Exact::ties, &Exact::tie_squares})
    all.*values = stacked(of_ranks, values, rows);
  return all;
}

// Zeros in, zeros out: what other ranks hold adds nothing, neither to the result nor to its
// magnitude. A lookup of a token that another rank holds is zeros.
Exact RankOracle::partial_of(const OracleCall& call, const Place& of, int rank) {
  const RankPlan& plan = plans_[rank];
  OracleCall whole = call;
  whole.place = of;
  if (of.point->op == OpKind::gather) {
    Exact exact = whole_->evaluate(whole);
    std::vector<double> want(exact.want.begin(), exact.want.end());
    const size_t size = call.tokens.empty() ? 0 : want.size() / call.tokens.size();
    for (size_t i = 0; i < call.tokens.size(); ++i)
      if (const int64_t row = call.tokens[i] - plan.vocab.first; row < 0 || row >= plan.vocab.count)
        std::fill_n(want.begin() + static_cast<long>(i * size), size, 0.0);
    exact.want = std::move(want);
    return exact;
  }
  std::vector<Tensor> kept;
  whole.inputs = inputs_of(call, rank, kept);
  const bool of_heads = *of.point == point("attn.o");
  const int64_t dim = of_heads ? plan.whole.head_dim : 1;
  const Part& part = of_heads                         ? plan.heads
                     : of.point->op == OpKind::linear ? plan.inner
                                                      : plan.expert_inner;
  const TensorView x = whole.inputs[0];
  const int64_t row = of_heads ? plan.whole.heads * dim : x.shape.last();
  check(row > 0 && x.count() % row == 0 && (part.first + part.count) * dim <= row,
        "{} reads rows of {} values, found a tensor {}: record its producer whole",
        call.place.point->name, row, x.shape.text());
  whole.inputs[0] = kept.emplace_back(masked(x, row, part.first * dim, part.count * dim));
  Exact exact = whole_->evaluate(whole);
  exact.terms = part.count * dim;
  if (rank == 0 || !whole_->has_bias(of)) return exact;
  // Rank 0 alone adds the bias: what the op makes of zeros is taken off again.
  whole.inputs[0] = kept.emplace_back(masked(x, row, 0, 0));
  const Exact bias = whole_->evaluate(whole);
  std::vector<double> want(exact.want.begin(), exact.want.end()),
      magnitude(exact.magnitude.begin(), exact.magnitude.end());
  for (size_t i = 0; i < want.size(); ++i) {
    want[i] -= bias.want[i];
    magnitude[i] -= bias.magnitude[i];
  }
  exact.want = std::move(want);
  exact.magnitude = std::move(magnitude);
  return exact;
}

std::vector<TensorView> RankOracle::inputs_of(const OracleCall& call, int rank,
                                              std::vector<Tensor>& kept) const {
  std::vector<TensorView> inputs = call.inputs;
  const std::vector<Place> places = graph_.inputs_of(call.place);
  size_t next = 0;
  for (const Place& place : places) {
    if (place.point->is_cache()) continue;
    if (next == inputs.size()) break;
    TensorView& input = inputs[next++];
    if (!pass_) continue;
    const auto found = pass_->versions.find({place.point->order(), place.layer});
    if (found == pass_->versions.end()) continue;
    const auto whole = std::ranges::find_if(pass_->tensors, [&](const RankTensor& t) {
      return *t.point == *place.point && t.layer == place.layer;
    });
    const TensorView mine = found->second[rank];
    if (mine.dtype != input.dtype) continue;  // not of the engine: a model is held to its own
    Tensor rows(input.shape, input.dtype);
    const int64_t bytes = mine.row_size() * size_of(mine.dtype);
    for (size_t i = 0; i < call.rows.size(); ++i) {
      const auto at = std::ranges::find(whole->rows, call.rows[i]) - whole->rows.begin();
      std::memcpy(rows.as<char>() + i * bytes, mine.as<char>() + at * bytes, bytes);
    }
    input = kept.emplace_back(std::move(rows));
  }
  return inputs;
}

const std::vector<RankTensor>* RankOracle::caches_of(const OracleCall& call) const {
  if (!pass_ || call.place.point->op != OpKind::attention || call.rows.empty()) return nullptr;
  for (const std::vector<RankTensor>& parts : pass_->caches) {
    const RankTensor& first = parts[0];
    if (first.layer == call.place.layer && !first.rows.empty() &&
        first.rows[0].request == call.rows[0].request &&
        first.data.view().dtype == call.keys_values.k.dtype &&
        first.data.view().rows() == call.keys_values.k.rows())
      return &parts;
  }
  return nullptr;
}

// Each part from its own rank's inputs: the whole op once a rank, of which its part is taken.
Exact RankOracle::by_rank(const OracleCall& call) {
  std::vector<Exact> of_ranks;
  for (int rank = 0; rank < std::ssize(plans_); ++rank) {
    std::vector<Tensor> kept;
    OracleCall own = call;
    own.inputs = inputs_of(call, rank, kept);
    if (const auto* caches = caches_of(call))
      own.keys_values = own_heads(call.keys_values, (*caches)[rank], kept);
    of_ranks.push_back(whole_->evaluate(own));
  }
  Exact all = of_ranks[0];
  const int axis = plans_[0].shard_of(*call.place.point)->axis;
  int64_t after = 1;
  for (int i = axis + 1; i < all.shape.rank(); ++i) after *= all.shape[i];
  for (Numbers Exact::*values : {&Exact::want, &Exact::magnitude, &Exact::factor, &Exact::ties,
                                 &Exact::tie_squares, &Exact::spread, &Exact::spread_squares,
                                 &Exact::weighted_squares, &Exact::score, &Exact::overlap}) {
    std::vector<double> joined((all.*values).size());
    const bool of_heads = values == &Exact::score || values == &Exact::overlap;  // one a head
    for (size_t i = 0; i < joined.size(); ++i) {
      const auto at = (static_cast<int64_t>(i) / (of_heads ? 1 : after)) % all.shape[axis];
      joined[i] = (of_ranks[first_with(plans_, *call.place.point, at)].*values)[i];
    }
    if (!joined.empty()) all.*values = std::move(joined);
  }
  return all;
}

}  // namespace lockstep
