#pragma once

#include <string>
#include <vector>

#include "src/judge/verdict.h"
#include "src/report/document.h"

namespace lockstep {

// A line of Result::blind, taken apart.
struct Untested {
  std::string name, why, remedy;  // the last two may be empty
};
Untested untested_from(const std::string& line);

// Everything that a run could not have shown, whatever its verdict, with the reasons and what would
// show it: the answer to --explain untested.
Document untested_document(const Result& result);

}  // namespace lockstep
