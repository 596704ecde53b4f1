// An attention that was merged of shares is judged by what the shares read, as any other. Where it
// is wrong, its recorded shares are merged in fp64: where that is what the engine has, the error
// came with them, and they were judged themselves, or are named with it. The rest of what is wrong
// is the merge's. And so it is where what a contract forgives an attention is not in its shares.
#include "src/judge/shares.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>

#include "src/judge/op_judge_parts.h"
#include "src/judge/row_sample.h"

namespace lockstep {

// A share reads what its attention does, and stands right before it.
Graph with_shares_of(const Graph& shown, const Graph& model) {
  Graph made;
  std::vector<int> numbers;
  for (size_t node = 0; node < model.places().size(); ++node) {
    const Place& place = model.places()[node];
    std::vector<int> inputs, shares;
    for (const int input : model.inputs(static_cast<int64_t>(node)))
      inputs.push_back(numbers[input]);
    for (const Point& p : kPoints)
      if (place.point->op == OpKind::attention && p.is_of_shares() && shown.has({&p, place.layer}))
        shares.push_back(made.add({&p, place.layer}, inputs));
    inputs.insert(inputs.end(), shares.begin(), shares.end());
    numbers.push_back(made.add(place, std::move(inputs)));
  }
  return made;
}

Graph without_merges(const Graph& graph) {
  Graph changed;
  for (size_t node = 0; node < graph.places().size(); ++node) {
    const std::span<const int> all = graph.inputs(static_cast<int64_t>(node));
    std::vector<int> inputs(all.begin(), all.end());
    std::erase_if(inputs, [&](int i) { return graph.places()[i].point->is_of_shares(); });
    changed.add(graph.places()[node], std::move(inputs));
  }
  return changed;
}

// A tensor without elements may have any number of shares.
int64_t shares_in(const Point& point, const Shape& shape, const Shape& queries) {
  const int after = point.op == OpKind::partial_attention ? 2 : 1;  // axes behind the shares
  if (queries.rank() != 3 || queries.count() == 0 || shape.rank() != 2 + after) return 0;
  for (int axis = 0; axis < after; ++axis)
    if (shape[2 + axis] != queries[1 + axis]) return 0;
  return shape[1];
}

DType dtype_inside(const Place& place, DType stored, DType run) {
  return place.point->is_of_shares() ? run : stored;
}

Place partial_of(const Place& place) { return {&point("attn.partial"), place.layer}; }

int64_t shares_wanted(const Place& place, const RecordedTensor& tensor,
                      const RecordedTensor* partial, const Shape& queries) {
  const int64_t merged = partial ? shares_in(*partial_of(place).point, partial->shape, queries) : 0;
  const int64_t own = shares_in(*place.point, tensor.shape, queries);
  return std::max<int64_t>(1, merged > 0 ? merged : own);
}

std::string wanted_text(const Place& place, const Shape& wanted, const Shape& found) {
  const bool may_be_any =
      place.point->is_of_shares() &&
      (found.rank() != wanted.rank() || found[1] < 1 ||
       !std::ranges::equal(found.extents().subspan(2), wanted.extents().subspan(2)));
  if (!may_be_any) return wanted.text();
  return fmt::format("[{}, 1 or more, {}]", wanted[0],
                     fmt::join(wanted.extents().subspan(2), ", "));
}

std::vector<int64_t> share_begins(int64_t length, int64_t page_size, int64_t shares) {
  const int64_t pages = (length + page_size - 1) / page_size;
  std::vector<int64_t> begins;
  for (int64_t share = 0; share <= shares; ++share)
    begins.push_back(std::min(length, pages * share / shares * page_size));
  return begins;
}

void pass_empty(std::span<const double>& want, std::span<const double>& got, Budget& budget,
                std::vector<double>& kept) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const size_t size = want.size();
  const auto is_empty = [&](size_t i) { return want[i] == -kInfinity && got[i] == -kInfinity; };
  size_t first = 0;
  while (first < size && !is_empty(first)) ++first;
  if (first == size) return;
  kept.assign(want.begin(), want.end());
  kept.insert(kept.end(), got.begin(), got.end());
  for (size_t i = first; i < size; ++i) {
    if (!is_empty(i)) continue;
    kept[i] = kept[size + i] = 0;
    budget.limit[i] = 1;
    budget.variance[i] = kInfinity;  // of no statistic but the limit's
    if (!budget.misround.empty()) budget.misround[i] = 0;
  }
  want = std::span(kept).first(size);
  got = std::span(kept).subspan(size);
}

