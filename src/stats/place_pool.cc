// The sums over all nodes of a place, so that what is too small to show in one shows in many.
#include <algorithm>

#include "src/stats/statistics.h"

namespace lockstep {

std::vector<const Meter::Row*> PlacePool::add(std::span<const Meter::Row> rows) {
  constexpr int64_t kMoreRows = 512;
  std::vector<const Meter::Row*> taken;
  for (const Meter::Row& row : rows) {
    if ((row.hash & passed_) != 0 || !moments_.add(row.hash, row.sum)) continue;
    if (moments_.rows() >= enough_) {
      enough_ += kMoreRows;
      passed_ = passed_ << 1 | 1;
    }
    heads_.resize(std::max(heads_.size(), row.heads.size()));
    columns_.resize(std::max(columns_.size(), static_cast<size_t>(row.measure.elements)));
    taken.push_back(&row);
  }
  return taken;
}

void PlacePool::add_whole(std::span<const Meter::Row> rows, const DistantRows* elsewhere) {
  const std::vector<const Meter::Row*> taken = add(rows);
  if (taken.empty()) return;
  for (size_t head = 0; head < taken[0]->heads.size(); ++head) add_head(head, taken);
  if (elsewhere) {
    std::vector<int64_t> numbers;
    for (const Meter::Row* row : taken) numbers.push_back(row - rows.data());
    add_columns(*elsewhere->columns(numbers));
    return;
  }
  std::vector<const WeighedRow*> elements;
  for (const Meter::Row* row : taken) elements.push_back(&row->elements);
  add_columns(elements, 0, columns_.size());
}

void PlacePool::add_head(size_t head, std::span<const Meter::Row* const> rows) {
  for (const Meter::Row* row : rows) heads_[head].add(row->heads[head]);
}

std::vector<Statistic> PlacePool::statistics(DType dtype) const {
  std::vector<Statistic> statistics = sum().statistics(dtype, kPooledFalseAlarm);
  if (statistics.empty()) return statistics;
  Slices slices;
  for (size_t h = 0; h < heads_.size(); ++h) slices.add("head", h, heads_[h]);
  std::vector<Scatter> columns;
  for (size_t c = 0; c < columns_.size(); ++c) columns.push_back(columns_.of(c));
  for (size_t c = 0; c < columns.size(); ++c) slices.add("column", c, columns[c]);
  statistics.push_back(slices.scattered(kPooledFalseAlarm).statistic);
  if (dtype != DType::f32) statistics.push_back(slices.misrounded(kPooledFalseAlarm).statistic);
  drop_missing(statistics);
  return statistics;
}

}  // namespace lockstep
