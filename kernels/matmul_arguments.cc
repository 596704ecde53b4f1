// The checks of matmul and of what experts do, apart from the CPU code, so that the CUDA library,
// which shares them, has no need of oneDNN.
#include "kernels/base/arguments.h"
#include "kernels/experts.h"
#include "kernels/matmul.h"

namespace lockstep {

void check_matmul(TensorView out, TensorView x, const WeightView& of, TensorView bias,
                  DeviceKind device) {
  constexpr auto kOp = "matmul";
  const TensorView& weight = plain_codes(kOp, of);
  check_storage(kOp, x.dtype);
  check_rank(kOp, "x", x, 2);
  check_rank(kOp, "weight", weight, 2);
  const int64_t tokens = x.rows(), n = weight.rows(), k = x.shape[1];
  if (k <= 0)
    fail("matmul wants x with a last axis of at least 1 element, found the shape {}",
         x.shape.text());
  check_tensor(kOp, "x", x, x.dtype, x.shape, device);
  check_tensor(kOp, "weight", weight, x.dtype, {n, k}, device);
  check_tensor(kOp, "out", out, x.dtype, {tokens, n}, device);
  if (!bias.empty()) check_tensor(kOp, "bias", bias, x.dtype, {n}, device);
}

void check_expert_matmul(TensorView out, TensorView x, TensorView index,
                         const std::vector<TensorView>& weights, DeviceKind device) {
  constexpr auto kOp = "expert_matmul";
  check_storage(kOp, x.dtype);
  check_rank(kOp, "index", index, 2);
  check(!weights.empty(), "{} wants the weight of at least one expert, found none", kOp);
  check_rank(kOp, "weights", weights[0], 2);
  const int64_t tokens = index.rows(), k = index.shape[1];
  const int64_t n = weights[0].rows(), in = weights[0].shape[1];
  check_tensor(kOp, "index", index, DType::i32, index.shape, device);
  check_tensor(kOp, "x", x, x.dtype, x.shape.rank() == 2 ? Shape{tokens, in} : Shape{tokens, k, in},
               device);
  check_tensor(kOp, "out", out, x.dtype, {tokens, k, n}, device);
  for (const TensorView& weight : weights)
    check_tensor(kOp, "weights", weight, x.dtype, {n, in}, device);
}

void check_weighted_sum(TensorView out, TensorView x, TensorView weights, DeviceKind device) {
  constexpr auto kOp = "weighted_sum";
  check_storage(kOp, x.dtype);
  check_rank(kOp, "x", x, 3);
  const int64_t tokens = x.rows(), k = x.shape[1], width = x.shape[2];
  check_tensor(kOp, "x", x, x.dtype, x.shape, device);
  check_tensor(kOp, "weights", weights, x.dtype, {tokens, k}, device);
  check_tensor(kOp, "out", out, x.dtype, {tokens, width}, device);
}

}  // namespace lockstep
