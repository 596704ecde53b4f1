// A draw made again: from a row of logits and what a trace says of how its request draws.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "traces/trace.h"

namespace lockstep {

// The tokens that choice number `choice` of a request may have been, most likely one, in ascending
// order: more than one where the number that was drawn lies within 1e-9 of the border between them,
// which sums in another order may take the other way.
//   logits  [vocab], as the model made them, in fp64
//   text    the tokens before it, the prompt's included
// The filters are those of Hugging Face (transformers, generation/logits_process.py) in fp64, in
// the order of DrawInfo's fields; the number is Philox4x32 with 10 rounds (Salmon, Moraes, Dror and
// Shaw, SC 2011) of the counter (choice, sample, 0) under the key `seed`, its first two words as 53
// bits. Where the largest logit is no finite number there is no distribution: nothing is said.
// Where a request draws by temperature 0 the tokens of the largest score are possible, each of
// them.
std::vector<int32_t> possible_draws(std::span<const double> logits, const DrawInfo& draw,
                                    std::span<const int32_t> text, uint64_t choice);

}  // namespace lockstep
