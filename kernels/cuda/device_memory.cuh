#pragma once

#include "kernels/base/memory.h"
#include "kernels/cuda/device.cuh"

namespace lockstep {

// Memory of the current device, from an arena that keeps what is released. Work is taken to be on
// one stream at a time.
DeviceMemory device_memory();

// DeviceMemory::sample.
DeviceSampler sample_on_device;

}  // namespace lockstep
