#pragma once

#include "kernels/device.cuh"
#include "kernels/digest.h"

namespace lockstep {

// Of the current device.
DigestMaker device_digests();

}  // namespace lockstep
