#include "kernels/cpu/simd.h"

#include <algorithm>
#include <atomic>

namespace lockstep {
namespace {

// The widest set that the kernels are compiled for.
Isa isa_of_cpu() {
  // Both ask the operating system too, which has to save the wider registers.
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
    return Isa::avx512;
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return Isa::avx2;
  return Isa::generic;
}

std::atomic<Isa> limit = Isa::avx512;

}  // namespace

Isa best_isa() {
  static const Isa cpu = isa_of_cpu();
  return std::min(cpu, limit.load(std::memory_order_relaxed));
}

void limit_isa(Isa most) { limit = most; }

}  // namespace lockstep
