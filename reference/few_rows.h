// Products of a few rows with a large weight, as in decoding: there the time goes into reading and
// widening the weight, which LibTorch does one after the other, and here one pass does.
#pragma once

namespace at {
class Tensor;
}

namespace lockstep {

// x w^T in fp64, of x [rows, terms] in fp64 and w [outputs, terms] in fp32, both in host memory
// with rows that lie together: into y [rows, outputs]. sizes: [rows, outputs] too, for sum |x||w|;
// null: not asked for. Rows of y and sizes may lie apart.
void multiply_few_rows(const at::Tensor& x, const at::Tensor& w, at::Tensor& y, at::Tensor* sizes);

}  // namespace lockstep
