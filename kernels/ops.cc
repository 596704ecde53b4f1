#include "kernels/ops.h"

namespace lockstep {

// The table of ops (kernels/ops.h) knows each one's function for the CPU.
Ops cpu_ops() {
  Ops ops;
  for_each_op([&](const auto& row) { ops.*row.entry = row.on_cpu; });
  return ops;
}

}  // namespace lockstep
