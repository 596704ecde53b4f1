#pragma once

#include <string>
#include <vector>

#include "src/engine/request.h"

namespace lockstep {

// Makes requests decode the tokens that the same requests got in a trace, or in a result that was
// written as JSON (`path` ends in .json), so that two versions can be compared past a token that
// they choose differently. The same request has the same name, or the same number where it has
// none; else it is the first without a name that has its prompt. Of several samples each is forced
// to its own text. Throws Error where a request is not there, has another prompt or no tokens, is
// forced already, makes another number of texts, or makes several and is like another request.
void force_from(const std::string& path, std::vector<Request>& requests);

}  // namespace lockstep
