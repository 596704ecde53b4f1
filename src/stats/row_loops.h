// The loops over the elements of a row that is measured, over plain arrays so that they are
// vectors' work. Sums are made in eight lanes whatever the width of the vectors, so that they are
// the same on every machine.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "kernels/base/dtype.h"
#include "src/stats/moments.h"

namespace lockstep {

struct RowNumbers;

// The nearest number of fp32, in which rows are weighed.
inline float to_f32(double x) { return static_cast<float>(x); }

// The amounts that each element of a row adds to the slices that it is in.
struct WeighedRow {
  std::vector<double> want;
  std::vector<float> got;   // of a dtype that fp32 holds
  std::vector<float> unit;  // eta^2 / V, -1 for elements that do not count
  std::vector<float> due;   // as in Scatter
  std::vector<float> budgets;
  std::vector<float> may_misround;
  std::vector<float> common;      // as in Scatter
  std::vector<float> misrounded;  // 1 or 0

  // Makes it as long; what its elements hold then is not said.
  void resize(size_t elements) {
    want.resize(elements);
    for (auto* amounts : {&got, &unit, &due, &budgets, &may_misround, &common, &misrounded})
      amounts->resize(elements);
  }
  // Makes all of its elements such that do not count.
  void clear() {
    std::ranges::fill(want, 0.0);
    std::ranges::fill(unit, -1.0f);
    for (auto* amounts : {&got, &due, &budgets, &may_misround, &common, &misrounded})
      std::ranges::fill(*amounts, 0.0f);
  }
  size_t size() const { return want.size(); }
  bool counts(size_t i) const { return unit[i] >= 0; }
  // The first element in [begin, end) that counts and is worse than the worst so far, in budgets,
  // or, where it is misrounded, than the worst of those; `end`: none is.
  size_t next_worse(std::span<const float> worst, std::span<const float> worst_misrounded,
                    size_t begin, size_t end) const;
};

// The elements of a row beside what the dtype makes of the exact results.
struct StoredRow {
  // Where an exact result lies on the border of two numbers (on_border), `rounded` is the one that
  // was stored; where neither was, the nearer one.
  std::vector<double> rounded, spacing, budgets;
  std::vector<double> inverse;  // 1 / V; 0 where V is not a positive number
};

// The sums and maxima over all elements of a row.
struct RowSums {
  // Whether every exact result, stored number and budget is an ordinary number, well within the
  // dtype: else nothing here is filled in, and elements are to be looked at one by one.
  bool plain = false;
  double power = 0;            // sum want^2
  double largest = 0;          // of got, by size
  double squares = 0;          // sum (got - want)^2
  double inner = 0;            // the largest share of B beyond half a spacing
  double most = 0;             // |got - want| / B
  double most_differing = -1;  // the same of those that differ
  int64_t over = 0, different = 0;
};

// exact: elements differ where their bits do; else where their numbers do. largest: of the dtype.
RowSums look_at_row(const RowNumbers& row, DType dtype, bool exact, StoredRow& stored);
// Fills in what the elements of a plain row add to slices, and adds up their sums. rows_alike: as
// in Meter::Options.
void weigh_row(const RowNumbers& row, const StoredRow& stored, bool rows_alike, Moments& sum,
               WeighedRow& weighed);

// A hash of what a row came to. It is of the exact result as fp32: what a row holds besides does
// not depend on which rows it was computed with, the last bits of fp64 do; and of what was stored
// as fp32. A sum over elements, each with a factor of its own, modulo 2^64: in whatever order it is
// made, by whatever device, it is the same.
uint64_t hash_of_row(std::span<const double> want, std::span<const double> got);
// The odd factor of an element: splitmix64.
constexpr uint64_t hash_factor(uint64_t element) {
  uint64_t x = (element + 1) * 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return (x ^ (x >> 31)) | 1;
}

// The sums over some neighbours of a row.
struct GroupSums {
  Scatter scatter;
  // The variance that they share, by the op (RowNumbers::shared) and by its inputs (carried):
  // sum f, sum f^2, and the part of the inputs alone.
  double sum = 0, squares = 0, carried = 0;
  double cross = 0;                       // sum of (got - want rounded) want / V
  float most = -1, most_misrounded = -1;  // budgets of those that count, and of these that are
};
// shared, carried: may be empty.
GroupSums sum_group(const RowNumbers& row, std::span<const double> shared,
                    std::span<const double> carried, const StoredRow& stored,
                    const WeighedRow& weighed, size_t first, size_t count);

}  // namespace lockstep
