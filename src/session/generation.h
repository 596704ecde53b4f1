#pragma once

#include <string>
#include <vector>

#include "src/session/options.h"

namespace lockstep {

struct GenerateOptions {
  ModelOptions model;
  ObserveOptions observe{.keep = "digest"};
  std::string format = "text";  // or "json"
  bool audit = false;           // of what is written to and read from the K/V cache
};

// Serves the requests with the engine alone and prints their texts as they come; an audit's
// findings go to stderr. Returns whether all is well, as far as it was looked at. Throws Error when
// an option does not fit or the engine fails; texts that were printed until then stay printed.
bool generate(const GenerateOptions& options, const std::vector<std::string>& command_line);

}  // namespace lockstep
