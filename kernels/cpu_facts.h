// The code that serves the CPU's ops, for people and for provenance.
#pragma once

#include <string>

namespace lockstep {

std::string cpu_isa();         // of the engine's own kernels: "generic" "AVX2" "AVX-512"
std::string onednn_version();  // of the library that is loaded: "3.6.2"

}  // namespace lockstep
