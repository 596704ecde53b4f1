#pragma once

#include <vector>

#include "src/judge/verdict.h"
#include "src/report/document.h"

namespace lockstep {

// The layers of the result by the points of a layer, what is of no layer below them, and what the
// glyphs in it (marks.h) mean. Of a model of many layers only those that are not all = or ., equal
// neighbours in one row, and those with errors of their own before the others where there are too
// many.
std::vector<Block> map_of(const Result& result);

}  // namespace lockstep
