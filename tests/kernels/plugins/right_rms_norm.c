// A user's kernel that is right: the sum of squares in double, one rounding at the store.
#include <math.h>
#include <stddef.h>

#include "kernels/lockstep_ops.h"
#include "tests/kernels/plugins/elements.inc"

int32_t lockstep_ops_abi(void) { return LOCKSTEP_OPS_ABI; }

const char* lockstep_rms_norm(const LockstepCall* call, const DLTensor* out, const DLTensor* x,
                              const DLTensor* weight, float eps) {
  (void)call;
  if (x->device.device_type != kDLCPU) return "it runs on the CPU: leave out --device cuda";
  if (x->dtype.bits != 32 && x->dtype.code != kDLBfloat) return "it knows fp32 and bf16 only";
  const int64_t width = weight->shape[0];
  int64_t rows = 1;
  for (int axis = 0; axis + 1 < x->ndim; ++axis) rows *= x->shape[axis];
  for (int64_t row = 0; row < rows; ++row) {
    double squares = 0;
    for (int64_t i = 0; i < width; ++i) {
      const double value = load(x, row * width + i);
      squares += value * value;
    }
    const double scale = 1 / sqrt(squares / (double)width + eps);
    for (int64_t i = 0; i < width; ++i)
      store(out, row * width + i, (float)(load(x, row * width + i) * scale * load(weight, i)));
  }
  return NULL;
}
