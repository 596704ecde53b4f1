#pragma once

#include <string>
#include <vector>

#include "src/judge/verdict.h"
#include "src/report/document.h"

namespace lockstep {

// The ops that are wrong or missing, in the order of the computation: a numbered entry each, with
// all nodes of the place together, the worst element, where the wrong ones are, and what their rule
// is. Of many places, those of one point in other layers stand with the first of them.
std::vector<Block> wrong_ops_of(const Result& result);

// How many places have findings. Those whose tensors were looked for and are missing computed
// nothing wrong that anybody knows of, and are counted apart.
struct FoundOps {
  int64_t wrong = 0, missing = 0;
};
FoundOps count_found_ops(const Result& result);
// "2 ops are wrong, and the tensors of 3 are missing".
std::string text_of(const FoundOps& found);
// Those that were judged, the wrong ones with them.
int64_t count_judged_ops(const Result& result);

// The element of a finding by the names of the point's axes: "position 4, head 1, dim 0".
std::string element_text(const Finding& finding);

}  // namespace lockstep
