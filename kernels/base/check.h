#pragma once

#include <fmt/core.h>

#include <stdexcept>
#include <string>
#include <utility>

namespace lockstep {

// The only exception this project throws. what() is one sentence for a person: what was wanted,
// what was found, what to do. `main` prints it and exits with 2. Whatever a file or an option put
// into the sentence, what() is one printable line of at most 1000 bytes.
class Error : public std::runtime_error {
 public:
  explicit Error(const std::string& sentence);
};

// Throws Error with the formatted sentence unless `ok`. The sentence is only made when needed.
template <typename... Args>
void check(bool ok, fmt::format_string<Args...> sentence, Args&&... args) {
  if (!ok) [[unlikely]]
    throw Error(fmt::format(sentence, std::forward<Args>(args)...));
}

// The same where nothing but trouble is left.
template <typename... Args>
[[noreturn]] void fail(fmt::format_string<Args...> sentence, Args&&... args) {
  throw Error(fmt::format(sentence, std::forward<Args>(args)...));
}

}  // namespace lockstep
