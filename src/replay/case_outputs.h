// The elements of a call that stores several tensors, or a cache.
#pragma once

#include <vector>

#include "src/replay/op_case.h"

namespace lockstep {

// Adds the elements of all outputs. made: what the call stored, by place. Where an output is wrong,
// those that are made of it are left out: what they should be is known of the right one alone.
void put_outputs(const CaseJudge& judge, const Pass& op_case, const OpInputs& inputs,
                 const std::vector<RecordedTensor>& made, CaseElements& elements);

}  // namespace lockstep
