// A case made small: the fewest rows, keys and numbers in which an op is still wrong.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "src/replay/op_case.h"

namespace lockstep {

// Some of the items for which `shows` holds, as it does for all of them, and none of which can be
// left out alone (Zeller and Hildebrandt 2002, ddmin), unless there are no `tries` left, which it
// counts down. items: ascending, as `shows` gets them too. The empty list is tried first.
std::vector<int64_t> fewest(std::vector<int64_t> items,
                            const std::function<bool(const std::vector<int64_t>&)>& shows,
                            int64_t& tries);

struct Reduced {
  Pass op_case;
  CaseElements elements;           // of that case
  std::vector<std::string> steps;  // for people: "rows 1000 to 1"
};

// elements: of the case, one of which must be wrong by itself, as one is of what is made of it.
// stored: the result that the case has is looked at; no op is called, and rows alone can be left
// out. The result is wrong as the case was, in some element, though not always in the same one.
Reduced reduced(const CaseJudge& judge, Pass op_case, const CaseElements& elements, bool stored);

}  // namespace lockstep
