// The index of a checkpoint in shards, whose configuration and one shard are sound.
#include <filesystem>

#include "src/weights/checkpoint.h"
#include "tests/fuzz/target.h"
#include "tests/places.h"

namespace lockstep::fuzz {

void read(std::string_view input) {
  static const bool copied = [] {
    const std::string from = source_path("tests/data/tiny/qwen3-untied-sharded/");
    for (const auto& file : std::filesystem::directory_iterator(from))
      std::filesystem::copy_file(file.path(), path_of(file.path().filename()));
    return true;
  }();
  static_cast<void>(copied);
  write("model.safetensors.index.json", input);
  const Checkpoint checkpoint = Checkpoint::open(path_of(""));
  if (checkpoint.names().empty()) wrong("a checkpoint of no tensors was taken");
}

}  // namespace lockstep::fuzz
