#include "kernels/base/sentence.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <new>
#include <string_view>

namespace lockstep {
namespace {

// No allocation and no destructor: write() and _exit() are all that surely works.
[[noreturn]] void end_without_memory() {
  constexpr std::string_view kLine = "error: there is not enough memory for this\n";
  const ssize_t written = ::write(STDERR_FILENO, kLine.data(), kLine.size());
  (void)written;
  ::_exit(2);
}

void at_exit(int status, void*) {
  if (status == -1) end_without_memory();
}

// An end for another reason is a defect, and its core is wanted.
[[noreturn]] void at_terminate() {
  try {
    if (std::current_exception()) std::rethrow_exception(std::current_exception());
  } catch (const std::bad_alloc&) {
    end_without_memory();
  } catch (...) {
  }
  std::abort();
}

}  // namespace

std::string sentence_of(const std::exception& error) {
  if (const auto* of_files = dynamic_cast<const std::filesystem::filesystem_error*>(&error))
    return fmt::format("{} cannot be used ({}): name another, or mend what the system says of it",
                       of_files->path1().string(), of_files->code().message());
  if (dynamic_cast<const std::bad_alloc*>(&error) == nullptr) return error.what();
  return "there is not enough memory for this: free some, raise the limit of this process "
         "(ulimit -v), or ask for less: a run with fewer --pages, shorter prompts or fewer "
         "requests";
}

void tell_lack_of_memory() {
  std::set_terminate(at_terminate);
  ::on_exit(at_exit, nullptr);
}

}  // namespace lockstep
