#pragma once

#include <cstdint>
#include <span>

#include "kernels/base/dtype.h"

namespace lockstep {

// Sums of squares over the elements of a node or a place. In fp64; sums are added up in the order
// of the calls.
struct ErrorSums {
  int64_t elements = 0;   // finite on both sides
  double introduced = 0;  // of got - O(x)
  int64_t compared = 0;   // and known of the reference models
  double propagated = 0;  // of O(x) - exact model
  double total = 0;       // of got - exact model
  double floor = 0;       // of rounded model - exact model
  // That torch.testing.assert_close, as it is by default for the dtype, takes for another number
  // than the rounded model's.
  int64_t not_close = 0;
  void add(const ErrorSums& other);
  // A row that was judged: what the engine has, what its own inputs ask for, and what the two
  // models have there. Nothing where one of them lacks the row.
  void add_row(std::span<const double> got, std::span<const double> want,
               std::span<const double> exact, std::span<const double> rounded, DType dtype);
};

}  // namespace lockstep
