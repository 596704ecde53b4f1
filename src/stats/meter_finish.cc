// The statistics of a node, of what its rows were added up to, and its worst slices by name.
#include <fmt/format.h>

#include <utility>

#include "src/stats/statistics.h"

namespace lockstep {

void Meter::add_worst_slices(Measure& measure) const {
  Slices slices;
  std::vector<Scatter> columns;
  for (size_t c = 0; c < columns_.size(); ++c) columns.push_back(columns_.of(c));
  // A slice that is the whole node is T2 again.
  const auto take = [&](const char* axis, int64_t key, const Scatter& slice) {
    if (slice.elements < moments_.sum().elements) slices.add(axis, key, slice);
  };
  for (const auto& [position, slice] : rows_) take("position", position, slice);
  for (const auto& [page, slice] : pages_) take("page", page, slice);
  for (size_t h = 0; h < heads_.size(); ++h) take("head", h, heads_[h]);
  for (size_t c = 0; c < columns.size(); ++c) take("column", c, columns[c]);
  const auto worst_in = [&](const Scatter* slice) {
    for (size_t c = 0; c < columns.size(); ++c)
      if (slice == &columns[c]) return worst_of_columns_[c];
    const auto* of = static_cast<const NodeSlice*>(slice);
    return WorstOfColumn{of->worst, of->misrounded_worst};
  };
  // They tell where, so they go before what T3 and T5 say of all.
  const Slices::Worst scattered = slices.scattered(kFalseAlarm);
  // Behind T1 and T2.
  auto at = measure.statistics.insert(measure.statistics.begin() + 2, scattered.statistic);
  if (scattered.scatter) measure.worst_scattered = worst_in(scattered.scatter).worst;
  if (options_.dtype == DType::f32) return;
  const Slices::Worst misrounded = slices.misrounded(kFalseAlarm);
  measure.statistics.insert(at + 1, misrounded.statistic);
  if (misrounded.scatter) measure.misrounded_in_slice = worst_in(misrounded.scatter).misrounded;
}

Measure Meter::finish() const {
  Measure measure = measure_;
  if (options_.node_class == NodeClass::exact) {
    measure.statistics.push_back(
        {StatisticKind::bits, static_cast<double>(measure.different), 0,
         fmt::format("{} of {} elements have other bits", measure.different, measure.elements)});
    drop_missing(measure.statistics);
    return measure;
  }
  measure.statistics.push_back(
      {StatisticKind::max_error, measure.worst.budgets, 1,
       fmt::format("{} of {} elements over their budget", measure.over, measure.elements)});
  for (Statistic& statistic : moments_.sum().statistics(options_.dtype, kFalseAlarm))
    measure.statistics.push_back(std::move(statistic));
  if (measure.statistics.size() > 1) add_worst_slices(measure);
  drop_missing(measure.statistics);
  return measure;
}

}  // namespace lockstep
