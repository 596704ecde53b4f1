// Exact results beside what a dtype makes of them, an op of LibTorch a step over all elements.
#pragma once

#include "kernels/base/dtype.h"

namespace at {
class Tensor;
}

namespace lockstep {

// The distance of neighbours around x, of numbers that are finite.
at::Tensor spacing_around(const at::Tensor& x, const FloatFormat& format);
// The chance that a result is another number than its exact one rounded where many lie on the
// border of two (turned() of src/judge/budget.cc). inner: how far a kernel may be off before it
// rounds.
at::Tensor turned_chance(const at::Tensor& want, const at::Tensor& spacing, const at::Tensor& inner,
                         const at::Tensor& chance);
// slice_misround() of src/judge/budget_loops.h.
at::Tensor slice_chance(const at::Tensor& want, const at::Tensor& spacing,
                        const at::Tensor& deviation, double misrounds, double usual);
// hash_of_row() of src/stats/row_loops.h, of each row of [rows, columns]: the bits of the sum, as a
// number of fp64 that nobody computes with.
at::Tensor hashes_of(const at::Tensor& want, const at::Tensor& got);

}  // namespace lockstep
