#pragma once

#include "kernels/base/memory.h"
#include "kernels/base/stream.h"
#include "kernels/ops.h"

namespace lockstep {

// The exports of the shared library liblockstep_cuda, which is opened for --device cuda only.

// How many CUDA devices this process can use; 0 where there is no driver too.
extern "C" [[gnu::visibility("default")]] int lockstep_cuda_devices();

// Opens a CUDA device: returns the table of the twins, which serve every device that is open, and
// makes its runtime, which the host registers too: the library's own registry is not the host's. A
// device may be opened again, which gives the same memory and streams. Throws Error when there is
// no such device.
extern "C" [[gnu::visibility("default")]] const Ops* lockstep_cuda_ops(int index,
                                                                       DeviceRuntime* runtime);

// The twins, within the library, to be called with the device of their tensors as the current one
// of the thread (on_device.cuh); the header of an op declares its own. Each keeps the contract of
// its op on the stream of `context`, and returns before the work is done. Indices in tensors are
// looked at on the device (bad_index.h). Weights, rotary tables, positions, slots, lengths and page
// tables may be read while the kernel queued before still works: copies may write them, kernels may
// not.

// Those of the fused ops (fused.h).
void add_rms_norm_cuda(const OpContext& context, TensorView out, const AddNormInput& input);
void qkv_matmul_cuda(const OpContext& context, std::span<const Linear> all, TensorView x,
                     const AddNormInput* input);
void qk_norm_rope_kv_write_cuda(const OpContext& context, const QkNormRopeKvWrite& heads);
void gate_up_silu_cuda(const OpContext& context, TensorView out, TensorView x,
                       WeightView gate_weight, WeightView up_weight, TensorView gate, TensorView up,
                       const AddNormInput* input);

}  // namespace lockstep
