// The sentence that a person reads of an exception, whichever library threw it.
#pragma once

#include <exception>
#include <string>

namespace lockstep {

// The sentence of an Error, or of another exception; that of a lack of memory is ours.
std::string sentence_of(const std::exception& error);

// From here on, a lack of memory where no exception may leave, as in a destructor, ends this
// process with a sentence on stderr and status 2. So does HDF5's exit without a word, with status
// -1, when it cannot register what it made. The process must be this project's own.
void tell_lack_of_memory();

}  // namespace lockstep
