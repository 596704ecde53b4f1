#include "src/stats/columns.h"

#include <algorithm>

#include "kernels/base/widest.h"

namespace lockstep {

namespace {

// Adds kRows rows to the sums of the columns [begin, end), in the order of ColumnSums::Amount. Each
// sum stays in a register while the rows are added to it, one after the other.
template <size_t kRows, size_t kAmounts>
[[gnu::always_inline]] inline void add_some(const WeighedRow* const* rows, size_t begin, size_t end,
                                            double* (&sums)[kAmounts]) {
  const float *unit[kRows], *due[kRows], *common[kRows], *misrounded[kRows], *may[kRows];
  for (size_t k = 0; k < kRows; ++k) {
    unit[k] = rows[k]->unit.data(), due[k] = rows[k]->due.data();
    common[k] = rows[k]->common.data(), misrounded[k] = rows[k]->misrounded.data();
    may[k] = rows[k]->may_misround.data();
  }
  double *elements = sums[0], *squares = sums[1], *dues = sums[2], *commons = sums[3];
  double *misrounds = sums[4], *mays = sums[5];
#pragma omp simd
  for (size_t i = begin; i < end; ++i) {
    double e = elements[i], s = squares[i], d = dues[i], c = commons[i], m = misrounds[i];
    double a = mays[i];
    for (size_t k = 0; k < kRows; ++k) {
      const bool counts = unit[k][i] >= 0;
      e += counts ? 1 : 0;
      s += counts ? unit[k][i] : 0;
      d += counts ? due[k][i] : 0;
      c += counts ? common[k][i] : 0;
      m += counts ? misrounded[k][i] : 0;
      a += counts ? may[k][i] : 0;
    }
    elements[i] = e, squares[i] = s, dues[i] = d, commons[i] = c, misrounds[i] = m, mays[i] = a;
  }
}

}  // namespace

void ColumnSums::resize(size_t columns) {
  for (std::vector<double>& sums : sums_) sums.resize(columns);
}

void ColumnSums::add(std::span<const WeighedRow* const> rows, size_t begin, size_t end) {
  constexpr size_t kTogether = 4;
  double* sums[kAmounts];
  for (size_t amount = 0; amount < kAmounts; ++amount) sums[amount] = sums_[amount].data();
  on_widest_vectors([&]() __attribute__((always_inline)) {
    size_t row = 0;
    for (; row + kTogether <= rows.size(); row += kTogether)
      add_some<kTogether>(rows.data() + row, begin, end, sums);
    for (; row < rows.size(); ++row) add_some<1>(rows.data() + row, begin, end, sums);
  });
}

void ColumnSums::add(const DistantColumns& columns) {
  const auto add_to = [](std::vector<double>& sums, const std::vector<double>& more) {
    for (size_t i = 0; i < sums.size(); ++i) sums[i] += more[i];
  };
  add_to(sums_[kElements], columns.elements);
  add_to(sums_[kSquares], columns.squares);
  add_to(sums_[kDue], columns.due);
  add_to(sums_[kMisrounded], columns.misrounded);
  add_to(sums_[kMay], columns.may_misround);
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
