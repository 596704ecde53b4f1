// Heads are compared as the rank's part has them: [rows, heads, dim], and of a cache
// [positions, k|v, heads, dim]. Where 3 ranks share 2 K/V heads, rank 1 has both and its neighbours
// one each: a product of twice the columns may sum in another order, which no header rules out, so
// that bits say nothing. Of ranks with parts of one shape they do (join.cc).
#include "src/ranks/judge/own_copies.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "probes/digest.h"
#include "src/judge/budget.h"
#include "src/stats/moments.h"
#include "src/stats/statistics.h"
#include "src/weights/qwen_graph.h"

namespace lockstep {
namespace {

const RankTensor* tensor_at(const JoinedPass& pass, const Place& place) {
  const auto found = std::ranges::find_if(pass.tensors, [&](const RankTensor& t) {
    return *t.point == *place.point && t.layer == place.layer;
  });
  return found == pass.tensors.end() ? nullptr : &*found;
}

// The element of a copy that is furthest off, in what is allowed there.
struct WorstOfCopy {
  double budgets = 0, want = 0, got = 0;
  int64_t row = 0, head = 0, dim = 0;
};

// A finding at the copy's place: of no number, unless the caller adds one.
Apart wrong_copy(const JoinedPass& pass, const JoinedPass::Copy& copy, const Row& row,
                 std::string rule) {
  Finding finding{.node = {.place = {copy.part.point, copy.part.layer},
                           .pass = pass.info.pass,
                           .request = row.request},
                  .position = row.position,
                  .verdict = Verdict::structural,
                  .rule = std::move(rule)};
  return {.finding = std::move(finding), .rank = copy.rank};
}

// The values that all heads of the whole op should have, and how far off each element may be.
struct Allowed {
  int64_t heads = 0;  // of the whole op
  std::vector<double> want, limit;
};

// The exact results of the op on what the copy's own rank read, as the judge has them of the joined
// tensors. The rank's own tensors are the whole ones with its heads in their places.
Allowed by_oracle(const JoinedPass::Copy& copy, const JoinedPass& pass,
                  const std::vector<Tensor>& inputs, Oracle& oracle) {
  const std::vector<Row>& rows = copy.part.rows;
  const std::vector<int32_t> tokens(rows.size());  // only a lookup reads them
  std::vector<int64_t> lengths;
  for (const Row& row : rows) {
    int64_t& length = lengths.emplace_back(0);
    for (const PassRow& fed : pass.info.rows)
      if (fed.row.request == row.request) length = std::max<int64_t>(length, fed.row.position + 1);
  }
  const DType dtype = copy.part.data.view().dtype;
  OracleCall call{.place = {copy.part.point, copy.part.layer}, .dtype = dtype};
  call.inputs.assign(inputs.begin(), inputs.end());
  call.rows = rows, call.tokens = tokens, call.lengths = lengths;
  const Exact exact = oracle.evaluate(call);
  const Budget budget = budget_of(copy.part.point->op, exact, dtype);
  return {exact.shape[1], {exact.want.begin(), exact.want.end()}, budget.limit};
}

// Allows what a comparison of modes does (src/judge/mode_comparer.h): two sums of the same products
// in any order, and equal bits of all other ops.
Allowed by_other(const RankTensor& kept, const std::vector<Tensor>& inputs) {
  const TensorView tensor = kept.data;
  const int64_t size = tensor.row_size();
  Allowed allowed{.heads = tensor.shape[1]};
  const auto terms = static_cast<double>(inputs.at(0).view().row_size());
  const bool sums = row_of(kept.point->op).has_matrix;
  for (int64_t row = 0; row < tensor.rows(); ++row) {
    double squares = 0;
    for (int64_t i = 0; i < size; ++i) squares += std::pow(value_at(tensor, row * size + i), 2);
    const double apart = 2 * kLambda * terms * kAccumulatorRoundoff * root_mean(squares, size);
    for (int64_t i = 0; i < size; ++i) {
      const double want = value_at(tensor, row * size + i);
      allowed.want.push_back(want);
      allowed.limit.push_back(sums ? ulp(want, tensor.dtype) + apart : 0);
    }
  }
  return allowed;
}

// The worst element of the copy, in units of what it may be off. A limit of 0 wants equal numbers:
// what is not is infinitely far off.
WorstOfCopy worst_of(const JoinedPass::Copy& copy, const Allowed& allowed) {
  const TensorView part = copy.part.data;
  const int64_t heads = part.shape[1], dim = part.shape.last();
  WorstOfCopy worst;
  for (int64_t row = 0; row < part.rows(); ++row)
    for (int64_t head = 0; head < heads; ++head)
      for (int64_t i = 0; i < dim; ++i) {
        const int64_t whole_head = copy.part.shard->offset + head;
        const auto at = static_cast<size_t>((row * allowed.heads + whole_head) * dim + i);
        const double got = value_at(part, (row * heads + head) * dim + i);
        if (got == allowed.want[at]) continue;
        const double budgets = std::fabs(got - allowed.want[at]) / allowed.limit[at];
        if (!(budgets <= worst.budgets))
          worst = {budgets, allowed.want[at], got, row, whole_head, i};
      }
  return worst;
}

}  // namespace

OwnCopies::OwnCopies(const ModelConfig& whole, int ranks)
    : graph_(qwen_graph_of(whole, /*over_ranks=*/true)) {
  for (int rank = 0; rank < ranks; ++rank) plans_.push_back(plan_of(whole, rank, ranks));
}

std::vector<Apart> OwnCopies::judge(const JoinedPass& pass, Oracle* oracle) {
  std::vector<Apart> wrong;
  for (const JoinedPass::Copy& copy : pass.copies) {
    if (copy.part.point->is_cache()) {
      judge_cache(copy, pass, wrong);
      continue;
    }
    note_written(copy);
    judge_op(copy, pass, oracle, wrong);
  }
  return wrong;
}

Tensor OwnCopies::as_seen_by(int rank, const Place& place, const JoinedPass& pass) const {
  if (const auto found = pass.versions.find({place.point->order(), place.layer});
      found != pass.versions.end())
    return found->second[rank];
  const RankTensor* joined = tensor_at(pass, place);
  if (!joined) return {};
  const auto own = std::ranges::find_if(pass.copies, [&](const JoinedPass::Copy& copy) {
    return copy.rank == rank && *copy.part.point == *place.point && copy.part.layer == place.layer;
  });
  if (own == pass.copies.end()) return joined->data;
  Tensor seen = copy_on(Device::cpu, joined->data);
  const TensorView part = own->part.data, whole = seen;
  const int64_t heads = part.shape[1], head = part.shape.last() * size_of(part.dtype);
  for (int64_t row = 0; row < part.rows(); ++row)
    std::memcpy(whole.as<char>() + (row * whole.shape[1] + own->part.shard->offset) * head,
                part.as<char>() + row * heads * head, heads * head);
  return seen;
}

// K with its head's number, V with that and the number of all heads.
void OwnCopies::note_written(const JoinedPass::Copy& copy) {
  const bool of_v = *copy.part.point == point("attn.v");
  if (!of_v && !(*copy.part.point == point("attn.k_rope"))) return;
  const TensorView part = copy.part.data;
  const int64_t heads = part.shape[1], bytes = part.shape.last() * size_of(part.dtype);
  const int64_t first = copy.part.shard->offset + (of_v ? copy.part.shard->extent : 0);
  for (int64_t row = 0; row < part.rows(); ++row)
    for (int64_t head = 0; head < heads; ++head)
      written_[{copy.rank, copy.part.layer, copy.part.rows[row].position, first + head}].insert(
          hash_of(part.as<char>() + (row * heads + head) * bytes, bytes));
}

void OwnCopies::judge_op(const JoinedPass::Copy& copy, const JoinedPass& pass, Oracle* oracle,
                         std::vector<Apart>& wrong) const {
  const Place place{copy.part.point, copy.part.layer};
  const RankTensor* joined = tensor_at(pass, place);
  std::vector<Tensor> inputs;
  for (const Place& input : graph_.inputs_of(place))
    inputs.push_back(as_seen_by(copy.rank, input, pass));
  const auto lacks = [](const Tensor& tensor) { return tensor.view().empty(); };
  if (!joined || std::ranges::any_of(inputs, lacks)) return;  // nobody asked for this place
  const WorstOfCopy worst = oracle ? worst_of(copy, by_oracle(copy, pass, inputs, *oracle))
                                   : worst_of(copy, by_other(*joined, inputs));
  if (within(worst.budgets, 1)) return;
  Apart found =
      wrong_copy(pass, copy, copy.part.rows[worst.row],
                 fmt::format("rank {}: its own copy of head {} is {:.3g} x its budget off",
                             copy.rank, worst.head, worst.budgets));
  Finding& finding = found.finding;
  finding.verdict = Verdict::introduced;
  finding.statistic = StatisticKind::max_error;
  finding.value = finding.budgets = worst.budgets;
  finding.limit = 1;
  finding.want = worst.want, finding.got = worst.got;
  finding.index = {finding.position, worst.head, worst.dim};
  wrong.push_back(std::move(found));
}

// A head that is not the earlier rank's must be one that this rank wrote for that position.
// A request may have got it from another with the same tokens, so whose it was is not asked: the
// joined cache is judged for that, and all ranks use the same slots.
void OwnCopies::judge_cache(const JoinedPass::Copy& copy, const JoinedPass& pass,
                            std::vector<Apart>& wrong) const {
  const auto is_joined = [&](const RankTensor& t) {
    return t.point->is_cache() && t.layer == copy.part.layer && t.rows == copy.part.rows;
  };
  const auto joined = std::ranges::find_if(pass.tensors, is_joined);
  if (joined == pass.tensors.end()) return;
  const TensorView part = copy.part.data, kept = joined->data;
  const int64_t heads = part.shape[2], all = kept.shape[2];
  const int64_t bytes = part.shape.last() * size_of(part.dtype);
  for (int64_t i = 0; i < part.rows() * 2 * heads; ++i) {
    const int64_t half = i / heads, head = copy.part.shard->offset + i % heads;
    const char* own = part.as<char>() + i * bytes;
    if (std::memcmp(own, kept.as<char>() + (half * all + head) * bytes, bytes) == 0) continue;
    const Row& row = copy.part.rows[half / 2];
    const auto found =
        written_.find({copy.rank, copy.part.layer, row.position, head + (half % 2 == 1 ? all : 0)});
    if (found != written_.end() && found->second.contains(hash_of(own, bytes))) continue;
    wrong.push_back(wrong_copy(
        pass, copy, row,
        fmt::format("rank {}: its own {} of head {} is nothing that it wrote for that position",
                    copy.rank, half % 2 == 1 ? "V" : "K", head)));
    return;
  }
}

}  // namespace lockstep
