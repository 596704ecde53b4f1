// The factor by which whole rows of an RMSNorm are too large or too small, where the sum that it
// reads is known only as it was stored, rounded, and its kernel may have read it before that.
//
// The engine read x - e, of which x is known, |e_i| <= h_i half a spacing, and stores
// y_i = w_i (x_i - e_i) s' rounded, s' the inverse root of mean (x - e)^2 + eps. What it stored is
// that of all numbers in an interval before the weight, of middle m_i, which its own number is off
// by rho_i. Each element may move by its own e_i, but the row cannot: what is normed has the same
// size whatever it was. Let n = x s be the exact row before its weight, and weigh each element's
// relative error by n_i^2:
//
//     g = sum n_i (m_i - n_i) / sum n_i^2
//       = sum n_i rho_i / sum n_i^2                       the roundings of the output
//       - f sum n_i^2 e_i / x_i / sum n_i^2               f = eps / (mean x^2 + eps), nearly 0
//       - |e_T|^2 / 2 |x|^2                               e_T: the part of e at a right angle to x
//
// To the first order e has gone, however its parts depend on each other. (An element whose weight
// is 0, or next to it, says nothing, so that its part of x is missing; what then is left of e is
// added.) The last line is of one sign and at most sum h^2 / 2 |x|^2, which is allowed, as
// Budget::gain is.
//
// A sum that is not stored either, but computed of what is, is off by more, and its errors depend
// on each other. What eight of its standard deviations leave of the first order, all of one sign,
// is allowed as well; |e|^2 is what samples of the error have, by the chi-square of as many degrees
// as they scatter like, a quarter of them, and four times that. A row in which more than a tenth
// has no weight says nothing. Its kernel may have read such a sum rounded: of the lattice that it
// lies on then, what makes something of the row is computed as if the rounded one had been read.
//
// Sums of stored numbers lie on lattices, whose roundings are not chance. Many are exactly what was
// stored, and many half way to a neighbour: what either alone would make of the row is computed,
// and all between nothing and both is allowed. Which way the half of a step goes is not known where
// w_i s (or s, if n_i is rounded first) is a power of two but for less than u: then a quarter of a
// spacing of each such element is allowed, the most that it makes. Finer lattices are left; where
// all elements are multiplied by one number, the standard error is doubled for them.
//
// The limit: rho_i is uniform over its interval, of standard deviation length / sqrt(12), and such
// a sum S of independent parts has P(|S| > z sigma) <= 2 exp(-z^2 / 2), whatever its weights:
// sinh(t) / t <= exp(t^2 / 6). The coarsest lattice of a sum has an error in every second place,
// half a spacing up or down: (1 + cosh t) / 2 <= exp(t^2 / 4), so that ulp^2 / 8 stands for e_i in
// the place of ulp^2 / 12. So z = sqrt(2 ln(2 / tail)) has a false alarm with a probability of
// `tail` at most where rho_i is uniform: 6.65 for a node of one row, 5.39 for all of a place.
//
// Rows are added by their inverse variances. Rows that are nearly alike (one token repeated) have
// the same roundings: each column's parts are then alike. So the variance of the sum is taken times
//     sum over columns (sum over rows of its parts)^2 / sum of all parts squared,
// where that is over 1: the number of rows that are alike (the design effect of Kish 1965).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/base/dtype.h"
#include "src/stats/moments.h"

namespace lockstep {

// Borrowed for the call. All spans are of one length, or empty where that is said.
struct NormedRow {
  std::span<const double> got, normed, weight;  // y, n, w
  std::span<const double> stored;               // x, or what was computed of it
  // Each number of x may be off by this deviation, and samples tell by how much together, one after
  // the other. Both are empty where x is known as stored.
  std::span<const double> deviation, samples;
  DType dtype = DType::bf16, stored_dtype = DType::bf16;
  bool rounds_inside = false;  // n is rounded to dtype before it is weighed
  double gain = 0;             // Budget::gain: what a kernel's own arithmetic may make of a row
};

// Sums over rows, which may be added up further.
struct ScaleSums {
  int64_t rows = 0;
  double cross = 0;     // of g over its variance
  double exact = 0;     // the same, had the kernel read what was stored,
  double half_way = 0;  // and sums half way between that and its neighbours
  double power = 0;     // of 1 over that variance
  double scatter = 0;   // variance of `cross`
  double allowed = 0;   // the most that `cross` is without any rounding of the output

  void add(const ScaleSums& other);
  // T5, in units of its limit.
  Statistic statistic(double tail) const;
};

// Rows of which a number is not finite or over the dtype's largest, or all are 0, are left out.
class RowScales {
 public:
  void add(const NormedRow& row);
  // With what rows have in common.
  ScaleSums sums() const;
  // T5 of the row that is furthest off among all, or of all together, whichever is nearer to its
  // limit or further over it. Nothing where there are no rows.
  std::vector<Statistic> statistics(double tail) const;

 private:
  ScaleSums sums_;
  ScaleSums worst_;              // of one row
  std::vector<double> columns_;  // sums of the parts of `cross`
  double squares_ = 0;           // of those parts
};

}  // namespace lockstep
