/* The mean of a padded row: the squares of 192 elements divided by the 256 of its tile, as Triton
 * kernels that take tl.sum(x * x) / BLOCK had it. */
#include "numbers.inc"

const char* lockstep_rms_norm(const LockstepCall* call, const DLTensor* out, const DLTensor* x,
                              const DLTensor* weight, float eps) {
  (void)call;
  double tile = 1;
  while (tile < (double)weight->shape[0]) tile *= 2;
  norm_rows(out, x, weight, weight, eps, tile);
  return NULL;
}