void ShareDoubts::add(const Place& share, int32_t request, std::span<const NodeOutcome> outcomes,
                      RoundingContract strictest) {
  const auto key = std::tuple(share.point->order(), share.layer, request);
  if (outcomes.front().verdict == Verdict::inconclusive)
    kinds_[key] = Kind::unjudged;
  else if (std::ranges::all_of(outcomes, &NodeOutcome::is_finding))
    kinds_[key] = Kind::wrong;
  else if (strictest != RoundingContract::fused || !may_round_so(outcomes.front()))
    kinds_[key] = Kind::loose;
}

std::vector<Place> ShareDoubts::of(Kind kind, const std::vector<Place>& shares,
                                   int32_t request) const {
  std::vector<Place> of;
  for (const Place& share : shares) {
    const auto found = kinds_.find({share.point->order(), share.layer, request});
    if (found != kinds_.end() && found->second == kind) of.push_back(share);
  }
  return of;
}

namespace {

// Whether both were shown, and there is a logarithm for each partial result.
bool fit_each_other(const std::vector<Place>& shares, const JudgedPass& pass,
                    const NodeRows& node) {
  if (shares.size() != 2) return false;
  const Shape &partial = pass.seen.tensor(shares.at(0), node.request)->shape,
              &lse = pass.seen.tensor(shares.at(1), node.request)->shape;
  return partial.rank() == 4 && lse == Shape(partial.extents().first(3));
}

constexpr const char* kMergedWrong =
    "merged wrong: not what attn.partial and attn.lse, as they were recorded, come to";

// Whether the merge itself made an error; a NaN may have come with the shares.
bool is_wrong(const NodeOutcome& merge) { return merge.is_finding() && !merge.passes_on; }

// Shares that nearly cancel leave a result whose spacing is finer than what their weights are off
// by: how often that turns its last rounding is not known so well, so that a finding takes an
// element that is over its budget, or another statistic.
void forgive_turned_roundings(NodeOutcome& merge) {
  if (!merge.is_finding() || !merge.wrong.empty() ||
      merge.finding.statistic != StatisticKind::misrounds)
    return;
  merge.verdict = Verdict::rounding;
  merge.finding = {};
}

// The comparison with the two models stays that of the attention.
void take_numbers(const NodeOutcome& merge, NodeOutcome& outcome) {
  const ErrorSums sums = outcome.sums;
  outcome = merge;
  outcome.sums = sums;
}

// Whether all that is wrong in an attention is wrong in its merge: none of it came with the shares.
bool is_of_merge(const NodeOutcome& attention, const NodeOutcome& merge) {
  if (attention.wrong.empty()) return merge.wrong.empty();
  return std::ranges::all_of(attention.wrong, [&](const WrongRow& row) {
    const auto merged = std::ranges::find(merge.wrong, row.row, &WrongRow::row);
    if (merged == merge.wrong.end()) return false;
    for (size_t e = 0; e < row.elements.size(); ++e)
      if (row.elements[e] && !merged->elements[e]) return false;
    return true;
  });
}

// Makes the outcome of a wrong attention that of its merge, unless it is of shares that nobody
// judged: all that is wrong beside the errors of the merge came with the shares. Returns whether it
// did.
bool explain(const NodeOutcome& merge, const std::vector<Place>& unjudged, NodeOutcome& outcome) {
  const auto say = [&](std::string_view what) {
    outcome.finding.rule += fmt::format("{}{}", outcome.finding.rule.empty() ? "" : "; ", what);
  };
  const bool came_with_shares = !is_wrong(merge) || !is_of_merge(outcome, merge);
  const bool is_by_shares = came_with_shares && unjudged.empty();
  if (is_by_shares) {
    take_numbers(merge, outcome);
  } else if (came_with_shares) {
    outcome.finding.region = unjudged;
    say("it came with attn.partial and attn.lse, and not every row of them was judged");
  }
  if (is_wrong(merge)) say(kMergedWrong);
  return is_by_shares;
}

// Makes findings of right outcomes of an attention whose merge is wrong. suspects: its shares that
// may be what is wrong; where there are none, an attention that fits the strictest contract is
// right.
void hold_to_merge(const NodeOutcome& merge, RoundingContract strictest,
                   const std::vector<Place>& suspects, NodeOutcomes& outcomes) {
  const bool is_exact = strictest == RoundingContract::fused && may_round_so(outcomes.front());
  const bool is_over_budget = is_wrong(merge) && !merge.wrong.empty();
  if (!is_over_budget || (is_exact && suspects.empty())) return;
  for (NodeOutcome& outcome : outcomes) {
    if (outcome.is_finding()) continue;
    take_numbers(merge, outcome);
    outcome.finding.rule = kMergedWrong;
    if (!suspects.empty())
      outcome.finding.rule += "; or one of the two is wrong, which no verdict clears";
    outcome.finding.region = suspects;
  }
}

}  // namespace

