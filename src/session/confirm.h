#pragma once

#include <vector>

#include "src/session/judged_run.h"
#include "src/session/session.h"

namespace lockstep {

// Tries findings by serving the same requests again, forced to the tokens that `result`, the result
// of `run`, chose:
// - with every place that was found wrong put right (see Substitution), nothing may be wrong any
//   more: they were all there was. What only shows then, because a greater error hid it, is a
//   finding of its own and is put right too.
// - with every one but one put right, that one alone must be found again, on inputs that are right.
// So much says that the judge agrees with itself, and would of an oracle that is wrong too. Hence:
// - the elements that the findings there name are computed a second time, by another hand than the
//   oracle's (SecondOpinion), from the inputs that were recorded. What that gives may lie no
//   further from the oracle's result than an eighth of what the engine is off, or a hundredth of an
//   ulp.
// - with it alone put right, tokens that differ because of what is wrong may come back: which do is
//   said, and decides nothing.
// Only what passes all three is confirmed; what cannot be computed a second time is said by name.
// Places are in the order of the computation. Costs one run, and for each place one more or, where
// tokens differ, two; the first `most` places are tried, the rest are said not to have been.
//
// check_can_confirm() throws Error where the ops of a session cannot be put right one by one.
void check_can_confirm(const Session& session);
std::vector<Confirmation> confirm(const JudgedRun& run, const Result& result, size_t most = 8);

}  // namespace lockstep
