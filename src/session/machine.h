#pragma once

#include <map>
#include <string>

#include "kernels/base/memory.h"

namespace lockstep {

// The machine that computes, as a provenance keeps it: "cpu" (its model), "isa" (of the engine's
// kernels there: generic, AVX2 or AVX-512), "onednn_version", and on a CUDA device "gpu" (the
// models in the machine) and "gpu_driver". A fact that the system does not tell is "". Reads /proc
// and asks libraries; nothing of it is measured.
std::map<std::string, std::string> machine_facts(Device device);

// The value of the first line `name : value` of a text as /proc has it; "" where there is none.
std::string field_of(const std::string& text, const std::string& name);

}  // namespace lockstep
