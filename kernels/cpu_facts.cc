#include "kernels/cpu_facts.h"

#include "kernels/cpu/matmul_onednn.h"
#include "kernels/cpu/simd.h"

namespace lockstep {

std::string cpu_isa() {
  static constexpr const char* kNames[] = {"generic", "AVX2", "AVX-512"};
  return kNames[static_cast<size_t>(best_isa())];
}

std::string onednn_version() { return version_of_onednn(); }

}  // namespace lockstep
