#pragma once

#include <memory>

#include "kernels/fused.h"
#include "kernels/plugin/python_process.h"

namespace lockstep {

// Puts the process's function of that name in the place of a fused op, on tensors of the host. Its
// arguments are those of lockstep_ops.h, in that order: outputs first, weights and biases as lists.
void put_python_fused(FusedOps& fused, const FusedRow& row,
                      const std::shared_ptr<PythonProcess>& process);

}  // namespace lockstep
