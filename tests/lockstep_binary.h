#pragma once

#include <sys/wait.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

#include "tests/fixtures.h"
#include "tests/places.h"

namespace lockstep {

// What a call of the built command did.
struct Outcome {
  int status = -1;
  std::string out, err;
};

// Calls `lockstep ARGUMENTS` through the shell, which may redirect what it prints.
inline Outcome call_lockstep(const std::string& arguments) {
  const std::string base = temp_path("call");
  const std::string command = built_path("lockstep ") + arguments;
  const int status =
      std::system(("(" + command + ") >" + base + ".out 2>" + base + ".err").c_str());
  const auto taken = [](const std::string& path) {
    std::string text = text_of(path);
    std::remove(path.c_str());
    return text;
  };
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, taken(base + ".out"), taken(base + ".err")};
}

// The sentence on stderr of a call that must end in trouble and print nothing else.
inline std::string trouble_of(const std::string& arguments) {
  const Outcome outcome = call_lockstep(arguments);
  EXPECT_EQ(outcome.status, 2) << arguments;
  EXPECT_EQ(outcome.out, "") << arguments;
  EXPECT_TRUE(outcome.err.starts_with("error: ")) << outcome.err;
  EXPECT_EQ(std::ranges::count(outcome.err, '\n'), 1) << outcome.err;
  constexpr size_t kPrefix = std::string_view("error: ").size();
  return outcome.err.substr(std::min(kPrefix, outcome.err.size()));
}

}  // namespace lockstep
