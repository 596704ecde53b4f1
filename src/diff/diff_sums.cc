// The sums of one node: distances over its rows, the row and the element that are furthest off, and
// reasons that forbid a difference whatever its size. kind() asks them from the gravest on:
// forbidden, too far apart, one element too far, too many other bits for equal inputs, one element
// beyond two roundings.
#include "src/diff/diff_sums.h"

#include "src/stats/statistics.h"

namespace lockstep {

void DiffSums::add(std::span<const double> a, std::span<const double> b, const Row& row) {
  Distance own;
  for (size_t i = 0; i < a.size(); ++i) distance.add(a[i], b[i]), own.add(a[i], b[i]);
  if (own.relative() > furthest) furthest = own.relative(), furthest_position = row.position;
  const double of_row = worst_of(a, b);
  if (of_row <= worst) return;
  worst = of_row;
  worst_position = row.position;
}

void DiffSums::forbid(const Row& row, const char* why, double by) {
  if (by <= reason_worst) return;
  reason = why;
  reason_position = row.position;
  reason_worst = by;
}

void DiffSums::lack(const Row& row, bool both_read, int64_t& alone) {
  if (!both_read) {
    ++alone;
    return;
  }
  if (!differs) node.position = row.position;
  differs = true;
  forbid(row, "only one of the two reads that row of the cache", 0);
}

std::optional<DiffResult::Node> DiffSums::kind(
    const RelativeDifference& limit, const std::optional<DiffResult::Node::Share>& share) const {
  DiffResult::Node found = node;
  const auto element = [&](double relative, double its_limit, int32_t position) {
    found.of_element = true;
    found.relative = relative;
    found.limit = its_limit;
    found.position = position;
  };
  // Where numbers tell, the row that is furthest off; else the first with other bits.
  if (furthest > 0) found.position = furthest_position;
  if (!reason.empty()) {
    found.reason = reason;
    found.position = reason_position;
    found.limit = 0;
    return found;
  }
  if (!within(node.relative, limit.all)) return found;
  if (!within(worst, limit.worst)) {
    element(worst, limit.worst, worst_position);
    return found;
  }
  found.same_inputs = true;
  if (share) {
    found.share = share;
    found.position = same_inputs.first_position;
    return found;
  }
  const SameInputs::Furthest& one = same_inputs.furthest;
  if (within(one.excess, 1)) return {};
  element(one.relative, one.limit, one.position);
  return found;
}

}  // namespace lockstep
