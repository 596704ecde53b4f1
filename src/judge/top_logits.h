#pragma once

#include <vector>

#include "probes/recorder.h"
#include "src/judge/verdict.h"

namespace lockstep {

// Holds the best of each row of logits (Pass::logits, /logits of a trace) to the tensors of the
// points logits and token, as far as the pass has their numbers: it has each row of the
// tensor once and no other, values that are the largest of the row, in order, ids that have these
// values, and the token that was chosen. One
// structural finding a row that is not so, at the point that it contradicts. Which of equal values
// are named is free. A pass without a tensor of logits has nothing to hold it to.
std::vector<Finding> top_logits_findings(const Pass& pass);
// One structural finding at token for each row whose choice, as the best logits name it, is none of
// the largest. Where as many as are kept are equal, any may be.
std::vector<Finding> wrong_choices(const Pass& pass);

}  // namespace lockstep
