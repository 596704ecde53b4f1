#pragma once

#include "kernels/ops.h"

namespace lockstep {

// A table of ops that stages its arguments: it copies those of a call to device `to`, calls `ops`
// there, and copies the first one, the output, back (of kv_write, the cache). Host code can so
// stand around the ops of a CUDA device: staged_on(ops, cuda) is a table for host tensors, which
// staged on the host is a table for device tensors again. Slow: every call copies weights and
// cache.
Ops staged_on(const Ops& ops, Device to);

}  // namespace lockstep
