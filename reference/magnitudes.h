// Sums of sizes, sum |x||W|, which budgets are made of: they need few digits, and no sum less than
// the exact one.
#pragma once

namespace at {
class Tensor;
}

namespace lockstep {

// x |w|^T of x [rows, terms], which has no number below 0, and w [outputs, terms], both fp32 in
// host memory: fp64 [rows, outputs], no element below the exact one, and none above it by more than
// 2e-5 of it. A quarter of the time of the same in fp64. Undefined where a sum is so small or
// large, or no number, that fp32 cannot say: ask fp64 then.
at::Tensor magnitudes_in_fp32(const at::Tensor& x, const at::Tensor& w);

}  // namespace lockstep
