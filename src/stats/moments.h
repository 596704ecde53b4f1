// The error that many elements have in common, told from the rounding of each.
//
// A value passes only by `value <= limit`, so that NaN fails.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "kernels/base/dtype.h"
#include "src/stats/statistic_kind.h"

namespace lockstep {

constexpr bool within(double value, double limit) { return value <= limit; }

// The root mean square of `count` numbers whose squares add up to `squares`; 0 of none.
inline double root_mean(double squares, int64_t count) {
  return count > 0 ? std::sqrt(squares / static_cast<double>(count)) : 0;
}

// The share of `of` that `part` is; 0 of nothing.
inline double fraction(int64_t part, int64_t of) {
  return of > 0 ? static_cast<double>(part) / static_cast<double>(of) : 0;
}

// Chances of a false alarm. A run judges some 1e6 nodes, each by a few statistics, so that one of a
// node must be rarer than all of them together; of pools there are a few hundred.
inline constexpr double kFalseAlarm = 1e-9;        // one statistic of a node, all slices of its T4
inline constexpr double kPooledFalseAlarm = 1e-6;  // the same of a place or point over the run
inline constexpr int64_t kLeastElements = 64;      // under it only T0 and T1 are made
inline constexpr int64_t kLeastSlice = 16;         // elements of a slice of T4
inline constexpr double kGainDeviations = 8;       // T5 and T6, in standard deviations
inline constexpr double kGainStudent = 6;          // T5 of fp32, in standard errors between rows
inline constexpr int64_t kGainRows = 256;          // that fp32 needs for them
inline constexpr double kMostGrowth = 0x1p-21;     // T5 of what accumulators alone may make large
inline constexpr int64_t kFewGainRows = 16;        // to tell which of several places has a gain

// x with P(chi-square of n degrees > x) = tail. n >= 1, 0 < tail < 1.
double chi_square_quantile(int64_t n, double tail);
// The least k with P(Poisson of that mean > k) <= tail.
int64_t poisson_quantile(double mean, double tail);
// Bounds of the chance that k of n successes show, each wrong with a probability of 2.5 %: Clopper
// and Pearson 1934. 0 <= k <= n; nothing seen of nothing is bounded by 0 and 1.
double clopper_pearson_lower(int64_t k, int64_t n);
double clopper_pearson_upper(int64_t k, int64_t n);
// The limit of sqrt(mean eta^2/V) over n elements: max(1.10, 1.05 sqrt(quantile / n)). Rounding
// errors are not quite independent, which the 5 % are for.
double rms_limit(int64_t n, double tail);
// The most of n elements that do what each does with a chance of `share` at most, but for a risk of
// `tail`, as a share of n (Bernstein 1924). n >= 1.
double share_limit(int64_t n, double share, double tail);

struct Statistic {
  StatisticKind kind = StatisticKind::bits;
  double value = 0;
  double limit = 0;
  std::string slice;  // T4: which part of the node; else what is counted
  bool passes(double scale) const { return within(value, limit * scale); }
  // The least scale at which it passes; infinity when none is enough.
  double limit_ratio() const {
    if (within(value, 0)) return 0;
    return within(value, std::numeric_limits<double>::max()) && limit > 0
               ? value / limit
               : std::numeric_limits<double>::infinity();
  }
};

// How far elements scatter, and how many are not what the exact result rounds to. eta = got - want.
struct Scatter {
  int64_t elements = 0;
  double squares = 0;       // of eta^2 / V
  double due = 0;           // sum (r^2 - ulp^2/12) / V, r = want rounded - want
  double pairs = 0;         // sum of f_i f_j over ordered pairs that share f of their V
  double common = 0;        // sum of the shares of V that all elements of all rows have in common
  int64_t misrounded = 0;   // got is not want rounded
  double may_misround = 0;  // how many of them a correct kernel has at most, on average

