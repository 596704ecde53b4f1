// How far a node is from the exact result, as numbers with limits.
//
// A value passes only by `value <= limit`, so that NaN fails. Non-finite elements are decided
// before any number is made and are in none of the sums.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "kernels/tensor.h"
#include "probes/points.h"

namespace lockstep {

constexpr bool within(double value, double limit) { return value <= limit; }

inline constexpr double kFalseAlarm = 1e-6;    // of one node's T2, and of all slices of its T4
inline constexpr int64_t kLeastElements = 64;  // under it only T0 and T1 are made
inline constexpr int64_t kLeastSlice = 16;     // elements of a slice of T4

// x with P(chi-square of n degrees > x) = tail. Wilson and Hilferty 1931: within 1.5 % above the
// true quantile for n >= 16 and tails down to 1e-12. n >= 1, 0 < tail < 0.5.
double chi_square_quantile(int64_t n, double tail);
// The limit of sqrt(mean eta^2/V) over n elements: max(1.10, 1.05 sqrt(quantile / n)). Rounding
// errors are not quite independent, which the 5 % are for.
double rms_limit(int64_t n, double tail);

struct Statistic {
  const char* name = "";  // "T0" "T1" "T2" "T4"
  double value = 0;
  double limit = 0;
  std::string slice;  // T4: which part of the node; else what is counted
  bool passes(double scale) const { return within(value, limit * scale); }
};

// How a non-finite element came about, gravest last.
enum class NonFinite : uint8_t {
  none,
  expected,    // the exact result overflows the dtype and got is that Inf, or the largest number
  propagated,  // the exact result is not finite either: an input was not
  introduced,  // the exact result is a number
};

// An element worth naming.
struct Element {
  int64_t position = 0;  // of its row
  int64_t offset = 0;    // in its row
  double want = 0, got = 0;
  double budgets = 0;  // |got - want| / B
};

struct Measure {
  int64_t elements = 0;
  int64_t excluded = 0;    // not finite on one side or both
  int64_t different = 0;   // got is not want rounded; for class exact: has other bits
  int64_t over = 0;        // elements with |eta| > B
  double sum_squares = 0;  // of eta = got - want
  Element worst;           // largest |eta| / B; for class exact, of the elements that differ
  NonFinite nonfinite = NonFinite::none;  // the gravest seen
  int64_t nonfinite_count = 0;            // of that kind
  Element nonfinite_at;                   // the first of that kind
  std::vector<Statistic> statistics;      // those that this node is held to, in the order T0 .. T4
};

// One row of a node, all of one length. `shared` may be empty: see Budget.
struct RowNumbers {
  std::span<const double> got, want, limit, variance, shared;
};

// Measures one node in one pass over its rows.
class Meter {
 public:
  // row_shape: the axes after the rows. rows: how many will come. page_size 0: not known, no slices
  // by page.
  Meter(DType dtype, NodeClass node_class, const Shape& row_shape, int64_t rows, int64_t page_size);

  void add(int64_t position, const RowNumbers& row);
  Measure finish() const;

 private:
  struct Slice {
    double sum = 0;  // of eta^2 / V
    int64_t count = 0;
    double pairs = 0;  // sum of f_i f_j over ordered pairs of elements that share f of their V

    void add(const Slice& other);
    // How many independent elements would scatter as much: with squares of Gaussians that share f
    // of their variance, the variance of the sum is 2 (count + pairs).
    int64_t degrees() const;
  };

  // Whether the element's numbers count; a non-finite one is classified instead.
  bool numeric(const Element& element, double limit);
  bool differs(double got, double want) const;
  void add_pairs(const RowNumbers& row, Slice& row_slice);
  Statistic worst_slice(const Slice& all) const;

  DType dtype_;
  NodeClass node_class_;
  int64_t page_size_;
  int64_t head_size_;  // elements of a head in a row; 0: the tensor has no heads
  double largest_;     // finite value of the dtype
  Measure measure_;
  bool any_worst_ = false;
  std::map<int64_t, Slice> rows_, pages_;
  std::vector<Slice> heads_, columns_;  // columns only when a column can be long enough
};

}  // namespace lockstep
