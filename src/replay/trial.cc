// An implementation on trial: a judge, causes and distances of its own, over the passes that are
// replayed. The exact results are shared among trials, as they are the same and the dearest part.
#include "src/replay/trial.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "probes/digest.h"
#include "src/judge/budget.h"
#include "src/judge/pass_view.h"
#include "traces/manifest.h"

namespace lockstep {
namespace {

std::vector<int64_t> index_of(const Row& row, int64_t offset, const Shape& shape) {
  std::vector<int64_t> index(static_cast<size_t>(shape.rank()));
  for (int axis = shape.rank() - 1; axis > 0; --axis) {
    index[axis] = offset % shape[axis];
    offset /= shape[axis];
  }
  index[0] = row.position;
  return index;
}

// How far an element is off, in a unit: 0 where it is the same, Infinity where only one of both is
// a number.
double off(double got, double want, double unit) {
  if (got == want || (std::isnan(got) && std::isnan(want))) return 0;
  const double away = std::fabs(got - want) / unit;
  return std::isfinite(away) ? away : std::numeric_limits<double>::infinity();
}

}  // namespace

Exact SharedOracle::evaluate(const OracleCall& call) {
  const auto same = [&](const Answer& answer) {
    return answer.contract == call.contract && std::ranges::equal(answer.rows, call.rows);
  };
  if (const auto known = std::ranges::find_if(answers_, same); known != answers_.end())
    return known->exact;
  return answers_
      .emplace_back(
          Answer{call.contract, {call.rows.begin(), call.rows.end()}, oracle_.evaluate(call)})
      .exact;
}

Trial::Trial(std::string name, const Manifest& manifest, const Place& place, SharedOracle& oracle,
             Hypotheses& hypotheses, JudgeOptions options)
    : manifest_(manifest),
      place_(place),
      oracle_(oracle),
      judge_(manifest, oracle, nullptr, nullptr, std::move(options)),
      causes_(manifest, judge_, oracle, hypotheses) {
  result_.name = std::move(name);
}

void Trial::add(const Pass& pass, const Pass* kept) {
  const std::vector<NodeId> flags = judge_.judge(pass);
  measure(narrowed(pass, manifest_.dtype));
  causes_.add(pass, flags);
  if (kept != nullptr) compare(pass, *kept);
}

// All elements are measured under each contract that was asked about, as which one counts is known
// at the end.
void Trial::measure(const Pass& pass) {
  const RecordedTensor* made = pass.find(*place_.point, place_.layer);
  if (made == nullptr || made->data.view().empty()) return;
  for (const SharedOracle::Answer& answer : oracle_.answers()) {
    const SelectedRows picked(made, answer.rows);
    if (!picked.view().empty() && picked.view().shape == answer.exact.shape)
      measure(pass.info.pass, answer, picked.view());
  }
}

void Trial::measure(int32_t pass, const SharedOracle::Answer& answer, const TensorView& got) {
  Distances& distances = distances_[answer.contract];
  const Budget budget = budget_of(place_.point->op, answer.exact, got.dtype);
  for (int64_t i = 0; i < got.count(); ++i) {
    const size_t e = i;
    const double value = value_at(got, i), want = answer.exact.want[e];
    // An Infinity that the exact result is too, once it is rounded, is as right as can be.
    const bool overflows = !std::isfinite(value) && value == round_to(want, got.dtype);
    distances.ulps =
        std::max(distances.ulps, overflows ? 0 : off(value, want, ulp(want, got.dtype)));
    const double budgets = overflows ? 0 : off(value, want, budget.limit[e]);
    if (distances.worst && !(budgets > distances.worst->budgets)) continue;
    const Row& row = answer.rows[static_cast<size_t>(i / got.row_size())];
    distances.worst = TrialResult::Element{.pass = pass,
                                           .request = row.request,
                                           .index = index_of(row, i % got.row_size(), got.shape),
                                           .want = want,
                                           .got = value,
                                           .budgets = budgets};
  }
}

// By hashes of rows, which the trace has even where it kept no numbers.
void Trial::compare(const Pass& pass, const Pass& kept) {
  for (const RecordedTensor& made : pass.tensors) {
    if (!(Place{made.point, made.layer} == place_) || made.data.view().empty()) continue;
    const int32_t request = made.rows.empty() ? -1 : made.rows[0].request;
    const RecordedTensor* of_trace = kept.find(*place_.point, place_.layer, request);
    if (of_trace == nullptr) continue;
    const bool hashed = of_trace->data.view().empty();
    const std::vector<uint64_t> own = row_hashes_of(made.data);
    const std::vector<uint64_t> theirs =
        hashed ? of_trace->row_hashes : row_hashes_of(of_trace->data);
    for (size_t i = 0; i < own.size(); ++i) {
      const auto row = std::ranges::find(of_trace->rows, made.rows[i]) - of_trace->rows.begin();
      if (static_cast<size_t>(row) >= theirs.size()) continue;
      ++result_.rows;
      result_.equal_rows += own[i] == theirs[row] ? 1 : 0;
    }
  }
}

TrialResult Trial::finish() {
  Result judged = judge_.finish({}, true);
  const RoundingContract contract = judge_.contract_at(place_);
  result_.contract = name_of(contract);
  if (const auto found = distances_.find(contract); found != distances_.end()) {
    result_.worst = found->second.worst;
    result_.ulps = found->second.ulps;
  }
  causes_.put_into(judged);
  result_.expected = judged.expected;
  result_.judged = judged.judged;
  result_.bitwise = judged.counts[Verdict::bitwise];
  for (const PlaceSummary& place : judged.places)
    if (place.place == place_) result_.looks_like = place.looks_like;
  if (judged.judged < judged.expected) result_.reason = judged.story;
  const Finding* gravest = nullptr;
  for (const Finding& finding : judged.findings) {
    if (!(finding.node.place == place_)) continue;
    ++result_.wrong;
    if (gravest == nullptr || finding.budgets > gravest->budgets) gravest = &finding;
  }
  if (gravest == nullptr) return std::move(result_);
  result_.rule = gravest->rule;
  // A finding of a statistic may name an element that is within its budget; the furthest one by
  // itself is shown unless the finding is graver.
  if (!gravest->index.empty() && (!result_.worst || gravest->budgets > result_.worst->budgets))
    result_.worst =
        TrialResult::Element{gravest->node.pass, gravest->node.request, gravest->index,
                             gravest->want,      gravest->got,          gravest->budgets};
  return std::move(result_);
}

}  // namespace lockstep