  void add(const Scatter& other) {
    elements += other.elements, squares += other.squares;
    due += other.due, pairs += other.pairs, common += other.common;
    misrounded += other.misrounded, may_misround += other.may_misround;
  }
  // sqrt(mean eta^2/V). V takes the rounding that is due for anything up to half an ulp; where
  // exact results stand in a fixed place between two numbers of the dtype (a slow dim of a rope
  // moves a bias by less than half an ulp) it is more, for every kernel, and that much is expected.
  double rms() const;
  // How many independent elements would scatter as much: with squares of Gaussians that share f of
  // their variance, the variance of the sum is 2 (elements + pairs + common^2), at most.
  int64_t degrees() const;
  double share() const { return fraction(misrounded, elements); }
  // The limit of share(). elements >= 1.
  double most_misrounds(double tail) const;
};

// Sums over elements. delta = got - want rounded, which is what a kernel adds to
// the rounding that is due, and 0 for nearly all elements of a 16-bit result. They add up: over the
// rows of a node, over all nodes of a place, and over the places of a point, so that what is too
// small to show in one shows in many.
struct Moments : Scatter {
  double offset = 0;         // sum delta / sqrt V
  double cross = 0;          // sum delta want / V
  double cross_scatter = 0;  // sum of the squares of what `cross` is of one element, or, where
                             // elements share a part of their V, of all that share it
  double power = 0;          // sum want^2 / V
  double gain = 0;           // Budget::gain, the largest
  double growth = 0;         // the same of results that are too large
  int64_t rows = 0;
  double cross_squares = 0, cross_power = 0, power_squares = 0;  // sums over rows of products

  void add(const Moments& other);
  // One row is complete: fills in the sums over rows.
  void end_row();
  // Those that the elements are held to, each with a chance of `tail` of a false alarm; none when
  // there are fewer than kLeastElements:
  //   T2  rms(), limit rms_limit
  //   T3  share that is not the exact result rounded, limit share_limit of the mean of
  //       Budget::misround. Not in fp32, where an accumulation alone moves most elements.
  //   T5  gain g = sum(delta o/V) / sum(o^2/V), o = want: the lesser of |g| / Budget::gain (of
  //       g > 0, growth) and |z| / 8, limit 1, z = sum(delta o/V) / sqrt(sum (delta o/V)^2). Of
  //       delta and not of eta: where exact results lie just above what the dtype holds (a weight
  //       near 1, a slow dim of a rope) all of them round the same way, and what is left of chance
  //       is small enough to see gains of a few 1e-6 in bf16. In fp32 the errors of a row are not
  //       independent: there z is t, clustered by rows, over at least 256 of them, limit 6.
  std::vector<Statistic> statistics(DType dtype, double tail) const;
  // T5 where it is over its limit, also of as few rows as alone are no ground for a finding.
  std::optional<Statistic> gain_over(DType dtype) const;
  // T6: sum(delta/sqrt V) / sqrt N. Over kGainDeviations it is a notice and no finding (and not
  // even that in fp32 and for chains of ops, where delta is theory or due): a
  // truncation is one by T1 or T5 too, and what no other limit minds need not be a bug.
  double offset_deviations() const;
};

// Without what a mutant (mutant.h) does not make.
void drop_missing(std::vector<Statistic>& statistics);

// The part of some elements that scatters most (T4), or is misrounded most (T3), of all parts, with
// a limit at which all of them together have a chance of `tail` of a false alarm. Parts of fewer
// than kLeastSlice elements are left out. Borrows slices until the questions are asked.
class Slices {
 public:
  // `axis` and `key` name it. Borrowed.
  void add(const char* axis, int64_t key, const Scatter& slice) {
    if (slice.elements >= kLeastSlice) slices_.push_back({axis, key, &slice});
  }
  struct Worst {
    Statistic statistic{.limit = 1};
    const Scatter* scatter = nullptr;  // as it was added; null: there are none
  };
  Worst scattered(double tail) const;
  Worst misrounded(double tail) const;

 private:
  struct Named {
    const char* axis;
    int64_t key;
    const Scatter* scatter;
  };
  template <typename Value, typename Limit>
  Worst worst_by(Value value_of, Limit limit_of) const;

  std::vector<Named> slices_;
};

// Moments of rows that differ from each other. A prompt of one token repeated has the same row many
// times, and its one rounding is one observation. Two rows with one hash of 64 bits would be taken
// for one: among 1e6 rows with a chance under 1e-7.
class DistinctMoments {
 public:
  // row_hash: of the row's results, got and want. False: there was such a row already.
  bool add(uint64_t row_hash, const Moments& row);
  const Moments& sum() const { return sum_; }
  int64_t rows() const { return rows_; }

 private:
  bool insert(uint64_t row_hash);

  // Hashes, each at a place that it decides on or the next free one behind; 0: free. Judging holds
  // thousands for each place of the graph, and a set of the library takes 40 bytes for each.
  std::vector<uint64_t> places_;
  int64_t rows_ = 0;
  Moments sum_;
};

}  // namespace lockstep
