// Rows that are measured where they were computed, on a device: what the loops of row_loops.h make
// of each comes to the host, its elements do not.
//
// Only rows that are plain and within their budgets are measured so; of all others every element
// may be asked about, and they are measured here.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "src/stats/error_sums.h"
#include "src/stats/moments.h"
#include "src/stats/row_loops.h"

namespace lockstep {

// The sums of one row. Of a row of class exact, `sums`, the worst elements and `compared` alone.
struct DistantRow {
  // The first element of those that are as bad as the worst; offset -1: there is none.
  struct Worst {
    int64_t offset = -1;
    double want = 0, got = 0;
  };
  // A head, or the row where its elements share a part of their variance.
  struct Group {
    GroupSums sums;
    Worst worst, misrounded;
  };

  RowSums sums;
  Moments moments;  // but for the gain, and for what is made of groups
  Worst worst, misrounded;
  uint64_t hash = 0;   // hash_of_row()
  ErrorSums compared;  // of nothing where the models' rows were not there
  std::vector<Group> groups;
};

// Some rows, column by column.
struct DistantColumns {
  struct Worst {
    int64_t row = 0;  // of all rows
    double want = 0, got = 0;
    float budgets = -1;
  };

  std::vector<double> elements, squares, due, misrounded, may_misround;  // as in Scatter
  std::vector<Worst> worst, worst_misrounded;  // of several that are as bad the first row's
};

// The rows of one answer of an oracle (src/judge/oracle.h), by their numbers in it. Whoever
// measured them keeps what columns are made of until this is let go.
class DistantRows {
 public:
  virtual ~DistantRows() = default;
  // Fills in a row, whose memory is used again. Several threads may ask at once.
  virtual void put_row(size_t i, DistantRow& into) const = 0;
  // The columns of those rows, whose numbers rise. Not of class exact.
  virtual std::shared_ptr<const DistantColumns> columns(std::span<const int64_t> rows) const = 0;
};

}  // namespace lockstep
