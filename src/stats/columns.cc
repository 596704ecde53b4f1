#include "src/stats/columns.h"

#include <algorithm>

#include "kernels/base/widest.h"

namespace lockstep {

void ColumnSums::resize(size_t columns) {
  for (std::vector<double>& sums : sums_) sums.resize(columns);
}

void ColumnSums::add(std::span<const WeighedRow* const> rows, size_t begin, size_t end) {
  double *elements = sums_[kElements].data(), *squares = sums_[kSquares].data();
  double *due = sums_[kDue].data(), *common = sums_[kCommon].data();
  double *misrounded = sums_[kMisrounded].data(), *may = sums_[kMay].data();
  on_widest_vectors([&]() __attribute__((always_inline)) {
    for (const WeighedRow* row : rows) {
      const float *unit = row->unit.data(), *r_due = row->due.data();
      const float *r_common = row->common.data(), *r_misrounded = row->misrounded.data();
      const float* r_may = row->may_misround.data();
#pragma omp simd
      for (size_t i = begin; i < end; ++i) {
        const bool counts = unit[i] >= 0;
        elements[i] += counts ? 1 : 0;
        squares[i] += counts ? unit[i] : 0;
        due[i] += counts ? r_due[i] : 0;
        common[i] += counts ? r_common[i] : 0;
        misrounded[i] += counts ? r_misrounded[i] : 0;
        may[i] += counts ? r_may[i] : 0;
      }
    }
  });
}

Scatter ColumnSums::of(size_t column) const {
  const auto sum = [&](Amount amount) { return sums_[amount][column]; };
  return {.elements = static_cast<int64_t>(sum(kElements)),
          .squares = sum(kSquares),
          .due = sum(kDue),
          .common = sum(kCommon),
          .misrounded = static_cast<int64_t>(sum(kMisrounded)),
          .may_misround = sum(kMay)};
}

}  // namespace lockstep
