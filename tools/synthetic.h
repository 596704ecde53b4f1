#pragma once

#include <string>

#include "src/weights/checkpoint.h"

namespace lockstep {

// A checkpoint of any shape whose weights are random: what a benchmark runs when there are no
// published files. It lies in a temporary folder of its own, on disk before the constructor
// returns, and goes with this object.
class SyntheticCheckpoint {
 public:
  // `config` is the text of a config.json that stores bf16. Matrices are normal with the standard
  // deviation 1 / sqrt(columns), which keeps activations in range through any number of layers;
  // norms spread by 0.02 around 1 and biases around 0. The same config gives the same weights.
  // Throws Error when the temporary folder (TMPDIR) has no room.
  explicit SyntheticCheckpoint(const std::string& config);
  SyntheticCheckpoint(const SyntheticCheckpoint&) = delete;
  SyntheticCheckpoint& operator=(const SyntheticCheckpoint&) = delete;

  const std::string& dir() const { return folder_.path; }

 private:
  struct Folder {
    Folder();
    Folder(const Folder&) = delete;
    Folder& operator=(const Folder&) = delete;
    ~Folder();
    std::string path;
  };
  Folder folder_;
};

}  // namespace lockstep
