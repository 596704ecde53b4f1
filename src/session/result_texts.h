#pragma once

#include "src/judge/verdict.h"
#include "src/weights/tokenizer.h"

namespace lockstep {

// Fills in the texts of requests and of each of their tokens.
void add_texts(Result& result, const Tokenizer& tokenizer);

}  // namespace lockstep
