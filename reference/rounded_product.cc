#include "reference/rounded_product.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>

#include "reference/bridge.h"
#include "reference/rounding.h"

namespace lockstep {

at::Tensor product_under(RoundingContract contract, const at::Tensor& x, at::Tensor& magnitude,
                         at::Tensor& halves, const Multiply& multiply) {
  if (contract == RoundingContract::tf32) {
    // Tensor cores take halves away from zero, LibTorch to even: such operands are either.
    const at::Tensor x_halves = kTf32.halves(x);
    const HeldWeights::Tf32 tf32{&x_halves, &halves};
    return multiply(kTf32.rounded(x), &magnitude, &tf32);
  }
  at::Tensor operand = x;
  if (contract == RoundingContract::operands_bf16) operand = Grid::of(DType::bf16).rounded(x);
  if (contract == RoundingContract::operands_fp16) operand = Grid::of(DType::f16).rounded(x);
  return multiply(operand, &magnitude, nullptr);
}

void put_halves(const at::Tensor& halves, Exact& exact) {
  if (!halves.defined()) return;
  exact.ties = held_numbers(halves);
  exact.tie_squares = held_numbers(halves.square());
}

}  // namespace lockstep
