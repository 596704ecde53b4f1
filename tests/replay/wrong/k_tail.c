/* A product without the last inputs of every row, and a SiLU that is right. */
#include "tests/causes/wrong/numbers.inc"

const char* lockstep_matmul(const LockstepCall* call, const DLTensor* out, const DLTensor* x,
                            const DLTensor* weight, const DLTensor* bias) {
  (void)call;
  multiply(out, x, weight, bias, NULL, weight->shape[1] - 5);
  return NULL;
}
