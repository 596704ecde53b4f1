#pragma once

#include <vector>

#include "src/report/trace_selection.h"

namespace lockstep {

// The selected numbers of one place as strips, one a request: heads down, positions across in at
// most 64 buckets, the root mean square of each as a block of its height, N where one is not
// finite. `width`: columns that there are.
std::vector<Block> picture_of(const Selected& selected, int width);

}  // namespace lockstep
