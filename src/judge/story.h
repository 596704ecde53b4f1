#pragma once

#include "src/judge/verdict.h"

namespace lockstep {

// Fills in `verdict` and `story` of a result whose counts, findings, logits and requests stand.
// complete: the trace holds every pass of its run. reason: why nodes are inconclusive. unexplained:
// what is wrong with tokens that only an op can explain which was not judged. Both may be empty.
void tell(Result& result, bool complete, const std::string& reason,
          const std::string& unexplained = "");

// Finding::rule, and after it where the wrong elements are.
std::string rule_of(const Finding& finding);

// A finding in words: place, request, position, what was wanted and found.
std::string text_of(const Finding& finding);

}  // namespace lockstep
