// The sentence that a person reads of an exception, whichever library threw it.
#pragma once

#include <exception>
#include <string>

namespace lockstep {

// The sentence of an Error, or of another exception; that of a lack of memory is ours.
std::string sentence_of(const std::exception& error);

}  // namespace lockstep
