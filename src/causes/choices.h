// Explanations of chosen indices, by the order of what they are chosen from.
#pragma once

#include "src/causes/exact.h"
#include "src/judge/index_choice.h"

namespace lockstep {

// The rows of a request that chose other indices than the largest of `values`, which have the rows
// of `got`; where ties are `first`, or that chose them in another order.
ExactNode choices_explained(const RecordedTensor& got, const TensorView& values, int32_t request,
                            Ties ties);

}  // namespace lockstep
