#pragma once

#include <string>

#include "src/judge/verdict.h"

namespace lockstep {

// Keeps a judgement in the trace that was judged, in the place of an earlier one
// (traces/kept_result.h), and returns whether it could: a trace that may not be written was judged
// all the same, and a warning on stderr says why it keeps nothing. Throws nothing: an Error is
// told, not thrown.
bool keep_result(const std::string& trace, const Result& result);

// The page of a result as JSON, or of a trace: of the result that it keeps, or else of what is in
// it. Throws Error when the file is neither.
std::string page_of_file(const std::string& path);

}  // namespace lockstep
