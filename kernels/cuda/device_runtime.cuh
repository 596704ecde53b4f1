#pragma once

#include "kernels/base/memory.h"
#include "kernels/cuda/device.cuh"

namespace lockstep {

// The runtime of a CUDA device, whose memory comes from an arena that keeps what is released. Work
// on one device is taken to be on one stream at a time.
DeviceRuntime cuda_runtime(int index);

// DeviceRuntime::sample, ::copy_parts and ::fill, of the current device.
DeviceSampler sample_on_device;
void copy_parts_on_device(std::span<const CopyPart> parts, CUstream_st* stream);
void fill_on_device(void* to, const void* from, int64_t bytes, const CopyPart& then,
                    CUstream_st* stream);

}  // namespace lockstep
