// The statistics of all nodes of a place, and of all places of a point: they add up what is too
// small to be seen in one.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "src/judge/judge_state.h"
#include "src/stats/mutant.h"

namespace lockstep {
namespace {

// How often the last rounding of a merge turns is not known so well where its shares nearly cancel,
// of many nodes no better than of one.
void leave_out_misrounds(std::vector<Statistic>& statistics) {
  std::erase_if(statistics, [](const Statistic& s) { return s.kind == StatisticKind::misrounds; });
}

}  // namespace

// Judges the nodes of a place together, for what no single node shows. Not where some have errors
// that others brought: together these would be an error of the place itself.
void Judge::State::judge_pool(size_t index) {
  const Place& place = ledger.places()[index];
  const double scale = options.limit_scale;
  const RoundingContract contract = contract_of(place);
  if (is_mutant(Mutant::no_pooling) || excused.contains(static_cast<int>(index))) return;
  std::vector<Statistic> statistics = op_judge.pooled_statistics(place, contract);
  if (of_shares.contains(static_cast<int>(index))) leave_out_misrounds(statistics);
  for (const Statistic& statistic : statistics) ledger.limit_ratio(statistic.limit_ratio());
  for (const Statistic& statistic : statistics) {
    if (statistic.passes(scale)) continue;
    return enter(statistic, index, "all passes together: " + statistic.slice);
  }
  // Beside a finding it would stand as if it were another one.
  const PlacePool* pool = op_judge.pooled(place, contract);
  if (!pool || ledger.any_finding_at(static_cast<int64_t>(index))) return;
  const Moments& sum = pool->sum();
  if (contract == RoundingContract::fused && manifest.dtype != DType::f32 &&
      !within(std::fabs(sum.offset_deviations()), kGainDeviations))
    ledger.note(
        fmt::format("{} is on average {:.3g} standard deviations of its {} elements too {} "
                    "(T6), as by truncation; no limit minds",
                    text_of(place), std::fabs(sum.offset_deviations()), sum.elements,
                    sum.offset > 0 ? "large" : "small"));
}

// A statistic over its limit becomes a finding of all nodes of the place.
void Judge::State::enter(const Statistic& statistic, size_t place, std::string rule) {
  ledger.regrade_all(place, {.verdict = Verdict::introduced,
                             .statistic = statistic.kind,
                             .value = statistic.value,
                             .limit = statistic.limit * options.limit_scale,
                             .budgets = statistic.value / statistic.limit,
                             .rule = std::move(rule)});
}

RoundingContract Judge::State::contract_of(const Place& place) const {
  const std::vector<RoundingContract> candidates = op_judge.candidates(place);
  return candidates.at(candidates.size() > 1 ? op_judge.contracts().chosen(place) : 0);
}

// Judges all places of a point together that are under one contract, whatever the layer. None of
// them shows alone what all of them do, so the first is named, unless only some have a gain that
// they had too few rows to be asked for.
void Judge::State::judge_point(const Point& point) {
  if (is_mutant(Mutant::no_pooling)) return;
  if (ledger.any_finding_at(point)) return name_gains(point);
  const DType dtype = op_judge.dtype_at({&point, -1});
  std::map<RoundingContract, std::vector<std::pair<size_t, const Moments*>>> sums;  // by place
  for (size_t i = 0; i < ledger.places().size(); ++i) {
    const Place& place = ledger.places()[i];
    if (!(*place.point == point) || excused.contains(static_cast<int>(i))) continue;
    const RoundingContract contract = contract_of(place);
    const PlacePool* pool = op_judge.pooled(place, contract);
    if (pool) sums[contract].emplace_back(i, &pool->sum());
  }
  if (judge_scales(point)) return;
  for (const auto& [contract, of_places] : sums) {
    Moments all, others;
    std::vector<size_t> gaining;
    for (const auto& [place, sum] : of_places) {
      all.add(*sum);
      if (sum->gain_over(dtype))
        gaining.push_back(place);
      else
        others.add(*sum);
    }
    std::vector<Statistic> statistics = all.statistics(dtype, kPooledFalseAlarm);
    tighten(statistics, options.limits.of(point.op, manifest.dtype));
    drop_missing(statistics);
    if (std::ranges::any_of(of_places, [this](const auto& of) {
          return of_shares.contains(static_cast<int>(of.first));
        }))
      leave_out_misrounds(statistics);
    if (others.gain_over(dtype)) gaining.clear();
    const char* which =
        gaining.size() < of_places.size() ? ", and only those named here show it" : "";
    if (blame(statistics, of_places.front().first, gaining, which)) return;
  }
}

// Names the other layers of a point with a finding that have a gain over its limit, though too few
// rows to be asked for it alone: a kernel that is wrong in all layers shows by chance in some, and
// the first is where to look.
void Judge::State::name_gains(const Point& point) {
  const DType dtype = op_judge.dtype_at({&point, -1});
  for (size_t i = 0; i < ledger.places().size(); ++i) {
    const Place& place = ledger.places()[i];
    if (!(*place.point == point) || excused.contains(static_cast<int>(i)) ||
        ledger.any_finding_at(static_cast<int64_t>(i)))
      continue;
    const PlacePool* pool = op_judge.pooled(place, contract_of(place));
    const std::optional<Statistic> gain = pool ? pool->sum().gain_over(dtype) : std::nullopt;
    if (gain && !gain->passes(options.limit_scale))
      enter(*gain, i, "all passes together: " + gain->slice);
  }
}

// The same of what whole rows are off by, where what a norm reads is not known bit for bit.
// Whether it rounds inside is seldom seen then, so that it is whatever makes less of it. One place
// is named alone where the others together show nothing.
bool Judge::State::judge_scales(const Point& point) {
  std::vector<std::pair<size_t, ScaleSums>> of_places;  // of that contract
  const auto all_but = [&](size_t left_out) {
    ScaleSums all;
    for (const auto& [place, sums] : of_places)
      if (place != left_out) all.add(sums);
    return all;
  };
  std::vector<Statistic> least;
  std::vector<size_t> places, alone;
  int64_t rows = 0;
  for (const RoundingContract contract : op_judge.possible({&point, 0})) {
    of_places.clear();
    for (size_t i = 0; i < ledger.places().size(); ++i) {
      const Place& place = ledger.places()[i];
      if (*place.point == point && !excused.contains(static_cast<int>(i)) &&
          op_judge.scales(place, contract_of(place)).rows > 0)
        of_places.emplace_back(i, op_judge.scales(place, contract));
    }
    const ScaleSums all = all_but(ledger.places().size());
    // One that is out was not tried at all rows.
    if (all.rows == 0 || all.rows < rows) continue;
    const Statistic statistic = all.statistic(kPooledFalseAlarm);
    if (all.rows == rows && statistic.value >= least[0].value) continue;
    rows = all.rows;
    least = {statistic};
    places.clear(), alone.clear();
    for (const auto& [place, sums] : of_places) {
      places.push_back(place);
      if (all_but(place).statistic(kPooledFalseAlarm).passes(options.limit_scale))
        alone.push_back(place);
    }
  }
  drop_missing(least);
  if (least.empty()) return false;
  if (alone.size() != 1) alone.clear();
  return blame(least, places.front(), alone, ", and without this one nothing is");
}

// Enters the first of the statistics of all layers that is over its limit as a finding: a gain of
// the places that have it, where it is told which do, else of the first place. Returns whether
// there is one. which: what is said of those places.
bool Judge::State::blame(const std::vector<Statistic>& statistics, size_t first,
                         const std::vector<size_t>& gaining, const char* which) {
  const double scale = options.limit_scale;
  for (const Statistic& statistic : statistics) {
    ledger.limit_ratio(statistic.limit_ratio());
    if (statistic.passes(scale)) continue;
    const bool of_some = statistic.kind == StatisticKind::gain && !gaining.empty();
    for (const size_t place : of_some ? gaining : std::vector{first})
      enter(statistic, place,
            fmt::format("all layers and passes together: {}{}", statistic.slice,
                        of_some ? which : ""));
    return true;
  }
  return false;
}

}  // namespace lockstep
