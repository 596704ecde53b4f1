// The ops of the table (kernels/ops.h) behind each kind of op that the judge knows.
#pragma once

#include <string_view>
#include <vector>

#include "probes/op_kinds.h"

namespace lockstep {

// The names in kernels/lockstep_ops.h of the ops that make tensors of that kind.
std::vector<std::string_view> op_names_of(OpKind kind);

// Whether an op that is called under the name of a point makes the tensor of that point. The rows
// that logits are made of are gathered under the name of the logits, and are not.
bool makes(std::string_view op, std::string_view point);

}  // namespace lockstep
