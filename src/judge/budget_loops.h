#pragma once

#include <span>

#include "src/judge/budget.h"

namespace lockstep {

// Adds the last rounding of each result to what the op may be off before it, which limit and
// variance hold: B = ulp(|want| + limit) / 2 + limit, V = ulp^2 / 12 + variance, and the chance of
// another number sqrt(variance) / ulp, `misrounds` at most, and in proportion more for a result
// that is smaller than `usual` sqrt(variance). Not for fp64.
void add_rounding(std::span<const double> want, DType dtype, double misrounds, double usual,
                  Budget& budget);

}  // namespace lockstep
