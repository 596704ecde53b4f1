// The sums of serial_sum.h on a CUDA device, a thread a row: to bring the rows to the host takes
// longer. Numbers are fp64 in the device's memory.
#pragma once

#include <cstdint>

#include "reference/kernel_queue.h"

namespace lockstep {

bool has_serial_sum_kernels();  // as has_attention_kernels()
// x: [count, width]. errors: filled in, one a row, with the same bits as the host makes of it.
void serial_squares(const KernelQueue& queue, const double* x, int64_t count, int64_t width,
                    double* errors);

}  // namespace lockstep
