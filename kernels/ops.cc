#include "kernels/ops.h"

namespace lockstep {

Ops cpu_ops() {
  Ops ops;
  for_each_op([&](const auto& row) { ops.*row.entry = row.on_cpu; });
  return ops;
}

}  // namespace lockstep
