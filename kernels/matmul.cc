#include "kernels/matmul.h"

#include "kernels/base/arguments.h"
#include "kernels/cpu/matmul_onednn.h"
#include "kernels/cpu/matmul_rows.h"

namespace lockstep {
namespace {

constexpr int64_t kFewTokens = 8;  // up to here the time is that of reading the weights

}  // namespace

// Few tokens are bound by reading the weight, where our own loop is as fast and has no overhead;
// many go to oneDNN where it has the dtype.
void matmul(const OpContext& context, TensorView out, TensorView x, WeightView weight,
            TensorView bias) {
  check_matmul(out, x, weight, bias, DeviceKind::cpu);
  if (out.count() == 0) return;
  if (x.rows() <= kFewTokens || !onednn_has(x.dtype))
    matmul_rows(context, out, x, weight.codes, bias);
  else
    matmul_onednn(context, out, x, weight.codes, bias);
}

std::string_view matmul_path(DType dtype) {
  check_storage("matmul", dtype);
  if (onednn_has(dtype)) return "oneDNN";
  return dtype == DType::bf16 ? "built-in (this CPU has no bf16 products)"
                              : "built-in (oneDNN has no fp16 products on CPUs)";
}

}  // namespace lockstep
