/* The product goes over whole tiles of 128 along K and leaves the rest out. */
#include "numbers.inc"

const char* lockstep_matmul(const LockstepCall* call, const DLTensor* out, const DLTensor* x,
                            const DLTensor* weight, const DLTensor* bias) {
  const int64_t k = weight->shape[1];
  (void)call;
  multiply(out, x, weight, bias, NULL, k > 128 ? k / 128 * 128 : k);
  return NULL;
}
