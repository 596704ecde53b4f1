#pragma once

#include "kernels/fused.h"
#include "kernels/plugin/foreign_call.h"

namespace lockstep {

// To let a user replace another fused op: its row in kFusedOps (kernels/fused.h), its function in
// lockstep_ops.h, its entry here, and for Python its parameters in python_ops.py and its entry in
// python_fused.cc.
//
// Puts a function of a user's library in the place of a fused op: `symbol` is lockstep_<row.name>
// of lockstep_ops.h. Its inputs get their names here.
void put_fused(FusedOps& fused, const FusedRow& row, UserOp user, void* symbol);

// Copies the rows of K, or of V, that a call wrote into a side of the cache to a tap, unless that
// is empty: what it had in between is stored nowhere else.
void read_back(const TensorView& tap, const TensorView& side, const TensorView& slots);

}  // namespace lockstep
