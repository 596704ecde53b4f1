#pragma once

#include <span>
#include <vector>

#include "kernels/base/memory.h"
#include "src/judge/oracle.h"

namespace lockstep {

// The standard deviations of an attention's K and V, as KeysValues; empty: both are exact.
using KeysValuesDeviation = KeysValues;

// An error of tensors that are known but for one is drawn so many times, each time through all ops
// that follow, so that what it does to several elements alike adds up where they meet again.
inline constexpr int64_t kErrorSamples = 16;

// The unknown part of an op's inputs: one standard deviation of each element, fp64 and of the
// input's shape, and samples of the errors, [rows, kErrorSamples, elements of a row] in fp32. Empty
// views: the input is exact.
struct InputErrors {
  std::vector<TensorView> deviations, samples;  // of each of OracleCall::inputs
  KeysValuesDeviation of_cache;
  TensorView k_samples, v_samples;  // of positions
};

// The errors that these bring the result of the op.
struct CarriedErrors {
  std::vector<double> variance;  // by element
  std::vector<float> samples;    // [rows, kErrorSamples, elements of a row]
};

// Returns one standard deviation of what rounding to `dtype` changed, of numbers that were rounded:
// fp64, of their shape.
Tensor deviation_of_rounding(const TensorView& rounded, DType dtype);
// Returns samples of independent errors of that deviation, as in InputErrors, whose signs are drawn
// by `seed`.
std::vector<float> samples_of(std::span<const double> deviation, size_t row_size, uint64_t seed);

// Runs the oracle on inputs that are moved by each sample. Where an op sums over many elements, the
// variance of an element is taken for the product of one of its row and one of its column within a
// head, which are known by many samples each. Where it does not, it is that of independent errors
// of the deviations, in patterns of signs under which two errors that meet in an element (of a pair
// of RoPE, of gate and up) show their squares exactly, or that of the samples, if that is more.
// `want` is the result of the call. Throws Error as the oracle does. A row costs the oracle
// kErrorSamples evaluations, four more where the op sums over nothing, and one more where its
// contract rounds on the way, which would hide small errors.
CarriedErrors carried_errors(Oracle& oracle, const OracleCall& call, const InputErrors& errors,
                             const Exact& want);

}  // namespace lockstep
