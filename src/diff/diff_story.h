#pragma once

#include <string>

#include "src/diff/diff.h"

namespace lockstep {

// Fills in verdict and story from all the rest. `broken`: why what was compared is not all there
// is, in a sentence's words; "": it is.
void summarise(DiffResult& result, const std::string& broken);

}  // namespace lockstep
