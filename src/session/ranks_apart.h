// Where ranks were not alike, as a trace over ranks keeps it: it has one copy of what all of them
// have, and hashes of the others where they are other ones.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "src/ranks/judge/join.h"
#include "traces/trace.h"

namespace lockstep {

// The fact of a trace's provenance.
inline constexpr std::string_view kRanksApart = "ranks_apart";

// At most the first thousand, as a JSON list.
std::string text_of(const std::vector<Apart>& apart);

// Reads them back from a trace; none where ranks were alike. Throws Error on a text that is none of
// those above, or of places that the graph has not.
std::vector<Apart> apart_in(const Manifest& manifest);

}  // namespace lockstep
