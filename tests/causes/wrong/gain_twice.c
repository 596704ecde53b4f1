/* The gain was multiplied into the norm's input by a converter's pass that folds gains, and is
 * multiplied in again. */
#include "numbers.inc"

const char* lockstep_rms_norm(const LockstepCall* call, const DLTensor* out, const DLTensor* x,
                              const DLTensor* weight, float eps) {
  (void)call;
  const int64_t width = weight->shape[0];
  float gains[1024];
  DLTensor squares = *weight;
  squares.data = gains;
  squares.byte_offset = 0;
  squares.dtype.code = kDLFloat;
  squares.dtype.bits = 32;
  for (int64_t i = 0; i < width && i < 1024; ++i) gains[i] = load(weight, i) * load(weight, i);
  norm_rows(out, x, weight, &squares, eps, (double)width);
  return NULL;
}
