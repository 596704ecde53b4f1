#pragma once

#include <vector>

#include "src/judge/verdict.h"
#include "src/report/document.h"

namespace lockstep {

// A place's verdict as one character of a map:
//   =  exact bits                 .  within rounding
//   X  wrong here                 N  makes NaN or Inf here       !  missing, or of another shape
//   ~  wrong only by what it read ^  overflows, as it should     #  not judged
char glyph_of(const Result& result, const PlaceSummary& place);

// The layers of the result by the points of a layer, what is of no layer below them, and what the
// glyphs in it mean. Of a model of many layers only those that are not all = or ., equal neighbours
// in one row, and those with errors of their own before the others where there are too many.
std::vector<Block> map_of(const Result& result);

}  // namespace lockstep
