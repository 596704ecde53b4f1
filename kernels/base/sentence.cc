#include "kernels/base/sentence.h"

#include <new>

namespace lockstep {

std::string sentence_of(const std::exception& error) {
  if (dynamic_cast<const std::bad_alloc*>(&error) == nullptr) return error.what();
  return "there is not enough memory for this: free some, raise the limit of this process "
         "(ulimit -v), or ask for less: a run with fewer --pages, shorter prompts or fewer "
         "requests";
}

}  // namespace lockstep
