// Entries come in the order in which passes are settled; result() sorts the findings by pass, place
// and request, so that the first one is where the run first diverges. A verdict can become graver
// afterwards, when all nodes of a place are judged together (regrade_all), and never milder.
#include "src/judge/ledger.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <tuple>
#include <utility>

#include "src/stats/moments.h"
#include "src/stats/mutant.h"

namespace lockstep {
namespace {

// How grave: bitwise, rounding, propagated, confounded, inconclusive, structural, nonfinite,
// introduced.
int gravity_of(Verdict verdict) {
  static constexpr EnumArray<Verdict, int> kGravity = {{0, 1, 2, 3, 7, 6, 5, 4}};
  return kGravity[verdict];
}

// Whether a finding stays one however wide the limits are.
bool absolute(const Finding& finding) {
  return finding.verdict != Verdict::introduced || !finding.statistic ||
         finding.statistic == StatisticKind::bits;
}

// How much worse than the same model in the run's dtype the three-way rule allows an engine to be.
constexpr double kThreeWay = 3;

// Wrong places whose errors are kept by position and head together, which is most of what is kept:
// later ones have both apart.
constexpr int kMostMaps = 32;

// The places of which the end of a run may say more than their nodes did.
bool may_be_regraded(const Place& place) {
  return *place.point == point("embed") || *place.point == point("logits") ||
         *place.point == point("token");
}

// A structural node was expected and compared with nothing, so it does not count as judged.
bool judged(Verdict verdict) {
  return verdict != Verdict::inconclusive && verdict != Verdict::structural;
}

}  // namespace

NodeOutcome inconclusive(std::string reason) {
  NodeOutcome outcome;
  outcome.verdict = Verdict::inconclusive;
  outcome.reason = std::move(reason);
  return outcome;
}

NodeOutcome structural(std::string rule, int32_t position) {
  NodeOutcome outcome;
  outcome.verdict = Verdict::structural;
  outcome.finding.rule = std::move(rule);
  outcome.finding.position = position;
  return outcome;
}

std::string text_of(const Place& place) {
  if (place.layer < 0) return std::string(place.point->name);
  return fmt::format("layer {} {}", place.layer, place.point->name);
}

bool NodeOutcome::is_finding() const { return lockstep::is_finding(verdict) && !overflows; }

Ledger::Ledger(const Graph& graph) : places_(graph.places()), sums_(places_.size()) {
  for (size_t i = 0; i < places_.size(); ++i) sums_[i].summary.place = places_[i];
}

// The sums of a place are kept as nodes come, so that a run of any length takes the memory of its
// places and findings.
int Ledger::enter(NodeOutcome outcome) {
  int64_t* reason = nullptr;
  if (outcome.verdict == Verdict::inconclusive) ++*(reason = &reasons_[outcome.reason]);
  const Entry entry = {outcome.pass,         outcome.request,  outcome.place, outcome.verdict,
                       outcome.is_finding(), outcome.position, reason};
  if (may_be_regraded(places_[outcome.place]) || reason) entries_.push_back(entry);
  Sums& sums = sums_[outcome.place];
  ++sums.counts[outcome.verdict];
  sums.found = sums.found || entry.finding;
  if (!sums.first && !reason) sums.first = entry;
  PlaceSummary& summary = sums.summary;
  const auto worst = [](double t1, double t2) { return std::max(t1, t2); };
  const bool graver = gravity_of(outcome.verdict) > gravity_of(summary.verdict);
  const bool equal = outcome.verdict == summary.verdict;
  const bool larger = worst(outcome.t1, outcome.t2) > worst(summary.worst_t1, summary.worst_t2);
  // The row that a summary names is that of the gravest verdict, and among equals the largest in
  // units of its limit.
  if (summary.expected == 0 || graver || (equal && larger)) {
    summary.worst_request = outcome.request;
    summary.worst_position = outcome.position;
    summary.worst_pass = outcome.pass;
  }
  ++summary.expected;
  if (graver) summary.verdict = outcome.verdict;
  if (outcome.t1 > summary.worst_t1) summary.worst_of_row = outcome.of_row;
  summary.worst_t1 = std::max(summary.worst_t1, outcome.t1);
  summary.worst_t2 = std::max(summary.worst_t2, outcome.t2);
  summary.excluded += outcome.excluded;
  later_of_equals_ += outcome.later_of_equals;
  largest_ = std::max(largest_, outcome.largest);
  sums.largest = std::max(sums.largest, outcome.largest);
  if (outcome.ancestor >= 0 && summary.ancestor.empty())
    summary.ancestor = text_of(place_of_finding(outcome.ancestor));
  sums.errors.add(outcome.sums);
  ask_other_rules(outcome);
  limit_ratio(outcome.limit_ratio);
  sums.has_t2 = sums.has_t2 || outcome.has_t2;
  if (!outcome.is_finding()) return -1;

  outcome.errors.name_node(outcome.pass, outcome.request);
  summary.errors.add(outcome.errors);
  Finding& finding = findings_.emplace_back(std::move(outcome.finding));
  finding.verdict = outcome.verdict;
  finding.node.place = named(outcome.place);
  finding.node.pass = outcome.pass;
  finding.node.request = outcome.request;
  if (absolute(finding)) limit_ratio(std::numeric_limits<double>::infinity());
  return static_cast<int>(findings_.size()) - 1;
}

// Rules of other tools, for comparison alone: torch.testing.assert_close, and three times the
// reference's own error.
void Ledger::ask_other_rules(const NodeOutcome& outcome) {
  const ErrorSums& sums = outcome.sums;
  if (sums.compared == 0 && sums.not_close == 0) return;
  compared_ = true;
  const Place& place = places_[outcome.place];
  if (!first_not_close_ && sums.not_close > 0) first_not_close_ = place;
  const bool within_floor =
      sums.compared > 0 && std::sqrt(sums.total) <= kThreeWay * std::sqrt(sums.floor);
  if (!first_over_floor_ && !within_floor) first_over_floor_ = place;
}

const Place& Ledger::named(int64_t place) const {
  const size_t next = is_mutant(Mutant::names_next_op) ? 1 : 0;
  return places_[(place + next) % places_.size()];
}

// No limit makes a tensor of no place right.
void Ledger::stray(const Finding& finding) {
  limit_ratio(std::numeric_limits<double>::infinity());
  findings_.push_back(finding);
}

void Ledger::regrade(Entry entry, const Finding& finding) {
  Sums& sums = sums_[entry.place];
  --sums.counts[entry.verdict];
  ++sums.counts[finding.verdict];
  sums.found = true;
  // The node is inconclusive no more, so its reason counts one node less.
  if (entry.reason) --*entry.reason;
  entry.verdict = finding.verdict;
  entry.finding = true;
  entry.reason = nullptr;
  if (sums.first && sums.first->same_node(entry)) sums.first = entry;
  for (Entry& kept : entries_)
    if (kept.same_node(entry)) kept = entry;
  if (absolute(finding)) limit_ratio(std::numeric_limits<double>::infinity());
  PlaceSummary& summary = sums.summary;
  if (gravity_of(finding.verdict) > gravity_of(summary.verdict)) summary.verdict = finding.verdict;
  findings_.push_back(finding);
}

bool Ledger::regrade(int place, int32_t pass, int32_t request, const Finding& finding) {
  for (const Entry& entry : entries_) {
    if (entry.place != place || entry.pass != pass || entry.request != request) continue;
    if (!entry.finding) regrade(entry, finding);
    return true;
  }
  return false;
}

// A finding about a place as a whole stands at its first judged node; where a node is wrong by
// itself, it says enough.
bool Ledger::regrade_all(int64_t place, Finding finding) {
  const std::optional<Entry> first = sums_[place].first;
  if (!first || sums_[place].found) return false;
  finding.node.place = named(place);
  finding.node.pass = first->pass;
  finding.node.request = first->request;
  finding.position = first->position;
  regrade(*first, finding);
  return true;
}

bool Ledger::any_finding_at(const Point& point) const {
  return std::ranges::any_of(findings_,
                             [&](const Finding& f) { return *f.node.place.point == point; });
}

void Ledger::explain(int64_t place, const std::string& words) {
  for (Finding& finding : findings_)
    if (finding.node.place == places_[place])
      finding.rule += (finding.rule.empty() ? "" : "; ") + words;
}

const Place& Ledger::place_of_finding(int number) const { return findings_[number].node.place; }

std::vector<Place> Ledger::places_of_zeros() const {
  std::vector<Place> zeros;
  for (const Sums& sums : sums_)
    if (sums.errors.elements > 0 && sums.largest == 0) zeros.push_back(sums.summary.place);
  return zeros;
}

std::string Ledger::main_reason() const {
  std::string reason;
  int64_t most = 0;
  for (const auto& [text, count] : reasons_)
    if (count > most) most = count, reason = text;
  return reason;
}

// Findings in the order of the computation; the first is what a reader is told.
Result Ledger::result() const {
  Result result;
  result.notes = notes_;
  result.limit_ratio = limit_ratio_;
  result.hidden = hidden_;
  result.scope.largest = largest_;
  if (compared_)
    result.others = {{"torch.testing.assert_close", first_not_close_},
                     {"error over 3x the reference's own", first_over_floor_}};
  for (const auto& [reason, count] : reasons_)
    if (count > 0)
      result.notes.push_back(
          fmt::format("{} inconclusive: {}",
                      count == 1 ? "1 node is" : fmt::format("{} nodes are", count), reason));
  result.findings = findings_;
  // Wrong numbers come before places that are only of another contract than their like.
  const auto order = [this](const Finding& f) {
    const auto place = std::ranges::find(places_, f.node.place) - places_.begin();
    return std::tuple(f.statistic == StatisticKind::contract, f.node.pass, place, f.node.request);
  };
  std::ranges::stable_sort(result.findings, {}, order);
  if (!result.findings.empty()) result.first = result.findings.front();

  std::vector<int64_t> judged_at(places_.size());
  for (size_t i = 0; i < places_.size(); ++i)
    for (const Verdict verdict : values_of<Verdict>()) {
      const int64_t nodes = sums_[i].counts[verdict];
      result.expected += nodes;
      result.counts[verdict] += nodes;
      if (judged(verdict)) judged_at[i] += nodes;
    }
  result.judged = std::accumulate(judged_at.begin(), judged_at.end(), int64_t{0});
  int profiled = 0;
  for (size_t i = 0; i < places_.size(); ++i) {
    if (sums_[i].summary.expected == 0) continue;
    PlaceSummary& summary = result.places.emplace_back(sums_[i].summary);
    result.excluded += summary.excluded;
    const ErrorSums& errors = sums_[i].errors;
    summary.judged = judged_at[i];
    summary.introduced_rms = root_mean(errors.introduced, errors.elements);
    summary.propagated_rms = root_mean(errors.propagated, errors.compared);
    summary.total_rms = root_mean(errors.total, errors.compared);
    summary.measured = errors.elements > 0;
    summary.compared = errors.compared > 0;
    summary.has_t2 = sums_[i].has_t2;
    // Maps of positions by heads are dropped from the 33rd wrong place on: what a page shows of
    // them is not worth their size.
    if (summary.errors.elements > 0 && ++profiled > kMostMaps) summary.errors.map.clear();
    summary.errors.shorten_map();
  }
  return result;
}

}  // namespace lockstep
