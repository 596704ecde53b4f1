#include "kernels/base/sentence.h"

#include <fmt/format.h>

#include <filesystem>
#include <new>

namespace lockstep {

std::string sentence_of(const std::exception& error) {
  if (const auto* of_files = dynamic_cast<const std::filesystem::filesystem_error*>(&error))
    return fmt::format("{} cannot be used ({}): name another, or mend what the system says of it",
                       of_files->path1().string(), of_files->code().message());
  if (dynamic_cast<const std::bad_alloc*>(&error) == nullptr) return error.what();
  return "there is not enough memory for this: free some, raise the limit of this process "
         "(ulimit -v), or ask for less: a run with fewer --pages, shorter prompts or fewer "
         "requests";
}

}  // namespace lockstep
