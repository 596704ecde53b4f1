// How the errors of wrong nodes are spread: over positions, over heads, and by size.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

namespace lockstep {

// The value of a bucket in which nothing was compared.
inline constexpr double kNothingCompared = std::numeric_limits<double>::quiet_NaN();

// Errors |got - want| in budgets B, of the rows of wrong nodes that were looked at: all rows with a
// wrong element, or, where a node is wrong only by what its elements have in common, all its rows.
// An element that is not finite though the exact result is, or that has no budget, is infinitely
// far off.
//
//   map        columns: heads, or channels of a row that has no heads
//   positions  | 0.3  0.4  17   0.2 |  -> positions.largest
//              | 0.2  0.4  21   0.3 |
//                columns.largest
//
// Positions double the width of their buckets whenever there are more than kMostBuckets of them,
// so that a run of any length takes the same memory. It owns its numbers; one thread adds to it.
struct ErrorProfile {
  // One of the elements that are furthest off.
  struct WorstElement {
    int32_t pass = 0, request = 0;  // filled in by whoever knows the node
    std::vector<int64_t> index;     // [position, axes of the point ...]
    double want = 0, got = 0;
    double budgets = 0;  // |got - want| / B
  };

  // Neighbouring indices of one axis, `width` of them in each bucket, from 0 on.
  struct Buckets {
    int64_t width = 1;
    std::vector<double> largest;  // error in budgets; kNothingCompared where there is none
  };

  static constexpr int64_t kMostBuckets = 64;
  static constexpr int kBins = 64;
  static constexpr int kFirstExponent = -16;  // bin 0 holds what is at most 2 to that power
  static constexpr size_t kMostWorst = 10;

  ErrorProfile() = default;
  // row_shape: the axes after the rows, outermost first; at least one.
  explicit ErrorProfile(std::vector<int64_t> row_shape);

  // One element of a row that is looked at. offset: in its row. budgets: no NaN.
  void add(int64_t position, int64_t offset, double want, double got, double budgets);
  // Another one of the same row shape; one of them may be empty.
  void add(const ErrorProfile& other);
  // Says which node all elements are of.
  void name_node(int32_t pass, int32_t request);
  // Leaves four significant digits of each number of the map, as these are many.
  void shorten_map();
  // The bin of an error: 0 up to 2^-16, bin i in (2^(i-17), 2^(i-16)], 63 all that is larger.
  // What is within the budget is in bins 0 to 16.
  static int bin_of(double budgets);

  std::vector<int64_t> row_shape;
  int64_t rows = 0;       // counted by whoever adds their elements
  int64_t elements = 0;   // of these rows, without those that no statistic counts
  int64_t nonfinite = 0;  // of them: infinitely far off, and in no bin
  Buckets positions, columns;
  std::vector<double> map;          // by position bucket, then column bucket; may be dropped
  std::vector<int64_t> histogram;   // kBins of them
  std::vector<WorstElement> worst;  // furthest first; of equal ones the first that was added

 private:
  void widen();
  void make_room_for(int64_t position);
  void keep(const WorstElement& element);
};

}  // namespace lockstep
