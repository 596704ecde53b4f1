// The numbers of a tensor that another program wrote.
#pragma once

#include <optional>
#include <string>

#include "kernels/base/memory.h"
#include "probes/points.h"
#include "traces/hdf5_file.h"

namespace lockstep {

// The tensor as its point has it: int32 of indices, else bf16, fp16 or fp32. Numbers of fp32 that
// are all numbers of a 16-bit dtype become that where the dataset's attribute `dtype` says so, or,
// without one, the run's dtype does. run: nothing where it is not known yet. Leading axes of one
// element that the point does not have are left out. Throws Error where the numbers or axes are
// others. The numbers are a copy, or the memory that was read; none is ever rounded.
Tensor bare_tensor(const Hdf5File& file, const std::string& path, const Point& point,
                   std::optional<DType> run);

// The dtype of a tensor's numbers, where the point has the run's: a narrower one than it is stored
// in where all are numbers of that. Nothing: it is fp32, and they are too few to tell.
std::optional<DType> dtype_of_numbers(const Tensor& tensor);

}  // namespace lockstep
