#pragma once

#include <string>

#include "kernels/bench/device_roofs.h"
#include "kernels/ops.h"

namespace lockstep {

// Makes the device that --device names ready for this process: "cpu", "cuda" or "cuda:1". Several
// may be open. Throws Error when the text is none of those, this build has no CUDA, or the machine
// has no such device. Loads liblockstep_cuda.so when a CUDA device is first named. Not for several
// threads at once.
Device open_device(const std::string& name);

// How many CUDA devices this process can use. Throws Error when this build has no CUDA.
int cuda_devices();

// The ops of a device that was opened. Throws Error for a CUDA device that was not opened.
Ops ops_of(Device device);
// Its kernels with bugs (kernels/faults/broken_ops.h); null for the CPU, which has none.
const Ops* broken_ops_of(Device device);
// Its number among those of its kind; -1 for the CPU.
int number_of(Device device);
// The kernels that measure the CUDA device that was opened. Throws Error when none was.
const RoofKernels& roof_kernels();

}  // namespace lockstep
