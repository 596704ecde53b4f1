#include "kernels/matmul.h"

#include "kernels/arguments.h"
#include "kernels/matmul_onednn.h"
#include "kernels/matmul_rows.h"

namespace lockstep {
namespace {

constexpr int64_t kFewTokens = 8;  // up to here the time is that of reading the weights

}  // namespace

void check_matmul(TensorView out, TensorView x, TensorView weight, TensorView bias, Device device) {
  constexpr auto kOp = "matmul";
  check_storage(kOp, x.dtype);
  check_rank(kOp, "x", x, 2);
  check_rank(kOp, "weight", weight, 2);
  const int64_t tokens = x.rows(), n = weight.rows(), k = x.shape[1];
  check(k > 0, "matmul wants x with a last axis of at least 1 element, found the shape {}",
        x.shape.text());
  check_tensor(kOp, "x", x, x.dtype, x.shape, device);
  check_tensor(kOp, "weight", weight, x.dtype, {n, k}, device);
  check_tensor(kOp, "out", out, x.dtype, {tokens, n}, device);
  if (!bias.empty()) check_tensor(kOp, "bias", bias, x.dtype, {n}, device);
}

void matmul(const OpContext& context, TensorView out, TensorView x, TensorView weight,
            TensorView bias) {
  check_matmul(out, x, weight, bias, Device::cpu);
  if (out.count() == 0) return;
  if (x.rows() <= kFewTokens || !onednn_has(x.dtype))
    matmul_rows(context, out, x, weight, bias);
  else
    matmul_onednn(context, out, x, weight, bias);
}

std::string_view matmul_path(DType dtype) {
  check_storage("matmul", dtype);
  if (onednn_has(dtype)) return "oneDNN";
  return dtype == DType::bf16 ? "built-in (this CPU has no bf16 products)"
                              : "built-in (oneDNN has no fp16 products on CPUs)";
}

}  // namespace lockstep
