// Rows that were measured where they were computed become rows of a node here, by the same steps as
// those whose elements are at hand (statistics.cc).
#include "src/stats/statistics.h"

namespace lockstep {

Meter::Row Meter::measure(int64_t position, const DistantRow& from, double gain,
                          std::vector<NodeSlice> room) const {
  const bool exact = options_.node_class == NodeClass::exact;
  room.clear();
  Row measured{.position = position, .heads = std::move(room)};
  Measure& of = measured.measure;
  take(from.sums, row_size_, of);
  measured.size = root_mean(from.sums.power, row_size_);
  const auto element = [&](const DistantRow::Worst& worst, double budgets) {
    return Element{position, worst.offset, worst.want, worst.got, budgets};
  };
  if (from.sums.different > 0)
    of.misrounded = beside_row(element(from.misrounded, from.sums.most_differing), measured.size);
  measured.any_worst = row_size_ > 0 && (!exact || from.sums.different > 0);
  if (measured.any_worst)
    of.worst =
        exact ? *of.misrounded : beside_row(element(from.worst, from.sums.most), measured.size);
  if (exact) return measured;
  measured.sum = from.moments;
  allow_gain(measured, gain);
  for (const DistantRow::Group& group : from.groups) {
    NodeSlice slice;
    slice.worst = element(group.worst, group.sums.most);
    if (group.misrounded.offset >= 0)
      slice.misrounded_worst = element(group.misrounded, group.sums.most_misrounded);
    end_group(measured, group.sums, slice);
  }
  measured.sum.end_row();
  measured.hash = from.hash;
  return measured;
}

// The columns of a node are of its distinct rows.
std::vector<int64_t> Meter::add(std::span<Row> rows, const DistantRows& elements, size_t first,
                                ThreadPool* threads) {
  begin_columns();
  const Added added = add_whole(rows, threads);
  const auto numbers_of = [&](std::span<const Row* const> some) {
    std::vector<int64_t> numbers;
    for (const Row* row : some)
      numbers.push_back(static_cast<int64_t>(first) + (row - rows.data()));
    return numbers;
  };
  if (columns_.size() > 0 && !added.distinct.empty()) {
    const auto columns = elements.columns(numbers_of(added.distinct));
    columns_.add(*columns);
    keep_worst_of_columns(rows, first, *columns);
  }
  return numbers_of(added.pooled);
}

// A later row replaces the worst so far only where it is worse, as keep_worst_of_columns() of rows
// whose elements are at hand does, so that the first of equals is named by both.
void Meter::keep_worst_of_columns(std::span<const Row> rows, size_t first,
                                  const DistantColumns& columns) {
  for (size_t i = 0; i < columns.worst.size(); ++i) {
    const auto element = [&](const DistantColumns::Worst& worst) {
      const Row& row = rows[worst.row - first];
      return beside_row(
          Element{row.position, static_cast<int64_t>(i), worst.want, worst.got, worst.budgets},
          row.size);
    };
    const DistantColumns::Worst &worst = columns.worst[i],
                                &misrounded = columns.worst_misrounded[i];
    if (worst.budgets > most_of_columns_[i])
      most_of_columns_[i] = worst.budgets, worst_of_columns_[i].worst = element(worst);
    if (misrounded.budgets > most_misrounded_of_columns_[i])
      most_misrounded_of_columns_[i] = misrounded.budgets,
      worst_of_columns_[i].misrounded = element(misrounded);
  }
}

}  // namespace lockstep
