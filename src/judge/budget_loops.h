#pragma once

#include <span>

#include "src/judge/budget.h"

namespace lockstep {

// Adds the last rounding of each result to what the op may be off before it, which limit and
// variance hold: B = ulp(|want| + limit) / 2 + limit, V = ulp^2 / 12 + variance, and the chance of
// another number as misround_chance() says. Not for fp64.
void add_rounding(std::span<const double> want, DType dtype, double misrounds, double common,
                  Budget& budget);

// The chance of another number by an error of that deviation before the last rounding: deviation /
// ulp, and at most `misrounds`, or, where that is more, `common` (common_part; 0: no sum) of it.
[[gnu::always_inline]] inline double misround_chance(double deviation, double spacing,
                                                     double misrounds, double common) {
  const double inside = deviation / spacing, cancelling = common * inside;
  const double most = cancelling > misrounds ? cancelling : misrounds;
  const double chance = inside < most ? inside : most;
  return chance < 1 ? chance : 1;
}

}  // namespace lockstep
