#pragma once

#include <span>

#include "src/judge/budget.h"

namespace lockstep {

// Adds the last rounding of each result to what the op may be off before it, which limit and
// variance hold: B = ulp(|want| + limit) / 2 + limit, V = ulp^2 / 12 + variance, and the chance of
// another number sqrt(variance) / ulp, `misrounds` at most. Where slice_misround is not empty: the
// same for it, and in proportion more for a result that is smaller than `usual` sqrt(variance). Not
// for fp64.
void add_rounding(std::span<const double> want, DType dtype, double misrounds, double usual,
                  Budget& budget);

// One of them, of an error of that deviation before the last rounding.
[[gnu::always_inline]] inline double slice_misround(double deviation, double want, double spacing,
                                                    double misrounds, double usual) {
  const double inside = deviation / spacing;
  const double smaller = usual * deviation / (want < 0 ? -want : want);  // NaN: 0 of 0
  const double most = misrounds * (smaller > 1 ? smaller : 1);
  const double chance = inside < most ? inside : most;
  return chance < 1 ? chance : 1;
}

}  // namespace lockstep
