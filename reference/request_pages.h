// The pages that an engine has a request's tokens in, of which a model knows that two share them.
#pragma once

#include <cstdint>
#include <vector>

#include "probes/record.h"

namespace lockstep {

// Those of a request in that pass; empty: they are not known.
const std::vector<int32_t>& pages_of(int32_t request, const PassInfo& pass);
// How many are the same from the first one on.
int64_t common_pages(const std::vector<int32_t>& a, const std::vector<int32_t>& b);

}  // namespace lockstep
