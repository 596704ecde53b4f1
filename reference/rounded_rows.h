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
// misround_chance() of src/judge/budget_loops.h.
at::Tensor misround_chance(const at::Tensor& deviation, const at::Tensor& spacing, double misrounds,
                           double common);
// Budget::usual_misround of an op with that common part.
double usual_misround(double misrounds, double common);
// Budget::misround_in_gain of an op with those `products` of own_errors().
double misround_in_gain(const at::Tensor& products, DType dtype);
// The relative tolerance of ErrorSums::not_close.
double closeness_of(DType dtype);
// hash_of_row() of src/stats/row_loops.h, of each row of [rows, columns]: the bits of the sum, as a
// number of fp64 that nobody computes with.
at::Tensor hashes_of(const at::Tensor& want, const at::Tensor& got);

}  // namespace lockstep
