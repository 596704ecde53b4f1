// A tensor of DLPack's, as Lockstep has them: dense, in host memory.
//
// The room of the capture library, liblockstep_trace.so: other engines hand in DLPack tensors
// through traces/lockstep_trace.h, and passes in this project's own form go to a trace writer. It
// links neither CUDA nor LibTorch; a device's memory is read through CUDA's driver, in the context
// that the engine has open (device_copy.h).
#pragma once

#include <string>

#include "kernels/base/memory.h"
#include "traces/lockstep_trace.h"

namespace lockstep {

// A copy of the tensor: bf16, fp16 and fp32 as they are, int32 and int64 as int32. stream: that of
// its device. Throws Error, naming `what`, for another dtype, more than 5 axes, or a device that
// cannot be read. It is done when this returns: the caller's memory is not kept.
Tensor dense_copy(const DLTensor& tensor, void* stream, const std::string& what);

}  // namespace lockstep
