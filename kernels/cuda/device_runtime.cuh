#pragma once

#include "kernels/base/memory.h"
#include "kernels/cuda/device.cuh"

namespace lockstep {

// The runtime of a CUDA device, whose memory comes from an arena that keeps what is released. Work
// on one device is taken to be on one stream at a time.
DeviceRuntime cuda_runtime(int index);

// DeviceRuntime::sample.
DeviceSampler sample_on_device;

}  // namespace lockstep
