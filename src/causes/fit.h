// How well what a hypothesis gives agrees with what an engine stored, beside the right result.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/base/dtype.h"
#include "src/judge/numbers.h"

namespace lockstep {

// The elements of one node that was found wrong; all spans have one entry each.
struct WrongNode {
  DType dtype = DType::bf16;      // of what was stored
  std::span<const double> got;    // what was stored
  std::span<const double> want;   // the exact result, before it is rounded
  std::span<const double> limit;  // its budget B
};

// The outcome of holding a hypothesis against nodes. Sums may be added up.
struct Fit {
  int64_t elements = 0, of_elements = 0;  // explained, of the wrong ones
  int64_t numbers = 0;              // explained ones that are no NaN, as any two NaN are alike
  int64_t lost = 0;                 // right elements that the hypothesis would have otherwise
  int64_t nodes = 0, of_nodes = 0;  // explained
  // Squares of the distance of what was stored from the hypothesis, in what one rounding of it and
  // the op's arithmetic allow, of NaN and Infinity a million if they differ; and of its distance
  // from the right result in the same unit.
  double squares = 0, right_squares = 0;
  int64_t counted = 0;   // elements in these sums
  int64_t refuting = 0;  // nodes that are right, and that the hypothesis would have otherwise

  void add(const Fit& other);
  // Whether 95 of 100 wrong elements are explained and no right one is lost, or of 2000 elements
  // one, as roundings on the way have ties; and whether no more right nodes speak against it than
  // wrong ones for it, as a bug may have spared some requests.
  bool explains() const;
  // Whether 95 of 100 are explained of those wrong elements that `other` leaves, if it leaves any.
  bool explains_beyond(const Fit& other) const;
  double distance() const { return counted > 0 ? squares / static_cast<double>(counted) : 0; }
};

// Whether an element is over its budget as fit_of() has it.
bool is_over(const WrongNode& node, size_t i);
// A hypothesis explains those of the wrong elements, which are over their budgets, that lie within
// the same distance of what it gives. Where none is over, as only all together are wrong:
// - in 16 bits the wrong ones are those that are not the exact result rounded, and explained is
//   what is the hypothesis's result rounded;
// - in fp32, where right kernels have other bits too, those are wrong that lie further from the
//   exact result than three times as far as the elements lie from the hypothesis, in root mean
//   square; and explained are those that do not.
Fit fit_of(const WrongNode& node, std::span<const double> hypothesis);
// The same of a node of a region, which its own op's budget is held against: errors of more than
// twice that are wrong ones, since hidden results that lie near the border of two numbers may have
// been stored as either. It explains none where all elements together lie further away than one
// rounding has them.
Fit fit_in_region(const WrongNode& node, std::span<const double> hypothesis);
// The same of a node beside them that was found right, which can only refute.
Fit fit_of_right(const WrongNode& node, std::span<const double> hypothesis);

}  // namespace lockstep
