#pragma once

#include <string>
#include <vector>

#include "src/diff/diff.h"

namespace lockstep {

// Who computed the two traces of a diff, a line each: the first in full, of the second what is
// different. Empty where neither says anything of itself.
std::vector<std::string> origins_of(const DiffResult& result);

// The options of a command line that another one has not, or with another value; those that name
// files that are written, or what is asked of the model, left out. B's first, each with its values
// as they stand there; an option that A alone has follows as "no --option".
std::vector<std::string> other_options(const std::string& of_a, const std::string& of_b);

}  // namespace lockstep
