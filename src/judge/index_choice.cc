// A choice of k indices is right when no value that was left out is above one that was taken; of
// ties and their order more is asked only of ops that promise it. Where the values are known but
// for an error, each may be off by its slack, and the choice is wrong only when it is so for all
// values within. NaN among the values is the largest where an op promises that too; elsewhere only
// an index of nothing is wrong then.
#include "src/judge/index_choice.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "src/judge/budget.h"

namespace lockstep {
namespace {

// An index that is not among those of the row's largest values, beside one that should be there.
struct WrongIndex {
  bool found = false;
  bool unknown = false;   // it is the index of nothing
  bool by_order = false;  // the values are the largest; others of them come first
  bool of_nan = false;    // NaN is among them, and counts as the largest
  double want = 0, got = 0;
};

// slack: the most that each value may be off; empty: nothing.
WrongIndex wrong_index(std::vector<double> row, const std::vector<double>& indices,
                       const std::vector<double>& slack) {
  std::vector<bool> taken(row.size(), false);
  WrongIndex wrong;
  for (const double index : indices) {
    const bool known = index >= 0 && index < static_cast<double>(row.size());
    if (!known || taken[static_cast<size_t>(index)])
      wrong = {.found = true, .unknown = !known, .got = index};
    if (wrong.found) break;
    taken[static_cast<size_t>(index)] = true;
  }
  // The largest of those left out must not be above the smallest of those taken.
  const auto out = [&](size_t i) { return !taken[i]; };
  // Each value is moved in the favour of the choice: what is still wrong then is wrong for all
  // values within the slack.
  for (size_t i = 0; i < slack.size(); ++i) row[i] += out(i) ? -slack[i] : slack[i];
  size_t best = row.size(), least = row.size();
  for (size_t i = 0; i < row.size(); ++i) {
    size_t& at = out(i) ? best : least;
    if (at == row.size() || (out(i) ? row[i] > row[at] : row[i] < row[at])) at = i;
  }
  if (best < row.size()) wrong.want = static_cast<double>(best);
  if (wrong.found || best == row.size() || least == row.size()) return wrong;
  wrong.found = row[best] > row[least];
  wrong.got = static_cast<double>(least);
  return wrong;
}

// The first index that is not where an op names it that takes the largest first, and of equal ones
// the smaller index. All indices are of the row, none is there twice, and nothing is NaN.
WrongIndex out_of_order(const std::vector<double>& row, const std::vector<double>& indices) {
  const auto before = [&](size_t a, size_t b) {
    return row[a] == row[b] ? a < b : row[a] > row[b];
  };
  std::vector<size_t> wanted(row.size());
  std::iota(wanted.begin(), wanted.end(), size_t{0});
  const auto end = wanted.begin() + std::ssize(indices);
  std::partial_sort(wanted.begin(), end, wanted.end(), before);
  const auto [want, got] = std::mismatch(wanted.begin(), end, indices.begin());
  if (want == end) return {};
  return {.found = true, .by_order = true, .want = static_cast<double>(*want), .got = *got};
}

// NaN becomes the largest number, as ops say that promise an order. No value of an fp64 tensor is
// as large as a double can be.
void put_nan_first(std::vector<double>& row) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  for (double& x : row) {
    if (x == kInfinity) x = std::numeric_limits<double>::max();
    if (std::isnan(x)) x = kInfinity;
  }
}

// One row's choice is judged. Where nobody says that NaN is the largest, nothing is; an index of
// nothing is wrong all the same.
WrongIndex wrong_choice(std::vector<double> row, const std::vector<double>& indices,
                        const std::vector<double>& slack, Ties ties) {
  const bool nan = std::ranges::any_of(row, [](double x) { return std::isnan(x); });
  const bool in_order = ties == Ties::first && slack.empty();
  if (in_order && nan) put_nan_first(row);
  WrongIndex wrong = wrong_index(row, indices, slack);
  if (in_order && !wrong.found) wrong = out_of_order(row, indices);
  wrong.of_nan = in_order && nan;
  wrong.found = wrong.found && (!nan || in_order || wrong.unknown);
  return wrong;
}

std::string rule_of(const WrongIndex& wrong, bool one) {
  if (wrong.of_nan)
    return one ? "the token is not that of the first NaN among the logits, which is larger than "
                 "any "
                 "number"
               : "the experts chosen are not those of the largest logits, of which a NaN is larger "
                 "than any number";
  if (wrong.by_order)
    return one ? "the token is not the first of the largest logits"
               : "the experts chosen are not in the order of their logits, equal ones by number";
  return one ? "the token is not the largest logit"
             : "the experts chosen are not those of the largest logits";
}

void show(NodeOutcome& outcome, const WrongIndex& wrong, int32_t position, bool one) {
  Finding& finding = outcome.finding;
  outcome.verdict = Verdict::introduced;
  outcome.position = finding.position = position;
  finding.index = {position};
  finding.want = wrong.want;
  finding.got = wrong.got;
  finding.budgets = std::numeric_limits<double>::infinity();
  finding.rule = rule_of(wrong, one);
  finding.statistic = StatisticKind::bits;
  finding.value = 1;
}

// The most that the values of a row may be off.
std::vector<double> slack_of(const TensorView& deviation, int64_t row) {
  if (deviation.empty()) return {};
  std::vector<double> slack = widened_row(deviation, row);
  for (double& s : slack) s *= kCarriedDeviations * std::sqrt(kCarriedVariance);
  return slack;
}

// Whether any of the values may be the largest and any the smallest. Then the least that the best
// can be is not above the most that the least can be: no choice could have been shown to be wrong.
bool are_alike(const std::vector<double>& row, const std::vector<double>& slack) {
  double most = -std::numeric_limits<double>::infinity(), least = -most;
  for (size_t i = 0; i < slack.size(); ++i) {
    most = std::max(most, row[i] - slack[i]);
    least = std::min(least, row[i] + slack[i]);
  }
  return !slack.empty() && !(most > least);
}

// How wide the intervals are beside the values: the share of choices that slack could hide.
double width_of(const std::vector<double>& row, const std::vector<double>& slack) {
  double sum = 0, power = 0;
  for (const double s : slack) sum += 2 * s;
  for (const double x : row) power += x * x;
  return power > 0 ? sum / std::sqrt(power * static_cast<double>(row.size())) : 0;
}

}  // namespace

