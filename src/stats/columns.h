#pragma once

#include <span>
#include <vector>

#include "src/stats/distant_rows.h"
#include "src/stats/moments.h"
#include "src/stats/row_loops.h"

namespace lockstep {

// The sums of each column over rows, an array an amount.
class ColumnSums {
 public:
  // More columns; those that there are stay.
  void resize(size_t columns);
  size_t size() const { return sums_[0].size(); }
  // Adds the columns [begin, end) of the rows, in their order. Several threads may add different
  // columns at once.
  void add(std::span<const WeighedRow* const> rows, size_t begin, size_t end);
  // All columns of rows that were added up elsewhere.
  void add(const DistantColumns& columns);
  Scatter of(size_t column) const;

 private:
  enum Amount : size_t { kElements, kSquares, kDue, kCommon, kMisrounded, kMay, kAmounts };
  std::vector<double> sums_[kAmounts];
};

// Columns that are worth a thread, and that stay in the nearest cache while rows pass by.
inline constexpr int64_t kColumnsTogether = 256;

}  // namespace lockstep
