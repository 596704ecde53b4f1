// config.json, a NUL, and generation_config.json.
#include "src/weights/config.h"

#include "src/weights/checkpoint.h"
#include "tests/fuzz/target.h"

namespace lockstep::fuzz {

void read(std::string_view input) {
  Bytes bytes(input);
  write("config.json", bytes.part());
  write("generation_config.json", bytes.empty() ? "{}" : bytes.part());
  const ModelConfig config = read_config(path_of(""));
  if (config.layers <= 0 || config.heads % config.kv_heads != 0 ||
      std::ssize(config.window) != config.layers)
    wrong("a configuration that no model has was taken");
  // Each layer has a dozen tensors, and what a few digits ask for is no leak.
  if (config.layers * (config.experts.count + 1) < 1000) needed_tensors(config);
}

}  // namespace lockstep::fuzz