bool is_right_choice(const std::vector<double>& values, const std::vector<double>& indices,
                     Ties ties) {
  return !wrong_choice(values, indices, {}, ties).found;
}

// An index is exact: it names the largest of what its op read, whatever was right to read. Slack is
// there where those values were not recorded.
ChoiceOutcome judge_choice(const NodeRows& node, bool one, Ties ties, const TensorView& values,
                           const TensorView& chosen, const TensorView& deviation) {
  ChoiceOutcome outcome;
  int64_t nan_rows = 0;
  bool alike = false;
  for (size_t i = 0; i < node.rows.size(); ++i) {
    const int64_t at = i;
    const std::vector<double> row = widened_row(values, at);
    const std::vector<double> slack = slack_of(deviation, at);
    const std::vector<double> indices = widened_row(chosen, at);
    const bool nan = std::ranges::any_of(row, [](double x) { return std::isnan(x); });
    const WrongIndex wrong = wrong_choice(row, indices, slack, ties);
    alike = alike || are_alike(row, slack);
    outcome.width = std::max(outcome.width, width_of(row, slack));
    outcome.unknown = outcome.unknown || wrong.unknown;
    nan_rows += nan ? 1 : 0;
    const bool any_is_right = one && ties == Ties::any && !nan && slack.empty() && !wrong.found;
    if (any_is_right && out_of_order(row, indices).found) ++outcome.node.later_of_equals;
    if (!wrong.found) continue;
    outcome.node.wrong.push_back({at, {true}});
    if (outcome.node.verdict == Verdict::bitwise)
      show(outcome.node, wrong, node.rows[i].position, one);
  }
  if (alike && nan_rows == 0 && outcome.node.verdict == Verdict::bitwise)
    outcome.node = inconclusive(
        "the values that they choose among were not recorded, and may be off by more than they "
        "differ");
  outcome.node.excluded = nan_rows;
  if (nan_rows == 0 || outcome.node.verdict != Verdict::bitwise) return outcome;
  outcome.node.verdict = Verdict::nonfinite;
  outcome.node.passes_on = true;
  outcome.node.blank = nan_rows == std::ssize(node.rows);
  outcome.node.finding.rule = "propagated: the values that it chooses among hold NaN";
  outcome.node.finding.budgets = std::numeric_limits<double>::infinity();
  outcome.node.finding.position = outcome.node.position = node.rows.front().position;
  return outcome;
}

}  // namespace lockstep
