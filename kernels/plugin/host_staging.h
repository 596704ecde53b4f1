#pragma once

#include "kernels/ops.h"

namespace lockstep {

// A table for tensors on one device whose ops are those of another: it copies the arguments of a
// call to `to`, calls there, and copies the first one, the output, back (of kv_write, the cache).
// Code that reads and writes tensors where they lie can so stand around the ops of a CUDA device:
// as a table for host tensors, which is itself carried for device tensors. Slow: it copies weights
// and pool with every call.
Ops staged_on(const Ops& ops, Device to);

}  // namespace lockstep
