// The sums of serial_sum.h on a CUDA device, a thread a row: to bring the rows to the host takes
// longer. Numbers are fp64 in the device's memory, and the kernel is queued on its default stream,
// as LibTorch's are.
#pragma once

#include <cstdint>

namespace lockstep {

bool has_serial_sum_kernels();  // as has_attention_kernels()
// x: [count, width]. errors: filled in, one a row, with the same bits as the host makes of it.
void serial_squares(int gpu, const double* x, int64_t count, int64_t width, double* errors);

}  // namespace lockstep
