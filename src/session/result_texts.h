#pragma once

#include "src/judge/verdict.h"
#include "src/weights/tokenizer.h"

namespace lockstep {

// Fills in the texts of requests, of each of their tokens, and of the tokens where they differ
// from the fp64 model's.
void add_texts(Result& result, const Tokenizer& tokenizer);

}  // namespace lockstep
