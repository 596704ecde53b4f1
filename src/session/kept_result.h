#pragma once

#include <string>

#include "src/judge/verdict.h"

namespace lockstep {

// Keeps a result in the trace of its run, as result.json in the folder that the trace is. A trace
// in one file is sealed and keeps none.
void keep_result(const std::string& trace, const Result& result);

// The page of a result as JSON, or of a trace: of the result that it keeps, or else of what is in
// it. Throws Error when the file is neither.
std::string page_of_file(const std::string& path);

}  // namespace lockstep
