// A checkpoint as it was understood.
#pragma once

#include <string>

#include "kernels/base/tensor.h"
#include "src/report/output.h"

namespace lockstep {

// Its shape, its options, its weights, and how much of it the machine, or that device, which must
// have been opened, could serve: a line each. Of a folder with only config.json, as far as it goes.
// Throws Error when the configuration cannot be read.
Table describe_model(const std::string& dir, Device device);

}  // namespace lockstep
