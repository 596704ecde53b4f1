// The writer of safetensors, for folders that replay and repro hand to people without Lockstep.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "kernels/base/tensor.h"

namespace lockstep {

struct NamedTensor {
  std::string name;
  TensorView tensor;  // on the CPU, borrowed
};

// A safetensors file as bytes (safetensors.h is its reader): the tensors in their order, each
// aligned to 8 bytes, wide elements first. The first byte of each is told in `offsets`, by name.
// Reading it copies every tensor once.
std::string safetensors_of(std::vector<NamedTensor> tensors,
                           const std::map<std::string, std::string>& metadata,
                           std::map<std::string, size_t>& offsets);

}  // namespace lockstep
