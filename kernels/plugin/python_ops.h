#pragma once

#include <string>
#include <vector>

#include "kernels/ops.h"

namespace lockstep {

// A table in which some ops are the user's.
struct ReplacedOps {
  Ops ops;
  std::vector<std::string> names;  // of those ops, in the order of kOps
};

// `ops` with the functions of a Python file in the places of the ops, fused ones on the host among
// them, whose names they have. They
// run in a Python process, on tensors on `device` of theirs, one at a time, and each is done when
// it returns; the tensors go there and back through the memory of the host. An op throws Error when
// its function raises an error (with its line), exits, crashes or is interrupted, when it leaves an
// element of its output unwritten, and when it writes beside it or into an input. The process ends
// with the table. Throws Error when the file cannot be read, has no op, or a function that is none
// and is called almost as one.
ReplacedOps with_python_ops(Ops ops, const std::string& path, Device device);

}  // namespace lockstep