std::optional<NodeOutcome> OpJudge::outcome_of_merge(const Place& place,
                                                     const std::vector<Place>& shares,
                                                     const JudgedPass& pass, const NodeRows& node) {
  const auto unread = [&](const Place& share) { return !trouble_with(share, pass, node).empty(); };
  if (std::ranges::any_of(shares, unread) || !fit_each_other(shares, pass, node)) return {};
  NodeOutcomes merged;
  Group group{.tensor = pass.seen.tensor(place, node.request), .compared = true, .merged = true};
  add_rows(pass, node, group, &merged);
  judge_under(RoundingContract::fused, place, shares, pass, group);
  forgive_turned_roundings(merged.front());
  return merged.front();
}

void OpJudge::judge_merge(const Place& place, const std::vector<Place>& shares,
                          const JudgedPass& pass, std::vector<NodeOutcomes>& outcomes) {
  const std::vector<NodeRows>& nodes = pass.seen.nodes_of(place);
  const bool rounds_once = candidates(place) == std::vector{RoundingContract::fused};
  for (size_t i = 0; i < nodes.size(); ++i) {
    const NodeRows node = options_.rows.all()
                              ? nodes[i]
                              : drawn_of(options_.rows, place, pass.seen.info().pass, nodes[i]);
    const bool is_right = std::ranges::none_of(outcomes[i], &NodeOutcome::is_finding);
    // No number was judged of a result that is missing, or not as the model has it.
    if ((is_right && rounds_once) || !trouble_with(place, pass, node).empty()) continue;
    // The rows that are drawn of shares are others than those of their attention.
    const std::vector<Place> unjudged =
        options_.rows.all() ? doubts_.unjudged(shares, node.request) : shares;
    const std::optional<NodeOutcome> merge = outcome_of_merge(place, shares, pass, node);
    for (NodeOutcome& outcome : outcomes[i]) {
      if (!outcome.is_finding()) continue;
      if (!merge)
        outcome.finding.region = unjudged;
      else if (explain(*merge, unjudged, outcome))
        wrong_by_shares_.insert(key_of(place));
    }
    // In fp32 the logarithms may have been rounded to be shown, and that weighs as much as what
    // their merge rounds itself. Shares that are wrong whatever their contract tell nothing.
    if (!merge || dtype_at(place) == DType::f32 || !doubts_.wrong(shares, node.request).empty())
      continue;
    std::vector<Place> suspects = unjudged;
    for (const Place& share : doubts_.loose(shares, node.request))
      if (std::ranges::count(suspects, share) == 0) suspects.push_back(share);
    hold_to_merge(*merge, candidates(place).front(), suspects, outcomes[i]);
  }
}

}  // namespace lockstep
