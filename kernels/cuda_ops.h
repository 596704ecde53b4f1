#pragma once

#include "kernels/memory.h"
#include "kernels/ops.h"
#include "kernels/stream.h"

namespace lockstep {

// The one symbol that the shared library liblockstep_cuda exports, which is opened for --device
// cuda only. Returns the table of the twins that exist (an op without one is an empty entry) and
// says where device memory comes from, which the host passes on to set_cuda_memory: the library's
// own copy of that setting is not the host's.
extern "C" [[gnu::visibility("default")]] const Ops* lockstep_cuda_ops(DeviceMemory* memory);

// The twins, within the library. rms_norm on the stream of `context`, for tensors on the device.
void rms_norm_cuda(const OpContext& context, TensorView out, TensorView x, TensorView weight,
                   float eps);

}  // namespace lockstep
